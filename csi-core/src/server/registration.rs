//! Registration with the kubelet from inside the plugin, without a sidecar container.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use csi_proto::pluginregistration as wire;
use csi_proto::{Endpoint, escape};
use tokio::net::UnixListener;
use tokio::sync::{mpsc, watch};
use tonic::{Request, Response, Status};
use wire::registration_server::RegistrationServer;

use super::connections::Connections;
use super::extension::Extension;
use super::services::Services;
use super::socket::{Lost, Socket, check_length};
use super::stop::Stop;
use super::{Failure, ServeError};
use crate::call::metrics::Metrics;

/// A process that can write to the socket could pretend to be the kubelet.
const MODE: u32 = 0o600;
/// How often to check whether the socket still exists.
const WATCH: Duration = Duration::from_secs(5);
/// How long the kubelet can take to receive the answer to its refusal.
const FAREWELL: Duration = Duration::from_secs(2);
/// Only the kubelet calls, over one connection.
const MAX_CONNECTIONS: usize = 8;

/// How the kubelet finds the plugin.
///
/// The plugin first serves its own socket, then `<directory>/<plugin's name>-reg.sock`, which the kubelet's
/// plugin watcher discovers. Over that socket the kubelet asks for the path of the plugin's socket, and
/// reports whether it registered the plugin:
///
/// - registered: nothing more to do. A restarted kubelet finds the socket and asks again;
/// - refused: the plugin stops, with the kubelet's message ([`ServeError`]).
///
/// If the socket is removed, it is created again within seconds. It is removed when the plugin stops.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Registration {
    directory: PathBuf,
    kubelet_socket_path: Option<PathBuf>,
}

impl Registration {
    /// Registers in this directory: the kubelet's `plugins_registry`, as this process sees it.
    pub fn new(directory: impl Into<PathBuf>) -> Self {
        Self { directory: directory.into(), kubelet_socket_path: None }
    }

    pub(crate) fn directory(&self) -> &Path {
        &self.directory
    }

    /// The kubelet's own directory, if the paths show it: its `plugins` directory contains the sockets of
    /// plugins, and its `plugins_registry` lies beside.
    pub(crate) fn kubelet_root(&self) -> Option<PathBuf> {
        let beside = |path: &Path, name: &str| {
            let named = path.ancestors().find(|above| above.file_name().is_some_and(|found| found == name));
            named.and_then(Path::parent).filter(|root| root.parent().is_some()).map(Path::to_owned)
        };
        let socket = self.kubelet_socket_path.as_deref().and_then(|path| beside(path, "plugins"));
        socket.or_else(|| beside(&self.directory, "plugins_registry"))
    }

    /// Sets the path by which the kubelet reaches the plugin's socket, if it differs from the endpoint's:
    /// the path on the host, for a plugin in a container.
    #[must_use]
    pub fn kubelet_socket_path(mut self, path: impl Into<PathBuf>) -> Self {
        self.kubelet_socket_path = Some(path.into());
        self
    }
}

/// A registration that is being served.
pub(super) struct Registrar {
    path: PathBuf,
    socket: Socket,
    listener: UnixListener,
    info: wire::PluginInfo,
    registered: watch::Sender<bool>,
}

impl Registrar {
    /// Listens for the kubelet. The plugin must already listen on `endpoint`.
    pub(super) fn bind(
        registration: Registration,
        registered: watch::Sender<bool>,
        name: &str,
        endpoint: &Endpoint,
    ) -> Result<Self, ServeError> {
        let host_path = registration.kubelet_socket_path.as_deref().unwrap_or(endpoint.path());
        let Some(host_path) = host_path.to_str().filter(|path| Path::new(path).is_absolute()) else {
            let text = format!(
                "the kubelet's path of the socket, {}, is not an absolute path in UTF-8: give the path on the host",
                host_path.display()
            );
            return Err(Failure::Plugin(text).into());
        };
        check_length(Path::new(host_path))
            .map_err(|reason| Failure::Socket { path: host_path.into(), reason })?;
        let info = wire::PluginInfo {
            r#type: "CSIPlugin".to_owned(),
            name: name.to_owned(),
            endpoint: host_path.to_owned(),
            supported_versions: vec!["1.0.0".to_owned()],
        };
        let path = registration.directory.join(format!("{name}-reg.sock"));
        let (socket, listener) = Socket::bind(&path, MODE)?;
        Ok(Self { path, socket, listener, info, registered })
    }

    /// Serves until the stop request. A refusal requests a stop.
    pub(super) async fn serve(mut self, metrics: Arc<Metrics>, stop: Stop) -> Result<(), ServeError> {
        let (refused, mut refusals) = mpsc::channel(1);
        let service = Service { info: self.info.clone(), registered: self.registered.clone(), refused };
        let service = RegistrationServer::new(service);
        let calls = Extension::default().apply(Services::default().add(service));
        let mut connections = Connections::new(calls, metrics, MAX_CONNECTIONS, stop.clone());
        tracing::info!(socket = %self.path.display(), kubelet_endpoint = self.info.endpoint, "waits for the kubelet");
        loop {
            tokio::select! {
                never = connections.accept(&self.listener) => match never {},
                () = stop.requested() => return Ok(()),
                Some(message) = refusals.recv() => {
                    stop.request();
                    // Give the kubelet time to receive its answer.
                    let _in_time_or_not = tokio::time::timeout(FAREWELL, connections.closed()).await;
                    return Err(Failure::Refused(message).into());
                }
                () = until_removed(&self.socket, &self.path, WATCH) => {}
            }
            let again = tokio::select! {
                () = stop.requested() => return Ok(()),
                again = Socket::recreate(&self.path, MODE, WATCH) => again,
            };
            match again {
                Ok(again) => (self.socket, self.listener) = again,
                Err(error) if error.is_socket_lost() => {
                    stop.request();
                    return Err(error);
                }
                Err(error) => tracing::warn!("the kubelet can't find the plugin: {error}"),
            }
        }
    }
}

/// Completes when nothing exists at the socket's path any more.
async fn until_removed(socket: &Socket, path: &Path, period: Duration) {
    let mut told = false;
    loop {
        match socket.wait_until_lost(period).await {
            Lost::Removed => return,
            Lost::Replaced if told => {}
            Lost::Replaced => {
                told = true;
                tracing::warn!(socket = %path.display(), "another process took the registration's socket over");
            }
        }
    }
}

/// The kubelet's message, as a log shows it.
fn shown(message: &str) -> String {
    let shown = escape::message(message.trim());
    if shown.is_empty() { "it gave no reason".to_owned() } else { shown.into_owned() }
}

struct Service {
    info: wire::PluginInfo,
    registered: watch::Sender<bool>,
    refused: mpsc::Sender<String>,
}

#[tonic::async_trait]
impl wire::registration_server::Registration for Service {
    async fn get_info(&self, _: Request<wire::InfoRequest>) -> Result<Response<wire::PluginInfo>, Status> {
        tracing::debug!("the kubelet asks for the plugin's name and socket");
        Ok(Response::new(self.info.clone()))
    }

    async fn notify_registration_status(
        &self,
        request: Request<wire::RegistrationStatus>,
    ) -> Result<Response<wire::RegistrationStatusResponse>, Status> {
        let status = request.into_inner();
        self.registered.send_replace(status.plugin_registered);
        if status.plugin_registered {
            tracing::info!("the kubelet registered the plugin");
        } else {
            let message = shown(&status.error);
            tracing::error!("the kubelet refused the plugin: {message}");
            // The channel has room for one refusal, which is enough.
            drop(self.refused.try_send(message));
        }
        Ok(Response::new(wire::RegistrationStatusResponse {}))
    }
}
