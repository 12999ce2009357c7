//! Why a plugin could not start, or stopped serving.

use std::path::PathBuf;

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
    /// ([`SocketRemoval::Stop`](super::SocketRemoval::Stop)).
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
