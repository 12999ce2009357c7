//! Publishing, by the plugin for the volume's kind.

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
        // A volume attached read-only is published read-only, whatever the request says. For an image the
        // device itself is read-only.
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

    /// Works for a deleted volume too: its mounts on this node are known by their marks.
    async fn unpublish_volume(&self, request: NodeUnpublishVolumeRequest) -> Result<()> {
        let id = request.volume_id.clone();
        match self.find(&id).await {
            Ok((volumes, record)) if record.kind == Kind::Directory => {
                volumes.directories.unpublish_volume(request).await?;
            }
            Ok((volumes, _)) => volumes.devices.unpublish_volume(request).await?,
            Err(Error::VolumeNotFound(_)) => self.volumes.devices.unpublish_volume(request).await?,
            Err(error) => return Err(error),
        }
        self.end_inline(&id).await
    }
}
