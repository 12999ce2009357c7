//! Snapshots of several volumes.

use csi_core::ControllerCapability::CreateDeleteVolume;
use csi_proto::v1;
use tonic::Code;

use crate::cx::Cx;
use crate::failure::{Outcome, check};

crate::test::tests! { "groups", "GroupController Service RPC";
    "A group has a snapshot of each volume, each with the group's id", members, ["create-volume-group-snapshot.answer-complete", "create-volume-group-snapshot.members-name-it"], [Groups, Controller(CreateDeleteVolume)];
    "The same name and sources again answer with the same group", same_name_same_group, ["create-volume-group-snapshot.same-name-same-group"], [Groups, Controller(CreateDeleteVolume)];
    "A source that is not there is NOT_FOUND", missing_source, ["errors.code-of-the-condition"], [Groups, Controller(CreateDeleteVolume)];
    "A group is told, and one that is not there is NOT_FOUND; deleting it again is OK", get_and_delete, ["get-volume-group-snapshot.missing", "delete-volume-group-snapshot.missing-is-ok"], [Groups, Controller(CreateDeleteVolume)];
}

async fn request(cx: &Cx) -> Outcome<v1::CreateVolumeGroupSnapshotRequest> {
    let source_volume_ids = vec![cx.volume().await?.volume_id, cx.volume().await?.volume_id];
    Ok(v1::CreateVolumeGroupSnapshotRequest { name: cx.name(), source_volume_ids, ..Default::default() })
}

async fn group(cx: &Cx, request: v1::CreateVolumeGroupSnapshotRequest) -> Outcome<v1::VolumeGroupSnapshot> {
    let answer = cx.ok(request.clone()).await?;
    answer.group_snapshot.ok_or_else(|| cx.failure(&request, "an answer without a group", "a group"))
}

async fn members(cx: &Cx) -> Outcome {
    let request = request(cx).await?;
    let group = group(cx, request.clone()).await?;
    let mut sources: Vec<_> = group.snapshots.iter().map(|one| one.source_volume_id.clone()).collect();
    let mut due = request.source_volume_ids.clone();
    sources.sort();
    due.sort();
    let of_group = group.snapshots.iter().all(|one| one.group_snapshot_id == group.group_snapshot_id);
    if sources == due && of_group {
        return Ok(());
    }
    Err(cx.failure(&request, format!("{group:?}"), "one member a volume, each with the group's id"))
}

async fn same_name_same_group(cx: &Cx) -> Outcome {
    let request = request(cx).await?;
    let (first, again) = (group(cx, request.clone()).await?, group(cx, request).await?);
    check(first.group_snapshot_id == again.group_snapshot_id, "the same group", || {
        again.group_snapshot_id.clone()
    })
}

async fn missing_source(cx: &Cx) -> Outcome {
    let mut request = request(cx).await?;
    request.source_volume_ids.push(cx.name());
    cx.refused(request, &[Code::NotFound], "one of the volumes is not there").await
}

async fn get_and_delete(cx: &Cx) -> Outcome {
    let group = group(cx, request(cx).await?).await?;
    let snapshot_ids: Vec<_> = group.snapshots.iter().map(|one| one.snapshot_id.clone()).collect();
    let get = v1::GetVolumeGroupSnapshotRequest {
        group_snapshot_id: group.group_snapshot_id.clone(),
        snapshot_ids: snapshot_ids.clone(),
        ..Default::default()
    };
    cx.ok(get.clone()).await?;
    let delete = v1::DeleteVolumeGroupSnapshotRequest {
        group_snapshot_id: group.group_snapshot_id,
        snapshot_ids,
        ..Default::default()
    };
    cx.ok(delete.clone()).await?;
    cx.ok(delete).await?;
    cx.refused(get, &[Code::NotFound], "it was deleted").await
}
