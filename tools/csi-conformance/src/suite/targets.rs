//! Two targets of one volume, targets of a volume that is only read, and what a driver that was killed left at a target.

use std::path::{Path, PathBuf};

use csi_proto::v1;
use tonic::Code;
use v1::volume_capability::access_mode::Mode;

use super::node_publish::{gone, mounts_at};
use crate::content;
use crate::content::Kind;
use crate::context::TestContext;
use crate::failure::{Outcome, check};
use crate::life::{VolumeLifecycle, text};

crate::test::tests! { "node-publish", "Node Service RPC: NodePublishVolume, NodeUnpublishVolume";
    Must "Unpublishing one of two targets leaves the other as it is", other_target_stays, ["node-unpublish-volume.undoes", "node-publish-volume.usable-as-described"], [Volume(Files), Mounts];
    Must "Next to a read-only target, a target that was published for writing takes writes", read_only_beside, ["node-publish-volume.readonly", "node-publish-volume.usable-as-described"], [Volume(Files), Mounts];
    Practice "A target that exists and holds nothing is published: a driver that was killed can have left it", left_before_mount, ["node-publish-volume.repeated-is-ok"], [Volume(Files), Mounts];
    Practice "Unpublishing a target without a mount is OK: a driver that was killed can have left it", left_after_unmount, ["node-unpublish-volume.repeated-is-ok"], [Volume(Files), Mounts];
    Practice "A volume with an access mode for readers refuses writes", reader_mode, ["node-publish-volume.usable-as-described"], [Volume(Files), Mounts];
}

/// A volume with two targets, the second one read-only or not. None if the driver publishes a volume only once.
async fn at_two_targets(
    ctx: &TestContext,
    readonly: bool,
) -> Outcome<Option<(VolumeLifecycle, PathBuf, PathBuf)>> {
    let writes_twice = |mode: &Mode| mode.allows_several_targets() && !mode.is_reader();
    let modes = ctx.modes.iter().filter(|(kind, _)| *kind == Kind::Files).map(|(_, mode)| *mode);
    let capability = match modes.into_iter().find(writes_twice) {
        Some(mode) => ctx.capability_in(Kind::Files, mode),
        // The kubelet uses the mode of one writer for several pods of a node.
        None => ctx.capability(Kind::Files),
    };
    let mut life = VolumeLifecycle::of(ctx, capability).await?;
    let one = life.arrive().await?;
    content::write(&one, Kind::Files, b't').await?;
    let two = life.target();
    let second = v1::NodePublishVolumeRequest { readonly, ..life.node_publish_volume(&two) };
    let codes = [Code::FailedPrecondition];
    if ctx.ok_or(second, &codes, "OK, or FailedPrecondition for a mode of one target").await?.is_none() {
        life.end(&[&one]).await?;
        return Ok(None);
    }
    Ok(Some((life, one, two)))
}

async fn other_target_stays(ctx: &TestContext) -> Outcome {
    let Some((life, one, two)) = at_two_targets(ctx, false).await? else { return Ok(()) };
    let before = mounts_at(&two)?;
    let request = life.node_unpublish_volume(&one);
    ctx.ok(request.clone()).await?;
    let after = mounts_at(&two)?;
    let due = format!("{before} mounts at {}, the other target", text(&two));
    ctx.check(&request, before == after, due, || after.to_string())?;
    content::holds(&two, Kind::Files, b't').await?;
    life.end(&[&two]).await
}

async fn read_only_beside(ctx: &TestContext) -> Outcome {
    let Some((life, one, two)) = at_two_targets(ctx, true).await? else { return Ok(()) };
    let wrote = content::takes_writes(&two, Kind::Files).await?;
    check(!wrote, "a read-only target that refuses writes", || "a write succeeded".to_owned())?;
    content::write(&one, Kind::Files, b'u').await?;
    life.end(&[&one, &two]).await
}

async fn reader_mode(ctx: &TestContext) -> Outcome {
    for (kind, mode) in ctx.modes.iter().filter(|(kind, mode)| *kind == Kind::Files && mode.is_reader()) {
        let mut life = VolumeLifecycle::of(ctx, ctx.capability_in(*kind, *mode)).await?;
        // A volume that is only read got its filesystem when it was written before.
        let mut writing = life.clone();
        writing.capability = ctx.capability(*kind);
        let target = writing.arrive().await?;
        writing.leave(&target).await?;
        let target = life.arrive().await?;
        let wrote = content::takes_writes(&target, *kind).await?;
        ctx.check(&life.node_publish_volume(&target), !wrote, "a target that refuses writes", || {
            "a write through the target succeeded".to_owned()
        })?;
        life.end(&[&target]).await?;
    }
    Ok(())
}

/// Creates the directory of a target, as a driver does before it mounts there.
async fn make_directory(target: &Path) -> Outcome {
    content::io("a directory at the target", target, |path| std::fs::create_dir(path)).await
}

async fn left_before_mount(ctx: &TestContext) -> Outcome {
    let life = VolumeLifecycle::staged(ctx, Kind::Files).await?;
    let target = life.target();
    make_directory(&target).await?;
    ctx.ok(life.node_publish_volume(&target)).await?;
    content::write(&target, Kind::Files, b'l').await?;
    life.end(&[&target]).await?;
    gone(&target).await
}

async fn left_after_unmount(ctx: &TestContext) -> Outcome {
    let (life, target) = VolumeLifecycle::published(ctx, Kind::Files).await?;
    ctx.ok(life.node_unpublish_volume(&target)).await?;
    make_directory(&target).await?;
    let outcome = ctx.ok(life.node_unpublish_volume(&target)).await;
    // A careful driver leaves a directory that it can't prove to be its own.
    let _ = std::fs::remove_dir(&target);
    outcome?;
    life.end(&[]).await
}
