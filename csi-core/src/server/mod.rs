//! Serving a plugin on a unix socket, and what goes with it: registration, health, metrics, and the way to stop.

mod authority;
mod connections;
mod descriptors;
mod endpoint;
#[cfg(feature = "http")]
mod exposition;
mod front;
#[cfg(feature = "grpc-health")]
mod grpc_health;
#[cfg(any(feature = "http", feature = "grpc-health"))]
mod health;
#[cfg(feature = "http")]
mod http;
#[cfg(feature = "http")]
mod process;
mod registration;
mod socket;
mod stop;

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use csi_proto::v1;
use tokio::net::UnixListener;
use tokio::task::JoinSet;
use tonic::service::Routes;

pub use endpoint::Endpoint;
pub use registration::Registration;
pub(crate) use stop::Stop;

use crate::adapters::Adapter;
use crate::plugin::Plugin;
use connections::{Connections, FAREWELL};
use registration::Registrar;
use socket::{Lost, Socket};

/// Why a plugin could not start, or stopped serving. The text says what is wrong and the mend.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServeError {
    /// The endpoint is missing or not a unix socket.
    #[error("{0}")]
    Endpoint(String),
    /// The plugin contradicts itself.
    #[error("{0}")]
    Plugin(String),
    /// The socket can't be made.
    #[error("socket {}: {reason}", path.display())]
    Socket {
        /// Where it was to be.
        path: PathBuf,
        /// Why not, and the mend.
        reason: String,
    },
    /// Signals can't be listened to.
    #[error("can't listen for SIGTERM and SIGINT: {0}")]
    Signals(#[source] std::io::Error),
    /// Nobody can listen on the address for health and metrics.
    #[cfg(feature = "http")]
    #[error("health and metrics address {address}: {source}; give another one, or none")]
    Http {
        /// Where it was to be.
        address: std::net::SocketAddr,
        /// Why not.
        source: std::io::Error,
    },
    /// The log can't be set up.
    #[error("log: {0}")]
    Log(String),
    /// The kubelet does not take the plugin; the text is the kubelet's.
    #[error("the kubelet refused the plugin: {0}")]
    Refused(String),
    /// The socket was removed while the plugin served on it, and the plugin is to stop then
    /// ([`SocketRemoval::Stop`]).
    #[error("socket {}: somebody removed it while the plugin served on it", .0.display())]
    SocketRemoved(PathBuf),
    /// Another process put something else at the socket's path while the plugin served there.
    #[error(
        "socket {}: another process took its place while the plugin served on it; see which driver uses the same path",
        .0.display()
    )]
    SocketTaken(PathBuf),
}

impl ServeError {
    /// Whether it failed before it served anything: a fault of its configuration, which no restart mends.
    pub fn is_start_up(&self) -> bool {
        !matches!(self, Self::Refused(_) | Self::SocketRemoved(_) | Self::SocketTaken(_))
    }
}

/// What is served, and how, beside the plugin's services.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    pub(crate) socket_mode: u32,
    pub(crate) socket_removal: SocketRemoval,
    /// `None`: as many as the process has descriptors for, and no more than anybody needs.
    pub(crate) max_connections: Option<usize>,
    /// How long running operations may go on once it is time to stop.
    pub(crate) grace: Duration,
    pub(crate) registration: Option<Registration>,
    /// Where the driver keeps what is its own.
    pub(crate) own_directories: Vec<PathBuf>,
    /// Where the orchestrator keeps targets and staging directories.
    pub(crate) volume_roots: Vec<PathBuf>,
    #[cfg(feature = "http")]
    pub(crate) http_address: Option<std::net::SocketAddr>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            socket_mode: 0o660,
            socket_removal: SocketRemoval::default(),
            max_connections: None,
            grace: Duration::from_secs(30),
            registration: None,
            own_directories: Vec::new(),
            volume_roots: vec!["/var/lib/kubelet".into()],
            #[cfg(feature = "http")]
            http_address: None,
        }
    }
}

/// What a plugin does when somebody removes its socket while it serves: a cleanup of the kubelet's directory, or a
/// script.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SocketRemoval {
    /// It makes the socket again within a second, in place. Calls that run are not touched.
    #[default]
    MakeAgain,
    /// It stops with [`ServeError::SocketRemoved`], so that its container is started again.
    Stop,
}

impl fmt::Display for SocketRemoval {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::MakeAgain => "make-again",
            Self::Stop => "stop",
        })
    }
}

impl FromStr for SocketRemoval {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        [Self::MakeAgain, Self::Stop]
            .into_iter()
            .find(|removal| removal.to_string() == text)
            .ok_or_else(|| format!("{text:?} is none of make-again, stop"))
    }
}

/// How often to look whether the plugin's socket is still there.
const WATCH: Duration = Duration::from_secs(1);

/// How a plugin ended that was told to stop.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    /// Nothing of it runs any more.
    Idle,
    /// The time of grace was over, and drivers' methods still run.
    Running,
}

/// Serves until `stop`, then lets the operations that run finish within the plugin's time of grace.
pub(crate) async fn serve(
    mut plugin: Plugin,
    endpoint: &Endpoint,
    mut stop: Stop,
) -> (Ended, Result<(), ServeError>) {
    let settings = plugin.settings.clone();
    let look_at_node = plugin.look_at_node();
    let (adapter, served) = match Served::start(plugin, &settings, endpoint, &stop).await {
        Ok(started) => started,
        Err(error) => return (Ended::Idle, Err(error)),
    };
    // Beside the first calls, which need not wait for what it tells the log.
    look_at_node.map(tokio::task::spawn_blocking);
    let result = served.until_stopped(&adapter, &settings, &mut stop).await;
    tracing::info!("stopped");
    let ended = if adapter.0.path.running.list().is_some() { Ended::Running } else { Ended::Idle };
    (ended, result)
}

/// A plugin that has started. What is served besides the socket ends with this.
struct Served {
    path: PathBuf,
    socket: Socket,
    listener: UnixListener,
    connections: Connections,
    registering: JoinSet<Result<(), ServeError>>,
    #[cfg(feature = "http")]
    _health_and_metrics: JoinSet<()>,
}

impl Served {
    async fn start(
        plugin: Plugin,
        settings: &Settings,
        endpoint: &Endpoint,
        stop: &Stop,
    ) -> Result<(Adapter, Self), ServeError> {
        let adapter = plugin.build(endpoint.path())?;
        let metrics = &adapter.0.path.metrics;
        let routes = routes(&adapter)?;
        // A caller that finds the socket finds the port too.
        #[cfg(feature = "http")]
        let health_and_metrics = serve_http(settings, &adapter, stop).await?;
        let (socket, listener) = Socket::bind(endpoint.path(), settings.socket_mode)?;
        let mut registering = JoinSet::new();
        if let Some(registration) = settings.registration.clone() {
            // The kubelet calls as soon as it knows of the plugin: its socket is there by now.
            let registrar = Registrar::bind(registration, &adapter.0.info.name, endpoint)?;
            registering.spawn(registrar.serve(Arc::clone(metrics), stop.clone()));
        }
        let most = descriptors::connections_most(settings.max_connections);
        let connections = Connections::new(routes, Arc::clone(metrics), most, stop.clone());
        tracing::info!(endpoint = %endpoint, max_connections = most, "serving");
        let served = Self {
            path: endpoint.path().to_owned(),
            socket,
            listener,
            connections,
            registering,
            #[cfg(feature = "http")]
            _health_and_metrics: health_and_metrics,
        };
        Ok((adapter, served))
    }

    async fn until_stopped(
        mut self,
        adapter: &Adapter,
        settings: &Settings,
        stop: &mut Stop,
    ) -> Result<(), ServeError> {
        let mut result = self.accept(settings, stop).await;
        // Callers are refused from now on. A failure of the server's own is a reason to stop too.
        drop(self.listener);
        stop.request();
        let path = &adapter.0.path;
        let finished = async {
            self.connections.closed().await;
            // Callers may have left; what they began goes on, for they will ask for it again.
            path.idle().await;
        };
        let told = async {
            tokio::time::sleep(FAREWELL).await;
            if let Some(running) = path.running.list() {
                tracing::info!("waits at most {:?} for what runs: {running}", settings.grace);
            }
            std::future::pending::<()>().await;
        };
        tokio::select! {
            () = finished => {}
            () = told => {}
            () = stop.patience(settings.grace) => match path.running.list() {
                Some(running) => tracing::warn!("stops while this runs, and a retry continues it: {running}"),
                None => tracing::debug!("stops with connections open that have no call"),
            }
        }
        if let Some(Ok(Err(refused))) = self.registering.join_next().await {
            result = Err(refused);
        }
        drop(self.socket);
        result
    }

    /// Serves until it is time to stop.
    async fn accept(&mut self, settings: &Settings, stop: &Stop) -> Result<(), ServeError> {
        loop {
            let lost = tokio::select! {
                never = self.connections.accept(&self.listener) => match never {},
                () = stop.requested() => return Ok(()),
                lost = self.socket.until_lost(WATCH) => lost,
            };
            match (lost, settings.socket_removal) {
                (Lost::Replaced, _) => return Err(ServeError::SocketTaken(self.path.clone())),
                (Lost::Removed, SocketRemoval::Stop) => {
                    return Err(ServeError::SocketRemoved(self.path.clone()));
                }
                (Lost::Removed, SocketRemoval::MakeAgain) => {
                    let again = tokio::select! {
                        again = Socket::make_again(&self.path, settings.socket_mode, WATCH) => again,
                        () = stop.requested() => return Ok(()),
                    };
                    let taken = |_| ServeError::SocketTaken(self.path.clone());
                    (self.socket, self.listener) = again.map_err(taken)?;
                }
            }
        }
    }
}

/// All services of the CSI socket.
fn routes(adapter: &Adapter) -> Result<Routes, ServeError> {
    let routes = Routes::new(v1::identity_server::IdentityServer::new(adapter.clone()))
        .add_service(v1::controller_server::ControllerServer::new(adapter.clone()))
        .add_service(v1::group_controller_server::GroupControllerServer::new(adapter.clone()))
        .add_service(v1::snapshot_metadata_server::SnapshotMetadataServer::new(adapter.clone()))
        .add_service(v1::node_server::NodeServer::new(adapter.clone()));
    #[cfg(feature = "grpc-health")]
    let routes = routes.add_service(grpc_health::service(&adapter.0));
    #[cfg(feature = "grpc-reflection")]
    let routes = {
        let builder = || {
            tonic_reflection::server::Builder::configure()
                .register_encoded_file_descriptor_set(csi_proto::FILE_DESCRIPTOR_SET)
        };
        let refuse = |error| ServeError::Plugin(format!("reflection: {error}"));
        routes
            .add_service(builder().build_v1().map_err(refuse)?)
            .add_service(builder().build_v1alpha().map_err(refuse)?)
    };
    Ok(routes)
}

#[cfg(feature = "http")]
async fn serve_http(settings: &Settings, adapter: &Adapter, stop: &Stop) -> Result<JoinSet<()>, ServeError> {
    let mut serving = JoinSet::new();
    if let Some(address) = settings.http_address {
        let listener = http::bind(address).await?;
        // Port 0 asks for any: this tells which one it is.
        let address = listener.local_addr().unwrap_or(address);
        tracing::info!(%address, "serves health and metrics");
        serving.spawn(http::serve(listener, adapter.0.clone(), stop.clone()));
    }
    Ok(serving)
}
