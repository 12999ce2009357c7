//! Serves the plugin, and provides a driver's `main`.

use std::process::ExitCode;

use super::Plugin;
use crate::Endpoint;
use crate::server::{self, Ended, ServeError, Stop};

impl Plugin {
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

    /// Like [`serve_until`](Self::serve_until), and also returns whether methods of the driver still run: for
    /// programs that must know this before they give something up, such as a leadership.
    pub async fn serve_until_ended(
        self,
        endpoint: &Endpoint,
        stop: impl Future<Output = ()> + Send + 'static,
    ) -> (Ended, Result<(), ServeError>) {
        self.serve_stopped_by(endpoint, Stop::when(stop)).await
    }

    pub(crate) async fn serve_signals(self, endpoint: &Endpoint) -> (Ended, Result<(), ServeError>) {
        match Stop::signals() {
            Ok(stop) => self.serve_stopped_by(endpoint, stop).await,
            Err(error) => (Ended::Idle, Err(error)),
        }
    }

    async fn serve_stopped_by(mut self, endpoint: &Endpoint, stop: Stop) -> (Ended, Result<(), ServeError>) {
        let settings = self.settings.clone();
        let node_check = self.node_check();
        let extension = std::mem::take(&mut self.extension);
        if let Err(text) = extension.check() {
            return (Ended::Idle, Err(ServeError::Plugin(text)));
        }
        match self.build(endpoint.path()) {
            Ok(adapter) => server::serve(adapter, extension, &settings, endpoint, stop, node_check).await,
            Err(error) => (Ended::Idle, Err(error)),
        }
    }

    /// Runs a driver's whole `main`: [serves](Self::serve) on the socket that `CSI_ENDPOINT` names, and prints
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
            Ok(endpoint) => self.serve_signals(&endpoint).await,
            Err(error) => (Ended::Idle, Err(error.into())),
        };
        exit_code(&name, served)
    }

    /// The check of the node, if this instance serves the Node service and its driver wants the check. The
    /// check logs what it finds; no call waits for it.
    fn node_check(&mut self) -> Option<Box<dyn FnOnce() + Send>> {
        #[cfg(all(feature = "mount", target_os = "linux"))]
        if self.mode.serves(crate::Service::Node)
            && let Some(fitness) = self.node.as_mut().and_then(|node| node.fitness.take())
        {
            let machine = self.machine.clone();
            let (driver, roots) = (self.name.clone(), self.settings.volume_roots());
            return Some(Box::new(move || fitness.look(&machine, &driver, &roots)));
        }
        None
    }
}

/// Prints the error, if any, and returns the matching exit status.
pub(crate) fn exit_code(name: &str, (ended, served): (Ended, Result<(), ServeError>)) -> ExitCode {
    let code = match served {
        Ok(()) => 0,
        Err(error) => {
            eprintln!("{name}: {error}");
            if error.is_start_up() { 2 } else { 1 }
        }
    };
    match ended {
        Ended::Idle => ExitCode::from(code),
        // The runtime would wait for work that might never end.
        Ended::Running => std::process::exit(code.into()),
    }
}
