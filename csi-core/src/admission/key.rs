//! What an operation can touch, and whether it needs it exclusively.

use std::fmt;
use std::path::{Path, PathBuf};

use csi_proto::Rpc;

/// What an operation touches.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Key {
    /// A volume by the name that it is to get.
    VolumeName(String),
    /// A volume as the controller sees it.
    Volume(String),
    /// One kind of change of a volume, where the driver allows different kinds at the same time.
    Change(String, Rpc),
    /// The set of a volume's attachments: shared by operations on one node, exclusive for operations on all
    /// nodes.
    Attachments(String),
    /// A volume and the node that it is attached to.
    Attachment(String, String),
    /// A snapshot by the name that it is to get.
    SnapshotName(String),
    Snapshot(String),
    /// A group snapshot by the name that it is to get.
    GroupSnapshotName(String),
    GroupSnapshot(String),
    /// A volume as this node sees it.
    NodeVolume(String),
    /// A path on this node at which a volume is staged or published.
    NodePath(PathBuf),
}

impl Key {
    /// A key for a path in any spelling, for example with doubled slashes.
    pub(crate) fn path(path: &Path) -> Self {
        Self::NodePath(path.components().collect())
    }

    /// The kind of key, as `docs/admission.md` names it.
    #[cfg(test)]
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Self::VolumeName(_) => "VolumeName",
            Self::Volume(_) => "Volume",
            Self::Change(..) => "Change",
            Self::Attachments(_) => "Attachments",
            Self::Attachment(..) => "Attachment",
            Self::SnapshotName(_) => "SnapshotName",
            Self::Snapshot(_) => "Snapshot",
            Self::GroupSnapshotName(_) => "GroupSnapshotName",
            Self::GroupSnapshot(_) => "GroupSnapshot",
            Self::NodeVolume(_) => "NodeVolume",
            Self::NodePath(_) => "NodePath",
        }
    }
}

/// For the message to a refused caller.
impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::VolumeName(name) => write!(f, "volume name {name}"),
            Self::Volume(id) | Self::NodeVolume(id) => write!(f, "volume {id}"),
            Self::Change(id, rpc) => write!(f, "{rpc} of volume {id}"),
            Self::Attachments(id) => write!(f, "attachments of volume {id}"),
            Self::Attachment(id, node) => write!(f, "volume {id} on node {node}"),
            Self::SnapshotName(name) => write!(f, "snapshot name {name}"),
            Self::Snapshot(id) => write!(f, "snapshot {id}"),
            Self::GroupSnapshotName(name) => write!(f, "group snapshot name {name}"),
            Self::GroupSnapshot(id) => write!(f, "group snapshot {id}"),
            Self::NodePath(path) => write!(f, "path {}", path.display()),
        }
    }
}

/// One thing that an operation touches, and whether others can touch it at the same time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Claim {
    pub(crate) key: Key,
    pub(crate) exclusive: bool,
    /// Excludes others, except other claims of this kind.
    pub(super) change: bool,
}

impl Claim {
    /// Claims the key exclusively.
    pub(crate) fn alone(key: Key) -> Self {
        Self { key, exclusive: true, change: false }
    }

    /// Claims the key together with others that share it.
    pub(crate) fn shared(key: Key) -> Self {
        Self { key, exclusive: false, change: false }
    }

    /// Claims the key together with others that change it too, and excludes all others.
    pub(crate) fn change(key: Key) -> Self {
        Self { key, exclusive: true, change: true }
    }
}

/// Merges claims so that each key occurs once, with the stronger claim: a group can name a volume twice.
pub(super) fn distinct(mut claims: Vec<Claim>) -> Vec<Claim> {
    claims.sort_by(|one, other| one.key.cmp(&other.key));
    claims.dedup_by(|later, kept| {
        let twice = later.key == kept.key;
        kept.exclusive |= twice && later.exclusive;
        kept.change &= !twice || later.change;
        twice
    });
    claims
}
