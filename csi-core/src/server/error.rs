//! Why a plugin could not start, or stopped serving.

use std::path::PathBuf;
use std::{error, fmt, io};

use csi_proto::EndpointError;

use crate::error::Error;

/// Why a plugin could not start, or stopped serving. The text says what is wrong and how to fix it.
#[derive(Debug)]
pub struct ServeError(Failure);

/// What a [`ServeError`] is.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The endpoint is missing or not a unix socket.
    Endpoint(EndpointError),
    /// The plugin's parts contradict each other.
    Plugin(String),
    /// The socket can't be created.
    Socket {
        /// The path of the socket.
        path: PathBuf,
        /// Why, and how to fix it.
        reason: String,
    },
    /// The signal handlers can't be installed.
    Signals(io::Error),
    /// The server can't listen on the address for health and metrics.
    #[cfg(feature = "http")]
    Http {
        /// The address.
        address: std::net::SocketAddr,
        /// The cause.
        source: io::Error,
    },
    /// The log can't be set up.
    #[cfg(feature = "log")]
    Log(String),
    /// The kubelet refused the plugin; the text is the kubelet's.
    Refused(String),
    /// The socket was removed while the plugin served on it, and the plugin is configured to stop in this
    /// case ([`SocketRemoval::Stop`](super::SocketRemoval::Stop)).
    SocketRemoved(PathBuf),
    /// The directory of a socket was deleted while it is mounted here.
    DirectoryDeleted(PathBuf),
    /// Another process put something else at the socket's path while the plugin served there.
    SocketTaken(PathBuf),
}

impl fmt::Display for ServeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Failure::Endpoint(error) => error.fmt(f),
            Failure::Plugin(text) => f.write_str(text),
            Failure::Socket { path, reason } => write!(f, "socket {}: {reason}", path.display()),
            Failure::Signals(error) => write!(f, "can't listen for SIGTERM and SIGINT: {error}"),
            #[cfg(feature = "http")]
            Failure::Http { address, source } => {
                write!(f, "health and metrics address {address}: {source}; give another one, or none")
            }
            #[cfg(feature = "log")]
            Failure::Log(text) => write!(f, "log: {text}"),
            Failure::Refused(text) => write!(
                f,
                "the kubelet refused the plugin: {text}; if this is about the node id or the topology: a node keeps \
                 both from one start of the driver to the next, and no two nodes have the same node id (NODE_ID, and \
                 the driver's flags)"
            ),
            Failure::SocketRemoved(path) => {
                write!(f, "socket {}: it was removed while the plugin served on it", path.display())
            }
            Failure::DirectoryDeleted(path) => write!(
                f,
                "socket {}: its directory was deleted; create the directory again, so that a new container finds it",
                path.display()
            ),
            Failure::SocketTaken(path) => write!(
                f,
                "socket {}: another process replaced it while the plugin served on it; find the driver that uses the \
                 same path",
                path.display()
            ),
        }
    }
}

impl error::Error for ServeError {
    fn source(&self) -> Option<&(dyn error::Error + 'static)> {
        match &self.0 {
            Failure::Signals(error) => Some(error),
            #[cfg(feature = "http")]
            Failure::Http { source, .. } => Some(source),
            _ => None,
        }
    }
}

impl ServeError {
    /// Whether the plugin failed before it served anything: a configuration error, which no restart fixes.
    pub fn is_start_up(&self) -> bool {
        !self.is_refused() && !self.is_socket_lost()
    }

    /// Whether the kubelet refused the plugin; the text contains the kubelet's.
    fn is_refused(&self) -> bool {
        matches!(self.0, Failure::Refused(_))
    }

    /// Whether the socket was removed while the plugin served on it, and the plugin is configured to stop in this
    /// case ([`SocketRemoval::Stop`](super::SocketRemoval::Stop)), its directory was deleted under the container, or
    /// another process replaced it.
    pub(crate) fn is_socket_lost(&self) -> bool {
        matches!(self.0, Failure::SocketRemoved(_) | Failure::DirectoryDeleted(_) | Failure::SocketTaken(_))
    }
}

impl From<Failure> for ServeError {
    fn from(failure: Failure) -> Self {
        Self(failure)
    }
}

impl From<EndpointError> for ServeError {
    fn from(error: EndpointError) -> Self {
        Self(Failure::Endpoint(error))
    }
}

/// A driver's own parts could not be made, for example because its storage can't be reached.
impl From<Error> for ServeError {
    fn from(error: Error) -> Self {
        Self(Failure::Plugin(error.to_string()))
    }
}
