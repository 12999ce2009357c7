//! A disk that is found only by the publish context of its stage. Needs root.
#![cfg(all(feature = "mount", target_os = "linux"))]

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use csi_core::client::VolumeUse;
use csi_core::mount::internal::flow::block::{self, MountCopies};
use csi_core::*;
use csi_proto::v1;
use tonic::{Code, Status};

use crate::common::{Served, map, mount_capability, refused, stats};
use crate::log;
use crate::private::{Disk, on_tmpfs};

/// A node with disks at LUNs, as links `lunN` in a directory, and what the driver was asked to detach.
struct Luns {
    place: PathBuf,
    detached: Mutex<Vec<String>>,
    copies: MountCopies,
}

#[async_trait]
impl BlockDevices for Luns {
    fn attachments_directory(&self) -> Option<PathBuf> {
        Some(self.place.join("attachments"))
    }
    fn mount_copies(&self) -> MountCopies {
        self.copies
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
        Self::start_with(place, MountCopies::Kept).await
    }

    async fn start_with(place: &Path, copies: MountCopies) -> Self {
        let luns = Arc::new(Luns { place: place.to_owned(), detached: Mutex::default(), copies });
        let plugin = Plugin::new("luns.csi.example.org", "1").spec(Spec::V1_13).volume_roots([place]);
        let service = BlockNode::service(Arc::clone(&luns));
        Self { place: place.to_owned(), served: Served::start(plugin.node(service)).await, luns }
    }

    fn volume(&self, lun: &str) -> VolumeUse {
        let staging = self.place.join("staging");
        let mut volume = VolumeUse::new("v", mount_capability(1)).staged_at(staging);
        volume.publish_context = map(&[("lun", lun)]);
        volume
    }

    async fn stage(&self, lun: &str) -> Result<v1::NodeStageVolumeResponse, Status> {
        let request = v1::NodeStageVolumeRequest {
            secrets: map(&[("key", "a-secret")]),
            ..self.volume(lun).node_stage_volume()
        };
        self.served.call(request).await
    }

    async fn publish(&self, target: &str, lun: &str) -> Result<v1::NodePublishVolumeResponse, Status> {
        self.served.call(self.volume(lun).node_publish_volume(&self.place.join(target))).await
    }

    async fn bytes(&self, volume_id: &str, target: &str) -> Result<i64, Status> {
        let stats = stats(volume_id, self.place.join(target).to_str().unwrap());
        Ok(self.served.call(stats).await?.usage[0].total)
    }

    async fn unwell(&self, target: &str) -> Vec<String> {
        self.served.health_reasons(&self.volume("any"), &self.place.join(target)).await.unwrap()
    }

    async fn expand(&self, target: &str) -> Result<i64, Status> {
        let request = self.volume("any").node_expand_volume(&self.place.join(target), 1);
        Ok(self.served.call(request).await?.capacity_bytes)
    }

    async fn unpublish(&self, target: &str) -> Result<v1::NodeUnpublishVolumeResponse, Status> {
        self.served.call(self.volume("any").node_unpublish_volume(&self.place.join(target))).await
    }

    async fn unstage(&self) -> Result<v1::NodeUnstageVolumeResponse, Status> {
        self.served.call(self.volume("any").node_unstage_volume()).await
    }

    fn detached(&self) -> Vec<String> {
        self.luns.detached.lock().unwrap().clone()
    }

    fn record(&self) -> PathBuf {
        self.place.join("attachments/v.json")
    }
}

/// Attaches a disk at this LUN.
fn disk(place: &Path, lun: &str) -> Disk {
    let disk = Disk::new(&place.join(format!("image{lun}")));
    symlink(disk.path(), place.join(format!("lun{lun}"))).unwrap();
    fs::create_dir_all(place.join("staging")).unwrap();
    disk
}

#[test]
fn a_call_with_only_the_volumes_id_knows_the_context_of_the_stage() {
    on_tmpfs(async |place| {
        let _disk = disk(place, "3");
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
    });
}

#[test]
fn a_mounted_volume_whose_device_has_lost_its_name_is_served_to_its_end() {
    on_tmpfs(async |place| {
        let _disk = disk(place, "3");
        let node = Node::start(place).await;
        node.stage("3").await.unwrap();
        node.publish("one", "3").await.unwrap();
        fs::remove_file(place.join("lun3")).unwrap();

        node.publish("two", "3").await.unwrap();
        assert!(node.unwell("two").await.is_empty(), "a mounted filesystem has its device");
        assert!(node.bytes("v", "two").await.unwrap() > 0);
        refused(node.bytes("w", "two").await, Code::NotFound);
        assert_eq!(node.expand("one").await.unwrap(), 64 << 20);
        node.unpublish("one").await.unwrap();
        node.unpublish("two").await.unwrap();
        node.unstage().await.unwrap();
        assert_eq!(node.detached(), ["3"]);
        assert_eq!(node.unwell("one").await, ["NotMounted", "DeviceGone"]);
        refused(node.publish("one", "3").await, Code::FailedPrecondition);
    });
}

#[test]
fn a_stage_with_the_context_of_another_device_leaves_the_staged_one() {
    on_tmpfs(async |place| {
        let device = disk(place, "3");
        let _other = disk(place, "4");
        let node = Node::start(place).await;
        node.stage("3").await.unwrap();
        let error = refused(node.stage("4").await, Code::AlreadyExists);
        assert!(error.message().contains("publish_context"), "{error}");
        assert_eq!(block::device_of(place.join("staging")).unwrap(), device.number());

        // The same device at another LUN, as after a new attach.
        fs::remove_file(place.join("lun4")).unwrap();
        symlink(device.path(), place.join("lun4")).unwrap();
        node.stage("4").await.unwrap();
        node.unstage().await.unwrap();
        assert_eq!(node.detached(), ["4"]);
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
    });
}

/// Each call goes as far as the mounts of the node prove. Only the device can't be found, and is not forgotten.
#[test]
fn a_record_that_cannot_be_read_keeps_no_mount_and_loses_no_device() {
    on_tmpfs(async |place| {
        let _disk = disk(place, "3");
        let node = Node::start(place).await;
        type Damage = fn(&str) -> String;
        let damages: [(&str, Damage); 5] = [
            ("empty", |_| String::new()),
            ("truncated", |text| text[..text.len() / 2].to_owned()),
            ("garbage", |_| "\0\u{ff}no json".to_owned()),
            ("older format", |text| text.replace("\"version\": 1", "\"version\": 0")),
            ("wrong owner", |text| text.replace("\"id\": \"v\"", "\"id\": \"w\"")),
        ];
        for (number, (name, damage)) in (1..).zip(damages) {
            node.stage("3").await.unwrap();
            node.publish("target", "3").await.unwrap();
            let whole = fs::read_to_string(node.record()).unwrap();
            assert_ne!(damage(&whole), whole, "{name}");
            fs::write(node.record(), damage(&whole)).unwrap();
            assert!(node.bytes("v", "target").await.unwrap() > 0, "{name}");
            assert!(node.unwell("target").await.is_empty(), "{name}");
            node.publish("target", "3").await.unwrap();
            node.unpublish("target").await.unwrap();
            for _ in 0..2 {
                let error = node.unstage().await.unwrap_err();
                assert_eq!(error.code(), Code::Internal, "{name}: {error}");
                assert!(error.message().contains(node.record().to_str().unwrap()), "{name}: {error}");
                assert!(node.record().exists(), "{name}: the device is still attached");
            }
            block::device_of(place.join("staging")).expect_err("it is unmounted");
            // A stage writes the record again.
            node.stage("3").await.unwrap();
            node.unstage().await.unwrap();
            assert_eq!(node.detached().len(), number, "{name}");
            assert!(!node.record().exists(), "{name}");
        }
    });
}

/// Keeps a copy of every mount in another mount namespace until it is dropped.
struct Copies(Child);

impl Copies {
    fn begin() -> Self {
        let script = "echo done; exec sleep 600";
        let unshare = ["--mount", "--propagation", "private", "sh", "-c", script];
        let child = Command::new("unshare").args(unshare).stdout(Stdio::piped()).spawn();
        let mut child = child.expect("unshare of util-linux is needed here");
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "done\n");
        Self(child)
    }
}

impl Drop for Copies {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

/// An unrelated pod that mounts the kubelet's directory keeps a copy of each staged mount.
#[test]
fn a_volume_whose_mount_has_a_copy_is_unstaged_by_policy_and_not_staged_until_it_is_free() {
    on_tmpfs(async |place| {
        let _disk = disk(place, "3");
        let node = Node::start(place).await;
        node.stage("3").await.unwrap();
        fs::write(place.join("staging/file"), "kept").unwrap();
        let copies = Copies::begin();
        let log = log::Log::of_process();
        let error = refused(node.unstage().await, Code::FailedPrecondition);
        assert!(error.message().contains("in another mount namespace ("), "{error}");
        // The call is repeated without an end, so the line is more than INFO.
        let log = log.take();
        let mut warnings = log.lines().filter(|line| line.starts_with("WARN csi_mount"));
        assert!(warnings.any(|line| line.contains("is not unstaged, because it is in use")), "{log}");

        let node = Node::start_with(place, MountCopies::ShutDown).await;
        for _ in 0..2 {
            node.unstage().await.unwrap();
        }
        assert!(node.detached().is_empty(), "its device is in use");
        // Another process of the driver knows it too.
        let node = Node::start_with(place, MountCopies::ShutDown).await;
        let error = refused(node.stage("3").await, Code::FailedPrecondition);
        for part in ["was shut down", "in another mount namespace (", "delete the pod"] {
            assert!(error.message().contains(part), "{error}");
        }

        drop(copies);
        let end = Instant::now() + Duration::from_secs(60);
        while let Err(error) = node.stage("3").await {
            assert!(Instant::now() < end, "the copy is gone: {error}");
        }
        assert_eq!(fs::read_to_string(place.join("staging/file")).unwrap(), "kept");
        assert!(!fs::read_to_string(node.record()).unwrap().contains("shut_down"));
        node.unstage().await.unwrap();
        assert_eq!(node.detached(), ["3"]);
        assert!(!node.record().exists());
    });
}

/// A repeated unstage detaches what the first one could not, and another disk at the same path is not the volume's.
#[test]
fn what_was_shut_down_is_detached_by_the_next_unstage() {
    on_tmpfs(async |place| {
        let device = disk(place, "3");
        let node = Node::start_with(place, MountCopies::ShutDown).await;
        node.stage("3").await.unwrap();
        let copies = Copies::begin();
        node.unstage().await.unwrap();
        let record = fs::read_to_string(node.record()).unwrap();
        let sequence = csi_core::mount::Host::kernel().devices().disk_sequence(device.path()).unwrap();
        fs::write(
            node.record(),
            record.replace(&format!("\"sequence\": {}", sequence.unwrap()), "\"sequence\": 1"),
        )
        .unwrap();
        let error = node.stage("3").await.unwrap_err();
        assert!(error.message().contains("its filesystem was shut down"), "the kernel knows: {error}");
        fs::write(node.record(), record).unwrap();
        drop(copies);
        let end = Instant::now() + Duration::from_secs(60);
        while node.detached().is_empty() {
            assert!(Instant::now() < end, "the copy is gone");
            node.unstage().await.unwrap();
        }
        assert!(!node.record().exists());
    });
}
