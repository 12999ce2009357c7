//! The states of a snapshot: not ready, ready, in use, without its source, deleted.

use std::collections::BTreeSet;

use csi_core::ControllerCapability::{CreateDeleteSnapshot, CreateDeleteVolume, GetSnapshot, ListSnapshots};
use csi_proto::v1;
use tonic::Code;
use v1::volume_content_source::{SnapshotSource, Type};

use super::paging::listed_snapshots;
use super::snapshots::{BECOMES_READY, cut, request, snapshot};
use crate::cx::Cx;
use crate::failure::{Outcome, check, or_nothing};

crate::test::tests! { "snapshots", "The ready_to_use Parameter; DeleteVolume, DeleteSnapshot";
    "CreateSnapshot returns the same snapshot until it is ready, and it becomes ready or fails", becomes_ready, ["create-snapshot.not-ready-while-processed", "create-snapshot.failure-told", "create-snapshot.same-name-same-snapshot"], [Controller(CreateDeleteSnapshot)];
    "ListSnapshots returns the current state of a snapshot, also before it is ready", listed_as_it_is, ["list-snapshots.current", "list-snapshots.all"], [Controller(CreateDeleteSnapshot), Controller(ListSnapshots)];
    "GetSnapshot returns the current state of a snapshot, also before it is ready", told_as_it_is, ["get-snapshot.current", "get-snapshot.not-ready-too"], [Controller(CreateDeleteSnapshot), Controller(GetSnapshot)];
    "A snapshot that could not be created is not listed", uncut_is_not_listed, ["list-snapshots.cut-only"], [Controller(CreateDeleteSnapshot), Controller(ListSnapshots)];
    "Each snapshot has its own id", ids_differ, ["create-snapshot.id-is-unique"], [Controller(CreateDeleteSnapshot)];
    "A snapshot outlives its volume, or prevents the deletion of the volume", outlives_its_source, ["delete-volume.snapshots-live-on", "delete-volume.in-use"], [Controller(CreateDeleteSnapshot), Controller(CreateDeleteVolume)];
    "A snapshot with a restored volume is deleted, or is in use and stays", in_use, ["delete-snapshot.in-use"], [Controller(CreateDeleteSnapshot), Controller(CreateDeleteVolume)];
    "A deleted snapshot is neither listed nor restored", deleted_is_gone, ["list-snapshots.all", "create-volume.source-missing"], [Controller(CreateDeleteSnapshot), Controller(CreateDeleteVolume)];
}

pub(super) async fn listed(cx: &Cx, snapshot_id: &str) -> Outcome<Option<v1::Snapshot>> {
    let request = v1::ListSnapshotsRequest { snapshot_id: snapshot_id.to_owned(), ..Default::default() };
    Ok(listed_snapshots(cx, request).await?.into_iter().find(|one| one.snapshot_id == snapshot_id))
}

pub(super) async fn told(cx: &Cx, snapshot_id: &str) -> Outcome<Option<v1::Snapshot>> {
    let request = v1::GetSnapshotRequest { snapshot_id: snapshot_id.to_owned(), ..Default::default() };
    match cx.call(request.clone()).await {
        Ok(answer) => Ok(answer.snapshot),
        Err(refusal) if refusal.code == Code::NotFound => Ok(None),
        Err(refusal) => Err(cx.failure(&request, cx.told(&refusal), "OK or NotFound")),
    }
}

fn restoring(cx: &Cx, snapshot_id: &str) -> v1::CreateVolumeRequest {
    let source = Type::Snapshot(SnapshotSource { snapshot_id: snapshot_id.to_owned() });
    v1::CreateVolumeRequest {
        volume_content_source: Some(v1::VolumeContentSource { r#type: Some(source) }),
        ..cx.create(&cx.name())
    }
}

/// The answers to repeated calls until the snapshot is ready, and to one more call.
async fn until_ready(cx: &Cx, request: &v1::CreateSnapshotRequest) -> Outcome<Vec<v1::Snapshot>> {
    let mut all: Vec<v1::Snapshot> = Vec::new();
    let mut wait = cx.patience();
    loop {
        let was_ready = all.last().is_some_and(|one| one.ready_to_use);
        all.push(cx.ok(request.clone()).await?.snapshot.unwrap_or_default());
        if was_ready {
            return Ok(all);
        }
        if !wait.again().await {
            return Err(cx.failure(request, wait.words("ready_to_use=false"), BECOMES_READY));
        }
    }
}

async fn becomes_ready(cx: &Cx) -> Outcome {
    let request = request(cx, &cx.volume().await?);
    let all = until_ready(cx, &request).await?;
    let same = |one: &v1::Snapshot| {
        one.snapshot_id == all[0].snapshot_id && one.creation_time == all[0].creation_time
    };
    if !all.iter().all(same) || all.last().is_none_or(|one| !one.ready_to_use) {
        let due = "one snapshot with one creation time, which stays ready after it was ready";
        return Err(cx.failure(&request, format!("{all:?}"), due));
    }
    cx.created(restoring(cx, &all[0].snapshot_id)).await.map(drop)
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
async fn as_it_is(cx: &Cx, told: impl AsyncFn(&Cx, &str) -> Outcome<Option<v1::Snapshot>>) -> Outcome {
    let request = request(cx, &cx.volume().await?);
    let first = cx.ok(request.clone()).await?.snapshot.unwrap_or_default();
    let found = told(cx, &first.snapshot_id).await?;
    let is_ready = found.as_ref().is_some_and(|found| found.ready_to_use);
    agrees(&first, found, first.ready_to_use)?;
    // The snapshot can have become ready meanwhile. Then it is ready for later calls too.
    let next = cx.ok(request.clone()).await?.snapshot.unwrap_or_default();
    check(next.ready_to_use || !is_ready, "not ready before CreateSnapshot reports it", || {
        format!("ready_to_use=true, and then from CreateSnapshot {next:?}")
    })?;
    let ready = cut(cx, request).await?;
    agrees(&ready, told(cx, &ready.snapshot_id).await?, true)
}

async fn listed_as_it_is(cx: &Cx) -> Outcome {
    as_it_is(cx, listed).await
}

async fn told_as_it_is(cx: &Cx) -> Outcome {
    as_it_is(cx, told).await
}

async fn all_ids(cx: &Cx) -> Outcome<BTreeSet<String>> {
    let all = listed_snapshots(cx, Default::default()).await?;
    Ok(all.into_iter().map(|one| one.snapshot_id).collect())
}

async fn uncut_is_not_listed(cx: &Cx) -> Outcome {
    let (taken, other) = (request(cx, &cx.volume().await?), cx.volume().await?);
    cut(cx, taken.clone()).await?;
    let before = all_ids(cx).await?;
    let missing = v1::CreateSnapshotRequest { source_volume_id: cx.name(), name: cx.name(), ..taken.clone() };
    let of_another = v1::CreateSnapshotRequest { source_volume_id: other.volume_id.clone(), ..taken };
    for refused in [missing, of_another] {
        cx.refused(refused, &[Code::NotFound, Code::AlreadyExists], "the snapshot can't be created").await?;
    }
    let by_source = v1::ListSnapshotsRequest { source_volume_id: other.volume_id, ..Default::default() };
    let of_other = listed_snapshots(cx, by_source).await?;
    let new: Vec<String> = all_ids(cx).await?.difference(&before).cloned().collect();
    check(new.is_empty() && of_other.is_empty(), "no new entry in the list", || {
        format!("{new:?} {of_other:?}")
    })
}

async fn ids_differ(cx: &Cx) -> Outcome {
    let (one, other) = (cx.volume().await?, cx.volume().await?);
    let mut ids = BTreeSet::new();
    for source in [&one, &one, &other] {
        ids.insert(cut(cx, request(cx, source)).await?.snapshot_id);
    }
    check(ids.len() == 3, "three ids for three snapshots", || format!("{ids:?}"))
}

/// Checks that the snapshot is listed and returned, if the driver supports that, and can be restored.
async fn is_usable(cx: &Cx, snapshot: &v1::Snapshot) -> Outcome {
    if cx.offers.controller(ListSnapshots) {
        agrees(snapshot, listed(cx, &snapshot.snapshot_id).await?, true)?;
    }
    if cx.offers.controller(GetSnapshot) {
        agrees(snapshot, told(cx, &snapshot.snapshot_id).await?, true)?;
    }
    cx.created(restoring(cx, &snapshot.snapshot_id)).await.map(drop)
}

async fn outlives_its_source(cx: &Cx) -> Outcome {
    let snapshot = snapshot(cx).await?;
    let volume_id = snapshot.source_volume_id.clone();
    let delete = v1::DeleteVolumeRequest { volume_id: volume_id.clone(), ..Default::default() };
    match cx.call(delete.clone()).await {
        Ok(_) => {}
        Err(refusal) if refusal.code == Code::FailedPrecondition => {
            let volume_capabilities = cx.create("").volume_capabilities;
            let asked = v1::ValidateVolumeCapabilitiesRequest {
                volume_id,
                volume_capabilities,
                ..Default::default()
            };
            cx.ok(asked).await?;
        }
        Err(refusal) => return Err(cx.failure(&delete, cx.told(&refusal), "OK or FailedPrecondition")),
    }
    is_usable(cx, &snapshot).await
}

async fn in_use(cx: &Cx) -> Outcome {
    let snapshot = snapshot(cx).await?;
    let volume = cx.created(restoring(cx, &snapshot.snapshot_id)).await?;
    let delete =
        v1::DeleteSnapshotRequest { snapshot_id: snapshot.snapshot_id.clone(), ..Default::default() };
    match cx.call(delete.clone()).await {
        Ok(_) => {}
        Err(refusal) if refusal.code == Code::FailedPrecondition => {
            is_usable(cx, &snapshot).await?;
        }
        Err(refusal) => return Err(cx.failure(&delete, cx.told(&refusal), "OK or FailedPrecondition")),
    }
    let asked = v1::ValidateVolumeCapabilitiesRequest {
        volume_id: volume.volume_id,
        volume_capabilities: cx.create("").volume_capabilities,
        ..Default::default()
    };
    cx.ok(asked).await.map(drop)
}

async fn deleted_is_gone(cx: &Cx) -> Outcome {
    let id = snapshot(cx).await?.snapshot_id;
    cx.ok(v1::DeleteSnapshotRequest { snapshot_id: id.clone(), ..Default::default() }).await?;
    if cx.offers.controller(ListSnapshots) {
        check(listed(cx, &id).await?.is_none(), "a deleted snapshot is not listed", || id.clone())?;
    }
    if cx.offers.controller(GetSnapshot) {
        check(told(cx, &id).await?.is_none(), "a deleted snapshot is NOT_FOUND", || id.clone())?;
    }
    cx.refused(restoring(cx, &id), &[Code::NotFound], "the snapshot was deleted").await
}
