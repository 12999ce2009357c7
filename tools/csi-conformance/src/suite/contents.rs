//! The content of clones and restored snapshots: source and copy do not change each other.

use csi_proto::ControllerCapability::{CloneVolume, CreateDeleteSnapshot, CreateDeleteVolume};
use csi_proto::v1;
use tonic::Code;
use v1::volume_content_source::{SnapshotSource, Type, VolumeSource};

use super::snapshots::{cut, request};
use crate::content::Kind;
use crate::content::{self, holds, write};
use crate::context::TestContext;
use crate::failure::{Outcome, check};
use crate::life::VolumeLifecycle;

crate::test::tests! { "contents", "CreateVolume: volume_content_source";
    Must "A clone has the data of its source, and writes to one do not change the other", clone, ["create-volume.from-volume"], [Volume(Files), Mounts, Controller(CreateDeleteVolume), Controller(CloneVolume)];
    Must "A raw clone has the data of its source, and writes to one do not change the other", device_clone, ["create-volume.from-volume"], [Volume(Device), Mounts, Controller(CreateDeleteVolume), Controller(CloneVolume)];
    Must "A restored volume has the data of the snapshot's moment, and writes to it or the source do not change the other", restored, ["create-volume.from-snapshot"], [Volume(Files), Mounts, Controller(CreateDeleteVolume), Controller(CreateDeleteSnapshot)];
    Must "A snapshot of a device in use does not contain data written after CreateSnapshot returned", cut_before_answer, ["create-snapshot.cut-before-answer", "create-volume.from-snapshot"], [Volume(Device), Mounts, Controller(CreateDeleteVolume), Controller(CreateDeleteSnapshot)];
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

pub(super) fn from_volume(life: &VolumeLifecycle) -> Type {
    Type::Volume(VolumeSource { volume_id: life.volume_id.clone() })
}

pub(super) async fn snapshot_of(life: &VolumeLifecycle) -> Outcome<Type> {
    let source = v1::Volume { volume_id: life.volume_id.clone(), ..Default::default() };
    let snapshot = cut(&life.ctx, request(&life.ctx, &source)).await?;
    Ok(Type::Snapshot(SnapshotSource { snapshot_id: snapshot.snapshot_id }))
}

fn making(origin: &VolumeLifecycle, source: Type) -> v1::CreateVolumeRequest {
    let ctx = &origin.ctx;
    v1::CreateVolumeRequest {
        volume_capabilities: vec![origin.capability.clone()],
        volume_content_source: Some(v1::VolumeContentSource { r#type: Some(source) }),
        ..ctx.create(&ctx.name())
    }
}

pub(super) async fn made_from(origin: &VolumeLifecycle, source: Type) -> Outcome<VolumeLifecycle> {
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
    let mut copy = made_from(&origin, from_volume(&origin)).await?;
    independent(&mut origin, &mut copy, kind, b'a').await?;
    copy.end(&[]).await?;
    origin.end(&[]).await
}

async fn clone(ctx: &TestContext) -> Outcome {
    clone_of(ctx, Kind::Files).await
}

async fn device_clone(ctx: &TestContext) -> Outcome {
    clone_of(ctx, Kind::Device).await
}

async fn restored(ctx: &TestContext) -> Outcome {
    let mut origin = written(ctx, Kind::Files, b'a').await?;
    let source = snapshot_of(&origin).await?;
    rewrite(&mut origin, Kind::Files, b'b').await?;
    let mut copy = made_from(&origin, source).await?;
    independent(&mut origin, &mut copy, Kind::Files, b'b').await
}

async fn cut_before_answer(ctx: &TestContext) -> Outcome {
    let mut origin = VolumeLifecycle::new(ctx, Kind::Device).await?;
    let target = origin.arrive().await?;
    write(&target, Kind::Device, b'a').await?;
    let source = snapshot_of(&origin).await?;
    write(&target, Kind::Device, b'b').await?;
    let mut copy = made_from(&origin, source).await?;
    reread(&mut copy, Kind::Device, b'a').await?;
    holds(&target, Kind::Device, b'b').await?;
    origin.leave(&target).await
}

async fn larger(origin: &mut VolumeLifecycle, source: Type) -> Outcome {
    let target = origin.arrive().await?;
    let before = content::size(&target, Kind::Files).await?;
    origin.leave(&target).await?;
    let required_bytes = origin.ctx.settings.size.saturating_mul(2);
    let capacity_range = Some(v1::CapacityRange { required_bytes, limit_bytes: 0 });
    let request = v1::CreateVolumeRequest { capacity_range, ..making(origin, source) };
    let volume = match origin.ctx.call(request.clone()).await {
        Err(refusal) if refusal.code == Code::OutOfRange => return Ok(()),
        Err(refusal) => {
            return Err(origin.ctx.failure(&request, origin.ctx.refusal_text(&refusal), "OK or OutOfRange"));
        }
        Ok(answer) => answer.volume.unwrap_or_default(),
    };
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
    let source = from_volume(&origin);
    larger(&mut origin, source).await
}

async fn larger_restored(ctx: &TestContext) -> Outcome {
    let mut origin = written(ctx, Kind::Files, b'a').await?;
    let source = snapshot_of(&origin).await?;
    larger(&mut origin, source).await
}
