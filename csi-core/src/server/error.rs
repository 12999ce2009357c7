//! Why a plugin could not start, or stopped serving.

use std::path::PathBuf;

use csi_proto::EndpointError;

/// Why a plugin could not start, or stopped serving. The text says what is wrong and how to fix it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServeError {
    /// The endpoint is missing or not a unix socket.
    #[error(transparent)]
    Endpoint(#[from] EndpointError),
    /// The plugin's parts contradict each other.
    #[error("{0}")]
    Plugin(String),
    /// The socket can't be created.
    #[error("socket {}: {reason}", path.display())]
    Socket {
        /// The path of the socket.
        path: PathBuf,
        /// Why, and how to fix it.
        reason: String,
    },
    /// The signal handlers can't be installed.
    #[error("can't listen for SIGTERM and SIGINT: {0}")]
    Signals(#[source] std::io::Error),
    /// The server can't listen on the address for health and metrics.
    #[cfg(feature = "http")]
    #[error("health and metrics address {address}: {source}; give another one, or none")]
    Http {
        /// The address.
        address: std::net::SocketAddr,
        /// The cause.
        source: std::io::Error,
    },
    /// The log can't be set up.
    #[error("log: {0}")]
    Log(String),
    /// The kubelet refused the plugin; the text is the kubelet's.
    #[error("the kubelet refused the plugin: {0}")]
    Refused(String),
    /// The socket was removed while the plugin served on it, and the plugin is configured to stop in this
    /// case ([`SocketRemoval::Stop`](super::SocketRemoval::Stop)).
    #[error("socket {}: it was removed while the plugin served on it", .0.display())]
    SocketRemoved(PathBuf),
    /// Another process put something else at the socket's path while the plugin served there.
    #[error(
        "socket {}: another process replaced it while the plugin served on it; find the driver that uses the same path",
        .0.display()
    )]
    SocketTaken(PathBuf),
}

impl ServeError {
    /// Whether the plugin failed before it served anything: a configuration error, which no restart fixes.
    pub fn is_start_up(&self) -> bool {
        !matches!(self, Self::Refused(_) | Self::SocketRemoved(_) | Self::SocketTaken(_))
    }
}
