//! Snapshots, and groups of them, as the driver answers with them.

use std::time::SystemTime;

use super::{GroupSnapshotId, SnapshotId, Topology, VolumeId};

/// A snapshot that exists.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Snapshot {
    /// Its id.
    pub snapshot_id: SnapshotId,
    /// The volume that it was cut from.
    pub source_volume_id: VolumeId,
    /// How many bytes a volume needs at least to be restored from it; 0 when that is unknown.
    pub size_bytes: u64,
    /// When it was cut.
    pub creation_time: SystemTime,
    /// Whether a volume can be made from it now. While it is not, the caller asks again.
    pub ready_to_use: bool,
    /// The group that it was cut with.
    pub group_snapshot_id: Option<GroupSnapshotId>,
    /// From where it can be restored; empty when there is no constraint. Alpha.
    pub accessible_topology: Vec<Topology>,
}

impl Snapshot {
    /// A snapshot that is ready to use.
    pub fn new(snapshot_id: SnapshotId, source_volume_id: VolumeId, creation_time: SystemTime) -> Self {
        Self {
            snapshot_id,
            source_volume_id,
            size_bytes: 0,
            creation_time,
            ready_to_use: true,
            group_snapshot_id: None,
            accessible_topology: Vec::new(),
        }
    }
}

/// Snapshots that were cut at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct VolumeGroupSnapshot {
    /// The group's id.
    pub group_snapshot_id: GroupSnapshotId,
    /// Its members, at least one.
    pub snapshots: Vec<Snapshot>,
    /// When they were cut.
    pub creation_time: SystemTime,
    /// Whether volumes can be made from all of them now.
    pub ready_to_use: bool,
}

impl VolumeGroupSnapshot {
    /// A group that is ready to use.
    pub fn new(
        group_snapshot_id: GroupSnapshotId,
        snapshots: Vec<Snapshot>,
        creation_time: SystemTime,
    ) -> Self {
        Self { group_snapshot_id, snapshots, creation_time, ready_to_use: true }
    }
}
