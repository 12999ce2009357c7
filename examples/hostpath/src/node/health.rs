//! GET_VOLUME_HEALTH and GET_STORAGE_HEALTH on the node: the state of the mounts and of the content.

use csi_core::{
    NodeGetStorageHealth, NodeGetStorageHealthRequest, NodeGetVolumeHealth, NodeGetVolumeHealthRequest,
    Result, StorageHealthEntry, VolumeHealth, async_trait, blocking,
};

use super::HostNode;
use crate::damage;
use crate::kind::Kind;

#[async_trait]
impl NodeGetVolumeHealth for HostNode {
    async fn volume_health(&self, request: NodeGetVolumeHealthRequest) -> Result<VolumeHealth> {
        let (volumes, record) = self.find(&request.volume_id).await?;
        let place = volumes.place(&request.volume_id)?;
        let mut health = match record.kind {
            Kind::Image if request.volume_publish_path.is_some() || request.staging_target_path.is_some() => {
                volumes.devices.volume_health(request).await?
            }
            _ => volumes.directories.volume_health(request).await?,
        };
        let of_content = blocking(move || Ok(damage::of_content(&place, &record))).await?;
        health.entries.extend(of_content);
        Ok(health)
    }
}

#[async_trait]
impl NodeGetStorageHealth for HostNode {
    async fn storage_health(&self, _: NodeGetStorageHealthRequest) -> Result<Vec<StorageHealthEntry>> {
        self.driver.with(|host| damage::of_storage(host)).await
    }
}
