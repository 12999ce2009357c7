//! The SnapshotMetadata service: which blocks of a snapshot hold data, or changed since another. Alpha.

use std::fmt;
use std::num::NonZeroU32;
use std::pin::Pin;

use async_trait::async_trait;
use tokio_stream::Stream;

use crate::request::request;
use crate::{Result, Secrets, SnapshotId};

/// SNAPSHOT_METADATA_SERVICE. Spec: "Snapshot Metadata Service RPCs".
#[async_trait]
pub trait SnapshotMetadata: Send + Sync + 'static {
    /// The ranges of the snapshot that hold data.
    ///
    /// # Errors
    /// [`Error::SnapshotNotFound`](crate::Error::SnapshotNotFound) (NOT_FOUND);
    /// [`Error::OutOfRange`](crate::Error::OutOfRange) for an offset past the end.
    async fn metadata_allocated(&self, request: GetMetadataAllocatedRequest) -> Result<BlockMetadata>;

    /// The ranges of the target snapshot that differ from the base.
    ///
    /// # Errors
    /// As [`metadata_allocated`](Self::metadata_allocated), and
    /// [`Error::InUse`](crate::Error::InUse) (FAILED_PRECONDITION) when changes are not tracked.
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
    /// The ranges, from the first that ends after `starting_offset` on.
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
