//! The size of a volume as a workload sees it: of new volumes and of copies, and whether it is a limit.

use std::path::Path;

use csi_proto::ControllerCapability::{CloneVolume, CreateDeleteSnapshot, CreateDeleteVolume};

use super::contents::{made_from, snapshot_of};
use crate::content;
use crate::content::Kind;
use crate::context::TestContext;
use crate::failure::{Outcome, check};
use crate::life::VolumeLifecycle;
use crate::sources::of_volume;

crate::test::tests! { "sizes", "CreateVolume: capacity_range; VolumeContentSource; ControllerExpandVolume";
    Must "A filesystem has the size of its volume, apart from its own data", created = as_created(Files), ["create-volume.capacity-range"], [Volume(Files), Mounts, Controller(CreateDeleteVolume)];
    Must "A raw device has the size of its volume", device_created = as_created(Device), ["create-volume.capacity-range"], [Volume(Device), Mounts, Controller(CreateDeleteVolume)];
    Must "Clones and restored volumes are as large as their source", copies = as_copied(Files), ["create-volume.larger-than-source"], [Volume(Files), Mounts, Copies, Controller(CreateDeleteVolume)];
    Must "Raw clones and restored raw volumes are as large as their source", device_copies = as_copied(Device), ["create-volume.larger-than-source"], [Volume(Device), Mounts, Copies, Controller(CreateDeleteVolume)];
    Must "The size of a volume can be used, and no more than that", enforced, ["create-volume.capacity-range"], [EnforcesSize, Volume(Files), Mounts, Controller(CreateDeleteVolume)];
    Must "After an expansion the new size can be used, and no more than that", enforced_after_expansion, ["controller-expand-volume.grows", "node-expand-volume.grows"], [EnforcesSize, Volume(Files), Mounts, Expands, Controller(CreateDeleteVolume)];
    Must "The size of a clone or a restored volume can be used, and no more than that", copies_enforced, ["create-volume.capacity-range", "create-volume.larger-than-source"], [EnforcesSize, Volume(Files), Mounts, Copies, Controller(CreateDeleteVolume)];
}

async fn as_created(ctx: &TestContext, kind: Kind) -> Outcome {
    let (life, target) = VolumeLifecycle::published(ctx, kind).await?;
    let size = content::size(&target, kind).await?;
    // A filesystem uses part of the size itself.
    let least = match kind {
        Kind::Device => life.size().unsigned_abs(),
        Kind::Files => life.size().unsigned_abs() / 2,
    };
    check(size >= least, &format!("at least {least} bytes at the target"), || format!("{size} bytes"))?;
    life.end(&[&target]).await
}

/// A clone of the volume and a volume from its snapshot, as far as the driver offers them.
async fn copies_of(origin: &VolumeLifecycle) -> Outcome<Vec<VolumeLifecycle>> {
    let offers = &origin.ctx.offers;
    let mut copies = Vec::new();
    if offers.controller(CloneVolume) {
        copies.push(made_from(origin, of_volume(&origin.volume_id)).await?);
    }
    if offers.controller(CreateDeleteSnapshot) {
        copies.push(made_from(origin, snapshot_of(origin).await?).await?);
    }
    Ok(copies)
}

/// The volumes are on the node one after the other: some kernels refuse to mount two filesystems with one
/// UUID.
async fn as_copied(ctx: &TestContext, kind: Kind) -> Outcome {
    let (origin, target) = VolumeLifecycle::published(ctx, kind).await?;
    let due = content::size(&target, kind).await?;
    origin.leave(&target).await?;
    for mut copy in copies_of(&origin).await? {
        let target = copy.arrive().await?;
        let size = content::size(&target, kind).await?;
        let least = if kind == Kind::Device { due } else { due - due / 8 };
        check(size >= least, &format!("at least {least} bytes at the copy's target"), || {
            format!("{size} bytes, and {due} at the target of its source")
        })?;
        copy.end(&[&target]).await?;
    }
    Ok(())
}

/// Checks that about `size` bytes can be written, and not much more. A filesystem uses part of the size, and
/// a driver is allowed to round it up.
async fn is_limit(target: &Path, size: u64) -> Outcome {
    let most = size.saturating_add(size / 4);
    let filled = content::fill(target, most.saturating_add(content::PIECE as u64)).await?;
    content::clear(target).await?;
    check(filled.is_full, &format!("no room for {most} bytes in a volume of {size} bytes"), || {
        format!("{} bytes were written", filled.bytes)
    })?;
    check(
        filled.bytes >= size / 2,
        &format!("room for {} bytes in a volume of {size} bytes", size / 2),
        || format!("the volume was full after {} bytes", filled.bytes),
    )
}

async fn enforced(ctx: &TestContext) -> Outcome {
    let (life, target) = VolumeLifecycle::published(ctx, Kind::Files).await?;
    is_limit(&target, life.size().unsigned_abs()).await?;
    life.end(&[&target]).await
}

async fn enforced_after_expansion(ctx: &TestContext) -> Outcome {
    let (mut life, target) = VolumeLifecycle::published(ctx, Kind::Files).await?;
    // More than twice the size: half of the new size does not fit into the old one.
    let wanted = life.size().saturating_mul(3);
    let target = life.expand(target, wanted).await?;
    is_limit(&target, life.size().unsigned_abs()).await?;
    life.end(&[&target]).await
}

async fn copies_enforced(ctx: &TestContext) -> Outcome {
    let origin = VolumeLifecycle::new(ctx, Kind::Files).await?;
    for mut copy in copies_of(&origin).await? {
        let target = copy.arrive().await?;
        is_limit(&target, copy.size().unsigned_abs()).await?;
        copy.end(&[&target]).await?;
    }
    Ok(())
}
