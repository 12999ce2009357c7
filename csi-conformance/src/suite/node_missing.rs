//! The node's answers for volumes that do not exist.

use csi_proto::ControllerCapability::PublishUnpublishVolume;
use csi_proto::NodeCapability::{ExpandVolume, StageUnstageVolume};
use csi_proto::v1;
use tonic::Code;

use crate::context::TestContext;
use crate::failure::Outcome;
use crate::life::Life;
use crate::test::Kind;
use csi_proto::RpcRequest;

crate::test::tests! { "node-missing", "Node Service RPC: volumes that do not exist";
    Must "Publishing a volume that does not exist is NOT_FOUND, or FAILED_PRECONDITION because it is not staged", publish, ["node-publish-volume.missing"], [Volume(Files)];
    Must "Staging a volume that does not exist is NOT_FOUND", stage, ["node-stage-volume.missing"], [Volume(Files), Node(StageUnstageVolume)];
    Must "Unpublishing a volume that does not exist is OK or NOT_FOUND", unpublish, ["node-unpublish-volume.missing"], [Volume(Files)];
    Must "Unstaging a volume that does not exist is OK or NOT_FOUND", unstage, ["node-unstage-volume.missing"], [Volume(Files), Node(StageUnstageVolume)];
    Must "Expanding a volume that does not exist is NOT_FOUND", expand, ["node-expand-volume.missing"], [Volume(Files), Node(ExpandVolume)];
    Practice "An impossible size range is refused", no_range, ["node-expand-volume.out-of-range"], [Volume(Files), Node(ExpandVolume)];
    Must "Detaching a volume that does not exist is OK or NOT_FOUND", detach, ["controller-unpublish-volume.missing"], [NodeService, Controller(PublishUnpublishVolume)];
}

/// A volume with an id that does not exist.
fn nowhere(ctx: &TestContext) -> Life {
    let volume = v1::Volume { volume_id: ctx.name(), ..Default::default() };
    Life::with(ctx, ctx.capability(ctx.any_kind()), volume)
}

async fn publish(ctx: &TestContext) -> Outcome {
    let life = Life::staged(ctx, Kind::Files).await?;
    let publish =
        v1::NodePublishVolumeRequest { volume_id: ctx.name(), ..life.node_publish_volume(&life.target()) };
    ctx.refused(publish, &[Code::NotFound, Code::FailedPrecondition], "the volume does not exist").await
}

/// The contexts are those of a volume that exists and is attached: a driver is allowed to refuse a request
/// without their keys as INVALID_ARGUMENT, before it looks for the volume.
async fn stage(ctx: &TestContext) -> Outcome {
    let mut life = Life::new(ctx, Kind::Files).await?;
    life.attach().await?;
    life.make_staging_directory()?;
    let stage = v1::NodeStageVolumeRequest { volume_id: ctx.name(), ..life.node_stage_volume() };
    ctx.refused(stage, &[Code::NotFound], "the volume does not exist").await
}

/// Sends a call that undoes something. There is nothing to undo, and the driver is allowed to report that.
async fn ok_or_not_found<C: RpcRequest>(ctx: &TestContext, request: C) -> Outcome {
    match ctx.call(request.clone()).await {
        Ok(_) => Ok(()),
        Err(refusal) if refusal.code == Code::NotFound => Ok(()),
        Err(refusal) => Err(ctx.failure(
            &request,
            ctx.refusal_text(&refusal),
            "OK or NotFound: the volume does not exist",
        )),
    }
}

async fn unpublish(ctx: &TestContext) -> Outcome {
    let life = nowhere(ctx);
    ok_or_not_found(ctx, life.node_unpublish_volume(&life.target())).await
}

async fn unstage(ctx: &TestContext) -> Outcome {
    let life = nowhere(ctx);
    life.make_staging_directory()?;
    ok_or_not_found(ctx, life.node_unstage_volume()).await
}

async fn detach(ctx: &TestContext) -> Outcome {
    ok_or_not_found(ctx, nowhere(ctx).controller_unpublish_volume()).await
}

async fn expand(ctx: &TestContext) -> Outcome {
    let mut life = Life::new(ctx, Kind::Files).await?;
    let target = life.arrive().await?;
    let request = v1::NodeExpandVolumeRequest { volume_id: ctx.name(), ..life.node_expand_to_fit(&target) };
    ctx.refused(request, &[Code::NotFound], "the volume does not exist").await?;
    let request = life.node_expand_to_fit(&life.target());
    ctx.refused(request, &[Code::NotFound], "the volume is not at that path").await?;
    life.end(&[&target]).await
}

async fn no_range(ctx: &TestContext) -> Outcome {
    let mut life = Life::new(ctx, Kind::Files).await?;
    let target = life.arrive().await?;
    let wanted = ctx.settings.size * 2;
    let range = v1::CapacityRange { required_bytes: wanted, limit_bytes: wanted - 1 };
    let request = v1::NodeExpandVolumeRequest {
        capacity_range: Some(range),
        ..life.node_expand_volume(&target, wanted)
    };
    ctx.refused(request, &[Code::InvalidArgument, Code::OutOfRange], "no size is in this range").await?;
    life.end(&[&target]).await
}
