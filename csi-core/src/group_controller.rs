//! The GroupController service: snapshots of several volumes at one moment.

use async_trait::async_trait;

use crate::request::request;
use crate::{
    GroupSnapshotId, GroupSnapshotName, Parameters, Result, Secrets, SnapshotId, VolumeGroupSnapshot,
    VolumeId,
};

/// CREATE_DELETE_GET_VOLUME_GROUP_SNAPSHOT, the service's one capability. Spec: "GroupController Service RPC".
#[async_trait]
pub trait GroupController: Send + Sync + 'static {
    /// Cuts a snapshot of each of the volumes at one moment, or finds the group that was cut for this name.
    ///
    /// # Errors
    /// [`Error::VolumeNotFound`](crate::Error::VolumeNotFound) (NOT_FOUND);
    /// [`Error::Incompatible`](crate::Error::Incompatible) (ALREADY_EXISTS) when the name has other sources;
    /// [`Error::LimitReached`](crate::Error::LimitReached) (RESOURCE_EXHAUSTED). After an error no snapshot of the
    /// group may be left.
    async fn create_volume_group_snapshot(
        &self,
        request: CreateVolumeGroupSnapshotRequest,
    ) -> Result<VolumeGroupSnapshot>;

    /// Deletes the group and its snapshots. A group that is not there is deleted already.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`](crate::Error::InvalidArgument) when the ids are not the group's members;
    /// [`Error::InUse`](crate::Error::InUse) (FAILED_PRECONDITION).
    async fn delete_volume_group_snapshot(&self, request: DeleteVolumeGroupSnapshotRequest) -> Result<()>;

    /// The group.
    ///
    /// # Errors
    /// [`Error::GroupSnapshotNotFound`](crate::Error::GroupSnapshotNotFound) (NOT_FOUND);
    /// [`Error::InvalidArgument`](crate::Error::InvalidArgument) when the ids are not the group's members.
    async fn volume_group_snapshot(
        &self,
        request: GetVolumeGroupSnapshotRequest,
    ) -> Result<VolumeGroupSnapshot>;
}

request! {
    /// What group to cut.
    CreateVolumeGroupSnapshotRequest {
        /// The idempotency key, and a hint for a name.
        name: GroupSnapshotName,
        /// The volumes; at least one.
        source_volume_ids: Vec<VolumeId>,
        /// Credentials.
        secrets: Secrets,
        /// The driver's own parameters.
        parameters: Parameters,
    }
}

request! {
    /// What group to delete.
    DeleteVolumeGroupSnapshotRequest {
        /// The group.
        group_snapshot_id: GroupSnapshotId,
        /// Its members, all of them.
        snapshot_ids: Vec<SnapshotId>,
        /// Credentials.
        secrets: Secrets,
    }
}

request! {
    /// What group to look up.
    GetVolumeGroupSnapshotRequest {
        /// The group.
        group_snapshot_id: GroupSnapshotId,
        /// Its members, all of them.
        snapshot_ids: Vec<SnapshotId>,
        /// Credentials.
        secrets: Secrets,
    }
}
