//! Serving a plugin on a unix socket: the endpoint, the socket's file, and the way to stop.

mod authority;
mod endpoint;
mod incoming;
mod socket;
mod stop;

use csi_proto::v1;

pub use endpoint::Endpoint;
pub(crate) use stop::Stop;

use crate::plugin::Plugin;
use incoming::Incoming;
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
    /// The server failed after it had started.
    #[error("serving failed: {0}")]
    Serve(#[source] tonic::transport::Error),
}

impl ServeError {
    /// Whether it failed before it served anything: a fault of its configuration, which no restart mends.
    pub fn is_start_up(&self) -> bool {
        !matches!(self, Self::Serve(_))
    }
}

/// Serves until `stop`, then lets the operations that run finish within the plugin's time of grace.
pub(crate) async fn serve(plugin: Plugin, endpoint: &Endpoint, stop: Stop) -> Result<(), ServeError> {
    let (grace, socket_mode) = (plugin.grace, plugin.socket_mode);
    let adapter = plugin.build()?;
    let (socket, listener) = Socket::bind(endpoint.path(), socket_mode)?;
    tracing::info!(endpoint = %endpoint, "serving");

    let mut stop = stop;
    let stopping = stop.requested();
    let served = tonic::transport::Server::builder()
        .add_service(v1::identity_server::IdentityServer::new(adapter.clone()))
        .add_service(v1::controller_server::ControllerServer::new(adapter.clone()))
        .add_service(v1::group_controller_server::GroupControllerServer::new(adapter.clone()))
        .add_service(v1::snapshot_metadata_server::SnapshotMetadataServer::new(adapter.clone()))
        .add_service(v1::node_server::NodeServer::new(adapter.clone()))
        .serve_with_incoming_shutdown(Incoming::new(listener), stopping);
    tokio::pin!(served);

    let result = tokio::select! {
        result = &mut served => result.map_err(ServeError::Serve),
        () = stop.patience(grace) => {
            tracing::warn!("stops with calls unanswered: they took longer than {grace:?} or a second signal came");
            Ok(())
        }
    };
    // Callers may have left; what they began goes on, for they will ask for it again.
    tokio::select! {
        () = adapter.0.path.idle() => {}
        () = stop.patience(grace) => tracing::warn!("stops with operations running; a retry finishes them"),
    }
    drop(socket);
    tracing::info!("stopped");
    result
}
