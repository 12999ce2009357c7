//! Group snapshots: snapshots of several volumes, handled as one object.

use std::collections::BTreeSet;

use csi_proto::ControllerCapability::CreateDeleteVolume;
use csi_proto::v1;
use tonic::Code;

use crate::context::TestContext;
use crate::failure::Outcome;

crate::test::tests! { "groups", "GroupController Service RPC";
    Must "A group has a snapshot of each volume, each with the group's id", members, ["create-volume-group-snapshot.answer-complete", "create-volume-group-snapshot.members-name-it"], [Groups, Controller(CreateDeleteVolume)];
    Must "A group is not ready before all its snapshots are ready", becomes_ready, ["create-volume-group-snapshot.ready-when-all-are"], [Groups, Controller(CreateDeleteVolume)];
    Must "The same name and sources again return the same group", same_name_same_group, ["create-volume-group-snapshot.same-name-same-group"], [Groups, Controller(CreateDeleteVolume)];
    Must "The same name with different sources is ALREADY_EXISTS", same_name_other_sources, ["create-volume-group-snapshot.differs-is-already-exists"], [Groups, Controller(CreateDeleteVolume)];
    Must "No group is created with a volume that does not exist", missing_source, ["errors.failure-is-an-error"], [Groups, Controller(CreateDeleteVolume)];
    Must "GetVolumeGroupSnapshot returns the group as created; a group that does not exist is NOT_FOUND", told, ["get-volume-group-snapshot.current", "get-volume-group-snapshot.missing"], [Groups, Controller(CreateDeleteVolume)];
    Should "GetVolumeGroupSnapshot with ids of other snapshots is INVALID_ARGUMENT, or returns the group unchanged", other_ids, ["get-volume-group-snapshot.mismatch"], [Groups, Controller(CreateDeleteVolume)];
    Must "GetVolumeGroupSnapshot without the ids of the snapshots is INVALID_ARGUMENT", without_ids, ["fields.required-list"], [Groups, Controller(CreateDeleteVolume)];
    Must "Deleting a group again is OK, and the group no longer exists", delete_is_idempotent, ["delete-volume-group-snapshot.missing-is-ok", "get-volume-group-snapshot.missing"], [Groups, Controller(CreateDeleteVolume)];
}

pub(super) async fn request(ctx: &TestContext) -> Outcome<v1::CreateVolumeGroupSnapshotRequest> {
    let source_volume_ids = vec![ctx.volume().await?.volume_id, ctx.volume().await?.volume_id];
    Ok(v1::CreateVolumeGroupSnapshotRequest {
        name: ctx.name(),
        source_volume_ids,
        parameters: ctx.settings.parameters.of(csi_proto::Rpc::CreateVolumeGroupSnapshot),
        ..Default::default()
    })
}

pub(super) async fn group(
    ctx: &TestContext,
    request: v1::CreateVolumeGroupSnapshotRequest,
) -> Outcome<v1::VolumeGroupSnapshot> {
    let answer = ctx.ok(request.clone()).await?;
    answer.group_snapshot.ok_or_else(|| ctx.failure(&request, "an answer without a group", "a group"))
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

async fn members(ctx: &TestContext) -> Outcome {
    let request = request(ctx).await?;
    let group = group(ctx, request.clone()).await?;
    let mut sources: Vec<_> = group.snapshots.iter().map(|one| one.source_volume_id.clone()).collect();
    let mut due = request.source_volume_ids.clone();
    sources.sort();
    due.sort();
    let of_group = group.snapshots.iter().all(|one| one.group_snapshot_id == group.group_snapshot_id);
    let is_whole = sources == due && of_group && member_ids(&group).len() == due.len();
    let due = "one member for each volume, each with the group's id";
    ctx.check(&request, is_whole, due, || format!("{group:?}"))
}

async fn becomes_ready(ctx: &TestContext) -> Outcome {
    let request = request(ctx).await?;
    let mut wait = ctx.retries();
    loop {
        let group = group(ctx, request.clone()).await?;
        let all = group.snapshots.iter().all(|one| one.ready_to_use);
        let due = "ready_to_use=false while a member is not ready";
        ctx.check(&request, all || !group.ready_to_use, due, || format!("{group:?}"))?;
        if group.ready_to_use || !wait.again().await {
            return Ok(());
        }
    }
}

async fn same_name_same_group(ctx: &TestContext) -> Outcome {
    let request = request(ctx).await?;
    let first = group(ctx, request.clone()).await?;
    let again = group(ctx, request.clone()).await?;
    let same = first.group_snapshot_id == again.group_snapshot_id && member_ids(&first) == member_ids(&again);
    ctx.check(&request, same, format!("the existing group: {first:?}"), || format!("{again:?}"))
}

async fn same_name_other_sources(ctx: &TestContext) -> Outcome {
    let mut request = request(ctx).await?;
    group(ctx, request.clone()).await?;
    request.source_volume_ids = vec![ctx.volume().await?.volume_id];
    ctx.refused(request, &[Code::AlreadyExists], "a group of other volumes has this name").await
}

async fn missing_source(ctx: &TestContext) -> Outcome {
    let mut request = request(ctx).await?;
    request.source_volume_ids.push(ctx.name());
    ctx.fails(request, "one of the volumes does not exist").await
}

/// Checks that the answer contains this group.
fn is_told(
    ctx: &TestContext,
    request: &v1::GetVolumeGroupSnapshotRequest,
    group: &v1::VolumeGroupSnapshot,
    came: Option<v1::VolumeGroupSnapshot>,
) -> Outcome {
    let same = came.as_ref().is_some_and(|came| {
        came.group_snapshot_id == group.group_snapshot_id
            && came.creation_time == group.creation_time
            && member_ids(came) == member_ids(group)
    });
    ctx.check(request, same, format!("{group:?}"), || format!("{came:?}"))
}

async fn told(ctx: &TestContext) -> Outcome {
    let group = group(ctx, request(ctx).await?).await?;
    let get = getting(&group);
    is_told(ctx, &get, &group, ctx.ok(get.clone()).await?.group_snapshot)?;
    let unknown = v1::GetVolumeGroupSnapshotRequest { group_snapshot_id: ctx.name(), ..get };
    ctx.refused(unknown, &[Code::NotFound], "the group does not exist").await
}

async fn other_ids(ctx: &TestContext) -> Outcome {
    let group = group(ctx, request(ctx).await?).await?;
    let mut get = getting(&group);
    get.snapshot_ids.push(ctx.name());
    let codes = [Code::InvalidArgument, Code::NotFound];
    let answer = ctx.ok_or(get.clone(), &codes, "InvalidArgument, or the group").await?;
    answer.map_or(Ok(()), |answer| is_told(ctx, &get, &group, answer.group_snapshot))
}

async fn without_ids(ctx: &TestContext) -> Outcome {
    let group = group(ctx, request(ctx).await?).await?;
    let get = v1::GetVolumeGroupSnapshotRequest { snapshot_ids: vec![], ..getting(&group) };
    ctx.refused(get, &[Code::InvalidArgument], "snapshot_ids are required").await
}

async fn delete_is_idempotent(ctx: &TestContext) -> Outcome {
    let group = group(ctx, request(ctx).await?).await?;
    ctx.ok(deleting(&group)).await?;
    ctx.ok(deleting(&group)).await?;
    ctx.refused(getting(&group), &[Code::NotFound], "it was deleted").await?;
    let never = v1::DeleteVolumeGroupSnapshotRequest { group_snapshot_id: ctx.name(), ..deleting(&group) };
    ctx.ok(never).await.map(drop)
}
