//! ControllerExpandVolume.

use csi_proto::ControllerCapability::{CreateDeleteVolume, ExpandVolume, GetVolume, ListVolumes};
use csi_proto::NodeCapability::ExpandVolume as NodeExpandVolume;
use csi_proto::v1;
use tonic::Code;

use super::paging::listed_volume;
use crate::content::Kind;
use crate::context::TestContext;
use crate::failure::{Outcome, check, or_nothing};
use crate::life::VolumeLifecycle;

crate::test::tests! { "controller-expand", "Controller Service RPC: ControllerExpandVolume";
    Must "A volume becomes at least as large as requested, and repeating the request is OK", grows, ["controller-expand-volume.grows"], [Controller(ExpandVolume), Controller(CreateDeleteVolume)];
    Should "Expansion to a smaller size is OK, and the volume stays as large as it is", large_enough, ["controller-expand-volume.large-enough-is-ok"], [Controller(ExpandVolume), Controller(CreateDeleteVolume)];
    Must "With OFFLINE expansion only, a published volume is refused", offline, ["controller-expand-volume.in-use"], [Offline, Volume(Files), Controller(ExpandVolume), Controller(CreateDeleteVolume)];
    Must "A volume does not become larger than the limit, or the size is OUT_OF_RANGE", within_the_limit, ["controller-expand-volume.grows", "controller-expand-volume.out-of-range"], [Controller(ExpandVolume), Controller(CreateDeleteVolume)];
    Practice "ListVolumes and ControllerGetVolume return the new size", told, ["controller-get-volume.current", "controller-expand-volume.grows"], [Controller(ExpandVolume), Controller(CreateDeleteVolume)];
    Must "A limit below the required size is refused", limit_below_required, ["controller-expand-volume.out-of-range"], [Controller(ExpandVolume), Controller(CreateDeleteVolume)];
    Practice "A size below zero is refused", below_zero, ["fields.not-negative"], [Controller(ExpandVolume), Controller(CreateDeleteVolume)];
    Practice "If expansion needs the node, the node offers EXPAND_VOLUME", node_part_is_offered, ["services.capabilities-are-served", "controller-expand-volume.grows"], [NodeService, Controller(ExpandVolume), Controller(CreateDeleteVolume)];
    Must "A capability that the volume does not have is INVALID_ARGUMENT, or does not prevent the expansion", beyond_capabilities, ["controller-expand-volume.beyond-capabilities"], [Unsupported, Controller(ExpandVolume), Controller(CreateDeleteVolume)];
    Must "A volume that does not exist is NOT_FOUND", not_found, ["controller-expand-volume.missing"], [Controller(ExpandVolume)];
}

fn request(volume_id: &str, required_bytes: i64) -> v1::ControllerExpandVolumeRequest {
    let capacity_range = Some(v1::CapacityRange { required_bytes, limit_bytes: 0 });
    v1::ControllerExpandVolumeRequest {
        volume_id: volume_id.to_owned(),
        capacity_range,
        ..Default::default()
    }
}

/// A volume, and twice its size.
async fn doubled(ctx: &TestContext) -> Outcome<(v1::Volume, i64)> {
    let volume = ctx.volume().await?;
    let wanted = volume.capacity_bytes.max(ctx.settings.size).saturating_mul(2);
    Ok((volume, wanted))
}

async fn grows(ctx: &TestContext) -> Outcome {
    let (volume, wanted) = doubled(ctx).await?;
    stays_above(ctx, &volume, wanted, [wanted, wanted]).await
}

async fn large_enough(ctx: &TestContext) -> Outcome {
    let (volume, wanted) = doubled(ctx).await?;
    stays_above(ctx, &volume, wanted, [wanted, ctx.settings.size]).await
}

/// Expands the volume to these sizes, the largest one first. It must not become smaller than that.
async fn stays_above(ctx: &TestContext, volume: &v1::Volume, wanted: i64, sizes: [i64; 2]) -> Outcome {
    for asked in sizes {
        let request = v1::ControllerExpandVolumeRequest {
            volume_capability: Some(ctx.capability(ctx.any_kind())),
            ..request(&volume.volume_id, asked)
        };
        ctx.expanded(request, wanted).await?;
    }
    Ok(())
}

async fn not_found(ctx: &TestContext) -> Outcome {
    ctx.refused(request(&ctx.name(), ctx.settings.size), &[Code::NotFound], "the volume does not exist").await
}

async fn offline(ctx: &TestContext) -> Outcome {
    let (life, target) = VolumeLifecycle::published(ctx, Kind::Files).await?;
    let request = life.controller_expand_volume(life.size().saturating_mul(2));
    ctx.refused(request.clone(), &[Code::FailedPrecondition], "the volume is in use").await?;
    life.leave(&target).await?;
    ctx.ok(request).await.map(drop)
}

async fn limit_below_required(ctx: &TestContext) -> Outcome {
    let (volume, wanted) = doubled(ctx).await?;
    let capacity_range = Some(v1::CapacityRange { required_bytes: wanted, limit_bytes: wanted - 1 });
    let request = v1::ControllerExpandVolumeRequest { capacity_range, ..request(&volume.volume_id, wanted) };
    ctx.refused(request, &[Code::InvalidArgument, Code::OutOfRange], "no size is in this range").await
}

async fn below_zero(ctx: &TestContext) -> Outcome {
    let volume = ctx.volume().await?;
    let due = [Code::InvalidArgument, Code::OutOfRange];
    ctx.refused(request(&volume.volume_id, -1), &due, "a size is not negative").await
}

async fn node_part_is_offered(ctx: &TestContext) -> Outcome {
    for kind in [Kind::Files, Kind::Device] {
        if !ctx.modes.iter().any(|(one, _)| *one == kind) {
            continue;
        }
        let life = VolumeLifecycle::new(ctx, kind).await?;
        let request = life.controller_expand_volume(life.size().saturating_mul(2));
        let answer = ctx.ok(request.clone()).await?;
        let is_offered = !answer.node_expansion_required || ctx.offers.node(NodeExpandVolume);
        let due = "node_expansion_required=false, because the node does not offer EXPAND_VOLUME";
        ctx.check(&request, is_offered, due, || "node_expansion_required=true".to_owned())?;
    }
    Ok(())
}

async fn beyond_capabilities(ctx: &TestContext) -> Outcome {
    let (volume, wanted) = doubled(ctx).await?;
    let request = v1::ControllerExpandVolumeRequest {
        volume_capability: ctx.unsupported(),
        ..request(&volume.volume_id, wanted)
    };
    let codes = [Code::InvalidArgument];
    let answer = ctx.ok_or(request.clone(), &codes, "InvalidArgument, or OK").await?;
    // Not every driver needs the capability to expand a volume.
    let is_large = answer.as_ref().is_none_or(|answer| answer.capacity_bytes >= wanted);
    ctx.check(&request, is_large, format!("at least {wanted} bytes"), || or_nothing(&answer))
}

async fn within_the_limit(ctx: &TestContext) -> Outcome {
    let (volume, wanted) = doubled(ctx).await?;
    let range = v1::CapacityRange { required_bytes: wanted, limit_bytes: wanted };
    let request = v1::ControllerExpandVolumeRequest {
        capacity_range: Some(range),
        volume_capability: Some(ctx.capability(ctx.any_kind())),
        ..request(&volume.volume_id, wanted)
    };
    let answer = ctx.ok_or(request.clone(), &[Code::OutOfRange], "OK or OutOfRange").await?;
    let bytes = answer.map(|answer| answer.capacity_bytes).unwrap_or_default();
    ctx.check(&request, bytes <= wanted, format!("at most {wanted} bytes"), || format!("{bytes} bytes"))
}

async fn told(ctx: &TestContext) -> Outcome {
    let (volume, wanted) = doubled(ctx).await?;
    stays_above(ctx, &volume, wanted, [wanted, wanted]).await?;
    let mut all = Vec::new();
    if ctx.offers.controller(ListVolumes) {
        all.push(listed_volume(ctx, &volume.volume_id).await?.and_then(|one| one.volume));
    }
    if ctx.offers.controller(GetVolume) {
        let get = v1::ControllerGetVolumeRequest { volume_id: volume.volume_id };
        all.push(ctx.ok(get).await?.volume);
    }
    for found in all {
        // 0 is an unknown size.
        let is_new = |one: &v1::Volume| one.capacity_bytes == 0 || one.capacity_bytes >= wanted;
        let due = format!("a volume of at least {wanted} bytes");
        check(found.as_ref().is_some_and(is_new), &due, || or_nothing(&found))?;
    }
    Ok(())
}
