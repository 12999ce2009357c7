//! A published volume is published again, in every mode, with both ready-made node plugins, on real mounts.
//! Needs root.
#![cfg(all(feature = "mount", target_os = "linux"))]

mod common;

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use common::{Served, block_capability, mount_capability};
use csi_core::*;
use csi_mount::testing::private_mount_namespace;
use csi_mount::{LoopDevice, LoopOptions};
use csi_proto::v1;
use tonic::Code;
use v1::volume_capability::AccessType;

/// A driver with one directory for a volume.
struct OneDirectory(PathBuf);

#[async_trait]
impl Directories for OneDirectory {
    async fn info(&self) -> Result<NodeInfo> {
        NodeInfo::new("n")
    }

    async fn directory(&self, _: &VolumeId) -> Result<PathBuf> {
        Ok(self.0.clone())
    }
}

/// A driver with one device for a volume.
struct OneDevice(PathBuf);

#[async_trait]
impl BlockDevices for OneDevice {
    async fn info(&self) -> Result<NodeInfo> {
        NodeInfo::new("n")
    }

    async fn attach(&self, _: &Attachment) -> Result<PathBuf> {
        Ok(self.0.clone())
    }

    async fn device(&self, _: &Attachment) -> Result<Option<PathBuf>> {
        Ok(Some(self.0.clone()))
    }

    async fn detach(&self, _: &Attachment) -> Result<()> {
        Ok(())
    }
}

/// A loop device over its own file.
struct Disk {
    device: Option<LoopDevice>,
    _directory: tempfile::TempDir,
}

impl Disk {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("image");
        File::create(&file).unwrap().set_len(32 << 20).unwrap();
        let device =
            LoopDevice::attach(&file, &LoopOptions::new()).expect("run this as root, with loop devices");
        Self { device: Some(device), _directory: directory }
    }

    fn path(&self) -> PathBuf {
        self.device.as_ref().unwrap().path().to_owned()
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        if let Some(device) = self.device.take()
            && let Err(error) = device.detach()
            && !std::thread::panicking()
        {
            panic!("a loop device is left: {error}");
        }
    }
}

/// The paths, and how the volume is used.
struct Place {
    pods: PathBuf,
    staging: Option<PathBuf>,
    block: bool,
    mode: i32,
}

impl Place {
    fn capability(&self, flags: &[&str]) -> v1::VolumeCapability {
        let mut capability =
            if self.block { block_capability(self.mode) } else { mount_capability(self.mode) };
        if let Some(AccessType::Mount(mount)) = &mut capability.access_type {
            mount.mount_flags = flags.iter().map(|flag| (*flag).to_owned()).collect();
        }
        capability
    }

    fn publish(&self, target: &str) -> v1::NodePublishVolumeRequest {
        v1::NodePublishVolumeRequest {
            volume_id: "v".into(),
            staging_target_path: self
                .staging
                .as_ref()
                .map_or_else(String::new, |path| path.display().to_string()),
            target_path: self.pods.join(target).display().to_string(),
            volume_capability: Some(self.capability(&[])),
            ..Default::default()
        }
    }
}

async fn code(served: &Served, request: v1::NodePublishVolumeRequest) -> Code {
    match served.node().node_publish_volume(request).await {
        Ok(_) => Code::Ok,
        Err(status) => {
            assert!(!status.message().is_empty());
            status.code()
        }
    }
}

/// Publishes the volume at one target and then again, in each variant of the matrix. Returns how many cells
/// it checked.
async fn row(served: &Served, place: &Place, due: [Code; 3]) -> u32 {
    let [same, differs, elsewhere] = due;
    let mode = place.mode;
    assert_eq!(code(served, place.publish("one")).await, Code::Ok, "mode {mode}: the first publish");
    assert_eq!(code(served, place.publish("one")).await, same, "mode {mode}: the same again");
    let mut cells = 2;
    let is_read_only_mode = [2, 3].contains(&mode);
    if !is_read_only_mode {
        let other = v1::NodePublishVolumeRequest { readonly: true, ..place.publish("one") };
        assert_eq!(code(served, other).await, differs, "mode {mode}: the same target, read-only");
        cells += 1;
    }
    if !place.block {
        let mut other = place.publish("one");
        other.volume_capability = Some(place.capability(&["noexec"]));
        assert_eq!(code(served, other).await, differs, "mode {mode}: the same target, noexec");
        cells += 1;
    }
    if place.staging.is_some() {
        let other =
            Place { block: !place.block, pods: place.pods.clone(), staging: place.staging.clone(), mode };
        assert_eq!(
            code(served, other.publish("one")).await,
            differs,
            "mode {mode}: the other kind of access"
        );
        cells += 1;
    }
    let second = code(served, place.publish("two")).await;
    assert_eq!(second, elsewhere, "mode {mode}: another target");
    assert_eq!(place.pods.join("two").exists(), elsewhere == Code::Ok, "a refused target is not left behind");
    for target in ["one", "two"] {
        let target_path = place.pods.join(target).display().to_string();
        let request = v1::NodeUnpublishVolumeRequest { volume_id: "v".into(), target_path };
        served.node().node_unpublish_volume(request).await.unwrap();
    }
    cells + 1
}

/// All seven modes, with SINGLE_NODE_MULTI_WRITER and without.
async fn matrix(node: impl Fn(bool) -> Plugin, pods: &Path, staging: Option<&Path>, block: bool) -> u32 {
    use Code::{AlreadyExists, FailedPrecondition, Ok as Good};
    let mut cells = 0;
    for declared in [true, false] {
        let served = Served::start(node(declared)).await;
        for mode in 1..=7 {
            let place = Place { pods: pods.to_owned(), staging: staging.map(Path::to_owned), block, mode };
            if mode >= 6 && !declared {
                assert_eq!(code(&served, place.publish("one")).await, Code::InvalidArgument);
                cells += 1;
                continue;
            }
            let many = [3, 4, 5, 7].contains(&mode) || (mode == 1 && !declared);
            if let Some(staging) = staging {
                let request = v1::NodeStageVolumeRequest {
                    volume_id: "v".into(),
                    staging_target_path: staging.display().to_string(),
                    volume_capability: Some(place.capability(&[])),
                    ..Default::default()
                };
                served.node().node_stage_volume(request).await.unwrap();
            }
            cells +=
                row(&served, &place, [Good, AlreadyExists, if many { Good } else { FailedPrecondition }])
                    .await;
            if let Some(staging) = staging {
                let staging_target_path = staging.display().to_string();
                let request = v1::NodeUnstageVolumeRequest { volume_id: "v".into(), staging_target_path };
                served.node().node_unstage_volume(request).await.unwrap();
            }
        }
    }
    cells
}

fn plugin<D: Node>(node: NodeService<D>, declared: bool) -> Plugin {
    let node = if declared { node.single_node_multi_writer() } else { node };
    Plugin::new("matrix.csi.example.org", "1").node(node)
}

fn in_private(test: impl AsyncFnOnce() + Send) {
    private_mount_namespace(|| {
        // The runtime's threads are children of this one and share its mount namespace.
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(test());
    });
}

// spec: node-publish-volume.repeated-is-ok, node-publish-volume.differs-is-already-exists
// spec: node-publish-volume.second-target, node-publish-volume.readonly
#[test]
fn directories() {
    in_private(async || {
        let directory = tempfile::tempdir().unwrap();
        let (volume, pods) = (directory.path().join("volume"), directory.path().join("pods"));
        std::fs::create_dir(&volume).unwrap();
        std::fs::create_dir(&pods).unwrap();
        let node =
            |declared| plugin(DirectoryNode::service(Arc::new(OneDirectory(volume.clone()))), declared);
        println!("{} cells for directories", matrix(node, &pods, None, false).await);
    });
}

fn on_devices(name: &str, is_raw: bool) {
    in_private(async || {
        let disk = Disk::new();
        let directory = tempfile::tempdir().unwrap();
        let (staging, pods) = (directory.path().join("staging"), directory.path().join("pods"));
        std::fs::create_dir(&staging).unwrap();
        std::fs::create_dir(&pods).unwrap();
        let node = |declared| plugin(BlockNode::service(Arc::new(OneDevice(disk.path()))), declared);
        println!("{} cells for {name}", matrix(node, &pods, Some(&staging), is_raw).await);
    });
}

// spec: node-publish-volume.differs-is-already-exists, node-publish-volume.second-target
#[test]
fn filesystems_on_devices() {
    on_devices("filesystems", false);
}

// spec: node-publish-volume.differs-is-already-exists, node-publish-volume.second-target
// spec: node-publish-volume.device-at-target, node-publish-volume.readonly
#[test]
fn raw_devices() {
    on_devices("raw devices", true);
}
