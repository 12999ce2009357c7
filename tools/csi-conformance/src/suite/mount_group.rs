//! VOLUME_MOUNT_GROUP: the pod's fsGroup, as the kubelet passes it in the volume capability.

use std::os::unix::fs::MetadataExt as _;

use csi_proto::NodeCapability::VolumeMountGroup;
use csi_proto::v1;
use v1::volume_capability::AccessType;

use crate::content;
use crate::content::Kind;
use crate::context::TestContext;
use crate::failure::{Outcome, check};
use crate::life::VolumeLifecycle;

crate::test::tests! { "mount-group", "CreateVolume: MountVolume.volume_mount_group";
    Should "The volume's files belong to the group, which can write to them", files_are_the_groups, ["node.mount-group"], [Volume(Files), Mounts, Node(VolumeMountGroup)];
    Must "Repeating a publish with the same group is OK", again, ["node.mount-group", "node-publish-volume.repeated-is-ok"], [Volume(Files), Node(VolumeMountGroup)];
}

/// A group id that nothing uses.
const GROUP: u32 = 7_351;

async fn life(ctx: &TestContext) -> Outcome<VolumeLifecycle> {
    let mut life = VolumeLifecycle::new(ctx, Kind::Files).await?;
    if let Some(AccessType::Mount(mount)) = &mut life.capability.access_type {
        mount.volume_mount_group = GROUP.to_string();
    }
    Ok(life)
}

async fn files_are_the_groups(ctx: &TestContext) -> Outcome {
    let mut life = life(ctx).await?;
    let target = life.arrive().await?;
    let found = content::io("a check of the target", &target, std::path::Path::metadata).await?;
    let is_the_groups = found.gid() == GROUP && found.mode() & 0o070 == 0o070;
    let due = format!("a root of group {GROUP}, with rwx for it");
    ctx.check(&life.node_publish_volume(&target), is_the_groups, due, || {
        format!("a root of group {} with mode {:o}", found.gid(), found.mode() & 0o7777)
    })?;
    content::write(&target, Kind::Files, b'g').await?;
    let made = content::io("the file's group", &target.join("file"), std::path::Path::metadata).await?.gid();
    check(made == GROUP, &format!("a new file of group {GROUP}"), || format!("a new file of group {made}"))?;
    life.end(&[&target]).await
}

async fn again(ctx: &TestContext) -> Outcome {
    let mut life = life(ctx).await?;
    let target = life.arrive().await?;
    ctx.ok(life.node_publish_volume(&target)).await?;
    life.end(&[&target]).await
}
