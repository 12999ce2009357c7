//! Registration with the kubelet, from inside the plugin: no container beside it is needed for that.

use std::path::{Path, PathBuf};
use std::time::Duration;

use csi_proto::pluginregistration as wire;
use tokio::net::UnixListener;
use tokio::sync::mpsc;
use tonic::{Request, Response, Status};
use wire::registration_server::RegistrationServer;

use super::incoming::Incoming;
use super::socket::{Place, Socket};
use super::stop::Stop;
use super::{Endpoint, ServeError};

/// Whoever can write to the socket could pretend to be the kubelet.
const MODE: u32 = 0o600;
/// How often to look whether the socket is still there.
const WATCH: Duration = Duration::from_secs(5);
/// How long the answer to a refusal may take on its way to the kubelet.
const FAREWELL: Duration = Duration::from_secs(2);

/// How the kubelet finds the plugin.
///
/// The plugin's own socket is served first, then `<directory>/<plugin's name>-reg.sock`, by which the kubelet's
/// plugin watcher notices it. The kubelet asks there where the plugin's socket is, and tells whether it took it:
///
/// - it did: that is all. A kubelet that is started anew finds the socket and asks again;
/// - it refused: the plugin stops, with the kubelet's words ([`ServeError::Refused`]).
///
/// When somebody removes the socket, it is made again within seconds. It is gone once the plugin stops.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Registration {
    directory: PathBuf,
    kubelet_socket_path: Option<PathBuf>,
    watch: Duration,
}

impl Registration {
    /// Registers by this directory: the kubelet's `plugins_registry`, as this process sees it.
    pub fn new(directory: impl Into<PathBuf>) -> Self {
        Self { directory: directory.into(), kubelet_socket_path: None, watch: WATCH }
    }

    /// The path by which the kubelet reaches the plugin's socket, where it differs from the endpoint's: the path on
    /// the host, for a plugin in a container.
    #[must_use]
    pub fn kubelet_socket_path(mut self, path: impl Into<PathBuf>) -> Self {
        self.kubelet_socket_path = Some(path.into());
        self
    }

    /// How often to look whether the socket is still there: every 5 seconds unless said otherwise.
    #[must_use]
    pub fn watch_every(mut self, period: Duration) -> Self {
        self.watch = period;
        self
    }
}

/// A registration as it is served.
pub(super) struct Registrar {
    path: PathBuf,
    socket: Socket,
    listener: UnixListener,
    info: wire::PluginInfo,
    watch: Duration,
}

impl Registrar {
    /// Listens for the kubelet, once `endpoint` is listened on.
    pub(super) fn bind(
        registration: Registration,
        name: &str,
        endpoint: &Endpoint,
    ) -> Result<Self, ServeError> {
        let host_path = registration.kubelet_socket_path.as_deref().unwrap_or(endpoint.path());
        let Some(host_path) = host_path.to_str().filter(|path| Path::new(path).is_absolute()) else {
            let text = format!(
                "the kubelet's path of the socket, {}, is not an absolute path in UTF-8: give the path on the host",
                host_path.display()
            );
            return Err(ServeError::Plugin(text));
        };
        let info = wire::PluginInfo {
            r#type: "CSIPlugin".to_owned(),
            name: name.to_owned(),
            endpoint: host_path.to_owned(),
            supported_versions: vec!["1.0.0".to_owned()],
        };
        let path = registration.directory.join(format!("{name}-reg.sock"));
        let (socket, listener) = Socket::bind(&path, MODE)?;
        Ok(Self { path, socket, listener, info, watch: registration.watch })
    }

    /// Serves until it is time to stop. A refusal makes it so.
    pub(super) async fn serve(mut self, stop: Stop) -> Result<(), ServeError> {
        let (refused, mut refusals) = mpsc::channel(1);
        loop {
            tracing::info!(socket = %self.path.display(), kubelet_endpoint = self.info.endpoint, "waits for the kubelet");
            let (end, ended) = tokio::sync::oneshot::channel::<()>();
            let service = Service { info: self.info.clone(), refused: refused.clone() };
            let server = tonic::transport::Server::builder()
                .add_service(RegistrationServer::new(service))
                .serve_with_incoming_shutdown(Incoming::new(self.listener), async { drop(ended.await) });
            let server = tokio::spawn(server);
            let why = tokio::select! {
                () = stop.requested() => Why::Stop,
                Some(message) = refusals.recv() => Why::Refused(message),
                () = until_gone(&self.socket, &self.path, self.watch) => Why::Gone,
            };
            drop(end);
            match why {
                Why::Stop => return Ok(()),
                Why::Refused(message) => {
                    // The kubelet is to have its answer.
                    let _in_time_or_not = tokio::time::timeout(FAREWELL, server).await;
                    stop.request();
                    return Err(ServeError::Refused(message));
                }
                Why::Gone => {}
            }
            let again = tokio::select! {
                () = stop.requested() => return Ok(()),
                again = bind_again(&self.path, self.watch) => again,
            };
            (self.socket, self.listener) = again;
        }
    }
}

/// Why one round of serving ends.
enum Why {
    Stop,
    Refused(String),
    Gone,
}

/// Done when nothing is at the socket's path any more.
async fn until_gone(socket: &Socket, path: &Path, period: Duration) {
    let mut told = false;
    loop {
        tokio::time::sleep(period).await;
        match socket.place() {
            Place::Ours => told = false,
            Place::Gone => {
                tracing::warn!(socket = %path.display(), "somebody removed the registration's socket; it is made again");
                return;
            }
            Place::Others if told => {}
            Place::Others => {
                told = true;
                tracing::warn!(socket = %path.display(), "another process took the registration's socket over");
            }
        }
    }
}

async fn bind_again(path: &Path, period: Duration) -> (Socket, UnixListener) {
    loop {
        match Socket::bind(path, MODE) {
            Ok(bound) => return bound,
            Err(error) => tracing::warn!("the kubelet can't find the plugin: {error}"),
        }
        tokio::time::sleep(period).await;
    }
}

struct Service {
    info: wire::PluginInfo,
    refused: mpsc::Sender<String>,
}

#[tonic::async_trait]
impl wire::registration_server::Registration for Service {
    async fn get_info(&self, _: Request<wire::InfoRequest>) -> Result<Response<wire::PluginInfo>, Status> {
        tracing::debug!("the kubelet asks who is there");
        Ok(Response::new(self.info.clone()))
    }

    async fn notify_registration_status(
        &self,
        request: Request<wire::RegistrationStatus>,
    ) -> Result<Response<wire::RegistrationStatusResponse>, Status> {
        let status = request.into_inner();
        if status.plugin_registered {
            tracing::info!("the kubelet registered the plugin");
        } else {
            let message = match status.error.trim() {
                "" => "it did not say why",
                error => error,
            };
            tracing::error!("the kubelet refused the plugin: {message}");
            // One refusal is enough; there is room for it.
            drop(self.refused.try_send(message.to_owned()));
        }
        Ok(Response::new(wire::RegistrationStatusResponse {}))
    }
}
