//! EXPAND_VOLUME on the node.

use csi_core::{
    Error, NodeExpandVolume, NodeExpandVolumeRequest, Result, async_trait, blocking, mounted_from,
};

use super::{HostNode, check_use};
use crate::kind::Kind;

#[async_trait]
impl NodeExpandVolume for HostNode {
    async fn expand_volume(&self, request: NodeExpandVolumeRequest) -> Result<u64> {
        let (volumes, record) = self.find(&request.volume_id).await?;
        if let Some(capability) = &request.volume_capability {
            check_use(&record, capability)?;
        }
        let wanted = request.capacity_range.required_bytes.unwrap_or(record.created.capacity_bytes());
        self.driver.sizes.check_on_node(wanted)?;
        if record.kind == Kind::Image {
            return volumes.devices.expand_volume(request).await;
        }
        // A directory is as large as the disk, so the only check is whether it is mounted at the given path.
        let content = record.kind.content(&volumes.place(&request.volume_id)?);
        let path = request.volume_path.to_path_buf();
        match blocking(move || Ok(mounted_from(&content)?.contains(&path))).await? {
            true => Ok(record.created.capacity_bytes()),
            false => Err(Error::VolumeNotFound(request.volume_id)),
        }
    }
}
