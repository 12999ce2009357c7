//! The node's RPCs, each by the ready-made plugin for the volume's kind. A directory needs no staging: it is
//! bind-mounted at publish.

use csi_core::node::{
    NodeExpandVolume, NodeExpandVolumeRequest, NodeGetStorageHealth, NodeGetStorageHealthRequest,
    NodeGetVolumeHealth, NodeGetVolumeHealthRequest, NodeGetVolumeStats, NodeGetVolumeStatsRequest,
    NodePublishVolumeRequest, NodeStageVolumeRequest, NodeUnpublishVolumeRequest, NodeUnstageVolumeRequest,
    PublishedTargets, StageUnstageVolume,
};
use csi_core::node_plugins::is_mounted_from;
use csi_core::types::{AccessMode, StorageHealthEntry, VolumeHealth, VolumeStats};
use csi_core::{Error, Node, NodeInfo, Result, TypedRequest as _, async_trait, blocking};

use super::{HostNode, READONLY, check_use};
use crate::damage;
use crate::kind::Kind;

#[async_trait]
impl StageUnstageVolume for HostNode {
    async fn stage_volume(&self, mut request: NodeStageVolumeRequest) -> Result<()> {
        let (volumes, record) = self.find(&request.volume_id).await?;
        check_use(&record, &request.volume_capability)?;
        match record.kind {
            Kind::Directory => match damage::of_content(&volumes.place(&request.volume_id)?, &record) {
                Some(entry) => Err(Error::Unavailable(entry.message.into())),
                None => Ok(()),
            },
            Kind::Image => {
                if request.publish_context.get(READONLY).is_some() && request.volume_capability.is_mount() {
                    // A read-only device is staged as for a reader.
                    request.volume_capability.access_mode = AccessMode::SingleNodeReaderOnly;
                }
                volumes.devices.stage_volume(request).await
            }
        }
    }

    /// Works for a deleted volume and one without a readable record too: what is left of it on this node is removed.
    async fn unstage_volume(&self, request: NodeUnstageVolumeRequest) -> Result<()> {
        match self.find_kind(&request.volume_id).await? {
            Some((_, Kind::Directory)) => Ok(()),
            _ => self.volumes.devices.unstage_volume(request).await,
        }
    }
}

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

    /// Works for a deleted volume and one without a readable record too: its mounts on this node are known by their
    /// marks.
    async fn unpublish_volume(&self, request: NodeUnpublishVolumeRequest) -> Result<()> {
        let host = request.host().clone();
        let id = request.volume_id.clone();
        match self.find_kind(&id).await? {
            Some((volumes, Kind::Directory)) => volumes.directories.unpublish_volume(request).await?,
            Some((volumes, Kind::Image)) => volumes.devices.unpublish_volume(request).await?,
            None => self.volumes.devices.unpublish_volume(request).await?,
        }
        self.end_inline(&host, &id).await
    }
}

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
        // The controller has set the limit of a directory, so the only check is whether it is mounted at the given path.
        let content = record.kind.content(&volumes.place(&request.volume_id)?);
        let path = request.volume_path.to_path_buf();
        let host = request.host().clone();
        if !blocking(move || is_mounted_from(&host, &content, &path)).await? {
            return Err(Error::VolumeNotFound(request.volume_id));
        }
        Ok(record.created.capacity_bytes())
    }
}

#[async_trait]
impl NodeGetVolumeStats for HostNode {
    async fn volume_stats(&self, request: NodeGetVolumeStatsRequest) -> Result<VolumeStats> {
        match self.find_kind(&request.volume_id).await? {
            Some((volumes, Kind::Image)) => volumes.devices.volume_stats(request).await,
            Some((volumes, Kind::Directory)) => volumes.directories.volume_stats(request).await,
            None => Err(Error::VolumeNotFound(request.volume_id)),
        }
    }
}

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
