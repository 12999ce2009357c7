//! A correct driver of inline volumes: one file, with the requested text. Its storage is degraded.

use std::sync::Arc;

use csi_core::mount::flow::ephemeral::Content;
use csi_core::node::{
    NodeGetStorageHealth, NodeGetStorageHealthRequest, NodeGetVolumeStats, NodeGetVolumeStatsRequest,
    NodePublishVolumeRequest, NodeUnpublishVolumeRequest, PublishedTargets,
};
use csi_core::types::{StorageHealthEntry, StorageHealthStatus, VolumeStats};
use csi_core::*;

struct Greeting;

#[async_trait]
impl EphemeralContent for Greeting {
    async fn info(&self) -> Result<NodeInfo> {
        NodeInfo::new("node-1")
    }

    async fn content(&self, request: &NodePublishVolumeRequest) -> Result<Content> {
        let pod = request.volume_context.pod("pod.name").unwrap_or("whoever you are");
        Ok(Content::new().file("greeting", format!("Hello, {pod}"))?)
    }
}

/// The node of the greetings, which also reports the health of its storage.
struct Inline(EphemeralNode<Greeting>);

#[async_trait]
impl Node for Inline {
    async fn info(&self) -> Result<NodeInfo> {
        self.0.info().await
    }

    async fn publish_volume(&self, request: NodePublishVolumeRequest) -> Result<()> {
        self.0.publish_volume(request).await
    }

    async fn published(&self, request: &NodePublishVolumeRequest) -> Result<PublishedTargets> {
        self.0.published(request).await
    }

    async fn unpublish_volume(&self, request: NodeUnpublishVolumeRequest) -> Result<()> {
        self.0.unpublish_volume(request).await
    }
}

#[async_trait]
impl NodeGetVolumeStats for Inline {
    async fn volume_stats(&self, request: NodeGetVolumeStatsRequest) -> Result<VolumeStats> {
        self.0.volume_stats(request).await
    }
}

#[async_trait]
impl NodeGetStorageHealth for Inline {
    async fn storage_health(&self, _: NodeGetStorageHealthRequest) -> Result<Vec<StorageHealthEntry>> {
        Ok(vec![StorageHealthEntry::new(StorageHealthStatus::Degraded, "DiskLost", "it was made so")])
    }
}

pub(crate) fn plugin() -> Plugin {
    let node = Arc::new(Inline(EphemeralNode::new(Arc::new(Greeting))));
    Plugin::new("inline.csi.example.org", "1")
        .spec(Spec::V1_13)
        .node(NodeService::new(node).get_volume_stats().volume_mount_group().get_storage_health())
}
