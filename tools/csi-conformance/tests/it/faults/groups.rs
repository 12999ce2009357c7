//! Faults in groups of snapshots.

use std::collections::BTreeMap;
use std::sync::Mutex;

use csi_proto::v1;
use v1::volume_content_source::Type;

use super::*;

/// Refuses a group with a missing volume, but leaves a snapshot of the first volume.
fn half_a_group_is_left() -> Fault {
    only(|request: v1::CreateVolumeGroupSnapshotRequest, behind| async move {
        let answer = behind.ask(&request).await;
        if answer.as_ref().is_err_and(|status| status.code() == Code::NotFound) {
            let source_volume_id = request.source_volume_ids[0].clone();
            let cut =
                v1::CreateSnapshotRequest { source_volume_id, name: request.name, ..Default::default() };
            let _ = behind.ask(&cut).await;
        }
        answer
    })
}

fn members_live_on() -> Fault {
    with_state(Mutex::new(BTreeMap::new()), move |members, rpc, bytes, behind| async move {
        let answer = behind.call(rpc, bytes.clone()).await;
        if rpc == Rpc::CreateVolumeGroupSnapshot
            && let Ok(answer) = &answer
        {
            let group = v1::CreateVolumeGroupSnapshotResponse::decode(&**answer).unwrap().group_snapshot;
            let all = group.unwrap().snapshots.into_iter().map(|one| (one.snapshot_id.clone(), one));
            members.lock().unwrap().extend(all);
        }
        if let Some(get) = asked::<v1::GetSnapshotRequest>(rpc, &bytes)
            && answer.is_err()
            && let Some(snapshot) = members.lock().unwrap().get(&get.snapshot_id).cloned()
        {
            return Ok(v1::GetSnapshotResponse { snapshot: Some(snapshot) }.encode_to_vec());
        }
        answer
    })
}

/// Deletes every snapshot named in the request, also those of no group or of another one.
fn deletes_others_too() -> Fault {
    only(|mut asked: v1::DeleteVolumeGroupSnapshotRequest, behind| async move {
        let mut members = Vec::new();
        for snapshot_id in asked.snapshot_ids {
            let delete = v1::DeleteSnapshotRequest { snapshot_id, ..Default::default() };
            // A snapshot that is a member of a group is refused.
            if behind.ask(&delete).await.is_err() {
                members.push(delete.snapshot_id);
            }
        }
        asked.snapshot_ids = members;
        behind.ask(&asked).await
    })
}

/// Returns a group with the members that the caller named.
fn believes_the_caller() -> Fault {
    only(|asked: v1::GetVolumeGroupSnapshotRequest, behind| async move {
        match behind.ask(&asked).await {
            Err(status) if status.code() == Code::InvalidArgument => {
                let member = |snapshot_id| v1::Snapshot { snapshot_id, ..Default::default() };
                let group = v1::VolumeGroupSnapshot {
                    group_snapshot_id: asked.group_snapshot_id,
                    snapshots: asked.snapshot_ids.into_iter().map(member).collect(),
                    ..Default::default()
                };
                Ok(v1::GetVolumeGroupSnapshotResponse { group_snapshot: Some(group) })
            }
            answer => answer,
        }
    })
}

pub(super) fn all() -> Vec<Mutant> {
    mutants! {
        "a group is cut twice", "groups.same-name-same-group":
            other_names(|r: &mut v1::CreateVolumeGroupSnapshotRequest| &mut r.name);
        "a name that another group has is INTERNAL", "groups.same-name-other-sources":
            code(Rpc::CreateVolumeGroupSnapshot, Code::AlreadyExists, Code::Internal);
        "deleting a member alone is INTERNAL", "groups.not-deleted-alone":
            code(Rpc::DeleteSnapshot, Code::InvalidArgument, Code::Internal);
        "half a group is left", "groups.failure-leaves-nothing": half_a_group_is_left(), leaves_something;
        "members are told after their group is gone", "groups.deleted-together": members_live_on();
        "a member does not name its group", "groups.told-with-group":
            answer::<v1::GetSnapshotRequest>(|a| a.snapshot.as_mut().unwrap().group_snapshot_id.clear());
        "the members of a new group do not name it", "groups.members":
            answer::<v1::CreateVolumeGroupSnapshotRequest>(|a| {
                let group = a.group_snapshot.as_mut().unwrap();
                group.snapshots.iter_mut().for_each(|one| one.group_snapshot_id.clear());
            });
        "a group is ready before its members", "groups.becomes-ready":
            answer::<v1::CreateVolumeGroupSnapshotRequest>(|a| {
                a.group_snapshot.as_mut().unwrap().snapshots[0].ready_to_use = false;
            });
        "a group is cut without the volume that is not there", "groups.missing-source":
            instead(Code::NotFound, |r: &mut v1::CreateVolumeGroupSnapshotRequest| drop(r.source_volume_ids.pop()),
            );
        "a group that is not there is told empty", "groups.told":
            accepted(Rpc::GetVolumeGroupSnapshot, Code::NotFound);
        "a group has the members that the caller names", "groups.other-ids": believes_the_caller();
        "a group is told without the ids of its members", "groups.without-ids":
            accepted(Rpc::GetVolumeGroupSnapshot, Code::InvalidArgument);
        "deleting a group again is NOT_FOUND", "groups.delete-is-idempotent":
            not_again(Rpc::DeleteVolumeGroupSnapshot, Code::NotFound);
        "members are not listed", "groups.listed-with-group":
            answer::<v1::ListSnapshotsRequest>(|a| {
                let is_alone = |one: &v1::Snapshot| one.group_snapshot_id.is_empty();
                a.entries.retain(|entry| entry.snapshot.as_ref().is_some_and(is_alone));
            });
        "a member is not found when it is to be restored", "groups.restored":
            refuses(Code::NotFound, |r: &v1::CreateVolumeRequest| {
                let source = r.volume_content_source.as_ref().and_then(|source| source.r#type.as_ref());
                matches!(source, Some(Type::Snapshot(one)) if one.snapshot_id.starts_with("group-"))
            });
        "another snapshot goes with a group", "groups.others-stay": deletes_others_too();
    }
}
