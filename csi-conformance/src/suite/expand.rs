//! ControllerExpandVolume.

use csi_core::ControllerCapability::{CreateDeleteVolume, ExpandVolume};
use csi_proto::v1;
use tonic::Code;

use crate::cx::Cx;
use crate::failure::Outcome;
use crate::life::Life;

crate::test::tests! { "controller-expand", "Controller Service RPC: ControllerExpandVolume";
    "A volume becomes as large as was asked for, and never smaller", grows, ["controller-expand-volume.grows", "controller-expand-volume.large-enough-is-ok"], [Controller(ExpandVolume), Controller(CreateDeleteVolume)];
    "A volume that grows while it is unused alone is refused while it is published", offline, ["controller-expand-volume.in-use"], [Offline, Volume(Files), Controller(ExpandVolume), Controller(CreateDeleteVolume)];
    "A limit below the size that is required is refused", limit_below_required, ["controller-expand-volume.out-of-range"], [Controller(ExpandVolume), Controller(CreateDeleteVolume)];
    "A volume that is not there is NOT_FOUND", not_found, ["controller-expand-volume.missing"], [Controller(ExpandVolume)];
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
    // Once, again, and a smaller size after it: what is big enough already stays as it is.
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
    cx.refused(request(&cx.name(), cx.settings.size), &[Code::NotFound], "there is no such volume").await
}

async fn offline(cx: &Cx) -> Outcome {
    let mut life = Life::new(cx, crate::test::Kind::Files).await?;
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
    cx.refused(request, &[Code::InvalidArgument, Code::OutOfRange], "no size is in that range").await
}
