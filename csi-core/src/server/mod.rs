//! Serving a plugin on a unix socket, and what goes with it: registration, health, metrics, and the way to stop.

mod authority;
mod endpoint;
#[cfg(feature = "http")]
mod exposition;
#[cfg(feature = "grpc-health")]
mod grpc_health;
#[cfg(any(feature = "http", feature = "grpc-health"))]
mod health;
#[cfg(feature = "http")]
mod http;
mod incoming;
mod metrics;
#[cfg(feature = "http")]
mod process;
mod registration;
mod socket;
mod stop;

use std::time::Duration;

use csi_proto::v1;
use tokio::task::JoinSet;

pub use endpoint::Endpoint;
pub(crate) use metrics::Metrics;
pub use registration::Registration;
pub(crate) use stop::Stop;

use crate::adapters::Adapter;
use crate::plugin::Plugin;
use incoming::Incoming;
use registration::Registrar;
use socket::Socket;

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
        path: std::path::PathBuf,
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
    /// The server failed after it had started.
    #[error("serving failed: {0}")]
    Serve(#[source] tonic::transport::Error),
}

impl ServeError {
    /// Whether it failed before it served anything: a fault of its configuration, which no restart mends.
    pub fn is_start_up(&self) -> bool {
        !matches!(self, Self::Serve(_) | Self::Refused(_))
    }
}

/// What is served, and how, beside the plugin's services.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    pub(crate) socket_mode: u32,
    /// How long running operations may go on once it is time to stop.
    pub(crate) grace: Duration,
    pub(crate) registration: Option<Registration>,
    #[cfg(feature = "http")]
    pub(crate) http_address: Option<std::net::SocketAddr>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            socket_mode: 0o660,
            grace: Duration::from_secs(30),
            registration: None,
            #[cfg(feature = "http")]
            http_address: None,
        }
    }
}

/// Serves until `stop`, then lets the operations that run finish within the plugin's time of grace.
pub(crate) async fn serve(mut plugin: Plugin, endpoint: &Endpoint, mut stop: Stop) -> Result<(), ServeError> {
    let settings = plugin.settings.clone();
    let grace = settings.grace;
    let look_at_node = plugin.look_at_node();
    let adapter = plugin.build()?;
    let (socket, listener) = Socket::bind(endpoint.path(), settings.socket_mode)?;
    // What is served beside ends with these at the latest.
    #[cfg(feature = "http")]
    let _health_and_metrics = serve_http(&settings, &adapter, &stop).await?;
    let mut registering = JoinSet::new();
    if let Some(registration) = settings.registration {
        // The kubelet calls as soon as it knows of the plugin: its socket is there by now.
        let registrar = Registrar::bind(registration, &adapter.0.info.name, endpoint)?;
        registering.spawn(registrar.serve(stop.clone()));
    }
    let served = router(&adapter)?.serve_with_incoming_shutdown(Incoming::new(listener), stop.requested());
    tracing::info!(endpoint = %endpoint, "serving");
    // Beside the first calls, which need not wait for what it tells the log.
    look_at_node.map(tokio::task::spawn_blocking);

    let mut result = tokio::select! {
        result = served => result.map_err(ServeError::Serve),
        () = stop.patience(grace) => {
            tracing::warn!("stops with calls unanswered: they took longer than {grace:?} or a second signal came");
            Ok(())
        }
    };
    // A failure of the server's own is a reason to stop too.
    stop.request();
    // Callers may have left; what they began goes on, for they will ask for it again.
    tokio::select! {
        () = adapter.0.path.idle() => {}
        () = stop.patience(grace) => tracing::warn!("stops with operations running; a retry finishes them"),
    }
    if let Some(Ok(Err(refused))) = registering.join_next().await {
        result = Err(refused);
    }
    drop(socket);
    tracing::info!("stopped");
    result
}

/// All services of the CSI socket.
fn router(adapter: &Adapter) -> Result<tonic::transport::server::Router, ServeError> {
    let router = tonic::transport::Server::builder()
        .add_service(v1::identity_server::IdentityServer::new(adapter.clone()))
        .add_service(v1::controller_server::ControllerServer::new(adapter.clone()))
        .add_service(v1::group_controller_server::GroupControllerServer::new(adapter.clone()))
        .add_service(v1::snapshot_metadata_server::SnapshotMetadataServer::new(adapter.clone()))
        .add_service(v1::node_server::NodeServer::new(adapter.clone()));
    #[cfg(feature = "grpc-health")]
    let router = router.add_service(grpc_health::service(&adapter.0));
    #[cfg(feature = "grpc-reflection")]
    let router = {
        let builder = || {
            tonic_reflection::server::Builder::configure()
                .register_encoded_file_descriptor_set(csi_proto::FILE_DESCRIPTOR_SET)
        };
        let refuse = |error| ServeError::Plugin(format!("reflection: {error}"));
        router
            .add_service(builder().build_v1().map_err(refuse)?)
            .add_service(builder().build_v1alpha().map_err(refuse)?)
    };
    Ok(router)
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
