//! What a driver declares about a block volume when it is staged, and what remains if the stage fails.
//! Needs root.
#![cfg(all(feature = "mount", target_os = "linux"))]

mod common;
mod private;

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::{Served, mount_capability};
use csi_core::mount::flow::block::{self, StagePlan};
use csi_core::mount::{ExpectedDevice, Filesystem, LoopDevice, LoopOptions, Target, unmount};
use csi_core::*;
use csi_proto::v1;
use private::on_tmpfs;
use tonic::Code;

/// One disk, which the driver attaches and detaches.
struct Disk {
    path: PathBuf,
    /// Whether the disk is attached before the stage attaches it.
    is_there: AtomicBool,
    detached: AtomicU32,
    /// How often the driver recorded that the volume has a filesystem.
    staged: AtomicU32,
    /// What another process of the driver stages while the disk is attached here.
    meanwhile: Mutex<Option<(Served, v1::NodeStageVolumeRequest)>>,
}

impl Disk {
    fn new(device: &LoopDevice) -> Arc<Self> {
        let [detached, staged] = [AtomicU32::new(0), AtomicU32::new(0)];
        let (path, is_there) = (device.path().to_owned(), AtomicBool::new(false));
        Arc::new(Self { path, is_there, detached, staged, meanwhile: Mutex::new(None) })
    }
}

#[async_trait]
impl BlockDevices for Disk {
    async fn info(&self) -> Result<NodeInfo> {
        NodeInfo::new("n")
    }

    async fn attach(&self, _: &Attachment) -> Result<PathBuf> {
        let other = self.meanwhile.lock().unwrap().take();
        if let Some((other, request)) = other {
            other.node().node_stage_volume(request).await.unwrap();
            self.is_there.store(true, Ordering::Relaxed);
        }
        Ok(self.path.clone())
    }

    async fn device(&self, _: &Attachment) -> Result<Option<PathBuf>> {
        Ok(self.is_there.load(Ordering::Relaxed).then(|| self.path.clone()))
    }

    async fn plan(&self, volume: &Attachment, capability: &VolumeCapability) -> Result<StagePlan> {
        let plan = stage_plan(capability)?.wait_for_device(Duration::ZERO);
        let plan = match volume.publish_context.get("serial") {
            Some(serial) => plan.expect(ExpectedDevice::new().serial(serial)),
            None => plan,
        };
        let plan = if self.staged.load(Ordering::Relaxed) > 0 { plan.never_format() } else { plan };
        Ok(volume.volume_context.get("label").into_iter().fold(plan, StagePlan::label))
    }

    async fn staged(&self, volume: &Attachment) -> Result<()> {
        if volume.volume_context.get("note").is_some() {
            return Err(Error::Unavailable("the note can't be kept".into()));
        }
        self.staged.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    async fn detach(&self, _: &Attachment) -> Result<()> {
        self.detached.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
}

fn loop_device(place: &Path, name: &str) -> LoopDevice {
    let file = place.join(name);
    File::create(&file).unwrap().set_len(64 << 20).unwrap();
    LoopDevice::attach(&file, &LoopOptions::new()).expect("run this as root, with loop devices")
}

fn stage(staging: &Path) -> v1::NodeStageVolumeRequest {
    let mut capability = mount_capability(1);
    if let Some(v1::volume_capability::AccessType::Mount(mount)) = &mut capability.access_type {
        mount.fs_type = "xfs".into();
    }
    v1::NodeStageVolumeRequest {
        volume_id: "v".into(),
        staging_target_path: staging.display().to_string(),
        volume_capability: Some(capability),
        ..Default::default()
    }
}

/// A driver of this disk, and a staging directory.
async fn served(place: &Path, disk: &Arc<Disk>) -> (Served, PathBuf) {
    let plugin = Plugin::new("disks.csi.example.org", "1").node(BlockNode::service(Arc::clone(disk)));
    let staging = place.join("staging");
    std::fs::create_dir(&staging).unwrap();
    (Served::start(plugin).await, staging)
}

#[test]
fn a_device_of_a_failed_stage_is_detached_when_unused() {
    on_tmpfs(async |place| {
        let (device, other) = (loop_device(place, "image"), loop_device(place, "other"));
        let disk = Disk::new(&device);
        let (served, staging) = served(place, &disk).await;
        let refused = async |why: &str, code: Code, detached: u32| {
            let error = served.node().node_stage_volume(stage(&staging)).await.unwrap_err();
            assert_eq!(error.code(), code, "{why}: {error}");
            assert_eq!(disk.detached.load(Ordering::Relaxed), detached, "{why}");
        };

        // Its filesystem is not the requested one, and it is mounted elsewhere.
        let elsewhere = Target::new(place.join("elsewhere")).unwrap();
        block::stage(device.path(), &elsewhere, &StagePlan::new(Filesystem::Ext4)).unwrap();
        refused("mounted elsewhere", Code::FailedPrecondition, 0).await;
        unmount(&elsewhere).unwrap();
        refused("free", Code::FailedPrecondition, 1).await;

        let at = Target::new(&staging).unwrap();
        block::stage(other.path(), &at, &StagePlan::new(Filesystem::Ext4)).unwrap();
        refused("another volume's place", Code::AlreadyExists, 2).await;
        assert_eq!(block::device_of(&staging).unwrap(), other.number(), "which is left as it is");
        unmount(&at).unwrap();
        [device, other].into_iter().for_each(|device| device.detach().unwrap());
    });
}

/// During an update the old and the new plugin can stage one volume at the same time. The one that fails does
/// not undo what the other one has done.
#[test]
fn a_failed_stage_leaves_what_another_process_staged_meanwhile() {
    on_tmpfs(async |place| {
        let device = loop_device(place, "image");
        let disk = Disk::new(&device);
        let (served, staging) = served(place, &disk).await;
        let mut of_other = stage(&staging);
        of_other.volume_capability = Some(mount_capability(1));
        let other = Plugin::new("disks.csi.example.org", "1").node(BlockNode::service(Arc::clone(&disk)));
        *disk.meanwhile.lock().unwrap() = Some((Served::start(other).await, of_other));

        // It wants XFS; the other one made ext4.
        let error = served.node().node_stage_volume(stage(&staging)).await.unwrap_err();
        assert_eq!(error.code(), Code::AlreadyExists, "{error}");
        assert_eq!(block::device_of(&staging).unwrap(), device.number());
        assert_eq!(disk.detached.load(Ordering::Relaxed), 0);
        unmount(&Target::new(&staging).unwrap()).unwrap();
        device.detach().unwrap();
    });
}

/// A stage is killed after it attached the device. The caller repeats the stage, and does nothing more
/// after its final error. So the failed stage must detach the device.
#[test]
fn what_a_killed_stage_attached_is_detached_by_one_that_fails() {
    on_tmpfs(async |place| {
        let device = loop_device(place, "image");
        let disk = Disk::new(&device);
        disk.is_there.store(true, Ordering::Relaxed);
        let (served, staging) = served(place, &disk).await;
        let refused = async |why: &str, detached: u32| {
            served.node().node_stage_volume(stage(&staging)).await.unwrap_err();
            assert_eq!(disk.detached.load(Ordering::Relaxed), detached, "{why}");
        };
        let at = Target::new(&staging).unwrap();
        block::stage(device.path(), &at, &StagePlan::new(Filesystem::Ext4)).unwrap();
        refused("it is staged, in another way", 0).await;
        assert_eq!(block::device_of(&staging).unwrap(), device.number(), "and stays so");
        unmount(&at).unwrap();
        refused("nobody has it", 1).await;
        device.detach().unwrap();
    });
}

/// What the driver stored about the volume when it was created (the label) and attached (the serial number).
#[test]
fn a_driver_says_which_disk_it_has_to_be_and_what_is_made_on_it() {
    on_tmpfs(async |place| {
        let device = loop_device(place, "image");
        let disk = Disk::new(&device);
        let (served, staging) = served(place, &disk).await;
        let with = |publish: &[(&str, &str)], volume: &[(&str, &str)]| {
            let map = |pairs: &[(&str, &str)]| {
                pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
            };
            let mut request = stage(&staging);
            request.volume_capability = Some(mount_capability(1));
            v1::NodeStageVolumeRequest {
                publish_context: map(publish),
                volume_context: map(volume),
                ..request
            }
        };
        let wrong = with(&[("serial", "of-another-disk")], &[]);
        let error = served.node().node_stage_volume(wrong).await.unwrap_err();
        assert_eq!(error.code(), Code::Unavailable, "{error}");
        assert!(error.message().contains("of-another-disk"), "{error}");

        served.node().node_stage_volume(with(&[], &[("label", "of-the-class")])).await.unwrap();
        let mut superblock = [0; 1024];
        File::open(device.path()).unwrap().read_exact_at(&mut superblock, 1024).unwrap();
        assert_eq!(&superblock[120..132], b"of-the-class", "the label of an ext4");
        unmount(&Target::new(&staging).unwrap()).unwrap();
        device.detach().unwrap();
    });
}

/// A driver that records that a volume has a filesystem does not lose it when the device later reads
/// as blank.
#[test]
fn a_volume_that_was_staged_is_never_formatted_again() {
    on_tmpfs(async |place| {
        let device = loop_device(place, "image");
        let disk = Disk::new(&device);
        let (served, staging) = served(place, &disk).await;
        let request = |note: Option<&str>| v1::NodeStageVolumeRequest {
            volume_capability: Some(mount_capability(1)),
            volume_context: note.map(|note| ("note".to_owned(), note.to_owned())).into_iter().collect(),
            ..stage(&staging)
        };
        // If the driver cannot record the filesystem, nothing is staged.
        let error = served.node().node_stage_volume(request(Some("refused"))).await.unwrap_err();
        assert_eq!(error.code(), Code::Unavailable, "{error}");
        assert_eq!(disk.detached.load(Ordering::Relaxed), 1, "what it attached is taken back");

        for _ in 0..2 {
            served.node().node_stage_volume(request(None)).await.unwrap();
        }
        assert_eq!(disk.staged.load(Ordering::Relaxed), 2);
        unmount(&Target::new(&staging).unwrap()).unwrap();
        let image = File::options().write(true).open(place.join("image")).unwrap();
        image.set_len(0).unwrap();
        image.set_len(64 << 20).unwrap();
        let error = served.node().node_stage_volume(request(None)).await.unwrap_err();
        assert_eq!(error.code(), Code::FailedPrecondition, "{error}");
        assert!(error.message().contains("must already have content"), "{error}");
        device.detach().unwrap();
    });
}
