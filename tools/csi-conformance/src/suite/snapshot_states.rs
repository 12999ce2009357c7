//! The states of a snapshot: not ready, ready, in use, without its source, deleted.

use std::collections::BTreeSet;

use csi_proto::ControllerCapability::{CreateDeleteSnapshot, CreateDeleteVolume, GetSnapshot, ListSnapshots};
use csi_proto::v1;
use tonic::Code;

use super::create_volume::validate;
use super::paging::listed_snapshots;
use super::snapshots::{BECOMES_READY, cut, request, request_of_new_volume, snapshot};
use crate::context::TestContext;
use crate::failure::{Outcome, check, or_nothing};
use crate::sources::of_snapshot;

crate::test::tests! { "snapshots", "The ready_to_use Parameter; DeleteVolume, DeleteSnapshot";
    Must "CreateSnapshot returns the same snapshot until it is ready, and it becomes ready or fails", becomes_ready, ["create-snapshot.not-ready-while-processed", "create-snapshot.failure-told", "create-snapshot.same-name-same-snapshot"], [Controller(CreateDeleteSnapshot)];
    Must "ListSnapshots returns the current state of a snapshot, also before it is ready", listed_as_it_is = as_it_is(listed), ["list-snapshots.current", "list-snapshots.all"], [Controller(CreateDeleteSnapshot), Controller(ListSnapshots)];
    Must "GetSnapshot returns the current state of a snapshot, also before it is ready", told_as_it_is = as_it_is(get_snapshot), ["get-snapshot.current", "get-snapshot.not-ready-too"], [Controller(CreateDeleteSnapshot), Controller(GetSnapshot)];
    Must "A snapshot that could not be created is not listed", uncut_is_not_listed, ["list-snapshots.cut-only"], [Controller(CreateDeleteSnapshot), Controller(ListSnapshots)];
    Must "Each snapshot has its own id", ids_differ, ["create-snapshot.id-is-unique"], [Controller(CreateDeleteSnapshot)];
    Must "A snapshot outlives its volume, or prevents the deletion of the volume", outlives_its_source, ["delete-volume.snapshots-live-on", "delete-volume.in-use"], [Controller(CreateDeleteSnapshot), Controller(CreateDeleteVolume)];
    Must "A snapshot with a restored volume is deleted, or is in use and stays", in_use, ["delete-snapshot.in-use"], [Controller(CreateDeleteSnapshot), Controller(CreateDeleteVolume)];
    Must "A deleted snapshot is neither listed nor restored", deleted_is_gone, ["list-snapshots.all", "create-volume.source-missing"], [Controller(CreateDeleteSnapshot), Controller(CreateDeleteVolume)];
}

pub(super) async fn listed(ctx: &TestContext, snapshot_id: &str) -> Outcome<Option<v1::Snapshot>> {
    let request = v1::ListSnapshotsRequest { snapshot_id: snapshot_id.to_owned(), ..Default::default() };
    Ok(listed_snapshots(ctx, request).await?.into_iter().find(|one| one.snapshot_id == snapshot_id))
}

pub(super) async fn get_snapshot(ctx: &TestContext, snapshot_id: &str) -> Outcome<Option<v1::Snapshot>> {
    let request = v1::GetSnapshotRequest { snapshot_id: snapshot_id.to_owned(), ..Default::default() };
    let answer = ctx.ok_or(request, &[Code::NotFound], "OK or NotFound").await?;
    Ok(answer.and_then(|answer| answer.snapshot))
}

pub(super) fn restoring(ctx: &TestContext, snapshot_id: &str) -> v1::CreateVolumeRequest {
    ctx.create_from(of_snapshot(snapshot_id))
}

/// The answers to repeated calls until the snapshot is ready, and to one more call.
async fn until_ready(ctx: &TestContext, request: &v1::CreateSnapshotRequest) -> Outcome<Vec<v1::Snapshot>> {
    let mut all: Vec<v1::Snapshot> = Vec::new();
    let mut wait = ctx.retries();
    loop {
        let was_ready = all.last().is_some_and(|one| one.ready_to_use);
        all.push(ctx.ok(request.clone()).await?.snapshot.unwrap_or_default());
        if was_ready {
            return Ok(all);
        }
        if !wait.again().await {
            return Err(ctx.failure(request, wait.describe("ready_to_use=false"), BECOMES_READY));
        }
    }
}

async fn becomes_ready(ctx: &TestContext) -> Outcome {
    let request = request_of_new_volume(ctx).await?;
    let all = until_ready(ctx, &request).await?;
    let same = |one: &v1::Snapshot| {
        one.snapshot_id == all[0].snapshot_id && one.creation_time == all[0].creation_time
    };
    let is_ready = all.last().is_some_and(|one| one.ready_to_use);
    let due = "one snapshot with one creation time, which stays ready after it was ready";
    ctx.check(&request, is_ready && all.iter().all(same), due, || format!("{all:?}"))?;
    ctx.created(restoring(ctx, &all[0].snapshot_id)).await.map(drop)
}

/// Checks that another RPC reports the same snapshot, and that it is ready if `is_ready`.
fn agrees(first: &v1::Snapshot, found: Option<v1::Snapshot>, is_ready: bool) -> Outcome {
    let good = |found: &v1::Snapshot| {
        found.source_volume_id == first.source_volume_id
            && found.creation_time == first.creation_time
            && (!is_ready || found.ready_to_use)
    };
    let due = format!("{} in its current state: ready_to_use={is_ready}", first.snapshot_id);
    check(found.as_ref().is_some_and(good), &due, || or_nothing(&found))
}

/// Checks that another RPC reports the snapshot correctly, both just after its creation and when it is ready.
async fn as_it_is(
    ctx: &TestContext,
    get_snapshot: impl AsyncFn(&TestContext, &str) -> Outcome<Option<v1::Snapshot>>,
) -> Outcome {
    let request = request_of_new_volume(ctx).await?;
    let first = ctx.ok(request.clone()).await?.snapshot.unwrap_or_default();
    let found = get_snapshot(ctx, &first.snapshot_id).await?;
    let is_ready = found.as_ref().is_some_and(|found| found.ready_to_use);
    agrees(&first, found, first.ready_to_use)?;
    // The snapshot can have become ready meanwhile. Then it is ready for later calls too.
    let next = ctx.ok(request.clone()).await?.snapshot.unwrap_or_default();
    check(next.ready_to_use || !is_ready, "not ready before CreateSnapshot reports it", || {
        format!("ready_to_use=true, and then from CreateSnapshot {next:?}")
    })?;
    let ready = cut(ctx, request).await?;
    agrees(&ready, get_snapshot(ctx, &ready.snapshot_id).await?, true)
}

async fn all_ids(ctx: &TestContext) -> Outcome<BTreeSet<String>> {
    let all = listed_snapshots(ctx, Default::default()).await?;
    Ok(all.into_iter().map(|one| one.snapshot_id).collect())
}

async fn uncut_is_not_listed(ctx: &TestContext) -> Outcome {
    let taken = request_of_new_volume(ctx).await?;
    let other = ctx.volume().await?;
    cut(ctx, taken.clone()).await?;
    let before = all_ids(ctx).await?;
    let missing =
        v1::CreateSnapshotRequest { source_volume_id: ctx.name(), name: ctx.name(), ..taken.clone() };
    let of_another = v1::CreateSnapshotRequest { source_volume_id: other.volume_id.clone(), ..taken };
    for refused in [missing, of_another] {
        // Whether a driver may create it is the subject of other tests.
        if ctx.call(refused).await.is_ok() {
            return Ok(());
        }
    }
    let by_source = v1::ListSnapshotsRequest { source_volume_id: other.volume_id, ..Default::default() };
    let of_other = listed_snapshots(ctx, by_source).await?;
    let new: Vec<String> = all_ids(ctx).await?.difference(&before).cloned().collect();
    check(new.is_empty() && of_other.is_empty(), "no new entry in the list", || {
        format!("{new:?} {of_other:?}")
    })
}

async fn ids_differ(ctx: &TestContext) -> Outcome {
    let one = ctx.volume().await?;
    let other = ctx.volume().await?;
    let mut ids = BTreeSet::new();
    for source in [&one, &one, &other] {
        ids.insert(cut(ctx, request(ctx, &source.volume_id)).await?.snapshot_id);
    }
    check(ids.len() == 3, "three ids for three snapshots", || format!("{ids:?}"))
}

/// Checks that the snapshot is listed and returned, if the driver supports that, and can be restored.
async fn is_usable(ctx: &TestContext, snapshot: &v1::Snapshot) -> Outcome {
    if ctx.offers.controller(ListSnapshots) {
        agrees(snapshot, listed(ctx, &snapshot.snapshot_id).await?, true)?;
    }
    if ctx.offers.controller(GetSnapshot) {
        agrees(snapshot, get_snapshot(ctx, &snapshot.snapshot_id).await?, true)?;
    }
    ctx.created(restoring(ctx, &snapshot.snapshot_id)).await.map(drop)
}

async fn outlives_its_source(ctx: &TestContext) -> Outcome {
    let snapshot = snapshot(ctx).await?;
    let volume = v1::Volume { volume_id: snapshot.source_volume_id.clone(), ..Default::default() };
    let delete = v1::DeleteVolumeRequest { volume_id: volume.volume_id.clone(), ..Default::default() };
    let is_kept = ctx.ok_or(delete, &[Code::FailedPrecondition], "OK or FailedPrecondition").await?.is_none();
    if is_kept {
        ctx.ok(validate(volume, ctx.create("").volume_capabilities)).await?;
    }
    is_usable(ctx, &snapshot).await
}

async fn in_use(ctx: &TestContext) -> Outcome {
    let snapshot = snapshot(ctx).await?;
    let volume = ctx.created(restoring(ctx, &snapshot.snapshot_id)).await?;
    let delete =
        v1::DeleteSnapshotRequest { snapshot_id: snapshot.snapshot_id.clone(), ..Default::default() };
    let is_kept = ctx.ok_or(delete, &[Code::FailedPrecondition], "OK or FailedPrecondition").await?.is_none();
    if is_kept {
        is_usable(ctx, &snapshot).await?;
    }
    ctx.ok(validate(volume, ctx.create("").volume_capabilities)).await.map(drop)
}

async fn deleted_is_gone(ctx: &TestContext) -> Outcome {
    let id = snapshot(ctx).await?.snapshot_id;
    ctx.ok(v1::DeleteSnapshotRequest { snapshot_id: id.clone(), ..Default::default() }).await?;
    if ctx.offers.controller(ListSnapshots) {
        check(listed(ctx, &id).await?.is_none(), "a deleted snapshot is not listed", || id.clone())?;
    }
    if ctx.offers.controller(GetSnapshot) {
        check(get_snapshot(ctx, &id).await?.is_none(), "a deleted snapshot is NOT_FOUND", || id.clone())?;
    }
    ctx.refused(restoring(ctx, &id), &[Code::NotFound], "the snapshot was deleted").await
}
