//! ControllerExpandVolume.

use csi_core::ControllerCapability::{CreateDeleteVolume, ExpandVolume};
use csi_core::NodeCapability::ExpandVolume as NodeExpandVolume;
use csi_proto::v1;
use tonic::Code;

use crate::cx::Cx;
use crate::failure::Outcome;
use crate::life::Life;
use crate::test::Kind;

crate::test::tests! { "controller-expand", "Controller Service RPC: ControllerExpandVolume";
    "A volume becomes at least as large as requested, and never smaller", grows, ["controller-expand-volume.grows", "controller-expand-volume.large-enough-is-ok"], [Controller(ExpandVolume), Controller(CreateDeleteVolume)];
    "With OFFLINE expansion only, a published volume is refused", offline, ["controller-expand-volume.in-use"], [Offline, Volume(Files), Controller(ExpandVolume), Controller(CreateDeleteVolume)];
    "A limit below the required size is refused", limit_below_required, ["controller-expand-volume.out-of-range"], [Controller(ExpandVolume), Controller(CreateDeleteVolume)];
    "A size below zero is refused", below_zero, ["fields.not-negative"], [Controller(ExpandVolume), Controller(CreateDeleteVolume)];
    "If expansion needs the node, the node offers EXPAND_VOLUME", node_part_is_offered, ["services.capabilities-are-served", "controller-expand-volume.grows"], [NodeService, Controller(ExpandVolume), Controller(CreateDeleteVolume)];
    "A capability that the volume does not have is INVALID_ARGUMENT, or does not prevent the expansion", beyond_capabilities, ["controller-expand-volume.beyond-capabilities"], [Unsupported, Controller(ExpandVolume), Controller(CreateDeleteVolume)];
    "A volume that does not exist is NOT_FOUND", not_found, ["controller-expand-volume.missing"], [Controller(ExpandVolume)];
}

fn request(volume_id: &str, required_bytes: i64) -> v1::ControllerExpandVolumeRequest {
    let capacity_range = Some(v1::CapacityRange { required_bytes, limit_bytes: 0 });
    v1::ControllerExpandVolumeRequest {
        volume_id: volume_id.to_owned(),
        capacity_range,
        ..Default::default()
    }
}

async fn grows(cx: &Cx) -> Outcome {
    let volume = cx.volume().await?;
    let wanted = volume.capacity_bytes.max(cx.settings.size) * 2;
    // Once, again, and then a smaller size: a volume that is large enough stays as it is.
    for asked in [wanted, wanted, cx.settings.size] {
        let request = v1::ControllerExpandVolumeRequest {
            volume_capability: Some(cx.capability(cx.any_kind())),
            ..request(&volume.volume_id, asked)
        };
        let answer = cx.ok(request.clone()).await?;
        if answer.capacity_bytes < wanted {
            return Err(cx.failure(
                &request,
                format!("{} bytes", answer.capacity_bytes),
                format!("at least {wanted} bytes"),
            ));
        }
    }
    Ok(())
}

async fn not_found(cx: &Cx) -> Outcome {
    cx.refused(request(&cx.name(), cx.settings.size), &[Code::NotFound], "the volume does not exist").await
}

async fn offline(cx: &Cx) -> Outcome {
    let mut life = Life::new(cx, Kind::Files).await?;
    let target = life.arrive().await?;
    let request = v1::ControllerExpandVolumeRequest {
        volume_capability: Some(life.capability.clone()),
        ..request(&life.id, cx.settings.size * 2)
    };
    cx.refused(request.clone(), &[Code::FailedPrecondition], "the volume is in use").await?;
    life.leave(&target).await?;
    cx.ok(request).await.map(drop)
}

async fn limit_below_required(cx: &Cx) -> Outcome {
    let volume = cx.volume().await?;
    let wanted = volume.capacity_bytes.max(cx.settings.size) * 2;
    let capacity_range = Some(v1::CapacityRange { required_bytes: wanted, limit_bytes: wanted - 1 });
    let request = v1::ControllerExpandVolumeRequest { capacity_range, ..request(&volume.volume_id, wanted) };
    cx.refused(request, &[Code::InvalidArgument, Code::OutOfRange], "no size is in this range").await
}

async fn below_zero(cx: &Cx) -> Outcome {
    let volume = cx.volume().await?;
    let due = [Code::InvalidArgument, Code::OutOfRange];
    cx.refused(request(&volume.volume_id, -1), &due, "a size is not negative").await
}

async fn node_part_is_offered(cx: &Cx) -> Outcome {
    for kind in [Kind::Files, Kind::Device] {
        if !cx.modes.iter().any(|(one, _)| *one == kind) {
            continue;
        }
        let life = Life::new(cx, kind).await?;
        let request = v1::ControllerExpandVolumeRequest {
            volume_capability: Some(life.capability.clone()),
            ..request(&life.id, cx.settings.size * 2)
        };
        let answer = cx.ok(request.clone()).await?;
        if answer.node_expansion_required && !cx.offers.node(NodeExpandVolume) {
            let due = "node_expansion_required=false, because the node does not offer EXPAND_VOLUME";
            return Err(cx.failure(&request, "node_expansion_required=true", due));
        }
    }
    Ok(())
}

async fn beyond_capabilities(cx: &Cx) -> Outcome {
    let volume = cx.volume().await?;
    let wanted = volume.capacity_bytes.max(cx.settings.size) * 2;
    let request = v1::ControllerExpandVolumeRequest {
        volume_capability: cx.unsupported(),
        ..request(&volume.volume_id, wanted)
    };
    match cx.call(request.clone()).await {
        Err(refusal) if refusal.code == Code::InvalidArgument => Ok(()),
        // Not every driver needs the capability to expand a volume.
        Ok(answer) if answer.capacity_bytes >= wanted => Ok(()),
        Ok(answer) => Err(cx.failure(&request, format!("{answer:?}"), format!("at least {wanted} bytes"))),
        Err(refusal) => Err(cx.failure(&request, cx.told(&refusal), "InvalidArgument, or OK")),
    }
}
