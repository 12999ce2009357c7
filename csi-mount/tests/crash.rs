//! Killed before any system call, a step repeated by a new process comes to the right end.
//!
//! Each test kills at so many points as [`Points`] says (in CI a matter of seconds), and prints how many there were.

mod devices;
mod stepper;

use std::fs;
use std::path::Path;

use csi_mount::flow::block::{StagePlan, publish, publish_device, stage, unpublish, unstage};
use csi_mount::testing::{Feature, private_mount_namespace, without_features};
use csi_mount::{
    BlockDevice, DeviceAccess, DeviceUse, Filesystem, Format, LoopDevice, MountAttributes, Probe, Target,
    mounts,
};
use devices::{Image, MIB};
use stepper::{End, Job, Points, Programs, do_job};

fn job(words: &[&str]) -> csi_mount::Result<()> {
    let [step, device, staging, target] = words else { panic!("{words:?}") };
    let (device, staging, target) = (Path::new(device), Target::new(staging)?, Target::new(target)?);
    match *step {
        "publish as before 5.2" => {
            without_features(OLD, || publish(staging.path(), &target, MountAttributes::RDONLY).map(drop))
        }
        "unpublish as before 5.2" => without_features(OLD, || unpublish(&target).map(drop)),
        "ext4 as before 5.2" => {
            without_features(OLD, || stage(device, &staging, &StagePlan::new(Filesystem::Ext4)).map(drop))
        }
        "ext4" | "xfs" | "btrfs" => stage(device, &staging, &StagePlan::new(step.parse()?)).map(drop),
        "publish" => publish(staging.path(), &target, MountAttributes::RDONLY).map(drop),
        "publish device" => publish_device(device, &target, DeviceAccess::ReadOnly).map(drop),
        "unpublish" => unpublish(&target).map(drop),
        "unstage" => unstage(&staging, Some(device)).map(drop),
        other => panic!("{other}"),
    }
}

/// As on a kernel that mounts in a private place first.
const OLD: &[Feature] = &[Feature::FsContext, Feature::MountSetattr, Feature::Statmount];

/// A device and the places of its steps, made anew for every point.
struct Volume {
    image: Image,
    names: [String; 3],
}

impl Volume {
    fn new(mebibytes: u64) -> Self {
        let image = Image::new(mebibytes);
        let name = |path: &Path| path.to_str().unwrap().to_owned();
        let directory = image.directory();
        let names = [name(image.path()), name(&directory.join("s")), name(&directory.join("t"))];
        Self { image, names }
    }

    /// Formatted, with a file in it.
    fn with_data(mebibytes: u64, filesystem: Filesystem) -> Self {
        let volume = Self::new(mebibytes);
        let device = volume.image.open();
        let Probe::Blank(proof) = device.probe() else { panic!("not blank") };
        Format::new(filesystem).run(proof).unwrap();
        stage(volume.image.path(), &volume.staging(), &StagePlan::new(filesystem)).unwrap();
        fs::write(volume.staging().path().join("file"), "kept").unwrap();
        unstage(&volume.staging(), None).unwrap();
        volume
    }

    fn staged(mebibytes: u64, filesystem: Filesystem) -> Self {
        let volume = Self::with_data(mebibytes, filesystem);
        stage(volume.image.path(), &volume.staging(), &StagePlan::new(filesystem)).unwrap();
        volume
    }

    fn staging(&self) -> Target {
        Target::new(&self.names[1]).unwrap()
    }

    fn target(&self) -> Target {
        Target::new(&self.names[2]).unwrap()
    }

    fn file(&self) -> Option<String> {
        fs::read_to_string(self.staging().path().join("file")).ok()
    }

    /// Nothing is mounted twice, and no loop device is there but the image's and `more` over it.
    fn assert_tidy(&self, at_staging: usize, at_target: usize, more: usize) {
        for (name, expected) in [(&self.names[1], at_staging), (&self.names[2], at_target)] {
            let layers =
                mounts().unwrap().iter().filter(|entry| entry.mount_point == Path::new(name)).count();
            assert_eq!(layers, expected, "{name}");
        }
        assert_eq!(LoopDevice::find(self.image.file()).unwrap().len(), 1);
        assert_eq!(LoopDevice::find(self.image.path()).unwrap().len(), more);
    }

    /// Takes everything down, by the ordinary steps.
    fn take_down(&self) {
        unpublish(&self.target()).unwrap();
        unstage(&self.staging(), Some(self.image.path())).unwrap();
        self.assert_tidy(0, 0, 0);
        assert_eq!(self.image.open().in_use().unwrap(), DeviceUse::Free);
    }
}

/// Kills `step` at its points, each time on a new volume, and repeats it; `expected` looks at the end.
fn at_every_point(
    test: &'static str,
    step: &'static str,
    stride: u64,
    prepare: impl Fn() -> Volume + Sync,
    expected: impl Fn(&Volume) + Sync,
) {
    do_job(job);
    private_mount_namespace(|| {
        let baseline = mounts().unwrap().len();
        let mut points = Points::new(stride);
        loop {
            let volume = prepare();
            let [device, staging, target] = &volume.names;
            let job = Job { programs: Programs::Followed, test, words: &[step, device, staging, target] };
            let end = job.kill_before(points.call());
            if let End::Killed = end {
                job.run();
            }
            expected(&volume);
            volume.take_down();
            assert_eq!(mounts().unwrap().len(), baseline, "killed before call {} of {step}", points.call());
            if !points.next(step, end) {
                return;
            }
        }
    });
}

/// No record of a format is left anywhere on the device.
fn assert_no_record(volume: &Volume) {
    let records = volume.image.blocks_that_start_with(b"\x89csi-mount mkfs\n");
    assert_eq!(records, 0, "records of a format are left");
}

fn formats(test: &'static str, filesystem: Filesystem, mebibytes: u64, stride: u64) {
    at_every_point(
        test,
        filesystem.name(),
        stride,
        || Volume::new(mebibytes),
        |volume| {
            volume.assert_tidy(1, 0, 0);
            assert_no_record(volume);
            fs::write(volume.staging().path().join("file"), "new").unwrap();
        },
    );
}

#[test]
fn stage_of_a_blank_device_as_ext4() {
    formats("stage_of_a_blank_device_as_ext4", Filesystem::Ext4, 64, 67);
}

/// The least that ext4 takes: `mkfs` writes on most of it.
#[test]
fn stage_of_the_smallest_device_as_ext4() {
    formats("stage_of_the_smallest_device_as_ext4", Filesystem::Ext4, 2, 71);
}

#[test]
fn stage_of_a_blank_device_as_xfs() {
    formats("stage_of_a_blank_device_as_xfs", Filesystem::Xfs, 300, 89);
}

#[test]
fn stage_of_a_blank_device_as_btrfs() {
    formats("stage_of_a_blank_device_as_btrfs", Filesystem::Btrfs, 128, 79);
}

#[test]
fn stage_of_a_device_with_data() {
    at_every_point(
        "stage_of_a_device_with_data",
        "ext4",
        13,
        || Volume::with_data(16, Filesystem::Ext4),
        |volume| {
            volume.assert_tidy(1, 0, 0);
            assert_eq!(volume.file().as_deref(), Some("kept"));
        },
    );
}

#[test]
fn publish_of_a_filesystem() {
    at_every_point(
        "publish_of_a_filesystem",
        "publish",
        7,
        || Volume::staged(16, Filesystem::Ext4),
        |volume| {
            volume.assert_tidy(1, 1, 0);
            let target = volume.target();
            assert_eq!(fs::read_to_string(target.path().join("file")).unwrap(), "kept");
            assert!(fs::write(target.path().join("file"), "x").is_err(), "it is writable");
        },
    );
}

#[test]
fn publish_of_a_filesystem_on_an_old_kernel() {
    at_every_point(
        "publish_of_a_filesystem_on_an_old_kernel",
        "publish as before 5.2",
        11,
        || Volume::staged(16, Filesystem::Ext4),
        |volume| {
            volume.assert_tidy(1, 1, 0);
            assert!(fs::write(volume.target().path().join("file"), "x").is_err(), "it is writable");
        },
    );
}

#[test]
fn stage_on_an_old_kernel() {
    at_every_point(
        "stage_on_an_old_kernel",
        "ext4 as before 5.2",
        11,
        || Volume::with_data(16, Filesystem::Ext4),
        |volume| {
            volume.assert_tidy(1, 0, 0);
            assert_eq!(volume.file().as_deref(), Some("kept"));
        },
    );
}

#[test]
fn publish_of_a_device() {
    at_every_point(
        "publish_of_a_device",
        "publish device",
        13,
        || Volume::new(4),
        |volume| {
            volume.assert_tidy(0, 1, 1);
            assert!(BlockDevice::open(volume.target().path()).unwrap().is_read_only().unwrap());
        },
    );
}

#[test]
fn unpublish_of_a_filesystem() {
    at_every_point(
        "unpublish_of_a_filesystem",
        "unpublish",
        3,
        || {
            let volume = Volume::staged(16, Filesystem::Ext4);
            publish(volume.staging().path(), &volume.target(), MountAttributes::empty()).unwrap();
            volume
        },
        |volume| {
            volume.assert_tidy(1, 0, 0);
            assert_eq!(volume.file().as_deref(), Some("kept"));
            assert!(!volume.target().path().exists());
        },
    );
}

#[test]
fn unpublish_of_a_device() {
    at_every_point(
        "unpublish_of_a_device",
        "unpublish",
        13,
        || {
            let volume = Volume::new(4);
            volume.image.write(MIB, b"data");
            publish_device(volume.image.path(), &volume.target(), DeviceAccess::ReadOnly).unwrap();
            volume
        },
        |volume| {
            volume.assert_tidy(0, 0, 0);
            assert!(!volume.target().path().exists());
        },
    );
}

#[test]
fn unstage_of_a_filesystem() {
    at_every_point(
        "unstage_of_a_filesystem",
        "unstage",
        5,
        || Volume::staged(16, Filesystem::Ext4),
        |volume| volume.assert_tidy(0, 0, 0),
    );
}
