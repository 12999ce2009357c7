//! How a plugin is served, beside its services.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use super::Registration;

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
    /// It stops with [`ServeError::SocketRemoved`](super::ServeError::SocketRemoved), so that its container is started again.
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
