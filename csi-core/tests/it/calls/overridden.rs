//! A ready-made node plugin of which a driver changes some methods (`NodeService::…_by`): the caller gets the
//! driver's answers, and everything else is the ready-made plugin's. Needs no root.
#![cfg(target_os = "linux")]

use std::path::PathBuf;
use std::sync::Arc;

use csi_core::client::{Target, VolumeUse};
use csi_core::mount::testing::SimulatedNode;
use csi_core::node::{
    NodeGetVolumeHealth, NodeGetVolumeHealthRequest, NodeGetVolumeStats, NodeGetVolumeStatsRequest,
    NodePublishVolumeRequest, NodeUnpublishVolumeRequest, PublishedTargets,
};
use csi_core::testing::serve;
use csi_core::types::{Usage, VolumeHealth, VolumeHealthEntry, VolumeHealthStatus, VolumeStats};
use csi_core::{Plugin, Result, Spec, prelude::*};
use csi_proto::v1::{self, VolumeCapability as Wire, volume_capability::access_mode::Mode};

const TARGET: &str = "/pods/1/mount";

struct Dirs(PathBuf);

#[async_trait]
impl Directories for Dirs {
    async fn info(&self) -> Result<NodeInfo> {
        NodeInfo::new("the-directories")
    }
    async fn directory(&self, id: &VolumeId) -> Result<PathBuf> {
        Ok(self.0.join(id.as_file_name()?))
    }
}

type Service = NodeService<DirectoryNode<Dirs>>;

/// A driver on the ready-made plugin, which it asks first.
struct Own(DirectoryNode<Dirs>);

#[async_trait]
impl Node for Own {
    async fn info(&self) -> Result<NodeInfo> {
        Ok(NodeInfo::new("own")?.max_volumes(3))
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
impl NodeGetVolumeStats for Own {
    async fn volume_stats(&self, request: NodeGetVolumeStatsRequest) -> Result<VolumeStats> {
        let pool = self.0.volume_stats(request).await?;
        Ok(VolumeStats::from_usage(Usage::new(70, 10, 60), pool.inodes))
    }
}

#[async_trait]
impl NodeGetVolumeHealth for Own {
    async fn volume_health(&self, request: NodeGetVolumeHealthRequest) -> Result<VolumeHealth> {
        let mut health = self.0.volume_health(request).await?;
        let full = VolumeHealthEntry::new(VolumeHealthStatus::Degraded, "QuotaFull", "the quota is used up");
        health.entries.push(full);
        Ok(health)
    }
}

/// What a caller gets of each method.
#[derive(Debug, Clone, PartialEq)]
struct Answers {
    node_id: String,
    max_volumes: i64,
    total_bytes: i64,
    reasons: Vec<String>,
    capabilities: Vec<i32>,
}

/// Takes a volume through its life on a node, and asks what a caller can ask.
async fn life(change: impl FnOnce(Service, Arc<Own>) -> Service) -> Answers {
    let directory = tempfile::tempdir().unwrap();
    let node = SimulatedNode::new();
    node.create_dir("/pods/1");
    let volumes = directory.path().canonicalize().unwrap().join("volumes");
    std::fs::create_dir_all(volumes.join("v")).unwrap();
    let own = Arc::new(Own(DirectoryNode::new(Arc::new(Dirs(volumes.clone())))));
    let service = change(DirectoryNode::service(Arc::new(Dirs(volumes))), own);
    let plugin = Plugin::new("own.csi.example.org", "1").spec(Spec::V1_13).node(service).host(node.clone());
    let client = serve(plugin, &directory).await;

    let mut volume = VolumeUse::new("v", Wire::mount(Mode::SingleNodeWriter));
    let targets = [Target::new(TARGET)];
    volume.attach_stage_publish(&client, &targets).await.unwrap();
    node.write(format!("{TARGET}/file"), "data").unwrap();
    let info = client.call(v1::NodeGetInfoRequest::default()).await.unwrap();
    let stats = client.call(volume.node_get_volume_stats(TARGET.as_ref())).await.unwrap();
    let ask = v1::NodeGetVolumeHealthRequest {
        volume_id: "v".to_owned(),
        volume_publish_path: TARGET.to_owned(),
        ..Default::default()
    };
    let health = client.call(ask).await.unwrap().volume_health.unwrap();
    let capabilities = client.call(v1::NodeGetCapabilitiesRequest::default()).await.unwrap().capabilities;
    // The ready-made plugin's own answers: a missing volume, a repeat, and the end of a life.
    let missing = VolumeUse::new("missing", volume.capability.clone()).publish(&client, &targets).await;
    assert_eq!(missing.unwrap_err().code(), tonic::Code::NotFound);
    volume.publish(&client, &targets).await.unwrap();
    volume.unpublish_unstage_detach(&client, &targets).await.unwrap();
    assert!(!node.exists(TARGET));
    let gone = client.call(volume.node_get_volume_stats(TARGET.as_ref())).await.unwrap_err();
    assert_eq!(gone.code(), tonic::Code::NotFound, "the ready-made plugin is asked first: {gone}");
    let bytes = |usage: &&v1::VolumeUsage| usage.unit == v1::volume_usage::Unit::Bytes as i32;
    let rpc = |capability: v1::NodeServiceCapability| match capability.r#type.unwrap() {
        v1::node_service_capability::Type::Rpc(rpc) => rpc.r#type,
    };
    Answers {
        node_id: info.node_id,
        max_volumes: info.max_volumes_per_node,
        total_bytes: stats.usage.iter().find(bytes).unwrap().total,
        reasons: health.health_statuses.into_iter().map(|entry| entry.reason).collect(),
        capabilities: capabilities.into_iter().map(rpc).collect(),
    }
}

#[tokio::test]
async fn an_overridden_method_answers_and_the_rest_stays_ready_made() {
    let ready_made = life(|service, _| service).await;
    assert_eq!((&*ready_made.node_id, ready_made.max_volumes), ("the-directories", 0));
    assert!(ready_made.total_bytes > 70 && ready_made.reasons.is_empty(), "{ready_made:?}");

    let stats = life(NodeService::get_volume_stats_by).await;
    assert_eq!(stats, Answers { total_bytes: 70, ..ready_made.clone() });
    let info = life(NodeService::publish_unpublish_by).await;
    assert_eq!(info, Answers { node_id: "own".to_owned(), max_volumes: 3, ..ready_made.clone() });
    let health = life(NodeService::get_volume_health_by).await;
    assert_eq!(health, Answers { reasons: vec!["QuotaFull".to_owned()], ..ready_made });
}
