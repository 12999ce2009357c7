//! A driver in memory, served on a real socket, and clients of it.
#![allow(dead_code, unreachable_pub, reason = "a module of each test file, which uses its part")]

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use csi_core::*;
use csi_proto::v1;
use tokio::sync::{Semaphore, oneshot};
use tonic::transport::Channel;
use v1::controller_client::ControllerClient;
use v1::identity_client::IdentityClient;
use v1::node_client::NodeClient;
use v1::volume_capability::{AccessMode as WireMode, AccessType, BlockVolume, MountVolume};

/// Volumes in memory. If `gate` is set, operations wait until a test adds permits.
#[derive(Default)]
pub struct Memory {
    pub volumes: Mutex<BTreeMap<String, Volume>>,
    pub gate: Option<Semaphore>,
    pub begun: AtomicU32,
    pub done: AtomicU32,
}

impl Memory {
    pub fn gated() -> Arc<Self> {
        Arc::new(Self { gate: Some(Semaphore::new(0)), ..Self::default() })
    }

    async fn work(&self) {
        self.begun.fetch_add(1, Ordering::SeqCst);
        if let Some(gate) = &self.gate {
            gate.acquire().await.unwrap().forget();
        }
        self.done.fetch_add(1, Ordering::SeqCst);
    }

    /// Waits, for a bounded time, until `count` operations have begun.
    pub async fn until_begun(&self, count: u32) {
        eventually("operations begin", || self.begun.load(Ordering::SeqCst) >= count).await;
    }
}

#[async_trait]
impl Controller for Memory {
    async fn lookup(&self, volume_id: &VolumeId) -> Result<Option<Volume>> {
        Ok(self.volumes.lock().unwrap().get(volume_id.as_str()).cloned())
    }

    fn supports(&self, capability: &VolumeCapability) -> bool {
        capability.is_mount() && capability.access_mode != AccessMode::MultiNodeMultiWriter
    }
}

#[async_trait]
impl CreateDeleteVolume for Memory {
    async fn create_volume(&self, request: CreateVolumeRequest) -> Result<Volume> {
        self.work().await;
        if request.name.as_str() == "panic" {
            panic!("as the test asked");
        }
        let size = request.capacity_range.choose(1 << 20, 1)?;
        let id = VolumeId::from_name(&request.name)?;
        let mut volumes = self.volumes.lock().unwrap();
        Ok(volumes
            .entry(id.to_string())
            .or_insert_with(|| Volume::new(id, size).context("made", "here"))
            .clone())
    }

    async fn delete_volume(&self, request: DeleteVolumeRequest) -> Result<()> {
        self.work().await;
        let gone = self.volumes.lock().unwrap().remove(request.volume_id.as_str());
        gone.map(drop).ok_or(Error::VolumeNotFound(request.volume_id))
    }
}

#[async_trait]
impl PublishUnpublishVolume for Memory {
    async fn publish_volume(&self, _: ControllerPublishVolumeRequest) -> Result<Published> {
        Ok(Published::new(BTreeMap::from([("device".to_owned(), "sdx".to_owned())])))
    }

    async fn unpublish_volume(&self, _: ControllerUnpublishVolumeRequest) -> Result<()> {
        Ok(())
    }
}

#[async_trait]
impl ControllerExpandVolume for Memory {
    async fn expand_volume(&self, request: ControllerExpandVolumeRequest) -> Result<Expanded> {
        Ok(Expanded::node_expansion_required(request.capacity_range.choose(0, 1)?))
    }
}

#[async_trait]
impl Node for Memory {
    async fn info(&self) -> Result<NodeInfo> {
        Ok(NodeInfo::new("node-1")?.max_volumes(7))
    }

    async fn publish_volume(&self, _: NodePublishVolumeRequest) -> Result<()> {
        self.work().await;
        Ok(())
    }

    async fn unpublish_volume(&self, _: NodeUnpublishVolumeRequest) -> Result<()> {
        self.work().await;
        Ok(())
    }
}

#[async_trait]
impl StageUnstageVolume for Memory {
    async fn stage_volume(&self, _: NodeStageVolumeRequest) -> Result<()> {
        self.work().await;
        Ok(())
    }

    async fn unstage_volume(&self, _: NodeUnstageVolumeRequest) -> Result<()> {
        self.work().await;
        Ok(())
    }
}

#[async_trait]
impl NodeGetVolumeStats for Memory {
    async fn volume_stats(&self, request: NodeGetVolumeStatsRequest) -> Result<VolumeStats> {
        match request.volume_path.is_absolute() {
            true => Ok(VolumeStats::from_device_size(5)),
            false => Err(Error::VolumeNotFound(request.volume_id)),
        }
    }
}

#[async_trait]
impl NodeExpandVolume for Memory {
    async fn expand_volume(&self, _: NodeExpandVolumeRequest) -> Result<u64> {
        Ok(9)
    }
}

/// A plugin with every capability that this driver implements.
pub fn plugin(memory: Arc<Memory>) -> Plugin {
    Plugin::new("memory.csi.example.org", "1.2.3")
        .controller(
            ControllerService::new(memory.clone())
                .create_delete_volume()
                .publish_unpublish_volume()
                .expand_volume(Expansion::Online),
        )
        .node(NodeService::new(memory).stage_unstage_volume().get_volume_stats().expand_volume())
}

/// A plugin that is served until this value is dropped.
pub struct Served {
    pub channel: Channel,
    pub endpoint: Endpoint,
    pub directory: tempfile::TempDir,
    pub stop: Option<oneshot::Sender<()>>,
    pub server: tokio::task::JoinHandle<Result<(), ServeError>>,
}

impl Served {
    pub async fn start(plugin: Plugin) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let endpoint: Endpoint = format!("unix://{}/csi.sock", directory.path().display()).parse().unwrap();
        let (stop, stopped) = oneshot::channel();
        let server = tokio::spawn({
            let endpoint = endpoint.clone();
            async move { plugin.serve_until(&endpoint, async { drop(stopped.await) }).await }
        });
        eventually("the socket is there", || endpoint.path().exists()).await;
        Self { channel: connect(&endpoint), endpoint, directory, stop: Some(stop), server }
    }

    pub fn identity(&self) -> IdentityClient<Channel> {
        IdentityClient::new(self.channel.clone())
    }

    pub fn controller(&self) -> ControllerClient<Channel> {
        ControllerClient::new(self.channel.clone())
    }

    pub fn node(&self) -> NodeClient<Channel> {
        NodeClient::new(self.channel.clone())
    }
}

pub fn connect(endpoint: &Endpoint) -> Channel {
    tonic::transport::Endpoint::from_shared(endpoint.to_string()).unwrap().connect_lazy()
}

/// Waits, for a bounded time, until the condition holds.
pub async fn eventually(what: &str, holds: impl Fn() -> bool) {
    for _ in 0..2000 {
        if holds() {
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    panic!("not in ten seconds: {what}");
}

pub fn mount_capability(mode: i32) -> v1::VolumeCapability {
    v1::VolumeCapability {
        access_mode: Some(WireMode { mode }),
        access_type: Some(AccessType::Mount(MountVolume::default())),
    }
}

pub fn block_capability(mode: i32) -> v1::VolumeCapability {
    v1::VolumeCapability {
        access_mode: Some(WireMode { mode }),
        access_type: Some(AccessType::Block(BlockVolume {})),
    }
}

pub fn create(name: &str) -> v1::CreateVolumeRequest {
    v1::CreateVolumeRequest {
        name: name.to_owned(),
        volume_capabilities: vec![mount_capability(1)],
        ..Default::default()
    }
}

/// A separate path per volume: two volumes at one staging path would exclude each other.
pub fn staging(volume_id: &str) -> String {
    format!("/staging/{volume_id}")
}

pub fn stage(volume_id: &str) -> v1::NodeStageVolumeRequest {
    v1::NodeStageVolumeRequest {
        volume_id: volume_id.to_owned(),
        staging_target_path: staging(volume_id),
        volume_capability: Some(mount_capability(1)),
        ..Default::default()
    }
}

pub fn publish(volume_id: &str, target: &str) -> v1::NodePublishVolumeRequest {
    v1::NodePublishVolumeRequest {
        volume_id: volume_id.to_owned(),
        staging_target_path: staging(volume_id),
        target_path: target.to_owned(),
        volume_capability: Some(mount_capability(1)),
        ..Default::default()
    }
}

pub fn expand(volume_id: &str, required_bytes: i64) -> v1::ControllerExpandVolumeRequest {
    v1::ControllerExpandVolumeRequest {
        volume_id: volume_id.to_owned(),
        capacity_range: Some(v1::CapacityRange { required_bytes, limit_bytes: 0 }),
        ..Default::default()
    }
}
