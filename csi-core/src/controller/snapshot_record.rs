//! A snapshot as a driver stores it.

use std::time::SystemTime;

use serde::{Deserialize, Serialize};

use super::snapshot::{CreateSnapshotRequest, same_source};
use crate::error::Result;
use crate::types::{GroupSnapshotId, Snapshot, SnapshotId, Topology, VolumeId};

/// What a snapshot was taken of, and when. A driver stores it next to the snapshot (it serialises with
/// serde), rebuilds the snapshot from it, and compares it with a repeated CreateSnapshot.
///
/// ```
/// # use csi_core::controller::{CreateSnapshotRequest, SnapshotRecord};
/// # use csi_core::types::{Snapshot, SnapshotId};
/// # use csi_core::{Result, prelude::*};
/// # use std::time::SystemTime;
/// # fn create(request: &CreateSnapshotRequest, found: Option<SnapshotRecord>) -> Result<Snapshot> {
/// let id = SnapshotId::from_name(&request.name)?;
/// if let Some(record) = found {
///     record.check(request)?; // ALREADY_EXISTS, when it was taken of another volume
///     return Ok(record.snapshot(id));
/// }
/// let mut snapshot = Snapshot::new(id, request.source_volume_id.clone(), SystemTime::now());
/// snapshot.size_bytes = 1 << 30;
/// let record = SnapshotRecord::new(&snapshot);
/// assert_eq!(record.snapshot(snapshot.snapshot_id.clone()), snapshot);
/// # Ok(snapshot) }
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SnapshotRecord {
    source_volume_id: VolumeId,
    size_bytes: u64,
    creation_time: SystemTime,
    ready_to_use: bool,
    group_snapshot_id: Option<GroupSnapshotId>,
    accessible_topology: Vec<Topology>,
    #[serde(default)]
    fs_type: Option<String>,
}

impl SnapshotRecord {
    /// Creates the record of this snapshot. Of all fields only the id is not in it: a driver stores the
    /// record under the id.
    pub fn new(snapshot: &Snapshot) -> Self {
        Self {
            source_volume_id: snapshot.source_volume_id.clone(),
            size_bytes: snapshot.size_bytes,
            creation_time: snapshot.creation_time,
            ready_to_use: snapshot.ready_to_use,
            group_snapshot_id: snapshot.group_snapshot_id.clone(),
            accessible_topology: snapshot.accessible_topology.clone(),
            fs_type: snapshot.fs_type.clone(),
        }
    }

    /// Rebuilds the snapshot from this record.
    pub fn snapshot(&self, snapshot_id: SnapshotId) -> Snapshot {
        let mut snapshot = Snapshot::new(snapshot_id, self.source_volume_id.clone(), self.creation_time);
        snapshot.size_bytes = self.size_bytes;
        snapshot.ready_to_use = self.ready_to_use;
        snapshot.group_snapshot_id.clone_from(&self.group_snapshot_id);
        snapshot.accessible_topology.clone_from(&self.accessible_topology);
        snapshot.fs_type.clone_from(&self.fs_type);
        snapshot
    }

    /// The volume that the snapshot was taken of.
    pub fn source_volume_id(&self) -> &VolumeId {
        &self.source_volume_id
    }

    /// The filesystem of the volume that the snapshot was taken of, if it is known.
    pub fn fs_type(&self) -> Option<&str> {
        self.fs_type.as_deref()
    }

    /// The minimum size in bytes of a volume restored from the snapshot; 0 if unknown.
    pub fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    /// The group that the snapshot was taken with, if any.
    pub fn group_snapshot_id(&self) -> Option<&GroupSnapshotId> {
        self.group_snapshot_id.as_ref()
    }

    /// Checks that the request asks for the existing snapshot: one of the same volume.
    ///
    /// Parameters are not compared, as the spec says nothing about them, and a class can change between two
    /// calls. The framework itself checks the topology of the answer.
    ///
    /// # Errors
    /// [`Error::Incompatible`](crate::Error::Incompatible) (ALREADY_EXISTS) naming the field that differs.
    pub fn check(&self, request: &CreateSnapshotRequest) -> Result<()> {
        same_source(&self.source_volume_id, request.source_volume_id.as_str())
    }
}

#[cfg(test)]
mod tests {
    use crate::error::Error;
    use csi_proto::v1;

    use super::*;
    use std::time::Duration;

    #[test]
    fn a_snapshot_survives_the_round_trip_through_json() {
        let taken = SystemTime::UNIX_EPOCH + Duration::new(1_700_000_000, 5);
        let mut snapshot = Snapshot::new(SnapshotId::new("s").unwrap(), VolumeId::new("v").unwrap(), taken);
        snapshot.size_bytes = 7;
        snapshot.ready_to_use = false;
        snapshot.group_snapshot_id = Some(GroupSnapshotId::new("g").unwrap());
        snapshot.accessible_topology = vec![Topology::new("zone", "z1").and("rack", "r")];
        let json = serde_json::to_string(&SnapshotRecord::new(&snapshot)).unwrap();
        let record: SnapshotRecord = serde_json::from_str(&json).unwrap();
        assert_eq!(record.snapshot(snapshot.snapshot_id.clone()), snapshot);
        let bad = json.replace(r#""v""#, r#""""#);
        let error = serde_json::from_str::<SnapshotRecord>(&bad).unwrap_err();
        assert!(error.to_string().starts_with("volume_id: is required"), "{error}");
    }

    // spec: create-snapshot.other-source
    #[test]
    fn a_request_for_another_volume_is_incompatible() {
        let of = |volume: &str| -> CreateSnapshotRequest {
            let name = "n".to_owned();
            let source_volume_id = volume.to_owned();
            let wire = v1::CreateSnapshotRequest { name, source_volume_id, ..Default::default() };
            wire.try_into().unwrap()
        };
        let snapshot = SnapshotId::new("s").unwrap();
        let volume = VolumeId::new("v").unwrap();
        let record = SnapshotRecord::new(&Snapshot::new(snapshot, volume, SystemTime::now()));
        record.check(&of("v")).unwrap();
        let error = record.check(&of("w")).unwrap_err();
        assert!(
            matches!(&error, Error::Incompatible(text) if text.as_str().starts_with("source_volume_id:"))
        );
    }
}
