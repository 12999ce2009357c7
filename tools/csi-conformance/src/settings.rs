//! The settings of a run: the driver's endpoint, the directories for volumes, and what requests contain.

use std::path::PathBuf;
use std::time::Duration;

use csi_proto::v1::volume_capability::MountVolume;
use csi_proto::{Endpoint, Pairs};

/// A made-up secret, by which the kit detects that a driver reveals secrets.
pub(crate) const CANARY: &str = "conformance-canary-7c1e";

/// Whether the kit sees the mounts that the driver makes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum MountAccess {
    /// The kit is in the node's mount namespace: it checks mounts, and writes and reads files.
    #[default]
    Here,
    /// The kit is elsewhere: volumes are staged and published, but not checked.
    Elsewhere,
}

#[derive(Debug, Clone)]
pub(crate) struct Settings {
    pub(crate) endpoint: Endpoint,
    pub(crate) controller_endpoint: Option<Endpoint>,
    pub(crate) second_node: Option<Endpoint>,
    pub(crate) staging: Option<PathBuf>,
    pub(crate) target: Option<PathBuf>,
    pub(crate) mount_access: MountAccess,
    pub(crate) secrets: Pairs,
    pub(crate) parameters: Pairs,
    pub(crate) mutable_parameters: Pairs,
    pub(crate) volume: Option<(String, Pairs)>,
    pub(crate) unhealthy_volume: Option<String>,
    /// The attributes of inline ephemeral volumes, if the driver supports them.
    pub(crate) ephemeral: Option<Pairs>,
    /// The filesystem of volumes, and their mount flags. The Debug of this type shows no flags.
    pub(crate) mount: MountVolume,
    pub(crate) size: i64,
    pub(crate) enforces_size: bool,
    pub(crate) deadline: Duration,
    pub(crate) journal: Option<PathBuf>,
    pub(crate) strict: bool,
    pub(crate) only: Vec<String>,
    pub(crate) skip: Vec<String>,
}

#[cfg(test)]
mod tests {
    #[test]
    fn nobody_is_shown_the_mount_flags() {
        let kit = crate::Kit::new("/csi.sock".parse().unwrap()).mount_flags(["password=hunter2"]);
        assert!(!format!("{kit:?}").contains("hunter2"), "{kit:?}");
    }
}
