//! A step on a block device that is killed before any of its system calls ends in the right state, whatever
//! comes next: see [`matrix`].
//!
//! Each test kills at the number of points that [`Points`](crate::stepper::Points) gives (together about a minute),
//! and prints this number. `CSI_CRASH_STRIDE=1` makes it kill at every point.

use std::fs;
use std::path::{Path, PathBuf};

use csi_mount::internal::flow::block::{
    StagePlan, expand, publish, publish_device, stage, unpublish, unstage,
};
use csi_mount::internal::{DeviceQuestions as _, Feature, Format, LoopDevice, Probe, without_features};
use csi_mount::{BlockDevice, DeviceAccess, DeviceUse, Filesystem, MountAttributes, Target};

use crate::devices::{Image, MIB, detach_when_let_go, put_node, run};
use crate::matrix::sweep::{assert_points, kill_steps};
use crate::matrix::{Level, Place, Step, Volume};
use crate::mount_support::{eventually, sandbox};
use crate::stepper::{End, Kill, Points, Programs, do_job};

/// What is written to a device that has data.
const DATA: &str = "kept";
/// How much a device grows, in MiB.
const MORE: u64 = 8;

fn job(words: &[&str]) -> csi_mount::Result<()> {
    let [flow, step, device, staging, target] = words else { panic!("{words:?}") };
    let device = Path::new(device);
    let staging = Target::new(staging)?;
    let target = Target::new(target)?;
    match flow.strip_prefix("old ") {
        Some(flow) => without_features(OLD, || do_step(flow, step, device, &staging, &target)),
        None => do_step(flow, step, device, &staging, &target),
    }
}

/// Without these features, mounts are prepared in a private place, and loop devices take several steps.
const OLD: &[Feature] =
    &[Feature::FsContext, Feature::MountSetattr, Feature::Statmount, Feature::LoopConfigure];

fn do_step(
    flow: &str,
    step: &str,
    device: &Path,
    staging: &Target,
    target: &Target,
) -> csi_mount::Result<()> {
    let raw = match flow {
        "raw ro" => Some(DeviceAccess::ReadOnly),
        "raw rw" => Some(DeviceAccess::ReadWrite),
        _ => None,
    };
    match (step, raw) {
        ("stage", None) => stage(device, staging, &StagePlan::new(flow.parse()?)).map(drop),
        // A raw device needs no stage.
        ("stage", Some(_)) => Ok(()),
        ("publish", None) => publish(staging.path(), target, MountAttributes::RDONLY).map(drop),
        ("publish", Some(access)) => publish_device(device, target, access).map(drop),
        ("change", None) => expand(staging.path()).map(drop),
        ("change", Some(_)) => expand(target.path()).map(drop),
        ("unpublish", _) => unpublish(target).map(drop),
        ("unstage", _) => unstage(staging, Some(device)).map(drop),
        other => panic!("{other:?}"),
    }
}

/// A loop device over an image, with its own node.
struct Disk {
    flow: &'static str,
    mebibytes: u64,
    image: Image,
    /// The image with data. `None` for a device that is blank at each point.
    template: Option<(tempfile::TempDir, PathBuf)>,
    place: Place,
    node: PathBuf,
}

impl Disk {
    fn blank(flow: &'static str, mebibytes: u64, base: &Path) -> Self {
        let place = Place::new(&base.join("volume"));
        let node = base.join("disk");
        let disk = Self { flow, mebibytes, image: Image::new(mebibytes), template: None, place, node };
        disk.put_node();
        disk
    }

    fn with_data(flow: &'static str, mebibytes: u64, base: &Path) -> Self {
        let mut disk = Self::blank(flow, mebibytes, base);
        match disk.filesystem() {
            None => disk.image.write(MIB, DATA.as_bytes()),
            Some(filesystem) => {
                let device = disk.image.open();
                let Probe::Blank(proof) = device.probe() else { panic!("not blank") };
                Format::new(filesystem).run(proof).unwrap();
                stage(&disk.node, &disk.place.staging, &StagePlan::new(filesystem)).unwrap();
                fs::write(disk.place.staging.path().join("file"), DATA).unwrap();
                unstage(&disk.place.staging, Some(&disk.node)).unwrap();
            }
        }
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("template");
        csi_mount::copy_file(disk.image.file(), &file).unwrap();
        disk.template = Some((directory, file));
        disk
    }

    /// Returns `None` for a raw device.
    fn filesystem(&self) -> Option<Filesystem> {
        self.flow.trim_start_matches("old ").parse().ok()
    }

    fn put_node(&self) {
        let _ = fs::remove_file(&self.node);
        put_node(&self.node, self.image.loop_device().number());
    }

    fn replace(&mut self) {
        self.image = match &self.template {
            Some((_, file)) => Image::copy_of(file),
            None => Image::new(self.mebibytes),
        };
        self.put_node();
    }

    fn assert_filesystem(&self, level: Level, after: Step) {
        let at = if level == Level::Published { &self.place.target } else { &self.place.staging };
        let file = at.path().join("file");
        if self.is_used_once() {
            assert_eq!(self.image.sectors_that_start_with(b"\x89csi-mount begun"), 0, "a record of a format");
            if level == Level::Staged {
                fs::write(&file, DATA).unwrap();
            }
        }
        assert_eq!(fs::read_to_string(&file).unwrap(), DATA);
        if level == Level::Published {
            assert!(fs::write(&file, "x").is_err(), "it is writable");
        }
        if after == Step::Change {
            let total = csi_mount::internal::stats(at.path()).unwrap().bytes.total;
            assert!(total > (self.mebibytes + MORE / 2) * MIB * 8 / 10, "it has {total} bytes");
        }
    }

    fn assert_device(&self) {
        let device = BlockDevice::open(self.place.target.path()).unwrap();
        assert_eq!(device.is_read_only().unwrap(), self.flow.ends_with("ro"));
        assert_eq!(device.size().unwrap(), self.image.open().size().unwrap());
        let mut bytes = [0; DATA.len()];
        let published = fs::File::open(self.place.target.path()).unwrap();
        std::os::unix::fs::FileExt::read_exact_at(&published, &mut bytes, MIB).unwrap();
        assert_eq!(bytes, DATA.as_bytes());
    }
}

impl Volume for Disk {
    fn flow(&self) -> String {
        self.flow.to_owned()
    }

    fn source(&self) -> String {
        self.node.to_str().unwrap().to_owned()
    }

    fn place(&self) -> &Place {
        &self.place
    }

    fn layers(&self, level: Level) -> (usize, usize) {
        let staged = usize::from(self.filesystem().is_some());
        match level {
            Level::Free => (0, 0),
            Level::Staged => (staged, 0),
            Level::Published => (staged, 1),
        }
    }

    fn renew(&mut self, step: Step) {
        if self.is_used_once() || self.grows_at(step) {
            self.replace();
        }
    }

    fn before(&mut self, step: Step) {
        if step == Step::Change {
            self.image.grow_to(self.mebibytes + MORE);
        }
    }

    fn killed(&mut self, step: Step) {
        // The controller can expand the volume between two steps.
        if step == Step::Publish && self.grows_at(step) {
            self.image.grow_to(self.mebibytes + MORE);
        }
    }

    fn assert_content(&self, level: Level, after: Step) {
        match (level, self.filesystem()) {
            (Level::Free, _) => {}
            (_, Some(_)) => self.assert_filesystem(level, after),
            (Level::Staged, None) => {}
            (Level::Published, None) => self.assert_device(),
        }
    }

    fn lose(&mut self) {
        fs::remove_file(&self.node).unwrap();
        fs::remove_file(self.image.file()).unwrap();
        // A loop device in use is detached when its last user closes it.
        run("losetup", &["--detach", self.image.path().to_str().unwrap()]);
    }

    fn find(&mut self) {
        eventually("the lost device is gone", || LoopDevice::find(self.image.file()).unwrap().is_empty());
        self.image.is_detached();
        self.replace();
    }

    fn reboot(&mut self) {
        for over in LoopDevice::find(self.image.path()).unwrap() {
            detach_when_let_go(over, self.image.path()).unwrap();
        }
        eventually("nobody has the device", || self.image.open().in_use().unwrap() == DeviceUse::Free);
        self.image.attach_again();
        self.put_node();
    }

    fn assert_free(&self) {
        let over = LoopDevice::find(self.image.path()).unwrap();
        assert!(over.is_empty(), "loop devices over it are left: {over:?}");
        eventually("the device is free", || self.image.open().in_use().unwrap() == DeviceUse::Free);
    }

    fn is_used_once(&self) -> bool {
        self.template.is_none()
    }
}

impl Disk {
    /// Whether the device has another size after a point of this step.
    fn grows_at(&self, step: Step) -> bool {
        step == Step::Change || step == Step::Publish && self.flow.ends_with("raw ro")
    }
}

/// Kills each step, and the programs that the step runs, at its number of points.
fn kill_disk(
    test: &str,
    disk: impl FnOnce(&Path) -> Disk + Send,
    steps: &[(Step, u64, u64)],
    least_points: u32,
) {
    do_job(job);
    sandbox(|base| {
        let programs_too = (Programs::Followed, Kill::Job);
        assert_points(test, kill_steps((test, job), &mut disk(base), programs_too, steps), least_points);
    });
}

/// As on a busy machine, where the first run waits most often.
#[test]
fn a_first_run_with_many_calls_costs_no_points() {
    let mut points = Points::of(1, Some(18), 6);
    assert!(points.step(End::Finished { calls: 4000 }).is_none());
    let swept = loop {
        let end = if points.call() < 1600 { End::Killed } else { End::Finished { calls: 1600 } };
        if let Some(swept) = points.step(end) {
            break swept;
        }
    };
    assert_points("points", swept.points(), 18);
}

fn formats(test: &str, flow: &'static str, mebibytes: u64) {
    kill_disk(test, |base| Disk::blank(flow, mebibytes, base), &[(Step::Stage, 18, 300)], 12);
}

#[test]
fn stage_of_a_blank_device_as_ext4() {
    formats("crash::stage_of_a_blank_device_as_ext4", "ext4", 64);
}

/// The smallest size that ext4 accepts: `mkfs` writes to most of it.
#[test]
fn stage_of_the_smallest_device_as_ext4() {
    formats("crash::stage_of_the_smallest_device_as_ext4", "ext4", 2);
}

#[test]
fn stage_of_a_blank_device_as_xfs() {
    formats("crash::stage_of_a_blank_device_as_xfs", "xfs", 300);
}

#[test]
fn stage_of_a_blank_device_as_btrfs() {
    formats("crash::stage_of_a_blank_device_as_btrfs", "btrfs", 128);
}

/// Runs all steps of a filesystem that has data.
fn steps_of(test: &str, flow: &'static str, mebibytes: u64, changes: bool) {
    let mut steps = vec![
        (Step::Stage, 18, 50),
        (Step::Publish, 24, 30),
        (Step::Unpublish, 18, 15),
        (Step::Unstage, 24, 30),
    ];
    if changes {
        steps.push((Step::Change, 12, 25));
    }
    kill_disk(test, |base| Disk::with_data(flow, mebibytes, base), &steps, 60);
}

/// There is no expand step: whether ext4 grows while it is mounted depends on a capability.
#[test]
fn steps_of_a_device_with_ext4() {
    steps_of("crash::steps_of_a_device_with_ext4", "ext4", 16, false);
}

#[test]
fn steps_of_a_device_with_xfs() {
    steps_of("crash::steps_of_a_device_with_xfs", "xfs", 300, true);
}

/// btrfs does not grow to less than 256 MiB.
#[test]
fn steps_of_a_device_with_btrfs() {
    steps_of("crash::steps_of_a_device_with_btrfs", "btrfs", 300, true);
}

#[test]
fn steps_of_a_device_on_an_old_kernel() {
    steps_of("crash::steps_of_a_device_on_an_old_kernel", "old ext4", 16, false);
}

fn steps_of_raw(test: &str, flow: &'static str) {
    let steps =
        [(Step::Publish, 42, 30), (Step::Change, 12, 15), (Step::Unpublish, 24, 15), (Step::Unstage, 12, 8)];
    kill_disk(test, |base| Disk::with_data(flow, 4, base), &steps, 60);
}

#[test]
fn steps_of_a_raw_device() {
    steps_of_raw("crash::steps_of_a_raw_device", "raw rw");
}

#[test]
fn steps_of_a_read_only_raw_device() {
    steps_of_raw("crash::steps_of_a_read_only_raw_device", "raw ro");
}

#[test]
fn steps_of_a_raw_device_on_an_old_kernel() {
    steps_of_raw("crash::steps_of_a_raw_device_on_an_old_kernel", "old raw ro");
}
