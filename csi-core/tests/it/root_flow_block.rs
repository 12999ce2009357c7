//! What a driver declares about a block volume when it is staged, and what remains if the stage fails.
//! Needs root.
#![cfg(all(feature = "mount", target_os = "linux"))]

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use csi_core::client::VolumeUse;
use csi_core::mount::internal::LoopDevice;
use csi_core::mount::internal::flow::block::{self, StagePlan};
use csi_core::mount::{ExpectedDevice, Filesystem, Target, unmount};
use csi_core::*;
use csi_proto::v1;
use tonic::Code;
use v1::volume_capability::MountVolume;

use crate::common;
use crate::common::{Served, map, mount_capability, mount_with, refused};
use crate::private::{Disk, on_tmpfs};

/// One disk, which the driver attaches and detaches.
struct OneDisk {
    path: PathBuf,
    /// Whether the disk is attached before the stage attaches it.
    is_there: AtomicBool,
    detached: AtomicU32,
    /// How often the driver recorded that the volume has a filesystem.
    staged: AtomicU32,
    /// What another process of the driver stages while the disk is attached here.
    meanwhile: Mutex<Option<(Served, v1::NodeStageVolumeRequest)>>,
}

impl OneDisk {
    fn new(device: &LoopDevice) -> Arc<Self> {
        Arc::new(Self {
            path: device.path().to_owned(),
            is_there: AtomicBool::new(false),
            detached: AtomicU32::new(0),
            staged: AtomicU32::new(0),
            meanwhile: Mutex::new(None),
        })
    }
}

#[async_trait]
impl BlockDevices for OneDisk {
    async fn attach(&self, _: &Attachment) -> Result<PathBuf> {
        let other = self.meanwhile.lock().unwrap().take();
        if let Some((other, request)) = other {
            other.call(request).await.unwrap();
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

/// A volume with the driver's own filesystem.
fn stage(staging: &Path) -> v1::NodeStageVolumeRequest {
    VolumeUse::new("v", mount_capability(1)).staged_at(staging).node_stage_volume()
}

fn stage_as_xfs(staging: &Path) -> v1::NodeStageVolumeRequest {
    let capability = mount_with(1, MountVolume { fs_type: "xfs".into(), ..Default::default() });
    VolumeUse::new("v", capability).staged_at(staging).node_stage_volume()
}

/// A driver of this disk, and a staging directory.
async fn served(place: &Path, driver: &Arc<OneDisk>) -> (Served, PathBuf) {
    let plugin = Plugin::new("disks.csi.example.org", "1").node(BlockNode::service(Arc::clone(driver)));
    let staging = place.join("staging");
    std::fs::create_dir(&staging).unwrap();
    (Served::start(plugin).await, staging)
}

#[test]
fn a_device_of_a_failed_stage_is_detached_when_unused() {
    on_tmpfs(async |place| {
        let device = Disk::new(&place.join("image"));
        let other = Disk::new(&place.join("other"));
        let driver = OneDisk::new(&device);
        let (served, staging) = served(place, &driver).await;
        let is_refused = async |why: &str, code: Code, detached: u32| {
            let error = served.call(stage_as_xfs(&staging)).await.unwrap_err();
            assert_eq!(error.code(), code, "{why}: {error}");
            assert_eq!(driver.detached.load(Ordering::Relaxed), detached, "{why}");
        };

        // Its filesystem is not the requested one, and it is mounted elsewhere.
        let elsewhere = Target::new(place.join("elsewhere")).unwrap();
        block::stage(device.path(), &elsewhere, &StagePlan::new(Filesystem::Ext4)).unwrap();
        is_refused("mounted elsewhere", Code::FailedPrecondition, 0).await;
        unmount(&elsewhere).unwrap();
        is_refused("free", Code::FailedPrecondition, 1).await;

        let at = Target::new(&staging).unwrap();
        block::stage(other.path(), &at, &StagePlan::new(Filesystem::Ext4)).unwrap();
        is_refused("another volume's place", Code::AlreadyExists, 2).await;
        assert_eq!(block::device_of(&staging).unwrap(), other.number(), "which is left as it is");
        unmount(&at).unwrap();
    });
}

/// During an update the old and the new plugin can stage one volume at the same time. The one that fails does
/// not undo what the other one has done.
#[test]
fn a_failed_stage_leaves_what_another_process_staged_meanwhile() {
    on_tmpfs(async |place| {
        let device = Disk::new(&place.join("image"));
        let driver = OneDisk::new(&device);
        let (served, staging) = served(place, &driver).await;
        let other = Plugin::new("disks.csi.example.org", "1").node(BlockNode::service(Arc::clone(&driver)));
        *driver.meanwhile.lock().unwrap() = Some((Served::start(other).await, stage(&staging)));

        // It wants XFS; the other one made ext4.
        refused(served.call(stage_as_xfs(&staging)).await, Code::AlreadyExists);
        assert_eq!(block::device_of(&staging).unwrap(), device.number());
        assert_eq!(driver.detached.load(Ordering::Relaxed), 0);
        unmount(&Target::new(&staging).unwrap()).unwrap();
    });
}

/// A stage is killed after it attached the device. The caller repeats the stage, and does nothing more
/// after its final error. So the failed stage must detach the device.
#[test]
fn what_a_killed_stage_attached_is_detached_by_one_that_fails() {
    on_tmpfs(async |place| {
        let device = Disk::new(&place.join("image"));
        let driver = OneDisk::new(&device);
        driver.is_there.store(true, Ordering::Relaxed);
        let (served, staging) = served(place, &driver).await;
        let is_refused = async |why: &str, detached: u32| {
            served.call(stage_as_xfs(&staging)).await.unwrap_err();
            assert_eq!(driver.detached.load(Ordering::Relaxed), detached, "{why}");
        };
        let at = Target::new(&staging).unwrap();
        block::stage(device.path(), &at, &StagePlan::new(Filesystem::Ext4)).unwrap();
        is_refused("it is staged, in another way", 0).await;
        assert_eq!(block::device_of(&staging).unwrap(), device.number(), "and stays so");
        unmount(&at).unwrap();
        is_refused("nobody has it", 1).await;
    });
}

/// What the driver stored about the volume when it was created (the label) and attached (the serial number).
#[test]
fn a_driver_says_which_disk_it_has_to_be_and_what_is_made_on_it() {
    on_tmpfs(async |place| {
        let device = Disk::new(&place.join("image"));
        let driver = OneDisk::new(&device);
        let (served, staging) = served(place, &driver).await;
        let with = |publish: &[(&str, &str)], volume: &[(&str, &str)]| v1::NodeStageVolumeRequest {
            publish_context: map(publish),
            volume_context: map(volume),
            ..stage(&staging)
        };
        let wrong = with(&[("serial", "of-another-disk")], &[]);
        let error = refused(served.call(wrong).await, Code::Unavailable);
        assert!(error.message().contains("of-another-disk"), "{error}");

        served.call(with(&[], &[("label", "of-the-class")])).await.unwrap();
        let mut superblock = [0; 1024];
        File::open(device.path()).unwrap().read_exact_at(&mut superblock, 1024).unwrap();
        assert_eq!(&superblock[120..132], b"of-the-class", "the label of an ext4");
        unmount(&Target::new(&staging).unwrap()).unwrap();
    });
}

/// A driver that records that a volume has a filesystem does not lose it when the device later reads
/// as blank.
#[test]
fn a_volume_that_was_staged_is_never_formatted_again() {
    on_tmpfs(async |place| {
        let device = Disk::new(&place.join("image"));
        let driver = OneDisk::new(&device);
        let (served, staging) = served(place, &driver).await;
        let request = |note: Option<&str>| v1::NodeStageVolumeRequest {
            volume_context: note.map(|note| ("note".to_owned(), note.to_owned())).into_iter().collect(),
            ..stage(&staging)
        };
        // If the driver cannot record the filesystem, nothing is staged.
        refused(served.call(request(Some("refused"))).await, Code::Unavailable);
        assert_eq!(driver.detached.load(Ordering::Relaxed), 1, "what it attached is taken back");

        for _ in 0..2 {
            served.call(request(None)).await.unwrap();
        }
        assert_eq!(driver.staged.load(Ordering::Relaxed), 2);
        unmount(&Target::new(&staging).unwrap()).unwrap();
        let image = File::options().write(true).open(place.join("image")).unwrap();
        image.set_len(0).unwrap();
        image.set_len(64 << 20).unwrap();
        let error = refused(served.call(request(None)).await, Code::FailedPrecondition);
        assert!(error.message().contains("must already have content"), "{error}");
    });
}

/// What a workload deletes is given back to the storage.
#[test]
fn unused_space_of_a_staged_volume_is_freed_on_its_device() {
    use std::os::unix::fs::MetadataExt as _;
    for filesystem in Filesystem::ALL {
        on_tmpfs(async |place| {
            let device = Disk::with_size(&place.join("image"), 320 << 20);
            let driver = OneDisk::new(&device);
            let service = BlockNode::service(driver.clone()).trim_volumes(Duration::from_millis(200));
            let plugin = Plugin::new("disks.csi.example.org", "1").node(service);
            let staging = place.join("staging");
            std::fs::create_dir(&staging).unwrap();
            let served = Served::start(plugin).await;
            // btrfs would free it by itself.
            let mount_flags = vec!["nodiscard".to_owned()];
            let mount = MountVolume { fs_type: filesystem.to_string(), mount_flags, ..Default::default() };
            let volume = VolumeUse::new("v", mount_with(1, mount)).staged_at(&staging);
            served.call(volume.node_stage_volume()).await.unwrap();
            driver.is_there.store(true, Ordering::Relaxed);

            let used = || std::fs::metadata(place.join("image")).unwrap().blocks() * 512;
            let empty = used();
            let file = staging.join("file");
            std::fs::write(&file, vec![1; 32 << 20]).unwrap();
            File::open(&file).unwrap().sync_all().unwrap();
            assert!(used() > 32 << 20, "{filesystem}: the file is on the device");
            std::fs::remove_file(&file).unwrap();
            rustix::fs::syncfs(File::open(&staging).unwrap()).unwrap();
            let what = format!("{filesystem}: the space is free on the device");
            common::eventually(&what, || used() < empty + (16 << 20)).await;

            // A trim of this moment has claimed the volume.
            while let Err(status) = served.call(volume.node_unstage_volume()).await {
                assert_eq!(status.code(), Code::Aborted, "{status}");
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        });
    }
}
