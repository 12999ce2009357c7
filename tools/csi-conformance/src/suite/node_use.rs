//! A published volume in use: read-write, read-only, usage, expansion.

use std::path::Path;

use csi_proto::NodeCapability::GetVolumeStats;
use csi_proto::v1;
use tonic::Code;

use super::usage::bytes;
use crate::content;
use crate::content::Kind;
use crate::context::TestContext;
use crate::failure::{Outcome, check};
use crate::life::{VolumeLifecycle, text};

crate::test::tests! { "node-use", "Node Service RPC: NodePublishVolume, NodeGetVolumeStats, NodeExpandVolume";
    Must "Written data can be read again after unpublish and unstage", data_stays = stays(Files), ["node-publish-volume.usable-as-described", "controller-publish-volume.usable-as-described"], [Volume(Files), Mounts];
    Must "Data written to a raw device can be read again after unpublish and unstage", device_data_stays = stays(Device), ["node-publish-volume.usable-as-described", "controller-publish-volume.usable-as-described"], [Volume(Device), Mounts];
    Must "A read-only target refuses writes", read_only = takes_no_writes(Files), ["node-publish-volume.readonly"], [Volume(Files), Mounts];
    Must "A read-only raw device refuses writes, or its publish is refused", device_read_only = takes_no_writes(Device), ["node-publish-volume.readonly"], [Volume(Device), Mounts];
    Must "NodeGetVolumeStats of a published volume is OK, and NOT_FOUND where it is not published", stats, ["node-get-volume-stats.usage", "node-get-volume-stats.missing"], [AnyVolume, Node(GetVolumeStats)];
    Must "A published volume can be expanded twice, as by the resizer and the kubelet; each time the target and the usage show the new size", grows = grow(Files), ["volume-expansion.online-grows-published", "node-expand-volume.grows", "node-expand-volume.large-enough-is-ok"], [Volume(Files), Expands];
    Must "A published raw device can be expanded twice, and the new size is visible at the target each time", device_grows = grow(Device), ["volume-expansion.online-grows-published", "node-expand-volume.grows", "controller-expand-volume.grows"], [Volume(Device), Mounts, Expands];
}

async fn stays(ctx: &TestContext, kind: Kind) -> Outcome {
    let mut life = VolumeLifecycle::staged(ctx, kind).await?;
    let target = life.target();
    for round in 0..2 {
        if round > 0 {
            life.prepare().await?;
        }
        ctx.ok(life.node_publish_volume(&target)).await?;
        if round == 0 {
            content::write(&target, kind, b'w').await?;
        }
        content::holds(&target, kind, b'w').await?;
        ctx.ok(life.node_unpublish_volume(&target)).await?;
        if life.stages() {
            ctx.ok(life.node_unstage_volume()).await?;
        }
    }
    life.end(&[]).await
}

async fn takes_no_writes(ctx: &TestContext, kind: Kind) -> Outcome {
    let life = VolumeLifecycle::staged(ctx, kind).await?;
    let target = life.target();
    let request = v1::NodePublishVolumeRequest { readonly: true, ..life.node_publish_volume(&target) };
    // A refusal is better than a device that is writable.
    let codes: &[Code] = if kind == Kind::Device { &[Code::InvalidArgument] } else { &[] };
    if ctx.ok_or(request.clone(), codes, "OK").await?.is_none() {
        return Ok(());
    }
    content::size(&target, kind).await?;
    let wrote = content::takes_writes(&target, kind).await?;
    ctx.ok(life.node_unpublish_volume(&target)).await?;
    let came = || "a write through the target succeeded".to_owned();
    ctx.check(&request, !wrote, "a target that refuses writes", came)
}

async fn stats(ctx: &TestContext) -> Outcome {
    let (life, target) = VolumeLifecycle::published(ctx, ctx.any_kind()).await?;
    let request = life.node_get_volume_stats(&target);
    let answer = ctx.ok(request.clone()).await?;
    let good = |usage: &v1::VolumeUsage| {
        usage.total > 0 && usage.used >= 0 && usage.available >= 0 && usage.unit != 0
    };
    let due = "no usage, or usage with a unit and a total, and nothing negative";
    ctx.check(&request, answer.usage.iter().all(good), due, || format!("{answer:?}"))?;
    let elsewhere = v1::NodeGetVolumeStatsRequest { volume_path: text(&life.target()), ..request };
    ctx.refused(elsewhere, &[Code::NotFound], "the volume is not at that path").await?;
    life.end(&[&target]).await
}

/// The sizes of a published volume in bytes, as a workload and a caller of NodeGetVolumeStats see them.
#[derive(Debug, Clone, Copy)]
struct Sizes {
    at_target: Option<u64>,
    in_stats: Option<u64>,
}

async fn sizes(life: &VolumeLifecycle, target: &Path, kind: Kind) -> Outcome<Sizes> {
    let ctx = &life.ctx;
    let at_target = if ctx.sees_mounts() { Some(content::size(target, kind).await?) } else { None };
    let in_stats = if ctx.offers.node(GetVolumeStats) {
        let total = bytes(&ctx.ok(life.node_get_volume_stats(target)).await?).total;
        // Usage is optional.
        (total > 0).then_some(total.unsigned_abs())
    } else {
        None
    };
    Ok(Sizes { at_target, in_stats })
}

/// Expands the volume twice, because a driver can expand once by chance, for example at the next stage.
async fn grow(ctx: &TestContext, kind: Kind) -> Outcome {
    let mut life = VolumeLifecycle::new(ctx, kind).await?;
    let first = life.size();
    let mut target = life.arrive().await?;
    for times in [2, 3] {
        let before = sizes(&life, &target, kind).await?;
        let size = life.size();
        let wanted = first.saturating_mul(times);
        target = life.expand(target, wanted).await?;
        let mut wait = ctx.retries();
        loop {
            let after = sizes(&life, &target, kind).await?;
            match has_grown(kind, before, after, size.unsigned_abs(), wanted.unsigned_abs()) {
                // A driver is allowed to measure usage from time to time only.
                Err(_) if wait.again().await => {}
                done => break done?,
            }
        }
    }
    life.end(&[&target]).await
}

/// Checks that a workload and the caller of NodeGetVolumeStats see a larger size. A filesystem uses part of
/// the size itself, and a filesystem that many volumes share was larger before.
fn has_grown(kind: Kind, before: Sizes, after: Sizes, size: u64, wanted: u64) -> Outcome {
    let least = |before: u64| match kind {
        Kind::Device => wanted,
        Kind::Files if before < wanted => before.saturating_add(wanted.saturating_sub(size) / 2),
        Kind::Files => 0,
    };
    for (what, before, after) in [
        ("at the target", before.at_target, after.at_target),
        ("as the total of NodeGetVolumeStats", before.in_stats, after.in_stats),
    ] {
        let (Some(before), Some(after)) = (before, after) else { continue };
        check(after >= least(before), &format!("at least {} bytes {what}", least(before)), || {
            format!("{after} bytes, and {before} before the expansion")
        })?;
    }
    Ok(())
}
