//! Publishing: by the plugin for the volume's kind.

use csi_core::{
    Error, Node, NodeInfo, NodePublishVolumeRequest, NodeUnpublishVolumeRequest, PublishedTargets, Result,
    async_trait,
};

use super::{HostNode, READONLY, check_use};
use crate::kind::Kind;

#[async_trait]
impl Node for HostNode {
    async fn info(&self) -> Result<NodeInfo> {
        Ok(self.driver.node.clone())
    }

    async fn publish_volume(&self, mut request: NodePublishVolumeRequest) -> Result<()> {
        // What was attached to be read is not written, whatever the publish says. An image's device sees to that itself.
        request.readonly |=
            request.publish_context.get(READONLY).is_some() && request.volume_capability.is_mount();
        if request.volume_context.is_ephemeral() {
            return self.publish_inline(request).await;
        }
        let (volumes, record) = self.find(&request.volume_id).await?;
        check_use(&record, &request.volume_capability)?;
        match record.kind {
            Kind::Image => volumes.devices.publish_volume(request).await,
            Kind::Directory => volumes.directories.publish_volume(request).await,
        }
    }

    async fn published(&self, request: &NodePublishVolumeRequest) -> Result<PublishedTargets> {
        match self.find(&request.volume_id).await {
            Ok((volumes, record)) => match record.kind {
                Kind::Image => volumes.devices.published(&self.with_staging(request)?).await,
                Kind::Directory => volumes.directories.published(request).await,
            },
            Err(Error::VolumeNotFound(_)) => Ok(PublishedTargets::default()),
            Err(error) => Err(error),
        }
    }

    /// Also of a volume that is gone. What was published is known by the target alone, whatever its kind.
    async fn unpublish_volume(&self, request: NodeUnpublishVolumeRequest) -> Result<()> {
        let id = request.volume_id.clone();
        self.volumes.devices.unpublish_volume(request).await?;
        self.end_inline(&id).await
    }
}
