//! GET_VOLUME_STATS.

use csi_core::{NodeGetVolumeStats, NodeGetVolumeStatsRequest, Result, VolumeStats, async_trait};

use super::HostNode;
use crate::kind::Kind;

#[async_trait]
impl NodeGetVolumeStats for HostNode {
    async fn volume_stats(&self, request: NodeGetVolumeStatsRequest) -> Result<VolumeStats> {
        let (volumes, record) = self.find(&request.volume_id).await?;
        match record.kind {
            Kind::Image => volumes.devices.volume_stats(request).await,
            Kind::Directory => volumes.directories.volume_stats(request).await,
        }
    }
}
