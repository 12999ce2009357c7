//! A plugin that is served on a real socket, calls of it, and requests for them.
#![allow(dead_code, unreachable_pub, reason = "a module of each test file, which uses its part")]

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use csi_core::client::{Client, VolumeUse};
use csi_core::server::ServeError;
use csi_core::*;
use csi_proto::{RpcRequest, v1};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tonic::{Code, Status};
use v1::volume_capability::{AccessMode as WireMode, AccessType, BlockVolume, MountVolume};

/// A plugin that is served until this value is dropped.
pub struct Served {
    pub client: Client,
    pub endpoint: Endpoint,
    pub directory: tempfile::TempDir,
    pub stop: Option<oneshot::Sender<()>>,
    pub server: JoinHandle<Result<(), ServeError>>,
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
        eventually("somebody listens", || is_listening(endpoint.path())).await;
        Self { client: connect(&endpoint), endpoint, directory, stop: Some(stop), server }
    }

    pub async fn call<R: RpcRequest>(&self, request: R) -> Result<R::Answer, Status> {
        self.client.call(request).await
    }

    /// The reasons in the health of a volume at its staging path and this target.
    pub async fn health_reasons(&self, volume: &VolumeUse, target: &Path) -> Result<Vec<String>, Status> {
        let publish = volume.node_publish_volume(target);
        let request = v1::NodeGetVolumeHealthRequest {
            volume_id: publish.volume_id,
            volume_publish_path: publish.target_path,
            staging_target_path: publish.staging_target_path,
        };
        let entries = self.call(request).await?.volume_health.unwrap().health_statuses;
        Ok(entries.into_iter().map(|entry| entry.reason).collect())
    }

    /// Makes a call on a task.
    pub fn begin<R: RpcRequest>(&self, request: R) -> JoinHandle<Result<R::Answer, Status>> {
        let client = self.client.clone();
        tokio::spawn(async move { client.call(request).await })
    }
}

/// A client with its own connection. Its deadline is only for calls that would otherwise hang.
pub fn connect(endpoint: &Endpoint) -> Client {
    Client::new(endpoint).deadline(2 * PATIENCE)
}

/// Checks that a call was refused with this code. Returns its status.
#[track_caller]
pub fn refused<A>(outcome: Result<A, Status>, code: Code) -> Status {
    let Err(status) = outcome else { panic!("not refused: {code:?} is due") };
    assert_eq!(status.code(), code, "{status}");
    status
}

/// How long an event can take on a machine that has other work. A test fails after this time and does not hang.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// Waits, for a bounded time, until the condition holds.
pub async fn eventually(what: &str, holds: impl Fn() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < end, "not within {PATIENCE:?}: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Whether somebody listens on a socket. Its file is there a moment before.
pub fn is_listening(socket: &Path) -> bool {
    std::os::unix::net::UnixStream::connect(socket).is_ok()
}

pub fn mount_capability(mode: i32) -> v1::VolumeCapability {
    mount_with(mode, MountVolume::default())
}

pub fn mount_with(mode: i32, mount: MountVolume) -> v1::VolumeCapability {
    v1::VolumeCapability { access_mode: Some(WireMode { mode }), access_type: Some(AccessType::Mount(mount)) }
}

pub fn block_capability(mode: i32) -> v1::VolumeCapability {
    v1::VolumeCapability {
        access_mode: Some(WireMode { mode }),
        access_type: Some(AccessType::Block(BlockVolume {})),
    }
}

/// Secrets, parameters or a context.
pub fn map(entries: &[(&str, &str)]) -> BTreeMap<String, String> {
    entries.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

pub fn create(name: &str) -> v1::CreateVolumeRequest {
    v1::CreateVolumeRequest {
        name: name.to_owned(),
        volume_capabilities: vec![mount_capability(1)],
        ..Default::default()
    }
}

pub fn delete(volume_id: &str) -> v1::DeleteVolumeRequest {
    v1::DeleteVolumeRequest { volume_id: volume_id.to_owned(), ..Default::default() }
}

/// A separate path per volume: two volumes at one staging path would exclude each other.
pub fn staging(volume_id: &str) -> String {
    format!("/staging/{volume_id}")
}

/// A volume that is mounted by one writer.
fn used(volume_id: &str) -> VolumeUse {
    VolumeUse::new(volume_id, mount_capability(1)).staged_at(staging(volume_id))
}

pub fn stage(volume_id: &str) -> v1::NodeStageVolumeRequest {
    used(volume_id).node_stage_volume()
}

pub fn publish(volume_id: &str, target: &str) -> v1::NodePublishVolumeRequest {
    used(volume_id).node_publish_volume(target.as_ref())
}

pub fn unstage(volume_id: &str) -> v1::NodeUnstageVolumeRequest {
    used(volume_id).node_unstage_volume()
}

pub fn unpublish(volume_id: &str, target: &str) -> v1::NodeUnpublishVolumeRequest {
    used(volume_id).node_unpublish_volume(target.as_ref())
}

pub fn stats(volume_id: &str, volume_path: &str) -> v1::NodeGetVolumeStatsRequest {
    v1::NodeGetVolumeStatsRequest {
        volume_id: volume_id.to_owned(),
        volume_path: volume_path.to_owned(),
        ..Default::default()
    }
}

pub fn expand(volume_id: &str, required_bytes: i64) -> v1::ControllerExpandVolumeRequest {
    used(volume_id).controller_expand_volume(required_bytes)
}
