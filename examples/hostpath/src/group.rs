//! The GroupController service: snapshots of several volumes at one moment, all of them frozen together.

use std::collections::BTreeSet;
use std::time::SystemTime;

use csi_core::group_controller::{
    CreateVolumeGroupSnapshotRequest, DeleteVolumeGroupSnapshotRequest, GetVolumeGroupSnapshotRequest,
    GroupController,
};
use csi_core::types::{GroupSnapshotId, SnapshotId, VolumeGroupSnapshot};
use csi_core::{Error, Result, TypedRequest as _, VolumeId, async_trait, mount};

use crate::controller::{Cut, SnapshotParameters};
use crate::host::{Driver, Host};
use crate::quiesce::Consistency;
use crate::records::GroupRecord;
use crate::store::new_id;

#[async_trait]
impl GroupController for Driver {
    async fn create_volume_group_snapshot(
        &self,
        request: CreateVolumeGroupSnapshotRequest,
    ) -> Result<VolumeGroupSnapshot> {
        let _: SnapshotParameters = request.parameters.parse()?;
        self.with(move |host| match host.groups.by_name(request.name.as_str())? {
            Some((id, record)) => host.group(&id, &record),
            None => host.cut_group(request.host(), request.name.as_str(), &request.source_volume_ids),
        })
        .await
    }

    async fn delete_volume_group_snapshot(&self, request: DeleteVolumeGroupSnapshotRequest) -> Result<()> {
        self.with(move |host| {
            let record = host.group_of(&request.group_snapshot_id, &request.snapshot_ids)?;
            let mut members = Vec::new();
            for id in &record.members {
                members.extend(host.snapshots.find(id)?.map(|member| (id, member)));
            }
            // The group's record goes first: a start deletes members whose group does not exist.
            host.groups.remove(request.group_snapshot_id.as_str())?;
            let removed = members.into_iter().try_for_each(|(id, member)| host.remove_snapshot(id, &member));
            // A retry must find the group, to remove the rest of its members.
            removed.inspect_err(|_| {
                host.groups.keep_half_deleted(request.group_snapshot_id.as_str(), record.into());
            })
        })
        .await
    }

    async fn volume_group_snapshot(
        &self,
        request: GetVolumeGroupSnapshotRequest,
    ) -> Result<VolumeGroupSnapshot> {
        let id = request.group_snapshot_id;
        let record = self.group_of(&id, &request.snapshot_ids)?;
        self.group(id.as_str(), &record)
    }
}

impl Host {
    fn cut_group(&self, node: &mount::Host, name: &str, volumes: &[VolumeId]) -> Result<VolumeGroupSnapshot> {
        let group = GroupSnapshotId::new(new_id()?)?;
        let distinct: BTreeSet<&VolumeId> = volumes.iter().collect();
        let mut sources = Vec::new();
        for id in distinct {
            sources.push((id, self.source(id)?));
        }
        let mut still = Vec::new();
        for (id, source) in &sources {
            still.push(self.quiesce(node, id.as_str(), source, Consistency::Group)?);
        }
        let cut_at = SystemTime::now();
        let mut cuts = Vec::new();
        for (id, source) in &sources {
            cuts.push(self.cut(id, source, None, Some(&group), None)?);
        }
        drop(still);
        for (cut, (_, source)) in cuts.iter().zip(&sources) {
            cut.unshare(source)?;
        }
        self.finish_group(group, name, cuts, cut_at)
    }

    /// Moves the members to their places. The group's record, written last, makes all exist at once.
    fn finish_group(
        &self,
        id: GroupSnapshotId,
        name: &str,
        mut cuts: Vec<Cut>,
        cut: SystemTime,
    ) -> Result<VolumeGroupSnapshot> {
        for cut in &mut cuts {
            self.snapshots.move_to_place(&mut cut.made)?;
        }
        let members = cuts.iter().map(|cut| cut.id.clone()).collect();
        let record = GroupRecord { name: name.to_owned(), members, cut };
        let made = self.groups.make(id.to_string(), record.clone(), |_| Ok(()))?;
        self.groups.commit(made)?;
        for Cut { made, room, .. } in cuts {
            self.snapshots.make_visible(made);
            room.keep();
        }
        self.group(id.as_str(), &record)
    }

    fn group(&self, id: &str, record: &GroupRecord) -> Result<VolumeGroupSnapshot> {
        let mut members = Vec::new();
        for id in &record.members {
            if let Some(member) = self.snapshots.find(id)? {
                members.push(member.snapshot(id)?);
            }
        }
        record.group(id, members)
    }

    /// Returns the group, and checks that `members` are its members.
    fn group_of(&self, id: &GroupSnapshotId, members: &[SnapshotId]) -> Result<GroupRecord> {
        let found = self.groups.find(id.as_str())?.ok_or_else(|| Error::GroupSnapshotNotFound(id.clone()))?;
        let asked: BTreeSet<&str> = members.iter().map(SnapshotId::as_str).collect();
        if asked.is_empty() || found.members.iter().map(String::as_str).collect::<BTreeSet<_>>() == asked {
            Ok(GroupRecord::clone(&found))
        } else {
            Err(Error::invalid("snapshot_ids", "are not the members of the group"))
        }
    }
}
