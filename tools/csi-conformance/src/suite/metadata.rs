//! The allocated blocks of a snapshot, as a stream.

use csi_proto::ControllerCapability::CreateDeleteSnapshot;
use csi_proto::{RpcRequest, v1};
use tonic::Code;
use v1::plugin_capability::service::Type::SnapshotMetadataService;

use super::snapshots::{cut, request};
use crate::content::Kind;
use crate::content::{PIECE, write_at};
use crate::context::TestContext;
use crate::failure::{Outcome, check};
use crate::life::VolumeLifecycle;
use crate::needs::lacking;
use crate::test::Need;

crate::test::tests! { "metadata", "SnapshotMetadata Service RPC";
    Must "Allocated ranges ascend, do not overlap, and have one type and capacity", allocated, ["snapshot-metadata.ascending", "snapshot-metadata.one-type", "snapshot-metadata.max-results", "snapshot-metadata.size-positive", "snapshot-metadata.fixed-length"], [Plugin(SnapshotMetadataService), Controller(CreateDeleteSnapshot)];
    Must "Changed ranges ascend, do not overlap, and have one type and capacity", delta, ["snapshot-metadata.ascending", "snapshot-metadata.one-type", "snapshot-metadata.max-results"], [Plugin(SnapshotMetadataService), Controller(CreateDeleteSnapshot)];
    Must "A snapshot that does not exist is NOT_FOUND", not_found, ["get-metadata-allocated.missing"], [Plugin(SnapshotMetadataService)];
    Must "Changes between snapshots of two volumes are INVALID_ARGUMENT", of_two_volumes, ["fields.invalid-is-invalid-argument"], [Plugin(SnapshotMetadataService), Controller(CreateDeleteSnapshot)];
    Must "Changes from or to a snapshot that does not exist are NOT_FOUND", delta_not_found, ["get-metadata-delta.missing"], [Plugin(SnapshotMetadataService), Controller(CreateDeleteSnapshot)];
}

struct Part {
    kind: i32,
    capacity: i64,
    ranges: Vec<v1::BlockMetadata>,
}

/// The largest number of ranges in a message: few, so that there are several messages.
const MAX_RESULTS: usize = 3;

/// The first byte after a range, whatever the driver reports.
pub(super) fn end_of(range: &v1::BlockMetadata) -> i64 {
    range.byte_offset.saturating_add(range.size_bytes)
}

fn ordered(parts: Vec<Part>) -> Outcome<Vec<v1::BlockMetadata>> {
    let mut all: Vec<v1::BlockMetadata> = Vec::new();
    let first = parts.first().map(|part| (part.kind, part.capacity));
    for part in parts {
        let same = first == Some((part.kind, part.capacity)) && part.kind != 0;
        check(same, "one type and one capacity in the whole stream", || {
            format!("{} {}", part.kind, part.capacity)
        })?;
        check(part.ranges.len() <= MAX_RESULTS, "at most max_results ranges in a message", || {
            part.ranges.len().to_string()
        })?;
        for range in part.ranges {
            let end = all.last().map_or(0, end_of);
            let fits = range.byte_offset >= end && range.size_bytes > 0;
            check(fits, "ascending ranges without overlap", || format!("{range:?} after byte {end}"))?;
            let is_within = range.byte_offset < part.capacity;
            check(is_within, "the volume's capacity, and ranges within it", || {
                format!("{range:?} of {} bytes", part.capacity)
            })?;
            let fixed = part.kind == v1::BlockMetadataType::FixedLength as i32;
            let length = all.first().map_or(range.size_bytes, |first| first.size_bytes);
            check(!fixed || range.size_bytes == length, "ranges of the same length", || {
                format!("{range:?} after others of {length} bytes")
            })?;
            all.push(range);
        }
    }
    Ok(all)
}

/// All ranges of one GetMetadataAllocated stream, which must be ordered.
pub(super) async fn allocated_of(
    ctx: &TestContext,
    snapshot_id: &str,
    from: i64,
) -> Outcome<Vec<v1::BlockMetadata>> {
    let request = v1::GetMetadataAllocatedRequest {
        snapshot_id: snapshot_id.to_owned(),
        starting_offset: from,
        max_results: MAX_RESULTS as i32,
        ..Default::default()
    };
    let part = |one: v1::GetMetadataAllocatedResponse| Part {
        kind: one.block_metadata_type,
        capacity: one.volume_capacity_bytes,
        ranges: one.block_metadata,
    };
    ordered(parts(ctx, request).await?.into_iter().map(part).collect())
}

/// All ranges of one GetMetadataDelta stream, which must be ordered.
pub(super) async fn delta_of(ctx: &TestContext, base: &str, target: &str) -> Outcome<Vec<v1::BlockMetadata>> {
    let request = v1::GetMetadataDeltaRequest {
        base_snapshot_id: base.to_owned(),
        target_snapshot_id: target.to_owned(),
        max_results: MAX_RESULTS as i32,
        ..Default::default()
    };
    let part = |one: v1::GetMetadataDeltaResponse| Part {
        kind: one.block_metadata_type,
        capacity: one.volume_capacity_bytes,
        ranges: one.block_metadata,
    };
    ordered(parts(ctx, request).await?.into_iter().map(part).collect())
}

async fn parts<R: RpcRequest>(ctx: &TestContext, request: R) -> Outcome<Vec<R::Answer>> {
    let parts = ctx.stream(request.clone()).await;
    parts.map_err(|refusal| ctx.failure(&request, ctx.refusal_text(&refusal), "a stream"))
}

/// A volume, raw if the driver has raw volumes: others need not have blocks.
async fn volume(ctx: &TestContext) -> Outcome<VolumeLifecycle> {
    let has_raw = ctx.modes.iter().any(|(kind, _)| *kind == Kind::Device);
    VolumeLifecycle::new(ctx, if has_raw { Kind::Device } else { ctx.any_kind() }).await
}

/// A snapshot of a new volume.
pub(super) async fn any_snapshot(ctx: &TestContext) -> Outcome<String> {
    snapshot_of(&mut volume(ctx).await?, Content::Nothing).await
}

fn is_written_to(ctx: &TestContext) -> bool {
    [Need::Volume(Kind::Device), Need::Mounts].into_iter().all(|need| lacking(ctx, need).is_none())
}

/// A snapshot, with data on it if possible: a blank one has no ranges to check.
async fn snapshot_of(life: &mut VolumeLifecycle, holds: Content) -> Outcome<String> {
    if holds == Content::Pieces && is_written_to(&life.ctx) {
        let target = life.arrive().await?;
        for piece in [0, 4, 8] {
            write_at(&target, Kind::Device, b'm', piece * PIECE as u64).await?;
        }
        life.leave(&target).await?;
    }
    Ok(cut(&life.ctx, request(&life.ctx, &life.volume_id)).await?.snapshot_id)
}

#[derive(PartialEq)]
enum Content {
    Nothing,
    Pieces,
}

async fn allocated(ctx: &TestContext) -> Outcome {
    let id = snapshot_of(&mut volume(ctx).await?, Content::Pieces).await?;
    allocated_of(ctx, &id, 0).await.map(drop)
}

async fn delta(ctx: &TestContext) -> Outcome {
    let mut life = volume(ctx).await?;
    let base = snapshot_of(&mut life, Content::Nothing).await?;
    let target = snapshot_of(&mut life, Content::Pieces).await?;
    delta_of(ctx, &base, &target).await.map(drop)
}

async fn not_found(ctx: &TestContext) -> Outcome {
    let request = v1::GetMetadataAllocatedRequest { snapshot_id: ctx.name(), ..Default::default() };
    ctx.refused(request, &[Code::NotFound], "the snapshot does not exist").await
}

async fn delta_not_found(ctx: &TestContext) -> Outcome {
    let there = any_snapshot(ctx).await?;
    for (base, target) in [(ctx.name(), there.clone()), (there, ctx.name())] {
        let request = v1::GetMetadataDeltaRequest {
            base_snapshot_id: base,
            target_snapshot_id: target,
            ..Default::default()
        };
        ctx.refused(request, &[Code::NotFound], "one of the snapshots does not exist").await?;
    }
    Ok(())
}

async fn of_two_volumes(ctx: &TestContext) -> Outcome {
    let request = v1::GetMetadataDeltaRequest {
        base_snapshot_id: any_snapshot(ctx).await?,
        target_snapshot_id: any_snapshot(ctx).await?,
        ..Default::default()
    };
    ctx.refused(request, &[Code::InvalidArgument], "the snapshots belong to two volumes").await
}
