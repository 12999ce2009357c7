//! The content of clones and restored snapshots: source and copy do not change each other.

use std::path::Path;

use csi_proto::ControllerCapability::{CloneVolume, CreateDeleteSnapshot, CreateDeleteVolume};
use csi_proto::v1;
use tonic::Code;

use super::snapshots::{cut, request};
use crate::content::Kind;
use crate::content::{self, holds, write};
use crate::context::TestContext;
use crate::failure::{Outcome, check};
use crate::life::VolumeLifecycle;
use crate::sources::{of_snapshot, of_volume};

crate::test::tests! { "contents", "CreateVolume: volume_content_source";
    Must "A clone has the data of its source, and writes to one do not change the other", clone = clone_of(Files), ["create-volume.from-volume"], [Volume(Files), Mounts, Controller(CreateDeleteVolume), Controller(CloneVolume)];
    Must "A raw clone has the data of its source, and writes to one do not change the other", device_clone = clone_of(Device), ["create-volume.from-volume"], [Volume(Device), Mounts, Controller(CreateDeleteVolume), Controller(CloneVolume)];
    Must "A restored volume has the data of the snapshot's moment, and writes to it or the source do not change the other", restored, ["create-volume.from-snapshot"], [Volume(Files), Mounts, Controller(CreateDeleteVolume), Controller(CreateDeleteSnapshot)];
    Must "A snapshot of a device in use does not contain data written after CreateSnapshot returned", cut_before_answer, ["create-snapshot.cut-before-answer", "create-volume.from-snapshot"], [Volume(Device), Mounts, Controller(CreateDeleteVolume), Controller(CreateDeleteSnapshot)];
    Practice "A volume with the name of a deleted one is empty", new_is_empty = is_empty_again(Files), ["create-volume.id-is-unique"], [Volume(Files), Mounts, Controller(CreateDeleteVolume)];
    Practice "A raw device with the name of a deleted one does not have its data", new_device_is_empty = is_empty_again(Device), ["create-volume.id-is-unique"], [Volume(Device), Mounts, Controller(CreateDeleteVolume)];
    Must "A clone larger than its source has a filesystem of that size, or is OUT_OF_RANGE", larger_clone, ["create-volume.larger-than-source"], [Volume(Files), Mounts, Controller(CreateDeleteVolume), Controller(CloneVolume)];
    Must "A restored volume larger than its snapshot has a filesystem of that size, or is OUT_OF_RANGE", larger_restored, ["create-volume.larger-than-source"], [Volume(Files), Mounts, Controller(CreateDeleteVolume), Controller(CreateDeleteSnapshot)];
}

/// A volume that holds a piece of this letter, and is on no node.
async fn written(ctx: &TestContext, kind: Kind, letter: u8) -> Outcome<VolumeLifecycle> {
    let mut life = VolumeLifecycle::new(ctx, kind).await?;
    rewrite(&mut life, kind, letter).await?;
    Ok(life)
}

async fn rewrite(life: &mut VolumeLifecycle, kind: Kind, letter: u8) -> Outcome {
    let target = life.arrive().await?;
    write(&target, kind, letter).await?;
    life.leave(&target).await
}

async fn reread(life: &mut VolumeLifecycle, kind: Kind, letter: u8) -> Outcome {
    let target = life.arrive().await?;
    holds(&target, kind, letter).await?;
    life.leave(&target).await
}

pub(super) async fn snapshot_of(life: &VolumeLifecycle) -> Outcome<v1::VolumeContentSource> {
    let snapshot = cut(&life.ctx, request(&life.ctx, &life.volume_id)).await?;
    Ok(of_snapshot(&snapshot.snapshot_id))
}

pub(super) fn making(origin: &VolumeLifecycle, source: v1::VolumeContentSource) -> v1::CreateVolumeRequest {
    let volume_capabilities = vec![origin.capability.clone()];
    v1::CreateVolumeRequest { volume_capabilities, ..origin.ctx.create_from(source) }
}

pub(super) async fn made_from(
    origin: &VolumeLifecycle,
    source: v1::VolumeContentSource,
) -> Outcome<VolumeLifecycle> {
    let volume = origin.ctx.created(making(origin, source)).await?;
    Ok(VolumeLifecycle::with(&origin.ctx, origin.capability.clone(), volume))
}

/// One of them is on the node at a time: some kernels refuse to mount two filesystems with one UUID.
async fn independent(
    origin: &mut VolumeLifecycle,
    copy: &mut VolumeLifecycle,
    kind: Kind,
    of_origin: u8,
) -> Outcome {
    reread(copy, kind, b'a').await?;
    rewrite(copy, kind, b'c').await?;
    reread(origin, kind, of_origin).await?;
    rewrite(origin, kind, b'o').await?;
    reread(copy, kind, b'c').await
}

async fn clone_of(ctx: &TestContext, kind: Kind) -> Outcome {
    let mut origin = written(ctx, kind, b'a').await?;
    let mut copy = made_from(&origin, of_volume(&origin.volume_id)).await?;
    independent(&mut origin, &mut copy, kind, b'a').await?;
    copy.end(&[]).await?;
    origin.end(&[]).await
}

async fn restored(ctx: &TestContext) -> Outcome {
    let mut origin = written(ctx, Kind::Files, b'a').await?;
    let source = snapshot_of(&origin).await?;
    rewrite(&mut origin, Kind::Files, b'b').await?;
    let mut copy = made_from(&origin, source).await?;
    independent(&mut origin, &mut copy, Kind::Files, b'b').await
}

async fn cut_before_answer(ctx: &TestContext) -> Outcome {
    let (origin, target) = VolumeLifecycle::published(ctx, Kind::Device).await?;
    write(&target, Kind::Device, b'a').await?;
    let snapshot = request(ctx, &origin.volume_id);
    if !ctx.in_use_is_ok(snapshot.clone()).await? {
        return origin.leave(&target).await;
    }
    let source = of_snapshot(&cut(ctx, snapshot).await?.snapshot_id);
    write(&target, Kind::Device, b'b').await?;
    let mut copy = made_from(&origin, source).await?;
    holds(&target, Kind::Device, b'b').await?;
    // A node can have room for one volume only.
    origin.leave(&target).await?;
    reread(&mut copy, Kind::Device, b'a').await
}

async fn larger(origin: &mut VolumeLifecycle, source: v1::VolumeContentSource) -> Outcome {
    let target = origin.arrive().await?;
    let before = content::size(&target, Kind::Files).await?;
    origin.leave(&target).await?;
    let required_bytes = origin.size().saturating_mul(2);
    let capacity_range = Some(v1::CapacityRange { required_bytes, limit_bytes: 0 });
    let request = v1::CreateVolumeRequest { capacity_range, ..making(origin, source) };
    let answer = origin.ctx.ok_or(request, &[Code::OutOfRange], "OK or OutOfRange").await?;
    let Some(answer) = answer else { return Ok(()) };
    let volume = answer.volume.unwrap_or_default();
    let mut copy = VolumeLifecycle::with(&origin.ctx, origin.capability.clone(), volume);
    let target = copy.arrive().await?;
    holds(&target, Kind::Files, b'a').await?;
    let after = content::size(&target, Kind::Files).await?;
    copy.leave(&target).await?;
    let is_limited = before < required_bytes.unsigned_abs();
    check(
        !is_limited || after > before.saturating_add(before / 2),
        "a filesystem that was expanded with its volume",
        || format!("{after} bytes; its source has {before}, half of the requested size"),
    )
}

async fn larger_clone(ctx: &TestContext) -> Outcome {
    let mut origin = written(ctx, Kind::Files, b'a').await?;
    let source = of_volume(&origin.volume_id);
    larger(&mut origin, source).await
}

async fn larger_restored(ctx: &TestContext) -> Outcome {
    let mut origin = written(ctx, Kind::Files, b'a').await?;
    let source = snapshot_of(&origin).await?;
    larger(&mut origin, source).await
}

/// The data can be another user's.
async fn is_empty_again(ctx: &TestContext, kind: Kind) -> Outcome {
    let capability = ctx.capability(kind);
    let volume_capabilities = vec![capability.clone()];
    let request = v1::CreateVolumeRequest { volume_capabilities, ..ctx.create(&ctx.name()) };
    let mut first = VolumeLifecycle::with(ctx, capability.clone(), ctx.created(request.clone()).await?);
    rewrite(&mut first, kind, b'd').await?;
    first.end(&[]).await?;
    let mut second = VolumeLifecycle::with(ctx, capability, ctx.created(request.clone()).await?);
    let target = second.arrive().await?;
    let is_old = match kind {
        Kind::Files => content::at(&target.join("file"), Path::metadata).await?.is_some(),
        Kind::Device => holds(&target, kind, b'd').await.is_ok(),
    };
    ctx.check(&request, !is_old, "a new volume without the data of the deleted one", || {
        "its data".to_owned()
    })?;
    second.end(&[&target]).await
}
