//! Clones next to their origin: with its UUID, and with one of their own.

mod devices;
mod flow_support;
mod stepper;

use std::fs::{self, File};
use std::io::Write as _;
use std::path::Path;
use std::time::{Duration, Instant};

use csi_mount::flow::block::{StagePlan, Staged, stage, unstage};
use csi_mount::testing::private_mount_namespace;
use csi_mount::{
    CheckPolicy, ErrorKind, Filesystem, FilesystemUuid, LoopDevice, LoopOptions, MountOptions, Outcome,
    Probe, Target, check,
};
use devices::Image;
use flow_support::on_tmpfs;
use stepper::{Job, Points, Programs, do_job};

const DATA: &str = "cloned";

const CHANGEABLE: [Filesystem; 1] = [Filesystem::Btrfs];

fn plan(filesystem: Filesystem, uuid: FilesystemUuid) -> StagePlan {
    StagePlan::new(filesystem).own_uuid(uuid)
}

/// A UUID that no other run has: `btrfstune` looks for it on all devices of the machine.
fn own_uuid(test: &str) -> FilesystemUuid {
    FilesystemUuid::from_name(&format!("{test} {}", std::process::id()))
}

/// The size of each image in MiB.
const SIZE: u64 = 128;

fn uuid(image: &Image) -> String {
    let Probe::Filesystem(found) = image.open().probe() else { panic!("no filesystem") };
    found.uuid.unwrap()
}

fn target(image: &Image, name: &str) -> Target {
    Target::new(image.directory().join(name)).unwrap()
}

/// Stages the origin and copies its device while it is mounted, with a log that is not empty.
fn mounted_origin_and_clone(filesystem: Filesystem) -> (Image, Target, Image) {
    let origin = Image::new(SIZE);
    let staging = target(&origin, "s");
    stage(origin.path(), &staging, &StagePlan::new(filesystem)).unwrap();
    rustix::fs::sync();
    let mut file = File::create(staging.path().join("file")).unwrap();
    file.write_all(DATA.as_bytes()).unwrap();
    file.sync_all().unwrap();
    let clone = Image::copy_of(&origin.file());
    (origin, staging, clone)
}

fn assert_data(staging: &Target) {
    assert_eq!(fs::read_to_string(staging.path().join("file")).unwrap(), DATA);
}

#[test]
fn a_clone_gets_its_own_uuid_next_to_its_mounted_origin() {
    private_mount_namespace(|| {
        for filesystem in CHANGEABLE {
            let own = own_uuid("a_clone_gets_its_own_uuid_next_to_its_mounted_origin");
            let (origin, staging, clone) = mounted_origin_and_clone(filesystem);
            let second = target(&clone, "t");
            let staged = |plan: &StagePlan| -> Staged { stage(clone.path(), &second, plan).unwrap() };
            assert_eq!(staged(&plan(filesystem, own)).outcome, Outcome::Mounted, "{filesystem}");
            assert_data(&second);
            assert_eq!(staged(&plan(filesystem, own)).outcome, Outcome::AlreadyMounted, "{filesystem}");
            fs::write(second.path().join("other"), "only here").unwrap();
            unstage(&second, None).unwrap();
            assert_eq!(uuid(&clone), own.to_string(), "{filesystem}");
            check(&clone.open(), filesystem, CheckPolicy::ReportOnly).unwrap();

            // The change lasts, and nothing changes it back.
            staged(&StagePlan::new(filesystem));
            unstage(&second, None).unwrap();
            staged(&plan(filesystem, own));
            assert_data(&second);
            unstage(&second, None).unwrap();
            assert_eq!(uuid(&clone), own.to_string(), "{filesystem}");
            assert_data(&staging);
            unstage(&staging, None).unwrap();
            assert_ne!(uuid(&origin), own.to_string(), "{filesystem}");
            check(&origin.open(), filesystem, CheckPolicy::ReportOnly).unwrap();
        }
    });
}

#[test]
fn a_new_filesystem_has_the_uuid_from_its_first_stage_on() {
    private_mount_namespace(|| {
        for filesystem in CHANGEABLE {
            let own = own_uuid("a_new_filesystem_has_the_uuid_from_its_first_stage_on");
            let image = Image::new(SIZE);
            stage(image.path(), &target(&image, "s"), &plan(filesystem, own)).unwrap();
            unstage(&target(&image, "s"), None).unwrap();
            assert_eq!(uuid(&image), own.to_string(), "{filesystem}");
        }
    });
}

#[test]
fn the_uuid_of_a_device_in_use_or_read_only_stays() {
    private_mount_namespace(|| {
        for filesystem in CHANGEABLE {
            let own = own_uuid("the_uuid_of_a_device_in_use_or_read_only_stays");
            let image = Image::new(SIZE);
            let (staging, second) = (target(&image, "s"), target(&image, "t"));
            stage(image.path(), &staging, &StagePlan::new(filesystem)).unwrap();
            let before = uuid(&image);
            let error = stage(image.path(), &second, &plan(filesystem, own)).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Busy, "{filesystem}: {error}");
            unstage(&staging, None).unwrap();
            let read_only = plan(filesystem, own).options(MountOptions::new().read_only());
            stage(image.path(), &staging, &read_only).unwrap();
            unstage(&staging, None).unwrap();
            assert_eq!(uuid(&image), before, "{filesystem}");
        }
    });
}

/// If `xfs_db` is killed while it clears the log, or `tune2fs` while it writes the superblock in pieces, the
/// filesystem does not mount any more.
#[test]
fn the_uuid_of_ext4_and_xfs_is_not_changed() {
    private_mount_namespace(|| {
        for filesystem in [Filesystem::Ext4, Filesystem::Xfs] {
            let image = Image::new(320);
            let plan = plan(filesystem, own_uuid("refused"));
            let error = stage(image.path(), &target(&image, "s"), &plan).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
            assert!(matches!(image.open().probe(), Probe::Blank(_)), "it was formatted");
        }
    });
}

/// From Linux 6.7 on the kernel would mount both.
#[test]
fn a_btrfs_is_not_mounted_twice_by_two_devices_of_its_disk() {
    private_mount_namespace(|| {
        let image = Image::new(128);
        let (staging, second) = (target(&image, "s"), target(&image, "t"));
        let plan = StagePlan::new(Filesystem::Btrfs);
        stage(image.path(), &staging, &plan).unwrap();
        let again = LoopDevice::attach(image.file(), &LoopOptions::new()).unwrap();
        let error = stage(again.path(), &second, &plan).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
        unstage(&staging, None).unwrap();
        stage(again.path(), &second, &plan).unwrap();
        unstage(&second, None).unwrap();
        again.detach().unwrap();
    });
}

#[test]
fn a_btrfs_clone_is_staged_together_with_its_origin() {
    private_mount_namespace(|| {
        let (_origin, staging, clone) = mounted_origin_and_clone(Filesystem::Btrfs);
        let second = target(&clone, "t");
        let plan = StagePlan::new(Filesystem::Btrfs);
        let kernel = csi_mount::KernelVersion::running().unwrap();
        match stage(clone.path(), &second, &plan) {
            Ok(staged) => {
                assert_eq!(staged.device, clone.loop_device().number());
                assert_data(&second);
                fs::write(second.path().join("only"), "in the clone").unwrap();
                assert!(!staging.path().join("only").exists());
                unstage(&second, None).unwrap();
            }
            Err(error) => {
                assert!(kernel < csi_mount::KernelVersion::new(6, 7), "{error}");
                assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
            }
        }
        unstage(&staging, None).unwrap();
    });
}

fn job(words: &[&str]) -> csi_mount::Result<()> {
    let [filesystem, device, staging, uuid] = words else { panic!("{words:?}") };
    stage(
        Path::new(device),
        &Target::new(staging)?,
        &plan(filesystem.parse()?, FilesystemUuid::from_name(uuid)),
    )
    .map(drop)
}

/// The step and its programs are killed together, before a system call of either.
#[test]
fn a_stage_that_is_killed_while_it_changes_the_uuid_can_be_repeated() {
    let test = "a_stage_that_is_killed_while_it_changes_the_uuid_can_be_repeated";
    do_job(job);
    on_tmpfs(|base| {
        let staging = Target::new(base.join("s")).unwrap();
        for filesystem in CHANGEABLE {
            let (_origin, mounted, clone) = mounted_origin_and_clone(filesystem);
            let mut points = Points::with_continuations(40, 1);
            loop {
                let image = Image::copy_of(&clone.file());
                let name = format!("killed before {} {}", points.call(), std::process::id());
                let own = FilesystemUuid::from_name(&name);
                let path = staging.path().to_str().unwrap();
                let words = [filesystem.name(), image.path().to_str().unwrap(), path, &name];
                let end =
                    Job { programs: Programs::Followed, test, words: &words }.kill_before(points.call());
                let again = stage_when_free(&image, &staging, &plan(filesystem, own));
                assert!(again.is_ok(), "{filesystem}, call {}: {}", points.call(), again.unwrap_err());
                assert_data(&staging);
                unstage(&staging, Some(image.path())).unwrap();
                assert_eq!(uuid(&image), own.to_string(), "{filesystem}, call {}", points.call());
                let found = check(&image.open(), filesystem, CheckPolicy::ReportOnly);
                assert!(found.is_ok(), "{filesystem}, call {}: {}", points.call(), found.unwrap_err());
                if !points.next(filesystem.name(), end) {
                    break;
                }
            }
            unstage(&mounted, None).unwrap();
        }
    });
}

/// A killed process can still have the device open.
fn stage_when_free(image: &Image, staging: &Target, plan: &StagePlan) -> csi_mount::Result<Staged> {
    let end = Instant::now() + Duration::from_secs(30);
    loop {
        // The job runs on another thread, as in the crash tests: this one waits for what it traces.
        let staged =
            std::thread::scope(|scope| scope.spawn(|| stage(image.path(), staging, plan)).join().unwrap());
        match staged {
            Err(error) if error.kind() == ErrorKind::Busy && Instant::now() < end => {
                std::thread::sleep(Duration::from_millis(20));
            }
            other => return other,
        }
    }
}
