//! GET_VOLUME_HEALTH and GET_STORAGE_HEALTH, as this node sees them. Alpha, new in spec v1.13.0.

use std::path::PathBuf;

use async_trait::async_trait;
use csi_proto::v1;

use crate::call::request::request;
use crate::call::{Call, Reply};
use crate::error::Result;
use crate::offer::Offer;
use crate::types::health::storage_health;
use crate::types::{Secrets, StorageHealthEntry, VolumeHealth, VolumeId};

/// Reports one volume's health on this node. Spec: "NodeGetVolumeHealth".
#[async_trait]
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not implement `NodeGetVolumeHealth`",
    label = "needs `impl NodeGetVolumeHealth for {Self}`",
    note = "write `#[async_trait]` before the `impl`, and the methods that the trait's documentation lists"
)]
pub trait NodeGetVolumeHealth: Send + Sync + 'static {
    /// Returns the problems of the volume as this node sees them, also when its stage or publish failed.
    ///
    /// - spec: `node-get-volume-health.current`, `node-get-volume-health.missing`
    ///
    /// # Errors
    /// [`Error::VolumeNotFound`](crate::Error::VolumeNotFound) (NOT_FOUND).
    async fn volume_health(&self, request: NodeGetVolumeHealthRequest) -> Result<VolumeHealth>;
}

request! {
    /// Which volume to check, and where it is.
    NodeGetVolumeHealthRequest about volume_id {
        /// The volume.
        volume_id: VolumeId,
        /// The path at which the volume is published, if it is.
        volume_publish_path: Option<PathBuf>,
        /// The path at which the volume is staged, if it is.
        staging_target_path: Option<PathBuf>,
    }
}

/// Reports the backends' health as this node sees it. Spec: "NodeGetStorageHealth".
#[async_trait]
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not implement `NodeGetStorageHealth`",
    label = "needs `impl NodeGetStorageHealth for {Self}`",
    note = "write `#[async_trait]` before the `impl`, and the methods that the trait's documentation lists"
)]
pub trait NodeGetStorageHealth: Send + Sync + 'static {
    /// Returns the problems of the backends; empty if all are healthy.
    ///
    /// # Errors
    /// Those of any RPC.
    async fn storage_health(&self, request: NodeGetStorageHealthRequest) -> Result<Vec<StorageHealthEntry>>;
}

request! {
    /// A query for the health of all backends.
    NodeGetStorageHealthRequest {
        /// Credentials.
        secrets: Secrets,
    }
}

impl Call for NodeGetVolumeHealthRequest {
    type Answer = VolumeHealth;

    fn paths(&self) -> Vec<(&'static str, PathBuf)> {
        let paths = [
            ("volume_publish_path", &self.volume_publish_path),
            ("staging_target_path", &self.staging_target_path),
        ];
        paths.into_iter().filter_map(|(field, path)| Some((field, path.as_ref()?.to_path_buf()))).collect()
    }

    fn reply(health: VolumeHealth, request: &Self::Wire, _: &Offer) -> Result<Reply<Self>> {
        let volume_health = Some(health.answer_for(&request.volume_id)?);
        Ok(v1::NodeGetVolumeHealthResponse { volume_health })
    }
}

impl Call for NodeGetStorageHealthRequest {
    type Answer = Vec<StorageHealthEntry>;

    fn reply(entries: Vec<StorageHealthEntry>, _: &Self::Wire, _: &Offer) -> Result<Reply<Self>> {
        Ok(v1::NodeGetStorageHealthResponse { backend_health: storage_health(entries)? })
    }
}
