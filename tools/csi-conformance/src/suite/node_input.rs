//! How the node handles unusual or wrong paths and capabilities.

use std::path::{Path, PathBuf};

use csi_proto::NodeCapability::{ExpandVolume, StageUnstageVolume};
use csi_proto::v1;
use tonic::Code;

use crate::content::Kind;
use crate::context::TestContext;
use crate::failure::Outcome;
use crate::life::VolumeLifecycle;

crate::test::tests! { "node-publish", "NodeStageVolume, NodePublishVolume: paths; Errors";
    Should "Paths of 200 bytes are accepted: the spec requires at least 128, and as many as the system allows", long_paths, ["size-limits.paths"], [AnyVolume];
    Practice "A path that is not absolute is refused", relative_paths, ["node.paths-absolute"], [AnyVolume];
    Must "A volume that is staged as a filesystem is not also staged there as a raw device: ALREADY_EXISTS", staged_otherwise, ["node-stage-volume.differs-is-already-exists", "node-stage-volume.beyond-capabilities"], [Volume(Files), Node(StageUnstageVolume)];
    Must "Expansion with a capability that the volume does not have is INVALID_ARGUMENT, or OK for a driver that reads only the path", grown_otherwise, ["node-expand-volume.beyond-capabilities"], [Volume(Files), Unsupported, Node(ExpandVolume)];
}

/// The same directory, with a name so long that the path has this many bytes.
fn lengthened(path: &Path, bytes: usize) -> PathBuf {
    let missing = bytes.saturating_sub(path.as_os_str().len());
    let mut long = path.as_os_str().to_owned();
    long.push("l".repeat(missing));
    long.into()
}

async fn long_paths(ctx: &TestContext) -> Outcome {
    let mut life = VolumeLifecycle::new(ctx, ctx.any_kind()).await?;
    life.staging_path = life.staging_path.take().map(|path| lengthened(&path, 200));
    life.prepare().await?;
    let target = lengthened(&life.target(), 200);
    ctx.ok(life.node_publish_volume(&target)).await?;
    life.end(&[&target]).await
}

const NOT_ABSOLUTE: &str = "csi-conformance-not-absolute";

async fn relative_paths(ctx: &TestContext) -> Outcome {
    let life = VolumeLifecycle::staged(ctx, ctx.any_kind()).await?;
    // A driver can detect first that nothing exists at such a path.
    let due = [Code::InvalidArgument, Code::NotFound, Code::FailedPrecondition];
    let words = "the path is not absolute";
    ctx.refused(life.node_publish_volume(Path::new(NOT_ABSOLUTE)), &due, words).await?;
    if life.stages() {
        let staging_target_path = NOT_ABSOLUTE.to_owned();
        ctx.refused(
            v1::NodeStageVolumeRequest { staging_target_path, ..life.node_stage_volume() },
            &due,
            words,
        )
        .await?;
    }
    let target = life.target();
    ctx.ok(life.node_publish_volume(&target)).await?;
    life.end(&[&target]).await
}

async fn staged_otherwise(ctx: &TestContext) -> Outcome {
    let life = VolumeLifecycle::staged(ctx, Kind::Files).await?;
    let other = v1::NodeStageVolumeRequest {
        volume_capability: Some(ctx.capability(Kind::Device)),
        ..life.node_stage_volume()
    };
    // If staging does not depend on the capability, nothing can differ.
    let codes = [Code::AlreadyExists, Code::FailedPrecondition, Code::InvalidArgument];
    let due = "AlreadyExists, or an error that the volume does not have this capability";
    ctx.ok_or(other, &codes, due).await?;
    let target = life.target();
    ctx.ok(life.node_publish_volume(&target)).await?;
    if ctx.sees_mounts() {
        super::node_publish::is_directory(&target).await?;
    }
    life.end(&[&target]).await
}

async fn grown_otherwise(ctx: &TestContext) -> Outcome {
    let (life, target) = VolumeLifecycle::published(ctx, Kind::Files).await?;
    let request = v1::NodeExpandVolumeRequest {
        volume_capability: ctx.unsupported(),
        ..life.node_expand_to_fit(&target)
    };
    ctx.ok_or(request, &[Code::InvalidArgument], "InvalidArgument, or OK").await?;
    life.end(&[&target]).await
}
