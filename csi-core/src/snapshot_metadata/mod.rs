//! The SnapshotMetadata service: which blocks of a snapshot hold data, or changed since another snapshot.
//! Alpha.
//!
//! [`SnapshotMetadata`] is the driver's trait, [`BlockMetadata`] its answer; `ranges.rs` checks the ranges
//! in it.
//!
//! It imports the call path and what lies below it, and no other service.

mod ranges;

use std::fmt;
use std::num::NonZeroU32;
use std::pin::Pin;

use async_trait::async_trait;
use tokio_stream::Stream;

use crate::call::request::request;
use crate::call::{Reply, StreamCall};
use crate::error::Result;
use crate::types::{Secrets, SnapshotId};
use ranges::Ranges;

/// SNAPSHOT_METADATA_SERVICE. Spec: "Snapshot Metadata Service RPCs".
///
/// - spec: `snapshot-metadata.both-served`
#[async_trait]
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not implement `SnapshotMetadata`",
    label = "needs `impl SnapshotMetadata for {Self}`",
    note = "write `#[async_trait]` before the `impl`, and the methods that the trait's documentation lists"
)]
pub trait SnapshotMetadata: Send + Sync + 'static {
    /// Returns all ranges of the snapshot that hold data.
    ///
    /// - spec: `get-metadata-allocated.all-data`, `get-metadata-allocated.missing`
    ///
    /// # Errors
    /// [`Error::SnapshotNotFound`](crate::Error::SnapshotNotFound) (NOT_FOUND);
    /// [`Error::LimitReached`](crate::Error::LimitReached) (RESOURCE_EXHAUSTED) when too many streams are
    /// open. The framework refuses an offset past the volume's end (OUT_OF_RANGE).
    async fn metadata_allocated(&self, request: GetMetadataAllocatedRequest) -> Result<BlockMetadata>;

    /// Returns all ranges of the target snapshot that differ from the base snapshot.
    ///
    /// - spec: `get-metadata-delta.all-changes`, `get-metadata-delta.missing`
    /// - spec: `get-metadata-delta.not-tracked`
    ///
    /// # Errors
    /// Those of [`metadata_allocated`](Self::metadata_allocated), and
    /// [`Error::NotPossible`](crate::Error::NotPossible) (FAILED_PRECONDITION) when changes are not
    /// tracked; [`Error::InvalidArgument`](crate::Error::InvalidArgument) when the snapshots belong to
    /// different volumes.
    async fn metadata_delta(&self, request: GetMetadataDeltaRequest) -> Result<BlockMetadata>;
}

/// The kind of ranges in a stream; one kind for the whole stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum BlockMetadataType {
    /// All ranges have the same length.
    FixedLength,
    /// Ranges have any length.
    VariableLength,
}

/// A range of a snapshot, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct BlockRange {
    /// The start of the range.
    pub byte_offset: u64,
    /// The length of the range.
    pub size_bytes: u64,
}

/// The answer to a metadata call: facts about the volume, then ranges in ascending order that do not
/// overlap.
#[non_exhaustive]
pub struct BlockMetadata {
    /// The kind of ranges.
    pub block_metadata_type: BlockMetadataType,
    /// The size of the volume that the snapshot was taken of.
    pub volume_capacity_bytes: u64,
    /// The ranges, starting with the first that ends after `starting_offset`. The framework skips earlier
    /// ones and cuts the stream into messages. A range out of order, or whose length differs in a stream of
    /// fixed length, ends the stream with INTERNAL.
    pub ranges: Pin<Box<dyn Stream<Item = Result<BlockRange>> + Send>>,
}

impl BlockRange {
    /// Creates a range from its start and its length, in bytes.
    pub fn new(byte_offset: u64, size_bytes: u64) -> Self {
        Self { byte_offset, size_bytes }
    }
}

impl BlockMetadata {
    /// Creates the answer: the kind of ranges, the size in bytes of the volume that the snapshot was taken
    /// of, and the [ranges](Self::ranges).
    pub fn new(
        block_metadata_type: BlockMetadataType,
        volume_capacity_bytes: u64,
        ranges: impl Stream<Item = Result<BlockRange>> + Send + 'static,
    ) -> Self {
        Self { block_metadata_type, volume_capacity_bytes, ranges: Box::pin(ranges) }
    }
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
    /// Which snapshot, and from which offset.
    GetMetadataAllocatedRequest about snapshot_id {
        /// The snapshot.
        snapshot_id: SnapshotId,
        /// An offset in bytes; ranges that end before it are skipped.
        starting_offset: u64,
        /// The maximum number of ranges in one message; `None` lets the driver choose.
        max_results: Option<NonZeroU32>,
        /// Credentials.
        secrets: Secrets,
    }
}

request! {
    /// Which two snapshots of one volume, and from which offset.
    GetMetadataDeltaRequest about target_snapshot_id {
        /// The snapshot to compare with.
        base_snapshot_id: SnapshotId,
        /// The snapshot to compare.
        target_snapshot_id: SnapshotId,
        /// An offset in bytes; ranges that end before it are skipped.
        starting_offset: u64,
        /// The maximum number of ranges in one message; `None` lets the driver choose.
        max_results: Option<NonZeroU32>,
        /// Credentials.
        secrets: Secrets,
    }
}

/// Serves the ranges of an answer; the two RPCs differ in their messages only.
macro_rules! range_stream {
    ($($request:ident),+) => { $(
        impl StreamCall for $request {
            type Answer = BlockMetadata;
            type Messages = Ranges;

            fn open(answer: BlockMetadata, request: &Self::Wire) -> Result<Ranges> {
                Ranges::new(answer, request.starting_offset, request.max_results)
            }

            async fn next(ranges: &mut Ranges) -> Result<Option<Reply<Self>>> {
                let (block_metadata_type, volume_capacity_bytes) = ranges.facts();
                let message = |block_metadata| Reply::<Self> {
                    block_metadata_type,
                    volume_capacity_bytes,
                    block_metadata,
                };
                Ok(ranges.next().await?.map(message))
            }
        }
    )+ };
}

range_stream!(GetMetadataAllocatedRequest, GetMetadataDeltaRequest);
