//! The records of volumes, snapshots and groups.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::SystemTime;

use csi_core::controller::{CreateRecord, VolumeListing};
use csi_core::types::{GroupSnapshotId, Snapshot, SnapshotId, VolumeGroupSnapshot};
use csi_core::{Result, Volume, VolumeId};
use serde::{Deserialize, Serialize};

use crate::kind::Kind;
use crate::parameters::Mutable;
use crate::store::Record;

/// A volume.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct VolumeRecord {
    pub(crate) name: String,
    pub(crate) kind: Kind,
    pub(crate) pool: String,
    pub(crate) mutable: Mutable,
    pub(crate) created: CreateRecord,
    /// The attachments, by node.
    pub(crate) attached: BTreeMap<String, AttachedAs>,
    /// Whether it was created as a mount volume, and not as a raw device.
    #[serde(default)]
    pub(crate) filesystem: bool,
}

/// An inline volume: all fields of a [volume](VolumeRecord), and its own.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct InlineRecord {
    #[serde(flatten)]
    pub(crate) volume: VolumeRecord,
    /// Whether its publish succeeded, so that the orchestrator will unpublish it.
    pub(crate) published: bool,
    /// Where its pod has it, once that is so.
    #[serde(default)]
    pub(crate) target: PathBuf,
}

/// How a volume is attached to a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct AttachedAs {
    pub(crate) readonly: bool,
    /// The access mode and type, in the spec's words.
    pub(crate) capability: String,
    /// Whether no other node is allowed to attach it.
    pub(crate) alone: bool,
    /// Whether this node writes, and no other node is allowed to.
    pub(crate) only_writer: bool,
    /// Whether it is attached for a mount, and not as a raw device.
    #[serde(default)]
    pub(crate) filesystem: bool,
}

/// A snapshot.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct SnapshotRecord {
    /// `None` for a member of a group.
    pub(crate) name: Option<String>,
    pub(crate) kind: Kind,
    pub(crate) pool: String,
    /// A group in it that does not exist was never finished, or is partly deleted.
    pub(crate) taken: csi_core::controller::SnapshotRecord,
}

/// A group snapshot. Its members refer to it. They exist only if this record does.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct GroupRecord {
    pub(crate) name: String,
    pub(crate) members: Vec<String>,
    pub(crate) cut: SystemTime,
}

impl Record for VolumeRecord {
    fn name(&self) -> Option<&str> {
        Some(&self.name)
    }
}

impl Record for InlineRecord {}

impl Record for SnapshotRecord {
    fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }
}

impl Record for GroupRecord {
    fn name(&self) -> Option<&str> {
        Some(&self.name)
    }
}

impl VolumeRecord {
    /// Whether a node that has the volume as a device mounts it too, or is about to.
    pub(crate) fn is_filesystem(&self) -> bool {
        if self.attached.is_empty() {
            self.filesystem
        } else {
            self.attached.values().all(|one| one.filesystem)
        }
    }

    pub(crate) fn volume(&self, id: &str) -> Result<Volume> {
        Ok(self.created.volume(VolumeId::new(id)?).context("kind", self.kind.name()))
    }

    pub(crate) fn listing(&self, id: &str) -> Result<VolumeListing> {
        let nodes = self.attached.keys().map(csi_core::types::NodeId::new);
        Ok(VolumeListing::new(self.volume(id)?, nodes.collect::<Result<Vec<_>>>()?))
    }
}

impl SnapshotRecord {
    pub(crate) fn snapshot(&self, id: &str) -> Result<Snapshot> {
        Ok(self.taken.snapshot(SnapshotId::new(id)?))
    }
}

impl GroupRecord {
    pub(crate) fn group(&self, id: &str, members: Vec<Snapshot>) -> Result<VolumeGroupSnapshot> {
        Ok(VolumeGroupSnapshot::new(GroupSnapshotId::new(id)?, members, self.cut))
    }
}
