//! The SnapshotMetadata service: which blocks of a snapshot hold data, or changed since another. Alpha.
//!
//! [`SnapshotMetadata`] is the driver's trait, [`BlockMetadata`] its answer; `ranges.rs` checks the ranges in it.
//!
//! It imports the path of a call and what lies below that, and no other service.

mod ranges;

use std::fmt;
use std::num::NonZeroU32;
use std::pin::Pin;

use async_trait::async_trait;
use csi_proto::v1;
use tokio_stream::Stream;

use crate::call::StreamCall;
use crate::call::request::request;
use crate::{Result, Rpc, Secrets, SnapshotId};
use ranges::Ranges;

/// SNAPSHOT_METADATA_SERVICE. Spec: "Snapshot Metadata Service RPCs".
///
/// - spec: `snapshot-metadata.both-served`
#[async_trait]
pub trait SnapshotMetadata: Send + Sync + 'static {
    /// The ranges of the snapshot that hold data, all of them.
    ///
    /// - spec: `get-metadata-allocated.all-data`, `get-metadata-allocated.missing`
    ///
    /// # Errors
    /// [`Error::SnapshotNotFound`](crate::Error::SnapshotNotFound) (NOT_FOUND);
    /// [`Error::LimitReached`](crate::Error::LimitReached) (RESOURCE_EXHAUSTED) when too many streams are open. An
    /// offset past the volume's end is refused by the framework (OUT_OF_RANGE).
    async fn metadata_allocated(&self, request: GetMetadataAllocatedRequest) -> Result<BlockMetadata>;

    /// The ranges of the target snapshot that differ from the base, all of them.
    ///
    /// - spec: `get-metadata-delta.all-changes`, `get-metadata-delta.missing`, `get-metadata-delta.not-tracked`
    ///
    /// # Errors
    /// As [`metadata_allocated`](Self::metadata_allocated), and
    /// [`Error::NotPossible`](crate::Error::NotPossible) (FAILED_PRECONDITION) when changes are not tracked;
    /// [`Error::InvalidArgument`](crate::Error::InvalidArgument) when the snapshots are not of one volume.
    async fn metadata_delta(&self, request: GetMetadataDeltaRequest) -> Result<BlockMetadata>;
}

/// How the ranges of a stream are cut; one kind for the whole stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BlockMetadataType {
    /// All of one length.
    FixedLength,
    /// Of any length.
    VariableLength,
}

/// A range of bytes of a snapshot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockRange {
    /// Where it starts.
    pub byte_offset: u64,
    /// How long it is.
    pub size_bytes: u64,
}

/// What a metadata call answers: facts about the volume, then ranges in ascending order, none overlapping.
pub struct BlockMetadata {
    /// How the ranges are cut.
    pub block_metadata_type: BlockMetadataType,
    /// The size of the volume that the snapshot was cut from.
    pub volume_capacity_bytes: u64,
    /// The ranges, from the first that ends after `starting_offset` on. Earlier ones are left out by the framework,
    /// which also cuts the stream into messages; a range out of order, or of another length than a fixed one, ends it
    /// as INTERNAL.
    pub ranges: Pin<Box<dyn Stream<Item = Result<BlockRange>> + Send>>,
}

impl fmt::Debug for BlockMetadata {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BlockMetadata")
            .field("block_metadata_type", &self.block_metadata_type)
            .field("volume_capacity_bytes", &self.volume_capacity_bytes)
            .finish_non_exhaustive()
    }
}

request! {
    /// Which snapshot, from where on.
    GetMetadataAllocatedRequest {
        /// The snapshot.
        snapshot_id: SnapshotId,
        /// Ranges that end before it are left out, in bytes.
        starting_offset: u64,
        /// At most so many ranges in one message; `None` leaves it to the driver.
        max_results: Option<NonZeroU32>,
        /// Credentials.
        secrets: Secrets,
    }
}

request! {
    /// Which two snapshots of one volume, from where on.
    GetMetadataDeltaRequest {
        /// What to compare with.
        base_snapshot_id: SnapshotId,
        /// What to compare.
        target_snapshot_id: SnapshotId,
        /// Ranges that end before it are left out, in bytes.
        starting_offset: u64,
        /// At most so many ranges in one message; `None` leaves it to the driver.
        max_results: Option<NonZeroU32>,
        /// Credentials.
        secrets: Secrets,
    }
}

impl StreamCall for GetMetadataAllocatedRequest {
    const RPC: Rpc = Rpc::GetMetadataAllocated;
    type Answer = BlockMetadata;
    type Messages = Ranges;
    type Item = v1::GetMetadataAllocatedResponse;

    fn subject(&self) -> &str {
        self.snapshot_id.as_str()
    }

    fn open(answer: BlockMetadata, request: &Self::Wire) -> Result<Ranges> {
        Ranges::new(answer, request.starting_offset, request.max_results)
    }

    async fn next(ranges: &mut Ranges) -> Result<Option<Self::Item>> {
        let (block_metadata_type, volume_capacity_bytes) = ranges.facts();
        let message =
            |block_metadata| Self::Item { block_metadata_type, volume_capacity_bytes, block_metadata };
        Ok(ranges.next().await?.map(message))
    }
}

impl StreamCall for GetMetadataDeltaRequest {
    const RPC: Rpc = Rpc::GetMetadataDelta;
    type Answer = BlockMetadata;
    type Messages = Ranges;
    type Item = v1::GetMetadataDeltaResponse;

    fn subject(&self) -> &str {
        self.target_snapshot_id.as_str()
    }

    fn open(answer: BlockMetadata, request: &Self::Wire) -> Result<Ranges> {
        Ranges::new(answer, request.starting_offset, request.max_results)
    }

    async fn next(ranges: &mut Ranges) -> Result<Option<Self::Item>> {
        let (block_metadata_type, volume_capacity_bytes) = ranges.facts();
        let message =
            |block_metadata| Self::Item { block_metadata_type, volume_capacity_bytes, block_metadata };
        Ok(ranges.next().await?.map(message))
    }
}
