//! Groups of snapshots. No write can happen between two members, because everything runs under one lock.

use std::collections::BTreeSet;
use std::time::SystemTime;

use csi_core::group_controller::{
    CreateVolumeGroupSnapshotRequest, DeleteVolumeGroupSnapshotRequest, GetVolumeGroupSnapshotRequest,
    GroupController,
};
use csi_core::types::{GroupSnapshotId, SnapshotId, VolumeGroupSnapshot};

use super::*;

impl Memory {
    /// The group, if these are its members.
    fn checked(
        state: &State,
        id: &GroupSnapshotId,
        snapshot_ids: &[SnapshotId],
    ) -> Result<VolumeGroupSnapshot> {
        let found = state.groups.get(id.as_str()).ok_or(Error::GroupSnapshotNotFound(id.clone()))?;
        let members: BTreeSet<_> = found.snapshots.iter().map(|one| &one.snapshot_id).collect();
        if members == snapshot_ids.iter().collect() {
            Ok(found.clone())
        } else {
            Err(Error::invalid("snapshot_ids", "they are not the group's"))
        }
    }
}

#[async_trait]
impl GroupController for Memory {
    async fn create_volume_group_snapshot(
        &self,
        request: CreateVolumeGroupSnapshotRequest,
    ) -> Result<VolumeGroupSnapshot> {
        let id = format!("group-{}", VolumeId::from_name(&request.name)?);
        let mut state = self.state();
        if let Some(group) = state.groups.get(&id) {
            return Ok(group.clone());
        }
        let sources = &request.source_volume_ids;
        if let Some(missing) = sources.iter().find(|one| !state.volumes.contains_key(one.as_str())) {
            return Err(Error::VolumeNotFound(missing.clone()));
        }
        let group_id = GroupSnapshotId::new(id.clone())?;
        let mut members = Vec::new();
        for (at, source) in sources.iter().enumerate() {
            let member = self.cut(&mut state, format!("{id}-{at}"), source)?;
            let known = state.snapshots.get_mut(member.snapshot_id.as_str()).unwrap();
            known.group_snapshot_id = Some(group_id.clone());
            members.push(known.clone());
        }
        let group = VolumeGroupSnapshot::new(group_id, members, SystemTime::now());
        state.groups.insert(id, group.clone());
        Ok(group)
    }

    async fn delete_volume_group_snapshot(&self, request: DeleteVolumeGroupSnapshotRequest) -> Result<()> {
        let mut state = self.state();
        let group = Self::checked(&state, &request.group_snapshot_id, &request.snapshot_ids)?;
        for member in &group.snapshots {
            self.drop_snapshot(&mut state, member.snapshot_id.as_str())?;
        }
        state.groups.remove(request.group_snapshot_id.as_str());
        Ok(())
    }

    async fn volume_group_snapshot(
        &self,
        request: GetVolumeGroupSnapshotRequest,
    ) -> Result<VolumeGroupSnapshot> {
        Self::checked(&self.state(), &request.group_snapshot_id, &request.snapshot_ids)
    }
}
