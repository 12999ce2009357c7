//! A published volume is published again, in every mode, with both ready-made node plugins, on real mounts.
//! Needs root.
#![cfg(all(feature = "mount", target_os = "linux"))]

use std::path::{Path, PathBuf};
use std::sync::Arc;

use csi_core::client::VolumeUse;
use csi_core::*;
use csi_proto::v1;
use tonic::Code;
use v1::volume_capability::MountVolume;

use crate::common::{Served, block_capability, mount_with};
use crate::private::{Disk, on_tmpfs};

/// A driver with one directory for a volume.
struct OneDirectory(PathBuf);

#[async_trait]
impl Directories for OneDirectory {
    async fn directory(&self, _: &VolumeId) -> Result<PathBuf> {
        Ok(self.0.clone())
    }
}

/// A driver with one device for a volume.
struct OneDevice(PathBuf);

#[async_trait]
impl BlockDevices for OneDevice {
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

/// The paths, and how the volume is used.
struct Place {
    pods: PathBuf,
    staging: Option<PathBuf>,
    block: bool,
    mode: i32,
}

impl Place {
    fn volume(&self, flags: &[&str]) -> VolumeUse {
        let mount_flags = flags.iter().map(|flag| (*flag).to_owned()).collect();
        let capability = if self.block {
            block_capability(self.mode)
        } else {
            mount_with(self.mode, MountVolume { mount_flags, ..Default::default() })
        };
        let volume = VolumeUse::new("v", capability);
        match &self.staging {
            Some(staging) => volume.staged_at(staging),
            None => volume,
        }
    }

    fn publish(&self, target: &str) -> v1::NodePublishVolumeRequest {
        self.volume(&[]).node_publish_volume(&self.pods.join(target))
    }
}

async fn code(served: &Served, request: v1::NodePublishVolumeRequest) -> Code {
    match served.call(request).await {
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
        let other = place.volume(&["noexec"]).node_publish_volume(&place.pods.join("one"));
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
        let request = v1::NodeUnpublishVolumeRequest::from(&place.publish(target));
        served.call(request).await.unwrap();
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
            // Does nothing where volumes are not staged.
            let staged = place.volume(&[]).stage(&served.client).await;
            // Nodes that write to a filesystem on one device destroy it.
            if staging.is_some() && !block && [4, 5].contains(&mode) {
                let refused = staged.unwrap_err();
                assert_eq!(refused.code(), FailedPrecondition, "mode {mode}: {refused}");
                cells += 1;
                continue;
            }
            staged.unwrap();
            let elsewhere = if many { Good } else { FailedPrecondition };
            cells += row(&served, &place, [Good, AlreadyExists, elsewhere]).await;
            place.volume(&[]).unstage(&served.client).await.unwrap();
        }
    }
    cells
}

fn plugin<D: Node>(node: NodeService<D>, declared: bool) -> Plugin {
    let node = if declared { node.single_node_multi_writer() } else { node };
    Plugin::new("matrix.csi.example.org", "1").node(node)
}

// spec: node-publish-volume.repeated-is-ok, node-publish-volume.differs-is-already-exists
// spec: node-publish-volume.second-target, node-publish-volume.readonly
#[test]
fn directories() {
    on_tmpfs(async |place| {
        let volume = place.join("volume");
        let pods = place.join("pods");
        std::fs::create_dir(&volume).unwrap();
        std::fs::create_dir(&pods).unwrap();
        let node =
            |declared| plugin(DirectoryNode::service(Arc::new(OneDirectory(volume.clone()))), declared);
        println!("{} cells for directories", matrix(node, &pods, None, false).await);
    });
}

fn on_devices(name: &str, is_raw: bool) {
    on_tmpfs(async |place| {
        let disk = Disk::new(&place.join("image"));
        let staging = place.join("staging");
        let pods = place.join("pods");
        std::fs::create_dir(&staging).unwrap();
        std::fs::create_dir(&pods).unwrap();
        let node =
            |declared| plugin(BlockNode::service(Arc::new(OneDevice(disk.path().to_owned()))), declared);
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
