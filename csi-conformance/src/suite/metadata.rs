//! Which blocks of a snapshot hold data, as a stream.

use csi_core::ControllerCapability::CreateDeleteSnapshot;
use csi_proto::v1;
use tonic::Code;
use v1::plugin_capability::service::Type::SnapshotMetadataService;

use super::snapshots::{cut, request, snapshot};
use crate::cx::Cx;
use crate::failure::{Outcome, check};

crate::test::tests! { "metadata", "SnapshotMetadata Service RPC";
    "Allocated ranges ascend, don't overlap, and are of one kind and capacity", allocated, ["snapshot-metadata.ascending", "snapshot-metadata.one-type", "snapshot-metadata.max-results"], [Plugin(SnapshotMetadataService), Controller(CreateDeleteSnapshot)];
    "Changed ranges ascend, don't overlap, and are of one kind and capacity", delta, ["snapshot-metadata.ascending", "snapshot-metadata.one-type", "snapshot-metadata.max-results"], [Plugin(SnapshotMetadataService), Controller(CreateDeleteSnapshot)];
    "A snapshot that is not there is NOT_FOUND", not_found, ["get-metadata-allocated.missing"], [Plugin(SnapshotMetadataService)];
}

struct Part {
    kind: i32,
    capacity: i64,
    ranges: Vec<v1::BlockMetadata>,
}

fn ordered(parts: &[Part], most: usize) -> Outcome {
    let mut end = 0;
    for part in parts {
        let same = part.kind == parts[0].kind && part.capacity == parts[0].capacity && part.kind != 0;
        check(same, "one kind and one capacity in the whole stream", || {
            format!("{} {}", part.kind, part.capacity)
        })?;
        check(part.ranges.len() <= most, "at most max_results ranges a message", || {
            part.ranges.len().to_string()
        })?;
        for range in &part.ranges {
            let fits = range.byte_offset >= end && range.size_bytes > 0;
            check(fits, "ascending ranges without overlap", || format!("{range:?} after byte {end}"))?;
            end = range.byte_offset + range.size_bytes;
        }
    }
    Ok(())
}

async fn allocated(cx: &Cx) -> Outcome {
    let request = v1::GetMetadataAllocatedRequest {
        snapshot_id: snapshot(cx).await?.snapshot_id,
        max_results: 3,
        ..Default::default()
    };
    let parts = cx
        .stream(request.clone())
        .await
        .map_err(|refusal| cx.failure(&request, cx.told(&refusal), "a stream"))?;
    let part = |one: v1::GetMetadataAllocatedResponse| Part {
        kind: one.block_metadata_type,
        capacity: one.volume_capacity_bytes,
        ranges: one.block_metadata,
    };
    ordered(&parts.into_iter().map(part).collect::<Vec<_>>(), 3)
}

async fn delta(cx: &Cx) -> Outcome {
    let volume = cx.volume().await?;
    let (base, target) = (cut(cx, request(cx, &volume)).await?, cut(cx, request(cx, &volume)).await?);
    let request = v1::GetMetadataDeltaRequest {
        base_snapshot_id: base.snapshot_id,
        target_snapshot_id: target.snapshot_id,
        max_results: 3,
        ..Default::default()
    };
    let parts = cx
        .stream(request.clone())
        .await
        .map_err(|refusal| cx.failure(&request, cx.told(&refusal), "a stream"))?;
    let part = |one: v1::GetMetadataDeltaResponse| Part {
        kind: one.block_metadata_type,
        capacity: one.volume_capacity_bytes,
        ranges: one.block_metadata,
    };
    ordered(&parts.into_iter().map(part).collect::<Vec<_>>(), 3)
}

async fn not_found(cx: &Cx) -> Outcome {
    let request = v1::GetMetadataAllocatedRequest { snapshot_id: cx.name(), ..Default::default() };
    cx.refused(request, &[Code::NotFound], "there is no such snapshot").await
}
