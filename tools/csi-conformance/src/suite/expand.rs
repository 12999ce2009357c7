//! ControllerExpandVolume.

use csi_proto::ControllerCapability::{CreateDeleteVolume, ExpandVolume};
use csi_proto::NodeCapability::ExpandVolume as NodeExpandVolume;
use csi_proto::v1;
use tonic::Code;

use crate::content::Kind;
use crate::context::TestContext;
use crate::failure::Outcome;
use crate::life::VolumeLifecycle;

crate::test::tests! { "controller-expand", "Controller Service RPC: ControllerExpandVolume";
    Must "A volume becomes at least as large as requested, and repeating the request is OK", grows, ["controller-expand-volume.grows"], [Controller(ExpandVolume), Controller(CreateDeleteVolume)];
    Should "Expansion to a smaller size is OK, and the volume stays as large as it is", large_enough, ["controller-expand-volume.large-enough-is-ok"], [Controller(ExpandVolume), Controller(CreateDeleteVolume)];
    Must "With OFFLINE expansion only, a published volume is refused", offline, ["controller-expand-volume.in-use"], [Offline, Volume(Files), Controller(ExpandVolume), Controller(CreateDeleteVolume)];
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

async fn grows(ctx: &TestContext) -> Outcome {
    let volume = ctx.volume().await?;
    let wanted = volume.capacity_bytes.max(ctx.settings.size).saturating_mul(2);
    stays_above(ctx, &volume, wanted, [wanted, wanted]).await
}

async fn large_enough(ctx: &TestContext) -> Outcome {
    let volume = ctx.volume().await?;
    let wanted = volume.capacity_bytes.max(ctx.settings.size).saturating_mul(2);
    stays_above(ctx, &volume, wanted, [wanted, ctx.settings.size]).await
}

/// Expands the volume to these sizes, the largest one first. It must not become smaller than that.
async fn stays_above(ctx: &TestContext, volume: &v1::Volume, wanted: i64, sizes: [i64; 2]) -> Outcome {
    for asked in sizes {
        let request = v1::ControllerExpandVolumeRequest {
            volume_capability: Some(ctx.capability(ctx.any_kind())),
            ..request(&volume.volume_id, asked)
        };
        let answer = ctx.ok(request.clone()).await?;
        if answer.capacity_bytes < wanted {
            return Err(ctx.failure(
                &request,
                format!("{} bytes", answer.capacity_bytes),
                format!("at least {wanted} bytes"),
            ));
        }
    }
    Ok(())
}

async fn not_found(ctx: &TestContext) -> Outcome {
    ctx.refused(request(&ctx.name(), ctx.settings.size), &[Code::NotFound], "the volume does not exist").await
}

async fn offline(ctx: &TestContext) -> Outcome {
    let mut life = VolumeLifecycle::new(ctx, Kind::Files).await?;
    let target = life.arrive().await?;
    let request = v1::ControllerExpandVolumeRequest {
        volume_capability: Some(life.capability.clone()),
        ..request(&life.volume_id, ctx.settings.size.saturating_mul(2))
    };
    ctx.refused(request.clone(), &[Code::FailedPrecondition], "the volume is in use").await?;
    life.leave(&target).await?;
    ctx.ok(request).await.map(drop)
}

async fn limit_below_required(ctx: &TestContext) -> Outcome {
    let volume = ctx.volume().await?;
    let wanted = volume.capacity_bytes.max(ctx.settings.size).saturating_mul(2);
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
        let request = v1::ControllerExpandVolumeRequest {
            volume_capability: Some(life.capability.clone()),
            ..request(&life.volume_id, ctx.settings.size.saturating_mul(2))
        };
        let answer = ctx.ok(request.clone()).await?;
        if answer.node_expansion_required && !ctx.offers.node(NodeExpandVolume) {
            let due = "node_expansion_required=false, because the node does not offer EXPAND_VOLUME";
            return Err(ctx.failure(&request, "node_expansion_required=true", due));
        }
    }
    Ok(())
}

async fn beyond_capabilities(ctx: &TestContext) -> Outcome {
    let volume = ctx.volume().await?;
    let wanted = volume.capacity_bytes.max(ctx.settings.size).saturating_mul(2);
    let request = v1::ControllerExpandVolumeRequest {
        volume_capability: ctx.unsupported(),
        ..request(&volume.volume_id, wanted)
    };
    match ctx.call(request.clone()).await {
        Err(refusal) if refusal.code == Code::InvalidArgument => Ok(()),
        // Not every driver needs the capability to expand a volume.
        Ok(answer) if answer.capacity_bytes >= wanted => Ok(()),
        Ok(answer) => Err(ctx.failure(&request, format!("{answer:?}"), format!("at least {wanted} bytes"))),
        Err(refusal) => Err(ctx.failure(&request, ctx.refusal_text(&refusal), "InvalidArgument, or OK")),
    }
}
