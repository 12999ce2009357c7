//! The node's answers for volumes that do not exist.

use csi_proto::ControllerCapability::PublishUnpublishVolume;
use csi_proto::NodeCapability::{ExpandVolume, StageUnstageVolume};
use csi_proto::v1;
use tonic::Code;

use crate::context::TestContext;
use crate::failure::Outcome;
use crate::life::VolumeLifecycle;
use csi_proto::RpcRequest;

crate::test::tests! { "node-missing", "Node Service RPC: volumes that do not exist";
    Must "A volume that does not exist is not published: NOT_FOUND, or FAILED_PRECONDITION because it is not staged", publish, ["node-publish-volume.missing"], [AnyVolume];
    Must "A volume that does not exist is not staged: NOT_FOUND", stage, ["node-stage-volume.missing"], [AnyVolume, Node(StageUnstageVolume)];
    Must "Unpublishing a volume that does not exist is OK or NOT_FOUND", unpublish, ["node-unpublish-volume.missing"], [AnyVolume];
    Must "Unstaging a volume that does not exist is OK or NOT_FOUND", unstage, ["node-unstage-volume.missing"], [AnyVolume, Node(StageUnstageVolume)];
    Must "Expanding a volume that does not exist, at a path with no volume, is NOT_FOUND", expand, ["node-expand-volume.missing"], [AnyVolume, Node(ExpandVolume)];
    Practice "An impossible size range is refused", no_range, ["node-expand-volume.out-of-range"], [AnyVolume, Node(ExpandVolume)];
    Must "Detaching a volume that does not exist is OK or NOT_FOUND", detach, ["controller-unpublish-volume.missing"], [NodeService, Controller(PublishUnpublishVolume)];
}

/// A volume with an id that does not exist.
fn nowhere(ctx: &TestContext) -> VolumeLifecycle {
    let volume = v1::Volume { volume_id: ctx.name(), ..Default::default() };
    VolumeLifecycle::with(ctx, ctx.capability(ctx.any_kind()), volume)
}

/// Without the contexts that only an existing volume has. A driver that needs their keys is allowed to miss them
/// first: INVALID_ARGUMENT.
fn missing_codes(life: &VolumeLifecycle, codes: &[Code]) -> Vec<Code> {
    let has_context = !life.volume_context.is_empty() || !life.publish_context.is_empty();
    let invalid = has_context.then_some(Code::InvalidArgument);
    codes.iter().copied().chain(invalid).collect()
}

async fn publish(ctx: &TestContext) -> Outcome {
    let mut life = VolumeLifecycle::new(ctx, ctx.any_kind()).await?;
    life.attach().await?;
    life.make_staging_directory()?;
    let publish = v1::NodePublishVolumeRequest {
        volume_id: ctx.name(),
        volume_context: Default::default(),
        publish_context: Default::default(),
        ..life.node_publish_volume(&life.target())
    };
    let codes = missing_codes(&life, &[Code::NotFound, Code::FailedPrecondition]);
    ctx.refused(publish, &codes, "the volume does not exist").await
}

async fn stage(ctx: &TestContext) -> Outcome {
    let mut life = VolumeLifecycle::new(ctx, ctx.any_kind()).await?;
    life.attach().await?;
    life.make_staging_directory()?;
    let stage = v1::NodeStageVolumeRequest {
        volume_id: ctx.name(),
        volume_context: Default::default(),
        publish_context: Default::default(),
        ..life.node_stage_volume()
    };
    ctx.refused(stage, &missing_codes(&life, &[Code::NotFound]), "the volume does not exist").await
}

/// Sends a call that undoes something. There is nothing to undo, and the driver is allowed to report that.
async fn ok_or_not_found<C: RpcRequest>(ctx: &TestContext, request: C) -> Outcome {
    let due = "OK or NotFound: the volume does not exist";
    ctx.ok_or(request, &[Code::NotFound], due).await.map(drop)
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
    let life = nowhere(ctx);
    life.make_staging_directory()?;
    let request = life.node_expand_to_fit(&life.target());
    ctx.refused(request, &[Code::NotFound], "the volume does not exist").await
}

async fn no_range(ctx: &TestContext) -> Outcome {
    let (life, target) = VolumeLifecycle::published(ctx, ctx.any_kind()).await?;
    let wanted = ctx.settings.size.saturating_mul(2);
    let range = v1::CapacityRange { required_bytes: wanted, limit_bytes: wanted - 1 };
    let request = v1::NodeExpandVolumeRequest {
        capacity_range: Some(range),
        ..life.node_expand_volume(&target, wanted)
    };
    ctx.refused(request, &[Code::InvalidArgument, Code::OutOfRange], "no size is in this range").await?;
    life.end(&[&target]).await
}
