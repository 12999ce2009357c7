//! NodeStageVolume, NodePublishVolume and their reverse calls: their answers, and the mounts that they leave.

use std::path::Path;

use csi_core::NodeCapability::StageUnstageVolume;
use csi_proto::v1;
use tonic::Code;

use crate::content;
use crate::cx::Cx;
use crate::failure::{Failure, Outcome, check};
use crate::life::{Life, text};
use crate::test::Kind;

crate::test::tests! { "node-publish", "Node Service RPC: NodeStageVolume, NodePublishVolume";
    "Repeating NodeStageVolume and NodeUnstageVolume is OK", stage_is_idempotent, ["node-stage-volume.repeated-is-ok", "node-unstage-volume.not-staged-is-ok"], [Volume(Files), Node(StageUnstageVolume)];
    "Repeating NodePublishVolume and NodeUnpublishVolume is OK", publish_is_idempotent, ["node-publish-volume.repeated-is-ok", "node-unpublish-volume.repeated-is-ok"], [Volume(Files)];
    "Repeating NodePublishVolume and NodeUnpublishVolume of a raw device is OK", device_is_idempotent, ["node-publish-volume.repeated-is-ok", "node-unpublish-volume.repeated-is-ok"], [Volume(Device)];
    "A second publish follows the spec's table of access modes", matrix, ["node-publish-volume.second-target", "node-publish-volume.differs-is-already-exists"], [Volume(Files)];
    "A second publish of a raw device follows the spec's table of access modes", device_matrix, ["node-publish-volume.second-target", "node-publish-volume.differs-is-already-exists"], [Volume(Device)];
    "With STAGE_UNSTAGE_VOLUME, a publish without a staging path is FAILED_PRECONDITION", without_staging_path, ["node-publish-volume.needs-staging-path"], [Volume(Files), Node(StageUnstageVolume)];
    "A published target is a mount, and does not exist after unpublish", mounts_and_unmounts, ["node-unpublish-volume.deletes-target"], [Volume(Files), Mounts];
    "A published raw device is a device, and does not exist after unpublish", device_comes_and_goes, ["node-unpublish-volume.deletes-target"], [Volume(Device), Mounts];
    "Concurrent NodePublishVolume of one volume and target mount once", at_once, ["concurrency.simultaneous-calls", "concurrency.pending-is-aborted"], [Volume(Files), Mounts];
    "A retry after an abandoned NodePublishVolume mounts once", given_up, ["timeouts.retry-continues", "timeouts.only-the-opposite-cancels"], [Volume(Files), Mounts];
}

async fn stage_is_idempotent(cx: &Cx) -> Outcome {
    let life = Life::staged(cx, Kind::Files).await?;
    cx.ok(life.staging()).await?;
    cx.ok(life.unstaging()).await?;
    cx.ok(life.unstaging()).await?;
    life.end(&[]).await
}

async fn twice(cx: &Cx, kind: Kind) -> Outcome {
    let life = Life::staged(cx, kind).await?;
    let target = life.target();
    cx.ok(life.publishing(&target)).await?;
    cx.ok(life.publishing(&target)).await?;
    cx.ok(life.unpublishing(&target)).await?;
    cx.ok(life.unpublishing(&target)).await?;
    life.end(&[]).await
}

async fn publish_is_idempotent(cx: &Cx) -> Outcome {
    twice(cx, Kind::Files).await
}

async fn device_is_idempotent(cx: &Cx) -> Outcome {
    twice(cx, Kind::Device).await
}

async fn matrix_of(cx: &Cx, kind: Kind) -> Outcome {
    let declared = cx.offers.node(csi_core::NodeCapability::SingleNodeMultiWriter);
    for mode in cx.modes.iter().filter(|(one, _)| *one == kind).map(|(_, mode)| *mode) {
        if mode >= 6 && !declared {
            continue;
        }
        let mut life = Life::of(cx, cx.capability_in(kind, mode)).await?;
        if [2, 3].contains(&mode) {
            // A volume that is only read got its filesystem when it was written before.
            let mut writing = life.clone();
            writing.capability = cx.capability(kind);
            writing.prepare().await?;
            writing.end_here().await?;
        }
        life.prepare().await?;
        let (one, two) = (life.target(), life.target());
        cx.ok(life.publishing(&one)).await?;
        cx.ok(life.publishing(&one)).await?;
        if ![2, 3].contains(&mode) {
            let other = v1::NodePublishVolumeRequest { readonly: true, ..life.publishing(&one) };
            cx.refused(other, &[Code::AlreadyExists], "the target is already published for writing").await?;
        }
        let second = life.publishing(&two);
        match mode {
            3 | 4 | 5 | 7 => drop(cx.ok(second).await?),
            // The kubelet sends this mode when several pods of a node write, unless the driver declares
            // SINGLE_NODE_MULTI_WRITER.
            1 if !declared => drop(cx.call(second).await),
            _ => cx.refused(second, &[Code::FailedPrecondition], "the access mode allows one target").await?,
        }
        life.end(&[&one, &two]).await?;
    }
    Ok(())
}

async fn matrix(cx: &Cx) -> Outcome {
    matrix_of(cx, Kind::Files).await
}

async fn device_matrix(cx: &Cx) -> Outcome {
    matrix_of(cx, Kind::Device).await
}

async fn without_staging_path(cx: &Cx) -> Outcome {
    let life = Life::staged(cx, Kind::Files).await?;
    let request = v1::NodePublishVolumeRequest {
        staging_target_path: String::new(),
        ..life.publishing(&life.target())
    };
    cx.refused(request, &[Code::FailedPrecondition], "the driver stages volumes").await
}

/// The number of mounts at a path.
pub(super) fn mounts_at(path: &Path) -> Outcome<usize> {
    #[cfg(target_os = "linux")]
    {
        let mounts = csi_mount::mounts().map_err(|error| Failure::new("a mount table", error.to_string()))?;
        Ok(mounts.iter().filter(|entry| entry.mount_point == path).count())
    }
    #[cfg(not(target_os = "linux"))]
    Err(Box::new(Failure::new("a mount table", format!("none for {} on this system", path.display()))))
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

async fn mounts_and_unmounts(cx: &Cx) -> Outcome {
    let life = Life::staged(cx, Kind::Files).await?;
    let target = life.target();
    cx.ok(life.publishing(&target)).await?;
    // A driver can bind-mount a directory, mount a filesystem, or make a link. Most of them mount.
    let (at_target, staged) = (mounts_at(&target)?, mounts_at(life.staging_path())?);
    is_directory(&target).await?;
    check(at_target <= 1 && staged <= 1, "no stacked mounts", || format!("{at_target} and {staged}"))?;
    cx.ok(life.unpublishing(&target)).await?;
    gone(&target).await?;
    if life.stages() {
        cx.ok(life.unstaging()).await?;
        mounted(life.staging_path(), 0)?;
    }
    Ok(())
}

async fn device_comes_and_goes(cx: &Cx) -> Outcome {
    use std::os::unix::fs::FileTypeExt as _;
    let life = Life::staged(cx, Kind::Device).await?;
    let target = life.target();
    cx.ok(life.publishing(&target)).await?;
    let found = content::at(&target, Path::metadata).await?;
    let is_device = found.is_some_and(|found| found.file_type().is_block_device());
    check(is_device, "a block device at the target", || format!("none at {}", text(&target)))?;
    cx.ok(life.unpublishing(&target)).await?;
    gone(&target).await
}

async fn at_once(cx: &Cx) -> Outcome {
    let life = Life::staged(cx, Kind::Files).await?;
    let target = life.target();
    for answer in cx.at_once(vec![life.publishing(&target); 8]).await {
        match answer {
            Ok(_) => {}
            Err(refusal) if refusal.code == Code::Aborted => {}
            Err(refusal) => {
                return Err(cx.failure(&life.publishing(&target), cx.told(&refusal), "OK, or ABORTED"));
            }
        }
    }
    cx.ok(life.publishing(&target)).await?;
    check(mounts_at(&target)? <= 1, "one mount at the target", || "several".into())?;
    cx.ok(life.unpublishing(&target)).await?;
    gone(&target).await
}

async fn given_up(cx: &Cx) -> Outcome {
    let life = Life::staged(cx, Kind::Files).await?;
    let target = life.target();
    for millis in [1, 3, 10, 50] {
        let _ =
            tokio::time::timeout(std::time::Duration::from_millis(millis), cx.call(life.publishing(&target)))
                .await;
    }
    let mut wait = cx.patience();
    while let Err(refusal) = cx.call(life.publishing(&target)).await {
        if refusal.code != Code::Aborted || !wait.again().await {
            let came = wait.words(&cx.told(&refusal));
            return Err(cx.failure(
                &life.publishing(&target),
                came,
                "OK after the pending operation has ended",
            ));
        }
    }
    check(mounts_at(&target)? <= 1, "one mount at the target", || "several".into())?;
    cx.ok(life.unpublishing(&target)).await?;
    gone(&target).await
}
