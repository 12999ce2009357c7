//! NodeStageVolume, NodePublishVolume and their reverse calls: their answers, and the mounts that they leave.

use std::path::Path;

use csi_proto::NodeCapability::StageUnstageVolume;
use csi_proto::v1;
use tonic::Code;
use v1::volume_capability::access_mode::Mode;

use super::concurrency::same_at_once;
use crate::content;
use crate::content::Kind;
use crate::context::TestContext;
use crate::failure::{Failure, Outcome, check};
use crate::life::{VolumeLifecycle, text};

crate::test::tests! { "node-publish", "Node Service RPC: NodeStageVolume, NodePublishVolume";
    Must "Repeating NodeStageVolume and NodeUnstageVolume is OK", stage_is_idempotent, ["node-stage-volume.repeated-is-ok", "node-unstage-volume.not-staged-is-ok"], [AnyVolume, Node(StageUnstageVolume)];
    Must "Repeating NodePublishVolume and NodeUnpublishVolume is OK", publish_is_idempotent = twice(Files), ["node-publish-volume.repeated-is-ok", "node-unpublish-volume.repeated-is-ok"], [Volume(Files)];
    Must "Repeating NodePublishVolume and NodeUnpublishVolume of a raw device is OK", device_is_idempotent = twice(Device), ["node-publish-volume.repeated-is-ok", "node-unpublish-volume.repeated-is-ok"], [Volume(Device)];
    Must "A target that is published for writing is not also published read-only: ALREADY_EXISTS", published_otherwise, ["node-publish-volume.differs-is-already-exists"], [Volume(Files)];
    Should "A second publish follows the spec's table of access modes", matrix = matrix_of(Files), ["node-publish-volume.second-target", "node-publish-volume.differs-is-already-exists"], [Volume(Files)];
    Should "A second publish of a raw device follows the spec's table of access modes", device_matrix = matrix_of(Device), ["node-publish-volume.second-target", "node-publish-volume.differs-is-already-exists"], [Volume(Device)];
    Must "With STAGE_UNSTAGE_VOLUME, a publish without a staging path is FAILED_PRECONDITION", without_staging_path, ["node-publish-volume.needs-staging-path"], [AnyVolume, Node(StageUnstageVolume)];
    Must "A published target is a mount, and does not exist after unpublish", mounts_and_unmounts, ["node-unpublish-volume.deletes-target"], [Volume(Files), Mounts];
    Must "A published raw device is a device, and does not exist after unpublish", device_comes_and_goes, ["node-unpublish-volume.deletes-target"], [Volume(Device), Mounts];
    Should "Concurrent NodePublishVolume of one volume and target mount once", at_once, ["concurrency.simultaneous-calls", "concurrency.pending-is-aborted"], [Volume(Files), Mounts];
    Must "A retry after an abandoned NodePublishVolume mounts once", given_up, ["node-publish-volume.repeated-is-ok", "timeouts.retry-continues", "timeouts.only-the-opposite-cancels"], [Volume(Files), Mounts];
}

async fn stage_is_idempotent(ctx: &TestContext) -> Outcome {
    let life = VolumeLifecycle::staged(ctx, ctx.any_kind()).await?;
    ctx.ok(life.node_stage_volume()).await?;
    ctx.ok(life.node_unstage_volume()).await?;
    ctx.ok(life.node_unstage_volume()).await?;
    life.end(&[]).await
}

async fn twice(ctx: &TestContext, kind: Kind) -> Outcome {
    let (life, target) = VolumeLifecycle::published(ctx, kind).await?;
    ctx.ok(life.node_publish_volume(&target)).await?;
    ctx.ok(life.node_unpublish_volume(&target)).await?;
    ctx.ok(life.node_unpublish_volume(&target)).await?;
    life.end(&[]).await
}

/// A target that is published for writing is asked for as a read-only one.
async fn refuses_read_only(life: &VolumeLifecycle, target: &Path) -> Outcome {
    let other = v1::NodePublishVolumeRequest { readonly: true, ..life.node_publish_volume(target) };
    life.ctx.refused(other, &[Code::AlreadyExists], "the target is already published for writing").await
}

async fn published_otherwise(ctx: &TestContext) -> Outcome {
    let (life, target) = VolumeLifecycle::published(ctx, Kind::Files).await?;
    refuses_read_only(&life, &target).await?;
    life.end(&[&target]).await
}

async fn matrix_of(ctx: &TestContext, kind: Kind) -> Outcome {
    let declared = ctx.offers.node(csi_proto::NodeCapability::SingleNodeMultiWriter);
    for mode in ctx.modes.iter().filter(|(one, _)| *one == kind).map(|(_, mode)| *mode) {
        if mode.needs_single_node_multi_writer() && !declared {
            continue;
        }
        let mut life = VolumeLifecycle::of(ctx, ctx.capability_in(kind, mode)).await?;
        if mode.is_reader() {
            // A volume that is only read got its filesystem when it was written before.
            let mut writing = life.clone();
            writing.capability = ctx.capability(kind);
            writing.prepare().await?;
            writing.end_here().await?;
        }
        life.prepare().await?;
        let one = life.target();
        let two = life.target();
        ctx.ok(life.node_publish_volume(&one)).await?;
        ctx.ok(life.node_publish_volume(&one)).await?;
        if !mode.is_reader() {
            refuses_read_only(&life, &one).await?;
        }
        let second = life.node_publish_volume(&two);
        match mode {
            _ if mode.allows_several_targets() => drop(ctx.ok(second).await?),
            // The kubelet sends this mode when several pods of a node write, unless the driver declares
            // SINGLE_NODE_MULTI_WRITER.
            Mode::SingleNodeWriter if !declared => drop(ctx.call(second).await),
            _ => {
                ctx.refused(second, &[Code::FailedPrecondition], "the access mode allows one target").await?;
            }
        }
        life.end(&[&one, &two]).await?;
    }
    Ok(())
}

async fn without_staging_path(ctx: &TestContext) -> Outcome {
    let life = VolumeLifecycle::staged(ctx, ctx.any_kind()).await?;
    let request = v1::NodePublishVolumeRequest {
        staging_target_path: String::new(),
        ..life.node_publish_volume(&life.target())
    };
    ctx.refused(request, &[Code::FailedPrecondition], "the driver stages volumes").await
}

pub(super) fn mounts_at(path: &Path) -> Outcome<usize> {
    #[cfg(target_os = "linux")]
    return Ok(mount_table(path)?.len());
    #[cfg(not(target_os = "linux"))]
    Err(Box::new(Failure::new("a mount table", format!("none for {} on this system", path.display()))))
}

/// The rows of the mount table for this path, the uppermost last. The table has no symbolic links, which the user's
/// directories can have.
#[cfg(target_os = "linux")]
pub(super) fn mount_table(path: &Path) -> Outcome<Vec<csi_mount::MountEntry>> {
    let mounts = csi_mount::mounts().map_err(|error| Failure::new("a mount table", error.to_string()))?;
    let parent = path.parent().and_then(|parent| parent.canonicalize().ok());
    let path =
        parent.map_or_else(|| path.to_owned(), |parent| parent.join(path.file_name().unwrap_or_default()));
    Ok(mounts.into_iter().filter(|entry| entry.mount_point == path).collect())
}

fn mounted(path: &Path, due: usize) -> Outcome {
    let found = mounts_at(path)?;
    check(found == due, &format!("{due} mounts at {}", path.display()), || found.to_string())
}

pub(super) async fn is_directory(target: &Path) -> Outcome {
    let is_directory = content::at(target, Path::metadata).await?.is_some_and(|found| found.is_dir());
    check(is_directory, "a directory at the target", || format!("none at {}", text(target)))
}

pub(super) async fn gone(path: &Path) -> Outcome {
    mounted(path, 0)?;
    let is_there = content::at(path, Path::symlink_metadata).await?.is_some();
    check(!is_there, "unpublish deletes the target", || format!("{} still exists", path.display()))
}

async fn mounts_and_unmounts(ctx: &TestContext) -> Outcome {
    let (life, target) = VolumeLifecycle::published(ctx, Kind::Files).await?;
    // A driver can bind-mount a directory, mount a filesystem, or make a link. Most of them mount.
    let at_target = mounts_at(&target)?;
    let staged = mounts_at(life.staging_path())?;
    is_directory(&target).await?;
    check(at_target <= 1 && staged <= 1, "no stacked mounts", || format!("{at_target} and {staged}"))?;
    ctx.ok(life.node_unpublish_volume(&target)).await?;
    gone(&target).await?;
    if life.stages() {
        ctx.ok(life.node_unstage_volume()).await?;
        mounted(life.staging_path(), 0)?;
    }
    Ok(())
}

async fn device_comes_and_goes(ctx: &TestContext) -> Outcome {
    use std::os::unix::fs::FileTypeExt as _;
    let (life, target) = VolumeLifecycle::published(ctx, Kind::Device).await?;
    let found = content::at(&target, Path::metadata).await?;
    let is_device = found.is_some_and(|found| found.file_type().is_block_device());
    check(is_device, "a block device at the target", || format!("none at {}", text(&target)))?;
    ctx.ok(life.node_unpublish_volume(&target)).await?;
    gone(&target).await
}

async fn at_once(ctx: &TestContext) -> Outcome {
    let life = VolumeLifecycle::staged(ctx, Kind::Files).await?;
    let target = life.target();
    same_at_once(ctx, &life.node_publish_volume(&target), 8).await?;
    ctx.ok(life.node_publish_volume(&target)).await?;
    check(mounts_at(&target)? <= 1, "one mount at the target", || "several".into())?;
    ctx.ok(life.node_unpublish_volume(&target)).await?;
    gone(&target).await
}

async fn given_up(ctx: &TestContext) -> Outcome {
    let life = VolumeLifecycle::staged(ctx, Kind::Files).await?;
    let target = life.target();
    for millis in [1, 3, 10, 50] {
        let _ = tokio::time::timeout(
            std::time::Duration::from_millis(millis),
            ctx.call(life.node_publish_volume(&target)),
        )
        .await;
    }
    let mut wait = ctx.retries();
    while let Err(refusal) = ctx.call(life.node_publish_volume(&target)).await {
        if refusal.code != Code::Aborted || !wait.again().await {
            let came = wait.describe(&ctx.refusal_text(&refusal));
            let due = "OK after the pending operation has ended";
            return Err(ctx.failure(&life.node_publish_volume(&target), came, due));
        }
    }
    check(mounts_at(&target)? <= 1, "one mount at the target", || "several".into())?;
    ctx.ok(life.node_unpublish_volume(&target)).await?;
    gone(&target).await
}
