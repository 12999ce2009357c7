//! GET_VOLUME_HEALTH and GET_STORAGE_HEALTH, as this node sees them. Alpha, new in spec v1.13.0.

use async_trait::async_trait;

use super::Node;
use crate::request::request;
use crate::{AbsolutePath, Result, Secrets, StorageHealthEntry, VolumeHealth, VolumeId};

/// One volume's health on this node. Spec: "NodeGetVolumeHealth".
#[async_trait]
pub trait NodeGetVolumeHealth: Node {
    /// What is wrong with the volume as this node sees it, also when its stage or publish failed.
    ///
    /// # Errors
    /// [`Error::VolumeNotFound`](crate::Error::VolumeNotFound) (NOT_FOUND).
    async fn volume_health(&self, request: NodeGetVolumeHealthRequest) -> Result<VolumeHealth>;
}

request! {
    /// Which volume, where.
    NodeGetVolumeHealthRequest {
        /// The volume.
        volume_id: VolumeId,
        /// Where it is published, if it is.
        volume_publish_path: Option<AbsolutePath>,
        /// Where it is staged, if it is.
        staging_target_path: Option<AbsolutePath>,
    }
}

/// The backends' health as this node sees it. Spec: "NodeGetStorageHealth".
#[async_trait]
pub trait GetStorageHealth: Node {
    /// What is wrong with the backends; nothing, when all are well.
    ///
    /// # Errors
    /// Those of any RPC.
    async fn storage_health(&self, request: NodeGetStorageHealthRequest) -> Result<Vec<StorageHealthEntry>>;
}

request! {
    /// Asks about all backends.
    NodeGetStorageHealthRequest {
        /// Credentials.
        secrets: Secrets,
    }
}
