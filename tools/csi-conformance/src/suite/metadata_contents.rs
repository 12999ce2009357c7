//! Changed blocks, compared with what was written.

use csi_proto::ControllerCapability::CreateDeleteSnapshot;
use csi_proto::v1;
use tonic::Code;
use v1::plugin_capability::service::Type::SnapshotMetadataService;

use super::metadata::{allocated_of, delta_of, end_of};
use super::snapshots::{cut, request};
use crate::content::Kind;
use crate::content::{PIECE, write_at};
use crate::context::TestContext;
use crate::failure::{Outcome, check};
use crate::life::VolumeLifecycle;

crate::test::tests! { "metadata", "SnapshotMetadata Service RPC: Metadata Format";
    Must "All written data is in the allocated ranges", all_data, ["get-metadata-allocated.all-data"], [Plugin(SnapshotMetadataService), Controller(CreateDeleteSnapshot), Volume(Device), Mounts];
    Must "All data written between two snapshots is in the changed ranges", all_changes, ["get-metadata-delta.all-changes"], [Plugin(SnapshotMetadataService), Controller(CreateDeleteSnapshot), Volume(Device), Mounts];
    Must "A stream from an offset returns the rest of the whole stream; an offset past the end is refused", from_offset, ["snapshot-metadata.starting-offset", "snapshot-metadata.offset-out-of-range"], [Plugin(SnapshotMetadataService), Controller(CreateDeleteSnapshot), Volume(Device), Mounts];
}

/// The offsets of the written pieces: apart from each other, and not aligned to large blocks.
fn offsets(ctx: &TestContext) -> [u64; 3] {
    let piece = PIECE as u64;
    let pieces = ctx.settings.size.unsigned_abs() / piece;
    [piece, pieces / 2 * piece, (pieces - 1) * piece]
}

/// Whether the ranges, which are ordered, cover the piece at this offset.
fn covered(ranges: &[v1::BlockMetadata], offset: u64) -> bool {
    let mut at = i64::try_from(offset).unwrap_or(i64::MAX);
    let end = at.saturating_add(PIECE as i64);
    for range in ranges {
        if range.byte_offset <= at && end_of(range) > at {
            at = end_of(range);
        }
    }
    at >= end
}

fn all_covered(ranges: &[v1::BlockMetadata], offsets: &[u64]) -> Outcome {
    for offset in offsets {
        let due = format!("the {PIECE} bytes written at {offset}");
        check(covered(ranges, *offset), &due, || format!("{ranges:?}"))?;
    }
    Ok(())
}

/// Writes pieces at these offsets of a raw volume on this node, and takes a snapshot of it.
async fn written(life: &mut VolumeLifecycle, offsets: &[u64], letter: u8) -> Outcome<v1::Snapshot> {
    let target = life.arrive().await?;
    for offset in offsets {
        write_at(&target, Kind::Device, letter, *offset).await?;
    }
    life.leave(&target).await?;
    cut(&life.ctx, request(&life.ctx, &life.volume_id)).await
}

async fn all_data(ctx: &TestContext) -> Outcome {
    let mut life = VolumeLifecycle::new(ctx, Kind::Device).await?;
    let snapshot = written(&mut life, &offsets(ctx), b'a').await?;
    all_covered(&allocated_of(ctx, &snapshot.snapshot_id, 0).await?, &offsets(ctx))
}

async fn all_changes(ctx: &TestContext) -> Outcome {
    let [first, second, third] = offsets(ctx);
    let mut life = VolumeLifecycle::new(ctx, Kind::Device).await?;
    let base = written(&mut life, &[first, second], b'a').await?;
    // One piece is new, one is overwritten, and one stays.
    let changed = [second, third];
    let target = written(&mut life, &changed, b'b').await?;
    all_covered(&delta_of(ctx, &base.snapshot_id, &target.snapshot_id).await?, &changed)
}

async fn from_offset(ctx: &TestContext) -> Outcome {
    let mut life = VolumeLifecycle::new(ctx, Kind::Device).await?;
    let [_, second, third] = offsets(ctx);
    let snapshot = written(&mut life, &offsets(ctx), b'a').await?;
    let start = i64::try_from(second).unwrap_or_default();
    let rest = allocated_of(ctx, &snapshot.snapshot_id, start).await?;
    all_covered(&rest, &[second, third])?;
    let early = rest.iter().find(|range| end_of(range) <= start);
    check(early.is_none(), "no range that ends before the offset", || format!("{early:?} before {start}"))?;
    let beyond = v1::GetMetadataAllocatedRequest {
        snapshot_id: snapshot.snapshot_id,
        starting_offset: i64::MAX,
        ..Default::default()
    };
    ctx.refused(beyond, &[Code::OutOfRange], "the volume ends before this offset").await
}
