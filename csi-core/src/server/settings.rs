//! How a plugin is served, apart from its services.

use std::path::PathBuf;
use std::time::Duration;

use tokio::sync::watch;

#[cfg(feature = "http")]
use super::exposition::OwnMetrics;
use super::{CallService, Registration};
use crate::choice::choice;
use crate::error::{Error, Result};

/// What is served apart from the plugin's services, and how.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    pub(crate) socket_mode: u32,
    pub(crate) socket_removal: SocketRemoval,
    /// `None` means as many as the descriptors of the process allow, but at most 1024.
    pub(crate) max_connections: Option<usize>,
    /// How long running operations can continue after the stop request.
    pub(crate) grace: Duration,
    pub(crate) registration: Option<Registration>,
    /// Whether the kubelet has reported that it registered the plugin of this process.
    pub(crate) registered: watch::Sender<bool>,
    /// The calls of the socket, once the plugin serves.
    pub(crate) served: watch::Sender<Option<CallService>>,
    /// The directories in which the driver keeps its own data.
    pub(crate) own_directories: Vec<PathBuf>,
    /// The directories in which the orchestrator keeps targets and staging directories, if they were set.
    pub(crate) volume_roots: Option<Vec<PathBuf>>,
    #[cfg(feature = "http")]
    pub(crate) http_address: Option<std::net::SocketAddr>,
    /// The driver's own metrics.
    #[cfg(feature = "http")]
    pub(crate) own_metrics: Vec<OwnMetrics>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            socket_mode: 0o660,
            socket_removal: SocketRemoval::default(),
            max_connections: None,
            grace: Duration::from_secs(30),
            registration: None,
            registered: watch::Sender::new(false),
            served: watch::Sender::new(None),
            own_directories: Vec::new(),
            volume_roots: None,
            #[cfg(feature = "http")]
            http_address: None,
            #[cfg(feature = "http")]
            own_metrics: Vec::new(),
        }
    }
}

impl Settings {
    /// The directories in which the orchestrator keeps targets and staging directories. If they were not
    /// set, it is the kubelet's directory.
    pub(crate) fn volume_roots(&self) -> Vec<PathBuf> {
        let kubelet = || self.registration.as_ref().and_then(Registration::kubelet_root);
        let default = || vec![kubelet().unwrap_or_else(|| "/var/lib/kubelet".into())];
        self.volume_roots.clone().unwrap_or_else(default)
    }
}

/// What a plugin does when its socket is removed while it serves, for example by a cleanup of the kubelet's
/// directory, or by a script.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum SocketRemoval {
    /// It creates the socket again within a second at the same path. Running calls are not affected. In a container
    /// whose directory for the socket was deleted on the node, it stops: only a new container sees another one.
    #[default]
    Recreate,
    /// It stops with [`ServeError`](crate::server::ServeError), so that its container
    /// is restarted.
    Stop,
}

choice!(SocketRemoval of "socket removal": Recreate = "recreate", Stop = "stop");
