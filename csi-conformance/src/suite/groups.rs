//! Group snapshots: snapshots of several volumes, handled as one object.

use std::collections::BTreeSet;

use csi_core::ControllerCapability::CreateDeleteVolume;
use csi_proto::v1;
use tonic::Code;

use crate::cx::Cx;
use crate::failure::Outcome;

crate::test::tests! { "groups", "GroupController Service RPC";
    "A group has a snapshot of each volume, each with the group's id", members, ["create-volume-group-snapshot.answer-complete", "create-volume-group-snapshot.members-name-it"], [Groups, Controller(CreateDeleteVolume)];
    "A group is ready when all its snapshots are ready, and not before", becomes_ready, ["create-volume-group-snapshot.ready-when-all-are"], [Groups, Controller(CreateDeleteVolume)];
    "The same name and sources again, in any order, return the same group", same_name_same_group, ["create-volume-group-snapshot.same-name-same-group"], [Groups, Controller(CreateDeleteVolume)];
    "The same name with different sources is ALREADY_EXISTS", same_name_other_sources, ["create-volume-group-snapshot.differs-is-already-exists"], [Groups, Controller(CreateDeleteVolume)];
    "A source that does not exist is NOT_FOUND", missing_source, ["errors.code-of-the-condition"], [Groups, Controller(CreateDeleteVolume)];
    "GetVolumeGroupSnapshot returns the group as created; a group that does not exist is NOT_FOUND", told, ["get-volume-group-snapshot.current", "get-volume-group-snapshot.missing"], [Groups, Controller(CreateDeleteVolume)];
    "GetVolumeGroupSnapshot with ids of other snapshots is INVALID_ARGUMENT, or returns the group unchanged", other_ids, ["get-volume-group-snapshot.mismatch"], [Groups, Controller(CreateDeleteVolume)];
    "Deleting a group again is OK, and the group no longer exists", delete_is_idempotent, ["delete-volume-group-snapshot.missing-is-ok", "get-volume-group-snapshot.missing"], [Groups, Controller(CreateDeleteVolume)];
}

pub(super) async fn request(cx: &Cx) -> Outcome<v1::CreateVolumeGroupSnapshotRequest> {
    let source_volume_ids = vec![cx.volume().await?.volume_id, cx.volume().await?.volume_id];
    Ok(v1::CreateVolumeGroupSnapshotRequest {
        name: cx.name(),
        source_volume_ids,
        parameters: cx.settings.parameters.of(csi_core::Rpc::CreateVolumeGroupSnapshot),
        ..Default::default()
    })
}

pub(super) async fn group(
    cx: &Cx,
    request: v1::CreateVolumeGroupSnapshotRequest,
) -> Outcome<v1::VolumeGroupSnapshot> {
    let answer = cx.ok(request.clone()).await?;
    answer.group_snapshot.ok_or_else(|| cx.failure(&request, "an answer without a group", "a group"))
}

pub(super) fn member_ids(group: &v1::VolumeGroupSnapshot) -> BTreeSet<String> {
    group.snapshots.iter().map(|one| one.snapshot_id.clone()).collect()
}

pub(super) fn getting(group: &v1::VolumeGroupSnapshot) -> v1::GetVolumeGroupSnapshotRequest {
    v1::GetVolumeGroupSnapshotRequest {
        group_snapshot_id: group.group_snapshot_id.clone(),
        snapshot_ids: member_ids(group).into_iter().collect(),
        ..Default::default()
    }
}

pub(super) fn deleting(group: &v1::VolumeGroupSnapshot) -> v1::DeleteVolumeGroupSnapshotRequest {
    v1::DeleteVolumeGroupSnapshotRequest {
        group_snapshot_id: group.group_snapshot_id.clone(),
        snapshot_ids: member_ids(group).into_iter().collect(),
        ..Default::default()
    }
}

async fn members(cx: &Cx) -> Outcome {
    let request = request(cx).await?;
    let group = group(cx, request.clone()).await?;
    let mut sources: Vec<_> = group.snapshots.iter().map(|one| one.source_volume_id.clone()).collect();
    let mut due = request.source_volume_ids.clone();
    sources.sort();
    due.sort();
    let of_group = group.snapshots.iter().all(|one| one.group_snapshot_id == group.group_snapshot_id);
    if sources == due && of_group && member_ids(&group).len() == due.len() {
        return Ok(());
    }
    Err(cx.failure(&request, format!("{group:?}"), "one member for each volume, each with the group's id"))
}

async fn becomes_ready(cx: &Cx) -> Outcome {
    let request = request(cx).await?;
    let mut wait = cx.patience();
    loop {
        let group = group(cx, request.clone()).await?;
        let all = group.snapshots.iter().all(|one| one.ready_to_use);
        if group.ready_to_use && !all {
            let due = "ready_to_use=false while a member is not ready";
            return Err(cx.failure(&request, format!("{group:?}"), due));
        }
        if group.ready_to_use {
            return Ok(());
        }
        if !wait.again().await {
            return Err(cx.failure(&request, wait.words("ready_to_use=false"), "a group that becomes ready"));
        }
    }
}

async fn same_name_same_group(cx: &Cx) -> Outcome {
    let mut request = request(cx).await?;
    let first = group(cx, request.clone()).await?;
    for _ in 0..2 {
        let again = group(cx, request.clone()).await?;
        let same =
            first.group_snapshot_id == again.group_snapshot_id && member_ids(&first) == member_ids(&again);
        if !same {
            return Err(cx.failure(&request, format!("{again:?}"), format!("the existing group: {first:?}")));
        }
        request.source_volume_ids.reverse();
    }
    Ok(())
}

async fn same_name_other_sources(cx: &Cx) -> Outcome {
    let mut request = request(cx).await?;
    group(cx, request.clone()).await?;
    request.source_volume_ids = vec![cx.volume().await?.volume_id];
    cx.refused(request, &[Code::AlreadyExists], "a group of other volumes has this name").await
}

async fn missing_source(cx: &Cx) -> Outcome {
    let mut request = request(cx).await?;
    request.source_volume_ids.push(cx.name());
    cx.refused(request, &[Code::NotFound], "one of the volumes does not exist").await
}

/// Checks that the answer contains this group.
fn is_told(
    cx: &Cx,
    request: &v1::GetVolumeGroupSnapshotRequest,
    group: &v1::VolumeGroupSnapshot,
    came: Option<v1::VolumeGroupSnapshot>,
) -> Outcome {
    let same = came.as_ref().is_some_and(|came| {
        came.group_snapshot_id == group.group_snapshot_id
            && came.creation_time == group.creation_time
            && member_ids(came) == member_ids(group)
    });
    if same { Ok(()) } else { Err(cx.failure(request, format!("{came:?}"), format!("{group:?}"))) }
}

async fn told(cx: &Cx) -> Outcome {
    let group = group(cx, request(cx).await?).await?;
    let get = getting(&group);
    is_told(cx, &get, &group, cx.ok(get.clone()).await?.group_snapshot)?;
    let unknown = v1::GetVolumeGroupSnapshotRequest { group_snapshot_id: cx.name(), ..get };
    cx.refused(unknown, &[Code::NotFound], "the group does not exist").await
}

async fn other_ids(cx: &Cx) -> Outcome {
    let group = group(cx, request(cx).await?).await?;
    let mut get = getting(&group);
    get.snapshot_ids.push(cx.name());
    match cx.call(get.clone()).await {
        Err(refusal) if matches!(refusal.code, Code::InvalidArgument | Code::NotFound) => Ok(()),
        Err(refusal) => Err(cx.failure(&get, cx.told(&refusal), "InvalidArgument, or the group")),
        Ok(answer) => is_told(cx, &get, &group, answer.group_snapshot),
    }
}

async fn delete_is_idempotent(cx: &Cx) -> Outcome {
    let group = group(cx, request(cx).await?).await?;
    cx.ok(deleting(&group)).await?;
    cx.ok(deleting(&group)).await?;
    cx.refused(getting(&group), &[Code::NotFound], "it was deleted").await?;
    let never = v1::DeleteVolumeGroupSnapshotRequest { group_snapshot_id: cx.name(), ..deleting(&group) };
    cx.ok(never).await.map(drop)
}
