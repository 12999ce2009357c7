//! Faults in groups of snapshots.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};

use csi_proto::v1;
use v1::volume_content_source::Type;

use super::*;

/// Creates a group again for each call: the second answer has another id.
fn group_is_cut_twice() -> Fault {
    let count = Arc::new(AtomicU32::new(0));
    fault(move |rpc, bytes, behind| {
        let number = count.fetch_add(1, Ordering::SeqCst);
        async move {
            let bytes = match rpc {
                Rpc::CreateVolumeGroupSnapshot => {
                    changed(&bytes, |request: &mut v1::CreateVolumeGroupSnapshotRequest| {
                        if !request.name.is_empty() && request.name.len() < 120 {
                            request.name.push_str(&format!("~{number}"));
                        }
                    })
                }
                _ => bytes,
            };
            behind.call(rpc, bytes).await
        }
    })
}

/// Refuses a group with a missing volume, but leaves a snapshot of the first volume.
fn half_a_group_is_left() -> Fault {
    fault(|rpc, bytes, behind| async move {
        let answer = behind.call(rpc, bytes.clone()).await;
        if rpc == Rpc::CreateVolumeGroupSnapshot
            && let Err(status) = &answer
            && status.code() == Code::NotFound
        {
            let request = v1::CreateVolumeGroupSnapshotRequest::decode(&*bytes).unwrap();
            let source_volume_id = request.source_volume_ids[0].clone();
            let cut =
                v1::CreateSnapshotRequest { source_volume_id, name: request.name, ..Default::default() };
            let _ = behind.call(Rpc::CreateSnapshot, cut.encode_to_vec()).await;
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
        if rpc == Rpc::GetSnapshot && answer.is_err() {
            let id = v1::GetSnapshotRequest::decode(&*bytes).unwrap().snapshot_id;
            if let Some(snapshot) = members.lock().unwrap().get(&id).cloned() {
                return Ok(v1::GetSnapshotResponse { snapshot: Some(snapshot) }.encode_to_vec());
            }
        }
        answer
    })
}

/// Deletes every snapshot named in the request, also those of no group or of another one.
fn deletes_others_too() -> Fault {
    only(Rpc::DeleteVolumeGroupSnapshot, |bytes, behind| async move {
        let mut asked = v1::DeleteVolumeGroupSnapshotRequest::decode(&*bytes).unwrap();
        let mut members = Vec::new();
        for snapshot_id in asked.snapshot_ids {
            let delete = v1::DeleteSnapshotRequest { snapshot_id: snapshot_id.clone(), ..Default::default() };
            // A snapshot that is a member of a group is refused.
            if behind.call(Rpc::DeleteSnapshot, delete.encode_to_vec()).await.is_err() {
                members.push(snapshot_id);
            }
        }
        asked.snapshot_ids = members;
        behind.call(Rpc::DeleteVolumeGroupSnapshot, asked.encode_to_vec()).await
    })
}

/// Returns a group with the members that the caller named.
fn believes_the_caller() -> Fault {
    fault(|rpc, bytes, behind| async move {
        match behind.call(rpc, bytes.clone()).await {
            Err(status) if rpc == Rpc::GetVolumeGroupSnapshot && status.code() == Code::InvalidArgument => {
                let asked = v1::GetVolumeGroupSnapshotRequest::decode(&*bytes).unwrap();
                let member = |snapshot_id| v1::Snapshot { snapshot_id, ..Default::default() };
                let group = v1::VolumeGroupSnapshot {
                    group_snapshot_id: asked.group_snapshot_id,
                    snapshots: asked.snapshot_ids.into_iter().map(member).collect(),
                    ..Default::default()
                };
                Ok(v1::GetVolumeGroupSnapshotResponse { group_snapshot: Some(group) }.encode_to_vec())
            }
            answer => answer,
        }
    })
}

pub(super) fn all() -> Vec<Mutant> {
    type Create = v1::CreateVolumeGroupSnapshotResponse;
    mutants! {
        "a group is cut twice", "groups.same-name-same-group": group_is_cut_twice();
        "a name that another group has is INTERNAL", "groups.same-name-other-sources":
            code(Rpc::CreateVolumeGroupSnapshot, Code::AlreadyExists, Code::Internal);
        "deleting a member alone is INTERNAL", "groups.not-deleted-alone":
            code(Rpc::DeleteSnapshot, Code::InvalidArgument, Code::Internal);
        "half a group is left", "groups.failure-leaves-nothing": half_a_group_is_left(), leaves_something;
        "members are told after their group is gone", "groups.deleted-together": members_live_on();
        "a member does not name its group", "groups.told-with-group":
            answer(Rpc::GetSnapshot, |a: &mut v1::GetSnapshotResponse| {
                a.snapshot.as_mut().unwrap().group_snapshot_id.clear();
            });
        "the members of a new group do not name it", "groups.members":
            answer(Rpc::CreateVolumeGroupSnapshot, |a: &mut Create| {
                let group = a.group_snapshot.as_mut().unwrap();
                group.snapshots.iter_mut().for_each(|one| one.group_snapshot_id.clear());
            });
        "a group is ready before its members", "groups.becomes-ready":
            answer(Rpc::CreateVolumeGroupSnapshot, |a: &mut Create| {
                a.group_snapshot.as_mut().unwrap().snapshots[0].ready_to_use = false;
            });
        "a group is cut without the volume that is not there", "groups.missing-source":
            instead(
                Rpc::CreateVolumeGroupSnapshot,
                Code::NotFound,
                |r: &mut v1::CreateVolumeGroupSnapshotRequest| drop(r.source_volume_ids.pop()),
            );
        "a group that is not there is told empty", "groups.told":
            accepted(Rpc::GetVolumeGroupSnapshot, Code::NotFound);
        "a group has the members that the caller names", "groups.other-ids": believes_the_caller();
        "a group is told without the ids of its members", "groups.without-ids":
            accepted(Rpc::GetVolumeGroupSnapshot, Code::InvalidArgument);
        "deleting a group again is NOT_FOUND", "groups.delete-is-idempotent":
            not_again(Rpc::DeleteVolumeGroupSnapshot, Code::NotFound);
        "members are not listed", "groups.listed-with-group":
            answer(Rpc::ListSnapshots, |a: &mut v1::ListSnapshotsResponse| {
                let is_alone = |one: &v1::Snapshot| one.group_snapshot_id.is_empty();
                a.entries.retain(|entry| entry.snapshot.as_ref().is_some_and(is_alone));
            });
        "a member is not found when it is to be restored", "groups.restored":
            refuses(Rpc::CreateVolume, Code::NotFound, |r: &v1::CreateVolumeRequest| {
                let source = r.volume_content_source.as_ref().and_then(|source| source.r#type.as_ref());
                matches!(source, Some(Type::Snapshot(one)) if one.snapshot_id.starts_with("group-"))
            });
        "another snapshot goes with a group", "groups.others-stay": deletes_others_too();
    }
}
