//! Serving the plugin, and a driver's `main`.

use std::process::ExitCode;

use super::Plugin;
use crate::server::{self, Ended, Endpoint, ServeError, Stop};

impl Plugin {
    /// Serves on the socket that `CSI_ENDPOINT` names until SIGTERM or SIGINT, lets running operations finish, and
    /// removes the socket.
    ///
    /// # Errors
    /// [`ServeError`] when it can't start; it says what is wrong and the mend.
    pub async fn serve_from_env(self) -> Result<(), ServeError> {
        let endpoint = Endpoint::from_env()?;
        self.serve(&endpoint).await
    }

    /// As [`serve_from_env`](Self::serve_from_env), on this endpoint.
    ///
    /// # Errors
    /// [`ServeError`] when it can't start.
    pub async fn serve(self, endpoint: &Endpoint) -> Result<(), ServeError> {
        self.serve_signals(endpoint).await.1
    }

    /// As [`serve`](Self::serve), until `stop` is done and not until a signal: for tests, and for programs that
    /// have signals of their own.
    ///
    /// # Errors
    /// [`ServeError`] when it can't start.
    pub async fn serve_until(
        self,
        endpoint: &Endpoint,
        stop: impl Future<Output = ()> + Send + 'static,
    ) -> Result<(), ServeError> {
        self.serve_stopped_by(endpoint, Stop::when(stop)).await.1
    }

    pub(crate) async fn serve_signals(self, endpoint: &Endpoint) -> (Ended, Result<(), ServeError>) {
        match Stop::signals() {
            Ok(stop) => self.serve_stopped_by(endpoint, stop).await,
            Err(error) => (Ended::Idle, Err(error)),
        }
    }

    async fn serve_stopped_by(mut self, endpoint: &Endpoint, stop: Stop) -> (Ended, Result<(), ServeError>) {
        let settings = self.settings.clone();
        let look_at_node = self.look_at_node();
        match self.build(endpoint.path()) {
            Ok(adapter) => server::serve(adapter, &settings, endpoint, stop, look_at_node).await,
            Err(error) => (Ended::Idle, Err(error)),
        }
    }

    /// A driver's whole `main`: [`serve_from_env`](Self::serve_from_env), errors printed to standard error, and
    /// the exit status: 0 after a signal, 2 when it could not start, 1 when serving failed.
    ///
    /// When a driver's method still runs at the end of the time of grace, this ends the process itself: a runtime waits
    /// for work that blocks, on a filesystem that hangs say, without limit. A program that uses
    /// [`serve`](Self::serve) ends its runtime with
    /// [`shutdown_background`](tokio::runtime::Runtime::shutdown_background) for that.
    ///
    /// What the plugin needs of its container is for its documents: capabilities, resources, directories of its own.
    /// It asks for none of the orchestrator's own files.
    ///
    /// - spec: `process.long-running`, `process.fails-fast`
    /// - spec: `process.no-files-of-the-host`, `process.needs-documented`
    pub async fn run(self) -> ExitCode {
        let name = self.name.clone();
        let served = match Endpoint::from_env() {
            Ok(endpoint) => self.serve_signals(&endpoint).await,
            Err(error) => (Ended::Idle, Err(error)),
        };
        exit_code(&name, served)
    }

    /// The look at the node, where this instance serves it and its driver wants that. It tells the log what it finds, and
    /// keeps nobody waiting.
    fn look_at_node(&mut self) -> Option<Box<dyn FnOnce() + Send>> {
        #[cfg(all(feature = "mount", target_os = "linux"))]
        if self.mode.serves(crate::Service::Node)
            && let Some(fitness) = self.node.as_mut().and_then(|node| node.fitness.take())
        {
            return Some(Box::new(move || fitness.look()));
        }
        None
    }
}

/// Prints the error, if there is one, and returns the status for it.
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
        // The runtime would wait for work that may never end.
        Ended::Running => std::process::exit(code.into()),
    }
}
