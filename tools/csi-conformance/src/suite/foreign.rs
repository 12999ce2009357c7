//! A driver must not touch what does not belong to the volume: the mounts of other volumes, and mounts that
//! no driver made.
//!
//! Everything is mounted below the kit's own directories. These calls never contain a path of the system.

use std::path::Path;

use csi_proto::NodeCapability::{ExpandVolume, GetVolumeStats, StageUnstageVolume};
use csi_proto::v1;
use tonic::Code;

use super::node_publish::mounts_at;
use crate::content::Kind;
use crate::context::TestContext;
use crate::failure::{Outcome, check};
use crate::life::{VolumeLifecycle, text};
use crate::own_mount;

crate::test::tests! { "foreign", "Node Service RPC: calls with the id of one volume and the path of another";
    Practice "NodeGetVolumeStats with another volume's id is NOT_FOUND", another_measured, ["node-get-volume-stats.missing"], [Volume(Files), Node(GetVolumeStats)];
    Practice "NodeExpandVolume with another volume's id is NOT_FOUND", another_expanded, ["node-expand-volume.missing"], [Volume(Files), Node(ExpandVolume)];
    Practice "NodeUnpublishVolume with another volume's id does not change a published target", another_published, ["node-unpublish-volume.undoes"], [Volume(Files), Mounts];
    Practice "NodeUnstageVolume with another volume's id does not change a staged volume", another_staged, ["node-unstage-volume.undoes"], [Volume(Files), Mounts, Node(StageUnstageVolume)];
    Practice "A mount that no driver created stays, with any id in the request", mount_of_nobody, ["node-unpublish-volume.undoes", "node-unstage-volume.undoes"], [Volume(Files), Mounts];
}

/// The ids of other volumes: an existing one, if the driver creates volumes, and one that does not exist.
fn ids_but(life: &VolumeLifecycle, other: &VolumeLifecycle) -> Vec<String> {
    let ids = [other.volume_id.clone(), life.ctx.name()];
    ids.into_iter().filter(|id| *id != life.volume_id).collect()
}

/// Checks how many mounts are at a path, and the content of a file there.
fn stays(path: &Path, mounts: usize, why: &str) -> Outcome {
    let found = mounts_at(path)?;
    check(found == mounts, &format!("{mounts} mounts at {}, {why}", path.display()), || found.to_string())
}

async fn another_measured(ctx: &TestContext) -> Outcome {
    let (life, target) = VolumeLifecycle::published(ctx, Kind::Files).await?;
    let request =
        v1::NodeGetVolumeStatsRequest { volume_id: ctx.name(), ..life.node_get_volume_stats(&target) };
    ctx.refused(request, &[Code::NotFound], "another volume is at that path").await?;
    life.end(&[&target]).await
}

async fn another_expanded(ctx: &TestContext) -> Outcome {
    let (life, target) = VolumeLifecycle::published(ctx, Kind::Files).await?;
    let request = v1::NodeExpandVolumeRequest { volume_id: ctx.name(), ..life.node_expand_to_fit(&target) };
    ctx.refused(request, &[Code::NotFound], "another volume is at that path").await?;
    life.end(&[&target]).await
}

async fn another_published(ctx: &TestContext) -> Outcome {
    let mut life = VolumeLifecycle::new(ctx, Kind::Files).await?;
    let other = VolumeLifecycle::new(ctx, Kind::Files).await?;
    let target = life.arrive().await?;
    let before = mounts_at(&target)?;
    for volume_id in ids_but(&life, &other) {
        let why = format!("after NodeUnpublishVolume with {volume_id}, the id of another volume");
        // The driver decides whether this is an error or already done.
        drop(ctx.call(v1::NodeUnpublishVolumeRequest { volume_id, target_path: text(&target) }).await);
        stays(&target, before, &why)?;
    }
    life.end(&[&target]).await?;
    other.end(&[]).await
}

async fn another_staged(ctx: &TestContext) -> Outcome {
    let mut life = VolumeLifecycle::new(ctx, Kind::Files).await?;
    let other = VolumeLifecycle::new(ctx, Kind::Files).await?;
    life.prepare().await?;
    let staging = life.staging_path().to_owned();
    let before = mounts_at(&staging)?;
    for volume_id in ids_but(&life, &other) {
        let why = format!("after NodeUnstageVolume with {volume_id}, the id of another volume");
        let staging_target_path = text(&staging);
        drop(ctx.call(v1::NodeUnstageVolumeRequest { volume_id, staging_target_path }).await);
        stays(&staging, before, &why)?;
    }
    let target = life.target();
    ctx.ok(life.node_publish_volume(&target)).await?;
    life.end(&[&target]).await?;
    other.end(&[]).await
}

async fn mount_of_nobody(ctx: &TestContext) -> Outcome {
    let life = VolumeLifecycle::new(ctx, Kind::Files).await?;
    let place = life.target();
    own_mount::mount(&place)?;
    let outcome = leave_it(ctx, &life, &place).await;
    // If the driver has the fault, the mount is gone already.
    let cleared = own_mount::unmount(&place);
    outcome.and(cleared)?;
    life.end(&[]).await
}

async fn leave_it(ctx: &TestContext, life: &VolumeLifecycle, place: &Path) -> Outcome {
    for volume_id in [life.volume_id.clone(), ctx.name()] {
        let why = |rpc: &str| format!("after {rpc} with the id {volume_id}: it is the kit's own tmpfs");
        let unpublish =
            v1::NodeUnpublishVolumeRequest { volume_id: volume_id.clone(), target_path: text(place) };
        drop(ctx.call(unpublish).await);
        stays(place, 1, &why("NodeUnpublishVolume"))?;
        if life.stages() {
            let unstage = v1::NodeUnstageVolumeRequest {
                volume_id: volume_id.clone(),
                staging_target_path: text(place),
            };
            drop(ctx.call(unstage).await);
            stays(place, 1, &why("NodeUnstageVolume"))?;
        }
    }
    Ok(())
}
