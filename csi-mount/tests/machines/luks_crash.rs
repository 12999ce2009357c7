//! A step of an encrypted volume is killed before any system call of its own, of `cryptsetup` or of `mkfs`. A
//! new process repeats the step, which ends in the right state and leaves no mapping.
//!
//! Each test kills at the number of points that [`Points`] gives, and prints this number. All tests need a
//! kernel with `dm_mod` and `dm_crypt`. They run where `cargo xtask test --kernels` provides these modules,
//! and not with `cargo test` alone.

use std::fs;
use std::path::Path;

use csi_mount::internal::DeviceQuestions as _;
use csi_mount::internal::flow::block::{
    FilesystemOrigin, StagePlan, expand_encrypted, stage, stage_device, unstage,
};
use csi_mount::testing::private_mount_namespace;
use csi_mount::{DeviceAccess, DeviceUse, Filesystem, Luks, LuksKey, LuksPbkdf, Target, mounts};

use crate::devices;
use crate::devices::Image;
use crate::stepper::{End, Job, Points, Programs, do_job};

const FILESYSTEM: Filesystem = Filesystem::Ext4;

fn key() -> LuksKey {
    LuksKey::new("canary-of-the-key").unwrap()
}

fn luks() -> Luks {
    Luks::new().pbkdf(LuksPbkdf::Pbkdf2 { iterations: 1000 })
}

fn plan() -> StagePlan {
    StagePlan::new(FILESYSTEM).encrypted(luks(), key())
}

fn job(words: &[&str]) -> csi_mount::Result<()> {
    let [step, device, staging] = words else { panic!("{words:?}") };
    let device = Path::new(device);
    let staging = Target::new(staging)?;
    match *step {
        "stage" => stage(device, &staging, &plan()).map(drop),
        "stage raw" => stage_device(device, &staging, &luks(), &key(), DeviceAccess::ReadWrite).map(drop),
        "unstage" => unstage(&staging, Some(device)).map(drop),
        "grow" => expand_encrypted(staging.path(), &key()).map(drop),
        other => panic!("{other}"),
    }
}

/// An encrypted device and the path of its steps, created for each point.
struct Volume {
    image: Image,
    names: [String; 2],
}

impl Volume {
    fn new() -> Self {
        let image = Image::new(20);
        let name = |path: &Path| path.to_str().unwrap().to_owned();
        let names = [name(image.path()), name(&image.directory().join("s"))];
        Self { image, names }
    }

    fn staged() -> Self {
        let volume = Self::new();
        stage(volume.image.path(), &volume.staging(), &plan()).unwrap();
        fs::write(volume.staging().path().join("file"), "kept").unwrap();
        volume
    }

    fn with_data() -> Self {
        let volume = Self::staged();
        volume.take_down();
        volume
    }

    fn staging(&self) -> Target {
        Target::new(&self.names[1]).unwrap()
    }

    fn file(&self) -> Option<String> {
        fs::read_to_string(self.staging().path().join("file")).ok()
    }

    fn layers(&self) -> usize {
        mounts().unwrap().iter().filter(|entry| entry.mount_point == Path::new(&self.names[1])).count()
    }

    fn take_down(&self) {
        unstage(&self.staging(), Some(self.image.path())).unwrap();
        assert_eq!(self.layers(), 0);
        assert_eq!(mappings(), 0, "a mapping is left");
        assert_eq!(self.image.open().in_use().unwrap(), DeviceUse::Free);
    }
}

/// Returns how many mappings the kernel has, including incomplete ones.
fn mappings() -> usize {
    let listed = devices::run("dmsetup", &["ls"]);
    listed.lines().filter(|line| line.starts_with("csi-")).count()
}

/// Kills `step` at its points, each time on a new volume, and repeats it. `expected` checks the result.
fn at_every_point(
    test: &'static str,
    step: &'static str,
    stride: u64,
    prepare: impl Fn() -> Volume + Sync,
    expected: impl Fn(&Volume) + Sync,
) {
    do_job(job);
    private_mount_namespace(|| {
        let mut points = Points::new(stride);
        for round in 0.. {
            let volume = prepare();
            let [device, staging] = &volume.names;
            let job = Job { programs: Programs::Followed, test, words: &[step, device, staging] };
            let end = job.kill_before(points.call());
            if let End::Killed = end {
                // The volume can also be taken down before the step is repeated.
                if round % 3 == 0 && step != "grow" {
                    volume.take_down();
                }
                job.run();
            }
            expected(&volume);
            volume.take_down();
            if step != "stage raw" {
                let again = stage(volume.image.path(), &volume.staging(), &plan()).unwrap();
                assert_eq!(
                    again.origin,
                    FilesystemOrigin::Existing,
                    "killed before call {} of {step}",
                    points.call()
                );
                volume.take_down();
            }
            if !points.next(step, end) {
                return;
            }
        }
    });
}

#[test]
fn stage_of_a_blank_device() {
    at_every_point("luks_crash::stage_of_a_blank_device", "stage", 431, Volume::new, |volume| {
        assert_eq!(volume.layers(), 1);
        fs::write(volume.staging().path().join("file"), "new").unwrap();
    });
}

#[test]
fn stage_of_a_device_with_data() {
    let test = "luks_crash::stage_of_a_device_with_data";
    at_every_point(test, "stage", 307, Volume::with_data, |volume| {
        assert_eq!(volume.layers(), 1);
        assert_eq!(volume.file().as_deref(), Some("kept"));
    });
}

#[test]
fn stage_of_a_raw_device() {
    at_every_point("luks_crash::stage_of_a_raw_device", "stage raw", 701, Volume::new, |_| {
        assert_eq!(mappings(), 1);
    });
}

#[test]
fn unstage_of_a_volume() {
    at_every_point("luks_crash::unstage_of_a_volume", "unstage", 23, Volume::staged, |volume| {
        assert_eq!(volume.layers(), 0);
    });
}

#[test]
fn growth_of_a_volume() {
    let grown = || {
        let volume = Volume::staged();
        volume.image.grow_to(28);
        volume
    };
    at_every_point("luks_crash::growth_of_a_volume", "grow", 307, grown, |volume| {
        assert_eq!(volume.file().as_deref(), Some("kept"));
        let size = csi_mount::internal::stats(volume.staging().path()).unwrap().bytes.total;
        assert!(size > 9 << 20, "{size}");
    });
}
