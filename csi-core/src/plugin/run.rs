//! Serves the plugin, and provides a driver's `main`.

use std::ffi::OsString;
use std::path::PathBuf;
use std::pin::Pin;
use std::process::ExitCode;

use csi_proto::{Endpoint, escape};
use tokio::task::JoinSet;

use super::Plugin;
use crate::adapters::Adapter;
use crate::blocking::blocking;
#[cfg(all(feature = "mount", target_os = "linux"))]
use crate::node::trim::trim_volumes;
use crate::server::{self, Ended, Failure, ServeError, Stop};

/// See [`Plugin::on_failure`].
pub(super) type OnFailure = Box<dyn FnOnce(&ServeError) -> Pin<Box<dyn Future<Output = ()> + Send>> + Send>;

impl Plugin {
    /// Sets what is done, and waited for, when the plugin can't start or ends with an error: the kubelet refused
    /// it, the socket is another process's, its parts contradict each other. An orchestrator restarts the process
    /// again and again then, and the error is in its log only. With csi-kube's `NodeEvents` it becomes an event of
    /// the node.
    ///
    /// ```
    /// # use csi_core::Plugin;
    /// let plugin = Plugin::new("driver.csi.example.org", "1").on_failure(|error| {
    ///     let text = error.to_string();
    ///     async move { println!("{text}") }
    /// });
    /// ```
    #[must_use]
    pub fn on_failure<F: Future<Output = ()> + Send + 'static>(
        mut self,
        report: impl FnOnce(&ServeError) -> F + Send + 'static,
    ) -> Self {
        self.on_failure = Some(Box::new(|error| Box::pin(report(error))));
        self
    }

    /// The end of a plugin that could not start.
    pub(crate) async fn failed(self, error: ServeError) -> (Ended, Result<(), ServeError>) {
        if let Some(report) = self.on_failure {
            report(&error).await;
        }
        (Ended::Idle, Err(error))
    }

    /// Serves on this endpoint until SIGTERM or SIGINT. Then running operations finish and the socket is
    /// removed.
    ///
    /// # Errors
    /// [`ServeError`] when the plugin can't start; the message says what is wrong and how to fix it.
    pub async fn serve(self, endpoint: &Endpoint) -> Result<(), ServeError> {
        self.serve_signals(endpoint).await.1
    }

    /// Like [`serve`](Self::serve), but stops when the future `stop` completes instead of on a signal: for
    /// tests, and for programs that handle signals themselves.
    ///
    /// # Errors
    /// [`ServeError`] when the plugin can't start.
    pub async fn serve_until(
        self,
        endpoint: &Endpoint,
        stop: impl Future<Output = ()> + Send + 'static,
    ) -> Result<(), ServeError> {
        self.serve_until_ended(endpoint, stop).await.1
    }

    /// See [`serve_until_ended`](crate::internal::serve_until_ended).
    pub(crate) async fn serve_until_ended(
        self,
        endpoint: &Endpoint,
        stop: impl Future<Output = ()> + Send + 'static,
    ) -> (Ended, Result<(), ServeError>) {
        self.serve_stopped_by(endpoint, Stop::when(stop)).await
    }

    pub(crate) async fn serve_signals(self, endpoint: &Endpoint) -> (Ended, Result<(), ServeError>) {
        match Stop::signals() {
            Ok(stop) => self.serve_stopped_by(endpoint, stop).await,
            Err(error) => self.failed(error).await,
        }
    }

    async fn serve_stopped_by(mut self, endpoint: &Endpoint, stop: Stop) -> (Ended, Result<(), ServeError>) {
        let settings = self.settings.clone();
        let node_check = self.node_check();
        let extension = std::mem::take(&mut self.extension);
        if let Err(text) = extension.check() {
            return self.failed(Failure::Plugin(text).into()).await;
        }
        let on_failure = self.on_failure.take();
        let trimming = self.trimming();
        let adoption = self.adoption();
        let served = match self.build_checked(endpoint).await {
            Ok(adapter) => {
                if let Some(adopt) = adoption {
                    let adopt = move || {
                        adopt();
                        Ok(())
                    };
                    if let Err(error) = blocking(adopt).await {
                        tracing::warn!("no volume is taken over: {error}");
                    }
                }
                // It ends with the plugin.
                let mut tasks = JoinSet::new();
                trimming.map(|work| tasks.spawn(work));
                server::serve(adapter, extension, &settings, endpoint, stop, node_check).await
            }
            Err(error) => (Ended::Idle, Err(error)),
        };
        if let (Some(report), Err(error)) = (on_failure, &served.1) {
            report(error).await;
        }
        served
    }

    /// Builds the plugin, and checks what the driver says of its node.
    async fn build_checked(self, endpoint: &Endpoint) -> Result<Adapter, ServeError> {
        let adapter = self.build(endpoint.path())?;
        adapter.0.check_node_info().await.map_err(Failure::Plugin)?;
        Ok(adapter)
    }

    /// Runs a driver's whole `main`: [serves](Self::serve) on the socket that `CSI_ENDPOINT` names, with the
    /// [`volume_roots`](Self::volume_roots) that `VOLUME_ROOTS` names, separated by colons, if it is set, and prints
    /// errors to standard error. The exit status is 0 after a signal, 2 when the plugin could not start, 1 when
    /// serving failed.
    ///
    /// When a driver's method still runs at the end of the grace period, this function ends the process
    /// itself. A runtime would wait without limit for blocking work, for example on a filesystem that
    /// hangs. A program that uses [`serve`](Self::serve) ends its runtime with
    /// [`shutdown_background`](tokio::runtime::Runtime::shutdown_background) instead.
    ///
    /// The driver's documentation must say what the plugin needs from its container: capabilities,
    /// resources, its own directories. The plugin needs none of the orchestrator's own files.
    ///
    /// - spec: `process.long-running`, `process.fails-fast`
    /// - spec: `process.no-files-of-the-host`, `process.needs-documented`
    pub async fn run(self) -> ExitCode {
        let name = self.name.clone();
        let served = match Endpoint::from_env() {
            Ok(endpoint) => self.with_roots(std::env::var_os("VOLUME_ROOTS")).serve_signals(&endpoint).await,
            Err(error) => self.failed(error.into()).await,
        };
        exit_code(&name, served)
    }

    /// With the [`volume_roots`](Self::volume_roots) of this text, as the manifests write it.
    fn with_roots(self, text: Option<OsString>) -> Self {
        match text.filter(|text| !text.is_empty()) {
            Some(text) => self.volume_roots(std::env::split_paths(&text)),
            None => self,
        }
    }

    /// Runs the whole `main` of a driver that has no flags and keeps its volumes below one directory. The environment
    /// variable `variable` names this directory; without it, it is `default`. `--help` lists this variable,
    /// `CSI_ENDPOINT` and `VOLUME_ROOTS`, and any other argument is refused with exit status 2. All else is as for [`run`](Self::run).
    ///
    /// ```no_run
    /// # use std::path::PathBuf;
    /// # use csi_core::Plugin;
    /// # fn plugin(root: PathBuf) -> Plugin { Plugin::new("driver.csi.example.org", "1").own_directory(root) }
    /// #[tokio::main]
    /// async fn main() -> std::process::ExitCode {
    ///     Plugin::run_on_directory("DRIVER_ROOT", "/var/lib/driver", plugin).await
    /// }
    /// ```
    pub async fn run_on_directory(
        variable: &str,
        default: &str,
        plugin: impl FnOnce(PathBuf) -> Self,
    ) -> ExitCode {
        let plugin = plugin(std::env::var_os(variable).unwrap_or(default.into()).into());
        let Some(argument) = std::env::args_os().nth(1) else { return plugin.run().await };
        if argument == "--help" || argument == "-h" {
            println!(
                "{} {} has no flags, and reads these environment variables:\n\n\
                 CSI_ENDPOINT  the unix socket on which it serves: unix:///run/csi/csi.sock\n\
                 VOLUME_ROOTS  the directories of target and staging paths [default: /var/lib/kubelet]\n\
                 {variable:13} the directory for volumes [default: {default}]",
                plugin.name, plugin.vendor_version
            );
            return ExitCode::SUCCESS;
        }
        let argument = argument.to_string_lossy();
        let text = format!("{}: unexpected argument '{argument}'; see --help", plugin.name);
        eprintln!("{}", escape::message(&text));
        ExitCode::from(2)
    }

    /// The work of [`NodeService::trim_volumes`](crate::NodeService::trim_volumes), if this instance serves the Node
    /// service.
    fn trimming(&self) -> Option<Pin<Box<dyn Future<Output = ()> + Send>>> {
        #[cfg(all(feature = "mount", target_os = "linux"))]
        if self.mode.serves(crate::Service::Node)
            && let Some(period) = self.node.as_ref().and_then(|node| node.trim_period)
        {
            let host = self.host.clone();
            return Some(Box::pin(trim_volumes(host, self.name.clone(), self.claims(), period)));
        }
        None
    }

    /// Takes over the volumes of an earlier driver, if this instance serves the Node service and its driver wants it.
    fn adoption(&mut self) -> Option<Box<dyn FnOnce() + Send>> {
        #[cfg(all(feature = "mount", target_os = "linux"))]
        if self.mode.serves(crate::Service::Node)
            && let Some(adoption) = self.node.as_mut().and_then(|node| node.adoption.take())
        {
            let host = self.host.clone();
            let driver = self.name.clone();
            let roots = self.settings.volume_roots();
            return Some(Box::new(move || adoption.run(&host, &driver, &roots)));
        }
        None
    }

    /// The check of the node, if this instance serves the Node service and its driver wants the check. The
    /// check logs what it finds; no call waits for it.
    fn node_check(&mut self) -> Option<Box<dyn FnOnce() + Send>> {
        #[cfg(all(feature = "mount", target_os = "linux"))]
        if self.mode.serves(crate::Service::Node)
            && let Some(fitness) = self.node.as_mut().and_then(|node| node.fitness.take())
        {
            let host = self.host.clone();
            let driver = self.name.clone();
            let roots = self.settings.volume_roots();
            return Some(Box::new(move || fitness.look(&host, &driver, &roots)));
        }
        None
    }
}

/// Prints the error, if any, and returns the matching exit status.
pub(crate) fn exit_code(name: &str, (ended, served): (Ended, Result<(), ServeError>)) -> ExitCode {
    let code = match served {
        Ok(()) => 0,
        Err(error) => {
            eprintln!("{}", escape::message(&format!("{name}: {error}")));
            if error.is_start_up() { 2 } else { 1 }
        }
    };
    match ended {
        Ended::Idle => ExitCode::from(code),
        // The runtime would wait for work that might never end.
        Ended::Running => std::process::exit(code.into()),
    }
}
