//! Snapshots, and groups of them, in a driver's answers.

use std::time::SystemTime;

use csi_proto::v1;
use prost_types::Timestamp;

use super::volume::signed;
use super::{GroupSnapshotId, SnapshotId, Topology, VolumeId};
use crate::error::{Error, Result};
use crate::offer::{Offer, PluginService};

/// An existing snapshot.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Snapshot {
    /// The snapshot's id.
    pub snapshot_id: SnapshotId,
    /// The volume that the snapshot was taken of.
    pub source_volume_id: VolumeId,
    /// The minimum size in bytes of a volume restored from it; 0 if unknown.
    pub size_bytes: u64,
    /// When the snapshot was taken.
    pub creation_time: SystemTime,
    /// Whether a volume can be created from it now. While this is false, the caller asks again.
    pub ready_to_use: bool,
    /// The group that the snapshot was taken with, if any.
    pub group_snapshot_id: Option<GroupSnapshotId>,
    /// From where the snapshot can be restored; empty means no constraint. Alpha.
    pub accessible_topology: Vec<Topology>,
    /// The filesystem of the volume that the snapshot was taken of, if it is known. Not on the wire.
    pub fs_type: Option<String>,
}

impl Snapshot {
    /// Creates a snapshot that is ready to use.
    pub fn new(snapshot_id: SnapshotId, source_volume_id: VolumeId, creation_time: SystemTime) -> Self {
        Self {
            snapshot_id,
            source_volume_id,
            size_bytes: 0,
            creation_time,
            ready_to_use: true,
            group_snapshot_id: None,
            accessible_topology: Vec::new(),
            fs_type: None,
        }
    }
}

/// Snapshots that were taken at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct VolumeGroupSnapshot {
    /// The group's id.
    pub group_snapshot_id: GroupSnapshotId,
    /// The members, at least one.
    pub snapshots: Vec<Snapshot>,
    /// When the snapshots were taken.
    pub creation_time: SystemTime,
    /// Whether volumes can be created from all members now.
    pub ready_to_use: bool,
}

impl VolumeGroupSnapshot {
    /// Creates a group that is ready to use.
    pub fn new(
        group_snapshot_id: GroupSnapshotId,
        snapshots: Vec<Snapshot>,
        creation_time: SystemTime,
    ) -> Self {
        Self { group_snapshot_id, snapshots, creation_time, ready_to_use: true }
    }
}

impl Snapshot {
    /// Checks the spec's rules and returns the wire's form.
    // spec: create-snapshot.answer-complete, create-snapshot.topology-needs-capability
    pub(crate) fn answer(mut self, offer: &Offer) -> Result<v1::Snapshot> {
        if offer.withholds_snapshot_topology {
            self.accessible_topology.clear();
        }
        offer.check_places(
            "snapshot.accessible_topology",
            &self.accessible_topology,
            PluginService::SnapshotAccessibilityConstraints,
        )?;
        Ok(v1::Snapshot {
            size_bytes: signed("snapshot.size_bytes", self.size_bytes)?,
            snapshot_id: self.snapshot_id.into(),
            source_volume_id: self.source_volume_id.into(),
            creation_time: Some(timestamp("snapshot.creation_time", self.creation_time)?),
            ready_to_use: self.ready_to_use,
            group_snapshot_id: self.group_snapshot_id.map_or_else(String::new, Into::into),
            accessible_topology: self.accessible_topology.into_iter().map(Into::into).collect(),
        })
    }
}

impl VolumeGroupSnapshot {
    /// Checks the spec's rules and returns the wire's form. Sets the group's id on the members.
    // spec: create-volume-group-snapshot.answer-complete, create-volume-group-snapshot.members-name-it
    // spec: create-volume-group-snapshot.ready-when-all-are
    pub(crate) fn answer(mut self, offer: &Offer) -> Result<v1::VolumeGroupSnapshot> {
        if self.snapshots.is_empty() {
            return Err(Error::broken("group_snapshot.snapshots is empty"));
        }
        if self.ready_to_use && self.snapshots.iter().any(|snapshot| !snapshot.ready_to_use) {
            return Err(Error::broken(
                "group_snapshot.ready_to_use is set, but a snapshot of it is not ready",
            ));
        }
        for snapshot in &mut self.snapshots {
            let group = snapshot.group_snapshot_id.get_or_insert_with(|| self.group_snapshot_id.clone());
            if *group != self.group_snapshot_id {
                return Err(Error::broken(format!(
                    "group_snapshot.snapshots: {} says that it belongs to group {group}",
                    snapshot.snapshot_id
                )));
            }
        }
        Ok(v1::VolumeGroupSnapshot {
            group_snapshot_id: self.group_snapshot_id.into(),
            snapshots: self.snapshots.into_iter().map(|one| one.answer(offer)).collect::<Result<_>>()?,
            creation_time: Some(timestamp("group_snapshot.creation_time", self.creation_time)?),
            ready_to_use: self.ready_to_use,
        })
    }
}

/// A time on the wire: from the year 1 to the year 9999.
fn timestamp(field: &str, time: SystemTime) -> Result<Timestamp> {
    const FIRST: i64 = -62_135_596_800;
    const LAST: i64 = 253_402_300_799;
    let timestamp = Timestamp::from(time);
    match timestamp.seconds {
        FIRST..=LAST => Ok(timestamp),
        seconds => {
            Err(Error::broken(format!("{field} is {seconds} s from 1970, not in the years 1 to 9999")))
        }
    }
}
