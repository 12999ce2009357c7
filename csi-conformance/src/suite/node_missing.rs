//! The node's answers for volumes that do not exist.

use csi_core::ControllerCapability::PublishUnpublishVolume;
use csi_core::NodeCapability::{ExpandVolume, StageUnstageVolume};
use csi_proto::v1;
use tonic::Code;

use crate::cx::Cx;
use crate::failure::Outcome;
use crate::life::Life;
use crate::test::Kind;
use crate::wire::Call;

crate::test::tests! { "node-missing", "Node Service RPC: volumes that do not exist";
    "Publishing a volume that does not exist is NOT_FOUND, or FAILED_PRECONDITION because it is not staged", publish, ["node-publish-volume.missing"], [Volume(Files)];
    "Staging a volume that does not exist is NOT_FOUND", stage, ["node-stage-volume.missing"], [Volume(Files), Node(StageUnstageVolume)];
    "Unpublishing a volume that does not exist is OK or NOT_FOUND", unpublish, ["node-unpublish-volume.missing"], [Volume(Files)];
    "Unstaging a volume that does not exist is OK or NOT_FOUND", unstage, ["node-unstage-volume.missing"], [Volume(Files), Node(StageUnstageVolume)];
    "Expanding a volume that does not exist is NOT_FOUND", expand, ["node-expand-volume.missing"], [Volume(Files), Node(ExpandVolume)];
    "An impossible size range is refused", no_range, ["node-expand-volume.out-of-range"], [Volume(Files), Node(ExpandVolume)];
    "Detaching a volume that does not exist is OK or NOT_FOUND", detach, ["controller-unpublish-volume.missing"], [NodeService, Controller(PublishUnpublishVolume)];
}

/// A volume with an id that does not exist.
fn nowhere(cx: &Cx) -> Life {
    let volume = v1::Volume { volume_id: cx.name(), ..Default::default() };
    Life::with(cx, cx.capability(cx.any_kind()), volume)
}

async fn publish(cx: &Cx) -> Outcome {
    let life = Life::staged(cx, Kind::Files).await?;
    let publish = v1::NodePublishVolumeRequest { volume_id: cx.name(), ..life.publishing(&life.target()) };
    cx.refused(publish, &[Code::NotFound, Code::FailedPrecondition], "the volume does not exist").await
}

async fn stage(cx: &Cx) -> Outcome {
    let life = nowhere(cx);
    life.make_staging_directory()?;
    cx.refused(life.staging(), &[Code::NotFound], "the volume does not exist").await
}

/// Sends a call that undoes something. There is nothing to undo, and the driver is allowed to report that.
async fn ok_or_not_found<C: Call>(cx: &Cx, request: C) -> Outcome {
    match cx.call(request.clone()).await {
        Ok(_) => Ok(()),
        Err(refusal) if refusal.code == Code::NotFound => Ok(()),
        Err(refusal) => {
            Err(cx.failure(&request, cx.told(&refusal), "OK or NotFound: the volume does not exist"))
        }
    }
}

async fn unpublish(cx: &Cx) -> Outcome {
    let life = nowhere(cx);
    ok_or_not_found(cx, life.unpublishing(&life.target())).await
}

async fn unstage(cx: &Cx) -> Outcome {
    let life = nowhere(cx);
    life.make_staging_directory()?;
    ok_or_not_found(cx, life.unstaging()).await
}

async fn detach(cx: &Cx) -> Outcome {
    ok_or_not_found(cx, nowhere(cx).detaching()).await
}

async fn expand(cx: &Cx) -> Outcome {
    let mut life = Life::new(cx, Kind::Files).await?;
    let target = life.arrive().await?;
    let request = v1::NodeExpandVolumeRequest { volume_id: cx.name(), ..life.growing(&target, None) };
    cx.refused(request, &[Code::NotFound], "the volume does not exist").await?;
    let request = life.growing(&life.target(), None);
    cx.refused(request, &[Code::NotFound], "the volume is not at that path").await?;
    life.end(&[&target]).await
}

async fn no_range(cx: &Cx) -> Outcome {
    let mut life = Life::new(cx, Kind::Files).await?;
    let target = life.arrive().await?;
    let wanted = cx.settings.size * 2;
    let range = v1::CapacityRange { required_bytes: wanted, limit_bytes: wanted - 1 };
    let request = life.growing(&target, Some(range));
    cx.refused(request, &[Code::InvalidArgument, Code::OutOfRange], "no size is in this range").await?;
    life.end(&[&target]).await
}
