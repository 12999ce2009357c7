//! A disk that is found only by the publish context of its stage. Needs root.
#![cfg(all(feature = "mount", target_os = "linux"))]

mod common;
mod private;

use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use common::{Served, mount_capability};
use csi_core::mount::{LoopDevice, LoopOptions, flow::block};
use csi_core::*;
use csi_proto::v1;
use private::on_tmpfs;
use tonic::Code;

/// A node with disks at LUNs, as links `lunN` in a directory, and what the driver was asked to detach.
struct Luns {
    place: PathBuf,
    detached: Mutex<Vec<String>>,
}

#[async_trait]
impl BlockDevices for Luns {
    async fn info(&self) -> Result<NodeInfo> {
        NodeInfo::new("n")
    }
    fn attachments_directory(&self) -> Option<PathBuf> {
        Some(self.place.join("attachments"))
    }
    async fn attach(&self, volume: &Attachment) -> Result<PathBuf> {
        self.device(volume).await?.ok_or_else(|| Error::Unavailable("no such LUN".into()))
    }
    async fn device(&self, volume: &Attachment) -> Result<Option<PathBuf>> {
        let link = self.place.join(format!("lun{}", volume.publish_context.require("lun")?));
        Ok(link.exists().then_some(link))
    }
    async fn detach(&self, volume: &Attachment) -> Result<()> {
        self.detached.lock().unwrap().push(volume.publish_context.require("lun")?.to_owned());
        Ok(())
    }
}

/// The node, and a plugin that serves it, as it would be after each restart.
struct Node {
    place: PathBuf,
    luns: Arc<Luns>,
    served: Served,
}

impl Node {
    async fn start(place: &Path) -> Self {
        let luns = Arc::new(Luns { place: place.to_owned(), detached: Mutex::default() });
        let plugin = Plugin::new("luns.csi.example.org", "1").spec(Spec::V1_13).volume_roots([place]);
        let service = BlockNode::service(Arc::clone(&luns)).without_self_check();
        Self { place: place.to_owned(), served: Served::start(plugin.node(service)).await, luns }
    }

    fn path(&self, name: &str) -> String {
        self.place.join(name).display().to_string()
    }

    async fn stage(&self, lun: &str) -> Result<(), tonic::Status> {
        let request = v1::NodeStageVolumeRequest {
            volume_id: "v".into(),
            staging_target_path: self.path("staging"),
            volume_capability: Some(mount_capability(1)),
            publish_context: [("lun".to_owned(), lun.to_owned())].into(),
            secrets: [("key".to_owned(), "a-secret".to_owned())].into(),
            ..Default::default()
        };
        self.served.node().node_stage_volume(request).await.map(drop)
    }

    async fn publish(&self, target: &str, lun: &str) -> Result<(), tonic::Status> {
        let request = v1::NodePublishVolumeRequest {
            volume_id: "v".into(),
            staging_target_path: self.path("staging"),
            target_path: self.path(target),
            volume_capability: Some(mount_capability(1)),
            publish_context: [("lun".to_owned(), lun.to_owned())].into(),
            ..Default::default()
        };
        self.served.node().node_publish_volume(request).await.map(drop)
    }

    async fn bytes(&self, volume_id: &str, target: &str) -> Result<i64, tonic::Status> {
        let (volume_id, volume_path) = (volume_id.to_owned(), self.path(target));
        let request = v1::NodeGetVolumeStatsRequest { volume_id, volume_path, ..Default::default() };
        let stats = self.served.node().node_get_volume_stats(request).await?.into_inner();
        Ok(stats.usage[0].total)
    }

    /// The reasons in the health of the volume at its staging path and this target.
    async fn unwell(&self, target: &str) -> Vec<String> {
        let request = v1::NodeGetVolumeHealthRequest {
            volume_id: "v".into(),
            volume_publish_path: self.path(target),
            staging_target_path: self.path("staging"),
        };
        let health = self.served.node().node_get_volume_health(request).await.unwrap().into_inner();
        health.volume_health.unwrap().health_statuses.into_iter().map(|entry| entry.reason).collect()
    }

    async fn expand(&self, target: &str) -> Result<i64, tonic::Status> {
        let request = v1::NodeExpandVolumeRequest {
            volume_id: "v".into(),
            volume_path: self.path(target),
            ..Default::default()
        };
        Ok(self.served.node().node_expand_volume(request).await?.into_inner().capacity_bytes)
    }

    async fn unpublish(&self, target: &str) -> Result<(), tonic::Status> {
        let (volume_id, target_path) = ("v".to_owned(), self.path(target));
        let request = v1::NodeUnpublishVolumeRequest { volume_id, target_path };
        self.served.node().node_unpublish_volume(request).await.map(drop)
    }

    async fn unstage(&self) -> Result<(), tonic::Status> {
        let (volume_id, staging_target_path) = ("v".to_owned(), self.path("staging"));
        let request = v1::NodeUnstageVolumeRequest { volume_id, staging_target_path };
        self.served.node().node_unstage_volume(request).await.map(drop)
    }

    fn detached(&self) -> Vec<String> {
        self.luns.detached.lock().unwrap().clone()
    }

    fn record(&self) -> PathBuf {
        self.place.join("attachments/v.json")
    }
}

/// Attaches a disk at this LUN.
fn disk(place: &Path, lun: &str) -> LoopDevice {
    let file = place.join(format!("image{lun}"));
    File::create(&file).unwrap().set_len(64 << 20).unwrap();
    let device = LoopDevice::attach(&file, &LoopOptions::new()).expect("run this as root, with loop devices");
    symlink(device.path(), place.join(format!("lun{lun}"))).unwrap();
    fs::create_dir_all(place.join("staging")).unwrap();
    device
}

#[test]
fn a_call_with_only_the_volumes_id_knows_the_context_of_the_stage() {
    on_tmpfs(async |place| {
        let device = disk(place, "3");
        let node = Node::start(place).await;
        node.stage("3").await.unwrap();
        node.publish("one", "3").await.unwrap();
        let text = fs::read_to_string(node.record()).unwrap();
        assert!(text.contains("\"lun\": \"3\"") && !text.contains("a-secret"), "{text}");

        let node = Node::start(place).await;
        assert!(node.bytes("v", "one").await.unwrap() > 0);
        assert_eq!(node.expand("one").await.unwrap(), 64 << 20);
        node.unpublish("one").await.unwrap();
        fs::remove_file(place.join("image3")).unwrap();
        for _ in 0..2 {
            node.unstage().await.unwrap();
        }
        assert_eq!(node.detached(), ["3"], "and a repeat knows that there is nothing to detach");
        assert!(!node.record().exists());
        device.detach().unwrap();
    });
}

#[test]
fn a_mounted_volume_whose_device_has_lost_its_name_is_served_to_its_end() {
    on_tmpfs(async |place| {
        let device = disk(place, "3");
        let node = Node::start(place).await;
        node.stage("3").await.unwrap();
        node.publish("one", "3").await.unwrap();
        fs::remove_file(place.join("lun3")).unwrap();

        node.publish("two", "3").await.unwrap();
        assert!(node.unwell("two").await.is_empty(), "a mounted filesystem has its device");
        assert!(node.bytes("v", "two").await.unwrap() > 0);
        assert_eq!(node.bytes("w", "two").await.unwrap_err().code(), Code::NotFound, "another volume's");
        assert_eq!(node.expand("one").await.unwrap(), 64 << 20);
        node.unpublish("one").await.unwrap();
        node.unpublish("two").await.unwrap();
        node.unstage().await.unwrap();
        assert_eq!(node.detached(), ["3"]);
        assert_eq!(node.unwell("one").await, ["NotMounted", "DeviceGone"]);
        assert_eq!(node.publish("one", "3").await.unwrap_err().code(), Code::FailedPrecondition);
        device.detach().unwrap();
    });
}

#[test]
fn a_stage_with_the_context_of_another_device_leaves_the_staged_one() {
    on_tmpfs(async |place| {
        let (device, other) = (disk(place, "3"), disk(place, "4"));
        let node = Node::start(place).await;
        node.stage("3").await.unwrap();
        let error = node.stage("4").await.unwrap_err();
        assert_eq!(error.code(), Code::AlreadyExists, "{error}");
        assert!(error.message().contains("publish_context"), "{error}");
        assert_eq!(block::device_of(place.join("staging")).unwrap(), device.number());

        // The same device at another LUN, as after a new attach.
        fs::remove_file(place.join("lun4")).unwrap();
        symlink(device.path(), place.join("lun4")).unwrap();
        node.stage("4").await.unwrap();
        node.unstage().await.unwrap();
        assert_eq!(node.detached(), ["4"]);
        [device, other].into_iter().for_each(|device| device.detach().unwrap());
    });
}

#[test]
fn after_a_restart_of_the_node_another_volumes_device_is_not_detached() {
    on_tmpfs(async |place| {
        let device = disk(place, "3");
        let node = Node::start(place).await;
        let earlier_boot = || {
            let text = fs::read_to_string(node.record()).unwrap();
            let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
            text.replace(boot.trim_end(), "an-earlier-boot")
        };
        node.stage("3").await.unwrap();
        let record = earlier_boot();
        node.unstage().await.unwrap();
        assert_eq!(node.detached(), ["3"]);

        // The address is another volume's now.
        fs::write(node.record(), &record).unwrap();
        let elsewhere = csi_core::mount::Target::new(place.join("elsewhere")).unwrap();
        let plan = block::StagePlan::new(csi_core::mount::Filesystem::Ext4);
        block::stage(device.path(), &elsewhere, &plan).unwrap();
        node.unstage().await.unwrap();
        assert_eq!(node.detached(), ["3"], "not again");
        assert!(!node.record().exists());

        // It is still the volume's, or nobody's.
        csi_core::mount::unmount(&elsewhere).unwrap();
        fs::write(node.record(), &record).unwrap();
        node.unstage().await.unwrap();
        assert_eq!(node.detached(), ["3", "3"]);
        device.detach().unwrap();
    });
}
