//! ControllerModifyVolume.

use csi_core::ControllerCapability::{CreateDeleteVolume, ModifyVolume};
use csi_core::Rpc;
use csi_proto::v1;
use tonic::Code;

use crate::cx::Cx;
use crate::failure::Outcome;

crate::test::tests! { "modify", "Controller Service RPC: ControllerModifyVolume";
    "Mutable parameters that the run names are taken, again too", takes, ["controller-modify-volume.repeated-is-ok"], [Controller(ModifyVolume), Controller(CreateDeleteVolume)];
    "A volume that is not there is NOT_FOUND", not_found, ["controller-modify-volume.missing"], [Controller(ModifyVolume)];
}

fn request(cx: &Cx, volume_id: String) -> v1::ControllerModifyVolumeRequest {
    let mutable_parameters = cx.settings.mutable_parameters.of(Rpc::ControllerModifyVolume);
    v1::ControllerModifyVolumeRequest { volume_id, mutable_parameters, ..Default::default() }
}

async fn takes(cx: &Cx) -> Outcome {
    let request = request(cx, cx.volume().await?.volume_id);
    if request.mutable_parameters.is_empty() {
        return cx.refused(request, &[Code::InvalidArgument], "mutable_parameters are required").await;
    }
    cx.ok(request.clone()).await?;
    cx.ok(request).await.map(drop)
}

async fn not_found(cx: &Cx) -> Outcome {
    let mut request = request(cx, cx.name());
    if request.mutable_parameters.is_empty() {
        request.mutable_parameters.insert("iops".into(), "1".into());
    }
    let due = [Code::NotFound, Code::InvalidArgument];
    cx.refused(request, &due, "there is no such volume, nor perhaps such a parameter").await
}
