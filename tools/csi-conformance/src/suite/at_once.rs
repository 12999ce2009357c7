//! Concurrent calls for existing volumes, which are attached, staged, copied and expanded, and callers that
//! give up such calls.

use std::collections::BTreeSet;
use std::time::Duration;

use csi_proto::ControllerCapability::{
    CloneVolume, CreateDeleteSnapshot, CreateDeleteVolume, ExpandVolume, GetVolume, ListSnapshots,
    PublishUnpublishVolume,
};
use csi_proto::NodeCapability::{GetVolumeStats, StageUnstageVolume};
use csi_proto::{RpcRequest, v1};
use tonic::Code;
use v1::plugin_capability::service::Type::SnapshotMetadataService;

use super::contents::making;
use super::groups::{group, request as group_request};
use super::metadata::{allocated_of, any_snapshot};
use super::node_publish::mounts_at;
use super::paging::listed_snapshots;
use super::snapshots::{cut, request, request_of_new_volume};
use crate::content;
use crate::content::Kind;
use crate::context::TestContext;
use crate::failure::{Outcome, check};
use crate::life::VolumeLifecycle;
use crate::retries::{call_all_at_once, call_with_retries, is_retryable};
use crate::sources::of_volume;

crate::test::tests! { "concurrency", "Concurrency, Timeouts";
    Should "Concurrent ControllerPublishVolume of one volume and node attach once", same_attach_at_once, ["concurrency.simultaneous-calls", "concurrency.pending-is-aborted"], [Controller(PublishUnpublishVolume), Controller(CreateDeleteVolume), NodeService];
    Should "Concurrent NodeStageVolume of one volume stage once", same_stage_at_once, ["concurrency.simultaneous-calls", "concurrency.pending-is-aborted"], [Volume(Files), Mounts, Node(StageUnstageVolume)];
    Should "Concurrent CreateSnapshot of one name create one snapshot", same_snapshot_at_once, ["concurrency.simultaneous-calls", "concurrency.pending-is-aborted"], [Controller(CreateDeleteSnapshot)];
    Should "Concurrent snapshots of one published volume are all created", snapshots_of_one_volume, ["concurrency.simultaneous-calls", "concurrency.pending-is-aborted"], [Volume(Files), Controller(CreateDeleteSnapshot)];
    Should "Concurrent clones of one published volume are all created", clones_of_one_volume, ["concurrency.simultaneous-calls", "concurrency.pending-is-aborted"], [Volume(Files), Controller(CreateDeleteVolume), Controller(CloneVolume)];
    Should "Concurrent CreateVolumeGroupSnapshot of one name create one group", same_group_at_once, ["concurrency.simultaneous-calls", "concurrency.pending-is-aborted"], [Groups, Controller(CreateDeleteVolume)];
    Should "Concurrent expansions to one size result in that size", same_expand_at_once, ["concurrency.simultaneous-calls", "concurrency.pending-is-aborted"], [Controller(ExpandVolume), Controller(CreateDeleteVolume)];
    Should "Different operations on one published volume at the same time each succeed, or are refused and succeed alone; the data stays", different_at_once, ["concurrency.simultaneous-calls", "concurrency.pending-is-aborted"], [Volume(Files), Mounts, Controller(CreateDeleteVolume)];
    Should "Concurrent streams of one snapshot return the same ranges", streams_at_once, ["concurrency.simultaneous-calls"], [Plugin(SnapshotMetadataService), Controller(CreateDeleteSnapshot)];
    Should "A retry after an abandoned CreateSnapshot returns one snapshot", given_up_snapshot, ["concurrency.simultaneous-calls", "timeouts.retry-continues", "timeouts.only-the-opposite-cancels"], [Controller(CreateDeleteSnapshot), Controller(ListSnapshots)];
    Must "A retry after an abandoned ControllerPublishVolume attaches", given_up_attach, ["controller-publish-volume.repeated-is-ok", "timeouts.retry-continues", "timeouts.only-the-opposite-cancels"], [Controller(PublishUnpublishVolume), Controller(CreateDeleteVolume), NodeService];
}

const AT_ONCE: usize = 8;

async fn same_attach_at_once(ctx: &TestContext) -> Outcome {
    let life = VolumeLifecycle::new(ctx, ctx.any_kind()).await?;
    let answers = call_all_at_once(ctx, vec![life.controller_publish_volume(); AT_ONCE]).await?;
    let same = answers.iter().all(|one| *one == answers[0]);
    check(same, "the same publish_context for each call", || format!("{answers:?}"))?;
    ctx.ok(life.controller_unpublish_volume()).await?;
    ctx.ok(life.delete_volume()).await.map(drop)
}

async fn same_stage_at_once(ctx: &TestContext) -> Outcome {
    let mut life = VolumeLifecycle::new(ctx, Kind::Files).await?;
    life.attach().await?;
    life.make_staging_directory()?;
    call_all_at_once(ctx, vec![life.node_stage_volume(); AT_ONCE]).await?;
    let staged = mounts_at(life.staging_path())?;
    check(staged <= 1, "no stacked mounts", || staged.to_string())?;
    life.end(&[]).await?;
    let staged = mounts_at(life.staging_path())?;
    check(staged == 0, "no mount after unstage", || staged.to_string())
}

async fn same_snapshot_at_once(ctx: &TestContext) -> Outcome {
    let request = request_of_new_volume(ctx).await?;
    let answers = call_all_at_once(ctx, vec![request.clone(); AT_ONCE]).await?;
    let mut ids: BTreeSet<_> =
        answers.into_iter().filter_map(|one| Some(one.snapshot?.snapshot_id)).collect();
    ids.insert(cut(ctx, request).await?.snapshot_id);
    check(ids.len() == 1, "one snapshot for one name", || format!("{ids:?}"))
}

async fn snapshots_of_one_volume(ctx: &TestContext) -> Outcome {
    let (life, target) = VolumeLifecycle::published(ctx, Kind::Files).await?;
    let cutting = || request(ctx, &life.volume_id);
    if !ctx.in_use_is_ok(cutting()).await? {
        return life.leave(&target).await;
    }
    let answers = call_all_at_once(ctx, (0..4).map(|_| cutting()).collect()).await?;
    let ids: BTreeSet<_> = answers.into_iter().filter_map(|one| Some(one.snapshot?.snapshot_id)).collect();
    check(ids.len() == 4, "four snapshots for four names", || format!("{ids:?}"))?;
    life.leave(&target).await
}

async fn clones_of_one_volume(ctx: &TestContext) -> Outcome {
    let (life, target) = VolumeLifecycle::published(ctx, Kind::Files).await?;
    let cloning = || making(&life, of_volume(&life.volume_id));
    if !ctx.in_use_is_ok(cloning()).await? {
        return life.leave(&target).await;
    }
    let answers = call_all_at_once(ctx, (0..3).map(|_| cloning()).collect()).await?;
    let ids: BTreeSet<_> = answers.into_iter().filter_map(|one| Some(one.volume?.volume_id)).collect();
    check(ids.len() == 3, "three volumes for three names", || format!("{ids:?}"))?;
    life.leave(&target).await
}

async fn same_group_at_once(ctx: &TestContext) -> Outcome {
    let request = group_request(ctx).await?;
    let answers = call_all_at_once(ctx, vec![request.clone(); AT_ONCE]).await?;
    let mut ids: BTreeSet<_> =
        answers.into_iter().filter_map(|one| Some(one.group_snapshot?.group_snapshot_id)).collect();
    ids.insert(group(ctx, request).await?.group_snapshot_id);
    check(ids.len() == 1, "one group for one name", || format!("{ids:?}"))
}

async fn same_expand_at_once(ctx: &TestContext) -> Outcome {
    let life = VolumeLifecycle::new(ctx, ctx.any_kind()).await?;
    let wanted = life.size().saturating_mul(2);
    let request = life.controller_expand_volume(wanted);
    let sizes: Vec<i64> =
        call_all_at_once(ctx, vec![request; AT_ONCE]).await?.iter().map(|one| one.capacity_bytes).collect();
    check(sizes.iter().all(|size| *size >= wanted), &format!("at least {wanted} bytes for each call"), || {
        format!("{sizes:?}")
    })
}

/// One call among others. It succeeds at once or when it is repeated, or is refused for a volume in use.
async fn one_of_many<C: RpcRequest>(ctx: &TestContext, request: Option<C>) -> Outcome {
    let Some(request) = request else { return Ok(()) };
    let mut wait = ctx.retries();
    loop {
        match ctx.call(request.clone()).await {
            Ok(_) => return Ok(()),
            Err(refusal)
                if is_retryable(refusal.code) && !refusal.lacks_room(C::RPC) && wait.again().await => {}
            Err(refusal) if refusal.code == Code::FailedPrecondition => return Ok(()),
            Err(refusal) => {
                let due = "OK, ABORTED while another operation is pending, or FAILED_PRECONDITION";
                let mut failure = ctx.unexpected(&request, &refusal, due);
                failure.actual = wait.describe(&failure.actual);
                return Err(failure);
            }
        }
    }
}

/// The calls of five sidecars and the kubelet, which know nothing of each other.
async fn different_at_once(ctx: &TestContext) -> Outcome {
    let (life, target) = VolumeLifecycle::published(ctx, Kind::Files).await?;
    content::write(&target, Kind::Files, b'd').await?;
    let controller = |one| ctx.offers.controller(one);
    let node = |one| ctx.offers.node(one);
    for _ in 0..4 {
        let expand =
            controller(ExpandVolume).then(|| life.controller_expand_volume(life.size().saturating_mul(2)));
        let cut = controller(CreateDeleteSnapshot).then(|| request(ctx, &life.volume_id));
        let get = controller(GetVolume)
            .then(|| v1::ControllerGetVolumeRequest { volume_id: life.volume_id.clone() });
        let attach = controller(PublishUnpublishVolume).then(|| life.controller_publish_volume());
        let stage = node(StageUnstageVolume).then(|| life.node_stage_volume());
        let stats = node(GetVolumeStats).then(|| life.node_get_volume_stats(&target));
        let results = tokio::join!(
            one_of_many(ctx, expand),
            one_of_many(ctx, cut),
            one_of_many(ctx, get),
            one_of_many(ctx, attach),
            one_of_many(ctx, stage),
            one_of_many(ctx, stats),
            one_of_many(ctx, Some(life.validate_volume_capabilities())),
            one_of_many(ctx, Some(life.node_publish_volume(&target))),
        );
        let (expanded, cut, got, attached, staged, measured, validated, published) = results;
        for one in [expanded, cut, got, attached, staged, measured, validated, published] {
            one?;
        }
    }
    let mounts = mounts_at(&target)?;
    check(mounts == 1, "one mount at the target", || mounts.to_string())?;
    content::holds(&target, Kind::Files, b'd').await?;
    life.leave(&target).await
}

async fn streams_at_once(ctx: &TestContext) -> Outcome {
    let id = any_snapshot(ctx).await?;
    let one = || allocated_of(ctx, &id, 0);
    let (first, second, third) = tokio::join!(one(), one(), one());
    let first = first?;
    let second = second?;
    let third = third?;
    check(first == second && second == third, "the same ranges from each stream", || {
        format!("{first:?}, {second:?} and {third:?}")
    })
}

/// Gives up the call several times, by its deadline and by cancelling it.
async fn give_up<C: RpcRequest>(ctx: &TestContext, request: &C) {
    for millis in [1, 3, 10] {
        let _ = ctx.call_within(request.clone(), Duration::from_millis(millis)).await;
        let _ = tokio::time::timeout(Duration::from_millis(millis), ctx.call(request.clone())).await;
    }
}

async fn given_up_snapshot(ctx: &TestContext) -> Outcome {
    let request = request_of_new_volume(ctx).await?;
    give_up(ctx, &request).await;
    call_with_retries(ctx, request.clone()).await?;
    let made = cut(ctx, request.clone()).await?;
    // An operation that was given up can end after its retry.
    tokio::time::sleep(Duration::from_millis(300)).await;
    let by_source =
        v1::ListSnapshotsRequest { source_volume_id: request.source_volume_id.clone(), ..Default::default() };
    let all = listed_snapshots(ctx, by_source).await?;
    let is_alone = all.len() == 1 && all[0].snapshot_id == made.snapshot_id;
    let due = format!("{} alone", made.snapshot_id);
    ctx.check(&request, is_alone, due, || format!("in the list of all {all:?}"))
}

async fn given_up_attach(ctx: &TestContext) -> Outcome {
    let life = VolumeLifecycle::new(ctx, ctx.any_kind()).await?;
    give_up(ctx, &life.controller_publish_volume()).await;
    call_with_retries(ctx, life.controller_publish_volume()).await?;
    // An operation that was given up can end after its retry.
    tokio::time::sleep(Duration::from_millis(300)).await;
    ctx.ok(life.controller_publish_volume()).await?;
    call_with_retries(ctx, life.controller_unpublish_volume()).await?;
    ctx.ok(life.delete_volume()).await.map(drop)
}
