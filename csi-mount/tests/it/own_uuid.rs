//! Clones next to their origin: with its UUID, and with one of their own.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use csi_mount::internal::flow::block::{StagePlan, Staged, stage, unstage};
use csi_mount::internal::{CheckPolicy, CheckReport, DeviceQuestions as _, Format, LoopDevice, Probe, check};
use csi_mount::testing::private_mount_namespace;
use csi_mount::{
    CheckLimits, ErrorKind, Filesystem, FilesystemUuid, LoopOptions, MountOptions, Outcome, Target,
};

use crate::devices::{Image, refused};
use crate::mount_support::sandbox;
use crate::stepper::{End, Job, Points, Programs, do_job};

const DATA: &str = "cloned";

const ALL: [Filesystem; 3] = [Filesystem::Ext4, Filesystem::Xfs, Filesystem::Btrfs];

fn plan(filesystem: Filesystem, uuid: FilesystemUuid) -> StagePlan {
    StagePlan::new(filesystem).own_uuid(uuid)
}

/// A UUID that no other run has: the kernel mounts one XFS or btrfs with a UUID at a time.
fn own_uuid(test: &str) -> FilesystemUuid {
    FilesystemUuid::from_name(&format!("{test} {}", std::process::id()))
}

/// The size of each image in MiB: the smallest XFS has 300.
const SIZE: u64 = 320;

fn uuid(image: &Image) -> String {
    let Probe::Filesystem(found) = image.open().probe() else { panic!("no filesystem") };
    found.uuid.unwrap()
}

/// Stages the origin and copies its device while it is mounted, with a log that is not empty.
fn mounted_origin_and_clone(filesystem: Filesystem) -> (Image, Target, Image) {
    let origin = Image::new(SIZE);
    let staging = origin.target("s");
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
        for filesystem in ALL {
            let own = own_uuid("own_uuid::a_clone_gets_its_own_uuid_next_to_its_mounted_origin");
            let (origin, staging, clone) = mounted_origin_and_clone(filesystem);
            let second = clone.target("t");
            let staged = |plan: &StagePlan| -> Staged { stage(clone.path(), &second, plan).unwrap() };
            assert_eq!(staged(&plan(filesystem, own)).outcome, Outcome::Mounted, "{filesystem}");
            assert_data(&second);
            assert_eq!(staged(&plan(filesystem, own)).outcome, Outcome::AlreadyMounted, "{filesystem}");
            fs::write(second.path().join("other"), "only here").unwrap();
            unstage_when_free(&second);
            assert_eq!(uuid(&clone), own.to_string(), "{filesystem}");
            check(&clone.open(), filesystem, CheckPolicy::ReportOnly, CheckLimits::default()).unwrap();

            // The change lasts, and nothing changes it back.
            staged(&StagePlan::new(filesystem));
            unstage_when_free(&second);
            staged(&plan(filesystem, own));
            assert_data(&second);
            unstage_when_free(&second);
            assert_eq!(uuid(&clone), own.to_string(), "{filesystem}");
            assert_data(&staging);
            unstage_when_free(&staging);
            assert_ne!(uuid(&origin), own.to_string(), "{filesystem}");
            check(&origin.open(), filesystem, CheckPolicy::ReportOnly, CheckLimits::default()).unwrap();
        }
    });
}

#[test]
fn a_new_filesystem_has_the_uuid_from_its_first_stage_on() {
    private_mount_namespace(|| {
        for filesystem in ALL {
            let own = own_uuid("own_uuid::a_new_filesystem_has_the_uuid_from_its_first_stage_on");
            let image = Image::new(SIZE);
            stage(image.path(), &image.target("s"), &plan(filesystem, own)).unwrap();
            unstage_when_free(&image.target("s"));
            assert_eq!(uuid(&image), own.to_string(), "{filesystem}");
        }
    });
}

#[test]
fn the_uuid_of_a_device_in_use_or_read_only_stays() {
    private_mount_namespace(|| {
        for filesystem in ALL {
            let own = own_uuid("own_uuid::the_uuid_of_a_device_in_use_or_read_only_stays");
            let image = Image::new(SIZE);
            let staging = image.target("s");
            let second = image.target("t");
            stage(image.path(), &staging, &StagePlan::new(filesystem)).unwrap();
            let before = uuid(&image);
            let error = stage(image.path(), &second, &plan(filesystem, own)).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Busy, "{filesystem}: {error}");
            unstage_when_free(&staging);
            let read_only = plan(filesystem, own).options(MountOptions::new().read_only());
            stage(image.path(), &staging, &read_only).unwrap();
            unstage_when_free(&staging);
            assert_eq!(uuid(&image), before, "{filesystem}");
        }
    });
}

/// Another device of the disk is mounted: the filesystem is not a clone, but in use.
#[test]
fn the_uuid_of_a_disk_that_is_mounted_through_another_device_stays() {
    private_mount_namespace(|| {
        for filesystem in ALL {
            let own = own_uuid("own_uuid::the_uuid_of_a_disk_that_is_mounted_through_another_device_stays");
            let image = Image::new(SIZE);
            let staging = image.target("s");
            let second = image.target("t");
            stage(image.path(), &staging, &StagePlan::new(filesystem)).unwrap();
            let before = uuid(&image);
            let again = LoopDevice::attach(image.file(), &LoopOptions::new()).unwrap();
            let error = stage(again.path(), &second, &plan(filesystem, own)).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Busy, "{filesystem}: {error}");
            again.detach().unwrap();
            assert!(staging.path().join(".").metadata().is_ok(), "{filesystem}");
            unstage_when_free(&staging);
            assert_eq!(uuid(&image), before, "{filesystem}");
        }
    });
}

/// Makes a filesystem with these arguments, uses it, gives it a UUID, and uses it again.
fn use_with_own_uuid(filesystem: Filesystem, arguments: &[&str], options: &[&str], files: usize) {
    let what = format!("{filesystem} {arguments:?} {options:?}");
    let own = own_uuid(&what);
    let image = Image::new(SIZE);
    let staging = image.target("s");
    let options = MountOptions::parse(options.iter().copied()).unwrap();
    let made = StagePlan::new(filesystem).mkfs_arguments(arguments.iter().copied()).options(options);
    stage(image.path(), &staging, &made).unwrap_or_else(|error| panic!("{what}: {error}"));
    for number in 0..files {
        let file = File::create(staging.path().join(format!("file {number}"))).unwrap();
        file.sync_all().unwrap();
    }
    // A log with changes, and one without. An ext4 without a journal is damaged while it is mounted.
    let has_log = !arguments.contains(&"^has_journal");
    let used = has_log.then(|| Image::copy_of(&image.file()));
    unstage_when_free(&staging);
    for image in [Some(image), used].into_iter().flatten() {
        let staging = image.target("s");
        let staged = stage(image.path(), &staging, &made.clone().own_uuid(own));
        staged.unwrap_or_else(|error| panic!("{what}: {error}"));
        assert_eq!(fs::read_dir(staging.path()).unwrap().count(), before_files(filesystem) + files, "{what}");
        fs::write(staging.path().join("more"), DATA).unwrap();
        unstage_when_free(&staging);
        assert_eq!(uuid(&image), own.to_string(), "{what}");
        check(&image.open(), filesystem, CheckPolicy::ReportOnly, CheckLimits::default())
            .unwrap_or_else(|error| panic!("{what}: {error}"));
    }
}

/// ext4 has `lost+found`.
fn before_files(filesystem: Filesystem) -> usize {
    usize::from(filesystem == Filesystem::Ext4)
}

#[test]
fn every_kind_of_ext4_whose_checksums_stay_gets_a_uuid() {
    private_mount_namespace(|| {
        for arguments in [
            &["-b", "4096"][..],
            &["-b", "1024"],
            &["-O", "^metadata_csum,^uninit_bg"],
            &["-O", "metadata_csum_seed"],
            &["-O", "^has_journal"],
            &["-O", "^64bit", "-I", "128"],
            &["-O", "ea_inode,large_dir"],
        ] {
            use_with_own_uuid(Filesystem::Ext4, arguments, &[], 3);
        }
    });
}

/// The backups of the superblock have the old UUID, and are written again by the next repair.
#[test]
fn an_ext4_with_a_new_uuid_is_checked_and_grown() {
    private_mount_namespace(|| {
        let own = own_uuid("own_uuid::an_ext4_with_a_new_uuid_is_checked_and_grown");
        let image = Image::new(SIZE);
        let staging = image.target("s");
        let plan = plan(Filesystem::Ext4, own);
        stage(image.path(), &staging, &plan).unwrap();
        unstage_when_free(&staging);
        assert_eq!(
            check(&image.open(), Filesystem::Ext4, CheckPolicy::Preen, CheckLimits::default()).unwrap(),
            CheckReport::Clean
        );
        image.grow_to(2 * SIZE);
        assert!(stage(image.path(), &staging, &plan).unwrap().grown.is_some());
        unstage_when_free(&staging);
        assert_eq!(uuid(&image), own.to_string());
        check(&image.open(), Filesystem::Ext4, CheckPolicy::ReportOnly, CheckLimits::default()).unwrap();
    });
}

/// Logs with records of more than one header, with padded records, that begin again at their start (64 MiB in
/// records of 256 KiB), and with other block and sector sizes.
#[test]
fn every_kind_of_xfs_log_belongs_to_the_new_uuid() {
    private_mount_namespace(|| {
        for (arguments, options, files) in [
            (&[][..], &[][..], 3),
            (&[], &["logbsize=256k"], 3),
            (&["-l", "size=64m,su=256k"], &["logbsize=256k"], 10),
            (&["-l", "size=64m,su=256k"], &["logbsize=256k"], 300),
            (&["-s", "size=4096"], &[], 3),
            (&["-b", "size=1024"], &[], 3),
        ] {
            use_with_own_uuid(Filesystem::Xfs, arguments, options, files);
        }
    });
}

/// What else depends on the UUID is named, and nothing is written.
#[test]
fn a_filesystem_in_which_more_depends_on_the_uuid_is_refused() {
    private_mount_namespace(|| {
        for (filesystem, arguments, named) in [
            (Filesystem::Ext4, &["-O", "^metadata_csum,uninit_bg"][..], "uninit_bg"),
            (Filesystem::Ext4, &["-O", "^metadata_csum,^uninit_bg,ea_inode"], "ea_inode"),
            (Filesystem::Ext4, &["-O", "encrypt,stable_inodes"], "stable_inodes"),
            (Filesystem::Ext4, &["-O", "mmp"], "0x100"),
            (Filesystem::Xfs, &["-m", "crc=0"], "version 5"),
            (Filesystem::Btrfs, &["--csum=xxhash"], "CRC-32C"),
        ] {
            let image = Image::new(SIZE);
            let made = StagePlan::new(filesystem).mkfs_arguments(arguments.iter().copied());
            let device = image.open();
            let Probe::Blank(proof) = device.probe() else { panic!("not blank") };
            Format::new(filesystem).arguments(arguments.iter().copied()).run(proof).unwrap();
            drop(device);
            let before = fs::read(image.file()).unwrap();
            let staging = image.target("s");
            let error = stage(image.path(), &staging, &made.own_uuid(own_uuid(named))).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unsupported, "{arguments:?}: {error}");
            assert!(error.to_string().contains(named), "{arguments:?}: {error}");
            assert!(fs::read(image.file()).unwrap() == before, "{arguments:?}: it was written to");
        }
    });
}

/// From Linux 6.7 on the kernel would mount both.
#[test]
fn a_btrfs_is_not_mounted_twice_by_two_devices_of_its_disk() {
    private_mount_namespace(|| {
        let image = Image::new(128);
        let staging = image.target("s");
        let second = image.target("t");
        let plan = StagePlan::new(Filesystem::Btrfs);
        stage(image.path(), &staging, &plan).unwrap();
        let again = LoopDevice::attach(image.file(), &LoopOptions::new()).unwrap();
        refused(stage(again.path(), &second, &plan), ErrorKind::Busy);
        unstage_when_free(&staging);
        stage(again.path(), &second, &plan).unwrap();
        unstage_when_free(&second);
        again.detach().unwrap();
    });
}

#[test]
fn a_btrfs_clone_is_staged_together_with_its_origin() {
    private_mount_namespace(|| {
        let (_origin, staging, clone) = mounted_origin_and_clone(Filesystem::Btrfs);
        let second = clone.target("t");
        let plan = StagePlan::new(Filesystem::Btrfs);
        let kernel = csi_mount::KernelVersion::running().unwrap();
        match stage(clone.path(), &second, &plan) {
            Ok(staged) => {
                assert_eq!(staged.device, clone.loop_device().number());
                assert_data(&second);
                fs::write(second.path().join("only"), "in the clone").unwrap();
                assert!(!staging.path().join("only").exists());
                unstage_when_free(&second);
            }
            Err(error) => {
                assert!(kernel < csi_mount::KernelVersion::new(6, 7), "{error}");
                assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
            }
        }
        unstage_when_free(&staging);
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
    let test = "own_uuid::a_stage_that_is_killed_while_it_changes_the_uuid_can_be_repeated";
    do_job(job);
    sandbox(|base| {
        for filesystem in ALL {
            let (_origin, mounted, clone) = mounted_origin_and_clone(filesystem);
            let mut points = Points::with_continuations(20, 1);
            loop {
                let call = points.call();
                let end = killed_and_repeated(test, (filesystem, base, &clone), |job| job.kill_before(call));
                if !points.next(filesystem.name(), end) {
                    break;
                }
            }
            unstage_when_free(&mounted);
        }
    });
}

/// All points between which the device changes.
#[test]
fn a_stage_that_is_killed_before_any_of_its_writes_can_be_repeated() {
    let test = "own_uuid::a_stage_that_is_killed_before_any_of_its_writes_can_be_repeated";
    do_job(job);
    sandbox(|base| {
        // The superblock; the end of the log and four superblocks. A flush follows each kind.
        for (filesystem, writes) in [(Filesystem::Ext4, 2), (Filesystem::Xfs, 8), (Filesystem::Btrfs, 2)] {
            let (_origin, mounted, clone) = mounted_origin_and_clone(filesystem);
            for write in 1.. {
                let end =
                    killed_and_repeated(test, (filesystem, base, &clone), |job| job.kill_before_write(write));
                if let End::Finished { calls } = end {
                    assert_eq!(calls, writes, "{filesystem}");
                    break;
                }
            }
            unstage_when_free(&mounted);
        }
    });
}

/// Kills the stage of a copy of the clone, and stages it again.
fn killed_and_repeated(
    test: &str,
    (filesystem, base, clone): (Filesystem, &Path, &Image),
    kill: impl FnOnce(&Job<'_>) -> End,
) -> End {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let staging = Target::new(base.join("s")).unwrap();
    let image = Image::copy_of(&clone.file());
    let name = format!("{test} {} {}", NUMBER.fetch_add(1, Ordering::Relaxed), std::process::id());
    let own = FilesystemUuid::from_name(&name);
    let words = [filesystem.name(), image.path().to_str().unwrap(), staging.path().to_str().unwrap(), &name];
    let end = kill(&Job { programs: Programs::Followed, test, words: &words });
    assert_still_mounts(filesystem, &image);
    let again = stage_when_free(&image, &staging, &plan(filesystem, own));
    assert!(again.is_ok(), "{filesystem}: {}", again.unwrap_err());
    assert_data(&staging);
    unstage(&staging, Some(image.path())).unwrap();
    assert_eq!(uuid(&image), own.to_string(), "{filesystem}");
    let found = check(&image.open(), filesystem, CheckPolicy::ReportOnly, CheckLimits::default());
    assert!(found.is_ok(), "{filesystem}: {}", found.unwrap_err());
    end
}

/// What the killed step left mounts, with either UUID, and has its content. Before Linux 6.7 a btrfs does so
/// only if it has its own UUID already.
fn assert_still_mounts(filesystem: Filesystem, image: &Image) {
    let left = Image::copy_of(&image.file());
    let staging = left.target("left");
    let staged = stage(left.path(), &staging, &StagePlan::new(filesystem));
    let kernel = csi_mount::KernelVersion::running().unwrap();
    if filesystem == Filesystem::Btrfs && kernel < csi_mount::KernelVersion::new(6, 7) && staged.is_err() {
        return;
    }
    assert!(staged.is_ok(), "{filesystem}: {}", staged.unwrap_err());
    assert_data(&staging);
    unstage_when_free(&staging);
}

/// Another test's child process can have a file there open until it runs its program.
fn unstage_when_free(staging: &Target) {
    when_free(|| unstage(staging, None)).unwrap();
}

/// A killed process can still have the device open.
fn stage_when_free(image: &Image, staging: &Target, plan: &StagePlan) -> csi_mount::Result<Staged> {
    // The job runs on another thread, as in the crash tests: this one waits for what it traces.
    when_free(|| {
        std::thread::scope(|scope| scope.spawn(|| stage(image.path(), staging, plan)).join().unwrap())
    })
}

fn when_free<T>(step: impl Fn() -> csi_mount::Result<T>) -> csi_mount::Result<T> {
    let end = Instant::now() + Duration::from_secs(120);
    loop {
        match step() {
            Err(error) if error.kind() == ErrorKind::Busy && Instant::now() < end => {
                std::thread::sleep(Duration::from_millis(20));
            }
            other => return other,
        }
    }
}
