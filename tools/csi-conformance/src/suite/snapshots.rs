//! Snapshots: create, delete, list, get, restore.

use csi_proto::ControllerCapability::{CreateDeleteSnapshot, GetSnapshot, ListSnapshots};
use csi_proto::v1;
use tonic::Code;

use super::paging::{each_once, listed_snapshots};
use crate::context::TestContext;
use crate::failure::{Outcome, check};
use crate::sources::of_snapshot;

crate::test::tests! { "snapshots", "Controller Service RPC: CreateSnapshot, DeleteSnapshot, ListSnapshots, GetSnapshot";
    Must "The same name and source again return the same snapshot", same_name_same_snapshot, ["create-snapshot.same-name-same-snapshot"], [Controller(CreateDeleteSnapshot)];
    Must "The same name with another source is ALREADY_EXISTS", same_name_other_source, ["create-snapshot.other-source"], [Controller(CreateDeleteSnapshot)];
    Must "A snapshot has the id of its source and its creation time", answer_is_whole, ["create-snapshot.answer-complete"], [Controller(CreateDeleteSnapshot)];
    Must "No snapshot is created of a volume that does not exist", missing_source, ["errors.failure-is-an-error"], [Controller(CreateDeleteSnapshot)];
    Must "Deleting an object that does not exist is OK, also repeatedly", delete_is_idempotent, ["delete-snapshot.missing-is-ok"], [Controller(CreateDeleteSnapshot)];
    Must "A volume can be restored from a snapshot", restore, ["create-volume.from-snapshot", "create-volume.id-is-unique"], [Controller(CreateDeleteSnapshot)];
    Must "Snapshots are listed, also by id and by source", listed, ["list-snapshots.all", "list-snapshots.filters"], [Controller(CreateDeleteSnapshot), Controller(ListSnapshots)];
    Practice "A filter that matches nothing gives an empty list", unknown_filter, ["list-snapshots.unknown-filter"], [Controller(ListSnapshots)];
    Must "Pages have each snapshot once, and no more than the requested number", pages, ["list-snapshots.all", "list-snapshots.max-entries"], [Controller(CreateDeleteSnapshot), Controller(ListSnapshots)];
    Must "An unknown token is ABORTED", bad_token, ["list-snapshots.bad-token"], [Controller(ListSnapshots)];
    Must "GetSnapshot returns the snapshot; a snapshot that does not exist is NOT_FOUND", get, ["get-snapshot.current", "get-snapshot.missing"], [Controller(GetSnapshot), Controller(CreateDeleteSnapshot)];
}

pub(super) fn request(ctx: &TestContext, source_volume_id: &str) -> v1::CreateSnapshotRequest {
    v1::CreateSnapshotRequest {
        source_volume_id: source_volume_id.to_owned(),
        name: ctx.name(),
        parameters: ctx.settings.parameters.of(csi_proto::Rpc::CreateSnapshot),
        ..Default::default()
    }
}

pub(super) const BECOMES_READY: &str = "a snapshot that becomes ready, or an error if it can't";

/// Returns the snapshot when it is ready. The call is repeated, as the snapshotter does.
pub(super) async fn cut(ctx: &TestContext, request: v1::CreateSnapshotRequest) -> Outcome<v1::Snapshot> {
    let mut wait = ctx.retries();
    loop {
        let answer = ctx.ok(request.clone()).await?;
        let Some(snapshot) = answer.snapshot else {
            return Err(ctx.failure(&request, "an answer without a snapshot", "a snapshot"));
        };
        if snapshot.ready_to_use {
            return Ok(snapshot);
        }
        if !wait.again().await {
            return Err(ctx.failure(&request, wait.describe("ready_to_use=false"), BECOMES_READY));
        }
    }
}

pub(super) async fn snapshot(ctx: &TestContext) -> Outcome<v1::Snapshot> {
    let request = request_of_new_volume(ctx).await?;
    cut(ctx, request).await
}

pub(super) async fn request_of_new_volume(ctx: &TestContext) -> Outcome<v1::CreateSnapshotRequest> {
    Ok(request(ctx, &ctx.volume().await?.volume_id))
}

async fn same_name_same_snapshot(ctx: &TestContext) -> Outcome {
    let request = request_of_new_volume(ctx).await?;
    let first = cut(ctx, request.clone()).await?;
    let again = cut(ctx, request.clone()).await?;
    let same = first.snapshot_id == again.snapshot_id && first.creation_time == again.creation_time;
    ctx.check(&request, same, format!("{first:?}"), || format!("{again:?}"))
}

async fn same_name_other_source(ctx: &TestContext) -> Outcome {
    let request = request_of_new_volume(ctx).await?;
    cut(ctx, request.clone()).await?;
    let other = v1::CreateSnapshotRequest { source_volume_id: ctx.volume().await?.volume_id, ..request };
    ctx.refused(other, &[Code::AlreadyExists], "a snapshot of another volume has this name").await
}

async fn answer_is_whole(ctx: &TestContext) -> Outcome {
    let request = request_of_new_volume(ctx).await?;
    let snapshot = cut(ctx, request.clone()).await?;
    let whole = !snapshot.snapshot_id.is_empty()
        && snapshot.source_volume_id == request.source_volume_id
        && snapshot.creation_time.is_some_and(|time| time.seconds > 0)
        && snapshot.size_bytes >= 0;
    let due = "an id, the requested source, a time, and a size of 0 or more";
    ctx.check(&request, whole, due, || format!("{snapshot:?}"))
}

async fn missing_source(ctx: &TestContext) -> Outcome {
    ctx.fails(request(ctx, &ctx.name()), "the volume does not exist").await
}

async fn delete_is_idempotent(ctx: &TestContext) -> Outcome {
    let snapshot = snapshot(ctx).await?;
    for snapshot_id in [snapshot.snapshot_id.clone(), snapshot.snapshot_id, ctx.name()] {
        ctx.ok(v1::DeleteSnapshotRequest { snapshot_id, ..Default::default() }).await?;
    }
    Ok(())
}

async fn restore(ctx: &TestContext) -> Outcome {
    let snapshot = snapshot(ctx).await?;
    let volume = ctx.created(ctx.create_from(of_snapshot(&snapshot.snapshot_id))).await?;
    let is_new = volume.volume_id != snapshot.source_volume_id;
    check(is_new, "another volume than the snapshot's source", || format!("{volume:?}"))
}

async fn ids(ctx: &TestContext, request: v1::ListSnapshotsRequest) -> Outcome<Vec<String>> {
    Ok(listed_snapshots(ctx, request).await?.into_iter().map(|one| one.snapshot_id).collect())
}

async fn listed(ctx: &TestContext) -> Outcome {
    let one = snapshot(ctx).await?;
    let other = snapshot(ctx).await?;
    let all = ids(ctx, Default::default()).await?;
    let both = all.contains(&one.snapshot_id) && all.contains(&other.snapshot_id);
    check(both, "both snapshots in the list", || format!("{} others", all.len()))?;
    let by_id = v1::ListSnapshotsRequest { snapshot_id: one.snapshot_id.clone(), ..Default::default() };
    let by_source =
        v1::ListSnapshotsRequest { source_volume_id: one.source_volume_id.clone(), ..Default::default() };
    for request in [by_id, by_source] {
        let found = ids(ctx, request.clone()).await?;
        let is_alone = found == [one.snapshot_id.clone()];
        ctx.check(&request, is_alone, format!("{} alone", one.snapshot_id), || format!("{found:?}"))?;
    }
    Ok(())
}

async fn unknown_filter(ctx: &TestContext) -> Outcome {
    let unknown_id = v1::ListSnapshotsRequest { snapshot_id: ctx.name(), ..Default::default() };
    let unknown_source = v1::ListSnapshotsRequest { source_volume_id: ctx.name(), ..Default::default() };
    for request in [unknown_id, unknown_source] {
        let found = ids(ctx, request.clone()).await?;
        ctx.check(&request, found.is_empty(), "an empty list", || format!("{found:?}"))?;
    }
    Ok(())
}

async fn pages(ctx: &TestContext) -> Outcome {
    let volume_id = ctx.volume().await?.volume_id;
    let mut due = Vec::new();
    for _ in 0..5 {
        due.push(cut(ctx, request(ctx, &volume_id)).await?.snapshot_id);
    }
    let all = ids(ctx, v1::ListSnapshotsRequest { max_entries: 2, ..Default::default() }).await?;
    each_once("snapshot", &all, &due)
}

async fn bad_token(ctx: &TestContext) -> Outcome {
    let request = v1::ListSnapshotsRequest {
        max_entries: 1,
        starting_token: "csi-conformance-no-token".into(),
        ..Default::default()
    };
    ctx.refused(request, &[Code::Aborted], "the driver did not issue this token").await
}

async fn get(ctx: &TestContext) -> Outcome {
    let snapshot = snapshot(ctx).await?;
    let request = v1::GetSnapshotRequest { snapshot_id: snapshot.snapshot_id.clone(), ..Default::default() };
    let found = ctx.ok(request.clone()).await?.snapshot;
    let is_it = found.as_ref().is_some_and(|found| {
        found.snapshot_id == snapshot.snapshot_id && found.source_volume_id == snapshot.source_volume_id
    });
    ctx.check(&request, is_it, format!("{snapshot:?}"), || format!("{found:?}"))?;
    let missing = v1::GetSnapshotRequest { snapshot_id: ctx.name(), ..request };
    ctx.refused(missing, &[Code::NotFound], "the snapshot does not exist").await
}
