//! A published volume in use: read-write, read-only, usage, expansion.

use std::path::Path;

use csi_proto::ControllerCapability::ExpandVolume as ControllerExpandVolume;
use csi_proto::NodeCapability::{ExpandVolume, GetVolumeStats};
use csi_proto::v1;
use tonic::Code;
use v1::plugin_capability::volume_expansion::Type::Online;

use crate::content;
use crate::context::TestContext;
use crate::failure::{Outcome, check};
use crate::life::{Life, text};
use crate::test::Kind;

crate::test::tests! { "node-use", "Node Service RPC: NodePublishVolume, NodeGetVolumeStats, NodeExpandVolume";
    "Written data can be read again after unpublish and unstage", data_stays, ["node-publish-volume.usable-as-described", "controller-publish-volume.usable-as-described"], [Volume(Files), Mounts];
    "Data written to a raw device can be read again after unpublish and unstage", device_data_stays, ["node-publish-volume.usable-as-described", "controller-publish-volume.usable-as-described"], [Volume(Device), Mounts];
    "A read-only target refuses writes", read_only, ["node-publish-volume.readonly"], [Volume(Files), Mounts];
    "A read-only raw device refuses writes, or its publish is refused", device_read_only, ["node-publish-volume.readonly"], [Volume(Device), Mounts];
    "NodeGetVolumeStats reports the usage of a published volume, and NOT_FOUND if it does not exist", stats, ["node-get-volume-stats.usage", "node-get-volume-stats.missing"], [Volume(Files), Node(GetVolumeStats)];
    "A published volume can be expanded, as by the resizer and the kubelet", grows, ["volume-expansion.online-grows-published", "node-expand-volume.grows", "node-expand-volume.large-enough-is-ok"], [Volume(Files), Node(ExpandVolume), Controller(ControllerExpandVolume)];
    "A published raw device can be expanded, and the new size is visible at the target", device_grows, ["volume-expansion.online-grows-published", "node-expand-volume.grows", "controller-expand-volume.grows"], [Volume(Device), Mounts, Controller(ControllerExpandVolume)];
}

async fn stays(ctx: &TestContext, kind: Kind) -> Outcome {
    let mut life = Life::staged(ctx, kind).await?;
    let target = life.target();
    for round in 0..2 {
        if round > 0 {
            life.prepare().await?;
        }
        ctx.ok(life.publishing(&target)).await?;
        if round == 0 {
            content::write(&target, kind, b'w').await?;
        }
        content::holds(&target, kind, b'w').await?;
        ctx.ok(life.unpublishing(&target)).await?;
        if life.stages() {
            ctx.ok(life.unstaging()).await?;
        }
    }
    life.end(&[]).await
}

async fn data_stays(ctx: &TestContext) -> Outcome {
    stays(ctx, Kind::Files).await
}

async fn device_data_stays(ctx: &TestContext) -> Outcome {
    stays(ctx, Kind::Device).await
}

async fn takes_no_writes(ctx: &TestContext, kind: Kind) -> Outcome {
    let life = Life::staged(ctx, kind).await?;
    let target = life.target();
    let request = v1::NodePublishVolumeRequest { readonly: true, ..life.publishing(&target) };
    match ctx.call(request.clone()).await {
        // A refusal is better than a device that is writable.
        Err(refusal) if kind == Kind::Device && refusal.code == Code::InvalidArgument => return Ok(()),
        Err(refusal) => return Err(ctx.failure(&request, ctx.refusal_text(&refusal), "OK")),
        Ok(_) => {}
    }
    content::size(&target, kind).await?;
    let wrote = content::takes_writes(&target, kind).await?;
    ctx.ok(life.unpublishing(&target)).await?;
    if wrote {
        Err(ctx.failure(&request, "a write through the target succeeded", "a target that refuses writes"))
    } else {
        Ok(())
    }
}

async fn read_only(ctx: &TestContext) -> Outcome {
    takes_no_writes(ctx, Kind::Files).await
}

async fn device_read_only(ctx: &TestContext) -> Outcome {
    takes_no_writes(ctx, Kind::Device).await
}

async fn stats(ctx: &TestContext) -> Outcome {
    let life = Life::staged(ctx, Kind::Files).await?;
    let target = life.target();
    ctx.ok(life.publishing(&target)).await?;
    let request = life.stats(&target);
    let answer = ctx.ok(request.clone()).await?;
    let good = |usage: &v1::VolumeUsage| {
        usage.total > 0 && usage.used >= 0 && usage.available >= 0 && usage.unit != 0
    };
    let bytes = answer.usage.iter().any(|usage| usage.unit() == v1::volume_usage::Unit::Bytes);
    if !bytes || !answer.usage.iter().all(good) {
        return Err(ctx.failure(
            &request,
            format!("{answer:?}"),
            "usage in bytes, with a total, and nothing negative",
        ));
    }
    let elsewhere = v1::NodeGetVolumeStatsRequest { volume_path: text(&life.target()), ..request.clone() };
    ctx.refused(elsewhere, &[Code::NotFound], "the volume is not at that path").await?;
    let unknown = v1::NodeGetVolumeStatsRequest { volume_id: ctx.name(), ..request };
    ctx.refused(unknown, &[Code::NotFound], "the volume does not exist").await?;
    life.end(&[&target]).await
}

async fn grows(ctx: &TestContext) -> Outcome {
    grow(ctx, Kind::Files).await
}

async fn device_grows(ctx: &TestContext) -> Outcome {
    grow(ctx, Kind::Device).await
}

/// Expands the volume while it is published if the driver supports that, and otherwise before.
async fn grow(ctx: &TestContext, kind: Kind) -> Outcome {
    let mut life = Life::new(ctx, kind).await?;
    let wanted = ctx.settings.size * 2;
    let larger = v1::ControllerExpandVolumeRequest {
        volume_id: life.id.clone(),
        capacity_range: Some(v1::CapacityRange { required_bytes: wanted, limit_bytes: 0 }),
        volume_capability: Some(life.capability.clone()),
        ..Default::default()
    };
    let target = life.arrive().await?;
    let before = if ctx.sees_mounts() { Some(content::size(&target, kind).await?) } else { None };
    let is_online = ctx.offers.expands(Online);
    if !is_online {
        life.leave(&target).await?;
    }
    let answer = ctx.ok(larger.clone()).await?;
    if answer.capacity_bytes < wanted {
        let came = format!("{} bytes", answer.capacity_bytes);
        return Err(ctx.failure(&larger, came, format!("at least {wanted}")));
    }
    let target = if is_online { target } else { life.arrive().await? };
    if answer.node_expansion_required && ctx.offers.node(ExpandVolume) {
        let request = life.growing(&target, larger.capacity_range);
        ctx.ok(request.clone()).await?;
        ctx.ok(request).await?;
    }
    if let Some(before) = before {
        has_grown(&target, kind, before, wanted.unsigned_abs()).await?;
    }
    life.end(&[&target]).await
}

/// Checks that the workload sees a larger size. A filesystem uses part of the size itself, and a filesystem
/// that many volumes share was larger before.
async fn has_grown(target: &Path, kind: Kind, before: u64, wanted: u64) -> Outcome {
    let size = content::size(target, kind).await?;
    let least = match kind {
        Kind::Device => wanted,
        Kind::Files if before < wanted => before + before / 2,
        Kind::Files => 0,
    };
    check(size >= least, &format!("at least {least} bytes at the target"), || {
        format!("{size} bytes, and {before} before the expansion")
    })
}
