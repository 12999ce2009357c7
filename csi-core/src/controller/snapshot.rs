//! CREATE_DELETE_SNAPSHOT, LIST_SNAPSHOTS and GET_SNAPSHOT.

use std::num::NonZeroU32;

use async_trait::async_trait;

use super::{Controller, Page};
use crate::request::request;
use crate::{
    Parameters, Result, Secrets, Snapshot, SnapshotId, SnapshotName, Token, TopologyRequirement, VolumeId,
};

/// Cutting snapshots and deleting them. A driver that does can also make a volume from one. Spec:
/// "CreateSnapshot", "DeleteSnapshot".
#[async_trait]
pub trait CreateDeleteSnapshot: Controller {
    /// Cuts the snapshot, or finds the one that was cut for this name before. Returns once the moment of the cut is
    /// past; work that goes on after that is told by `ready_to_use`, and the caller asks again until it is set.
    ///
    /// # Errors
    /// [`Error::VolumeNotFound`](crate::Error::VolumeNotFound) (NOT_FOUND);
    /// [`Error::Incompatible`](crate::Error::Incompatible) (ALREADY_EXISTS) when the name has another source;
    /// [`Error::LimitReached`](crate::Error::LimitReached) (RESOURCE_EXHAUSTED).
    async fn create_snapshot(&self, request: CreateSnapshotRequest) -> Result<Snapshot>;

    /// Deletes the snapshot. One that is not there is deleted already.
    ///
    /// # Errors
    /// [`Error::InUse`](crate::Error::InUse) (FAILED_PRECONDITION);
    /// [`Error::InvalidArgument`](crate::Error::InvalidArgument) for a member of a group.
    async fn delete_snapshot(&self, request: DeleteSnapshotRequest) -> Result<()>;
}

request! {
    /// What snapshot to cut.
    CreateSnapshotRequest {
        /// The volume to cut it from.
        source_volume_id: VolumeId,
        /// The idempotency key, and a hint for a name.
        name: SnapshotName,
        /// Credentials.
        secrets: Secrets,
        /// The driver's own parameters.
        parameters: Parameters,
        /// From where it has to be restorable. Alpha.
        accessibility_requirements: Option<TopologyRequirement>,
    }
}

request! {
    /// What snapshot to delete.
    DeleteSnapshotRequest {
        /// The snapshot.
        snapshot_id: SnapshotId,
        /// Credentials.
        secrets: Secrets,
    }
}

/// Listing snapshots. Spec: "ListSnapshots".
#[async_trait]
pub trait ListSnapshots: Controller {
    /// A page of the snapshots that pass the filters, those not ready among them. A filter that nothing passes is
    /// an empty page.
    ///
    /// # Errors
    /// [`Error::InvalidToken`](crate::Error::InvalidToken) (ABORTED).
    async fn list_snapshots(&self, request: ListSnapshotsRequest) -> Result<Page<Snapshot>>;
}

request! {
    /// Which page of which snapshots.
    ListSnapshotsRequest {
        /// At most so many entries; `None` leaves it to the driver.
        max_entries: Option<NonZeroU32>,
        /// Where the page starts; `None` at the beginning.
        starting_token: Option<Token>,
        /// Only snapshots of this volume.
        source_volume_id: Option<VolumeId>,
        /// Only this snapshot.
        snapshot_id: Option<SnapshotId>,
        /// Credentials.
        secrets: Secrets,
    }
}

/// One snapshot's particulars. Alpha. Spec: "GetSnapshot".
#[async_trait]
pub trait GetSnapshot: Controller {
    /// The snapshot.
    ///
    /// # Errors
    /// [`Error::SnapshotNotFound`](crate::Error::SnapshotNotFound) (NOT_FOUND).
    async fn get_snapshot(&self, request: GetSnapshotRequest) -> Result<Snapshot>;
}

request! {
    /// Which snapshot.
    GetSnapshotRequest {
        /// The snapshot.
        snapshot_id: SnapshotId,
        /// Credentials.
        secrets: Secrets,
    }
}
