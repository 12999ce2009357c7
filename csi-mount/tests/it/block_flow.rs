//! The steps of a filesystem volume on a node. Each step runs twice, and the tests show what it refuses.

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::sleep;
use std::time::{Duration, Instant};

use csi_mount::internal::flow::block::{
    FilesystemOrigin, StageCheck, StagePlan, VolumeUsage, device_of, expand, publish, stage, unpublish,
    unstage, usage,
};
use csi_mount::internal::{DeviceQuestions as _, LoopDevice, PeerNamespace, mount_state, stats};
use csi_mount::reservation::{Fencing, Reservation, ReservationKey};
use csi_mount::testing::private_mount_namespace;
use csi_mount::{
    BlockDevice, DeviceAccess, DeviceUse, ErrorKind, Filesystem, FormatLimit, FormatStep, Grown, Host,
    LoopOptions, MountAttributes, MountOptions, MountState, Outcome, Removed, Target, Unmounted,
};
use rustix::fs::{CWD, RenameFlags, renameat_with};

use crate::devices::{EndOfWork, Image, MIB, put_node, refused, run, that_can_fail, with_image};

fn is_free(path: &Path) -> bool {
    BlockDevice::open(path).unwrap().in_use().unwrap() == DeviceUse::Free
}

// spec: node-stage-volume.repeated-is-ok, node-unstage-volume.undoes, node-unstage-volume.not-staged-is-ok
// spec: node-unpublish-volume.repeated-is-ok
#[test]
fn every_step_can_be_repeated() {
    for filesystem in Filesystem::ALL {
        with_image(320, move |image, staging| {
            let writable = image.target("w");
            let read_only = image.target("r");
            let steps = Arc::new(Mutex::new(Vec::new()));
            let watcher = {
                let steps = Arc::clone(&steps);
                move |step| steps.lock().unwrap().push(step)
            };
            let plan = StagePlan::new(filesystem).label("volume");
            let plan = plan.format_limit(&FormatLimit::new(1)).on_format_step(watcher);
            let first = stage(image.path(), staging, &plan).unwrap();
            assert_eq!(
                (first.outcome, first.origin),
                (Outcome::Mounted, FilesystemOrigin::Formatted),
                "{filesystem}"
            );
            assert_eq!(first.device, image.loop_device().number());
            let again = stage(image.path(), staging, &plan).unwrap();
            assert_eq!((again.outcome, again.origin), (Outcome::AlreadyMounted, FilesystemOrigin::Existing));

            let mut steps = steps.lock().unwrap().clone();
            steps.retain(|step| !matches!(step, FormatStep::Making { .. }));
            let expected = [FormatStep::Preparing, FormatStep::Writing, FormatStep::Verifying];
            assert_eq!(steps, expected, "formatted once");

            let ro = MountAttributes::RDONLY;
            for expected in [Outcome::Mounted, Outcome::AlreadyMounted] {
                let empty = MountAttributes::empty();
                assert_eq!(publish(staging.path(), &writable, empty).unwrap(), expected);
                assert_eq!(publish(staging.path(), &read_only, ro).unwrap(), expected);
            }
            let number = image.loop_device().number();
            assert_eq!(device_of(writable.path()).unwrap(), number, "{filesystem}");
            let expected = VolumeUsage::Filesystem(stats(staging.path()).unwrap());
            assert_eq!(usage(writable.path()).unwrap(), (expected, Some(number)), "{filesystem}");
            fs::write(writable.path().join("file"), "data").unwrap();
            assert_eq!(fs::read_to_string(read_only.path().join("file")).unwrap(), "data");
            let refused = fs::write(read_only.path().join("file"), "x").unwrap_err();
            assert_eq!(refused.kind(), std::io::ErrorKind::ReadOnlyFilesystem);

            for target in [&writable, &read_only] {
                assert_eq!(unpublish(target).unwrap(), Removed::Removed);
                assert_eq!(unpublish(target).unwrap(), Removed::WasAbsent);
            }
            assert_eq!(unstage(staging, None).unwrap(), Unmounted::Unmounted { layers: 1 });
            assert!(is_free(image.path()));
            assert_eq!(unstage(staging, Some(image.path())).unwrap(), Unmounted::NotMounted);
            assert_eq!(
                mount_state(staging.path()).unwrap(),
                MountState::NotMounted,
                "the directory is the orchestrator's"
            );

            let later = stage(image.path(), staging, &plan).unwrap();
            assert_eq!((later.outcome, later.origin), (Outcome::Mounted, FilesystemOrigin::Existing));
            assert_eq!(fs::read_to_string(staging.path().join("file")).unwrap(), "data");
            unstage(staging, Some(image.path())).unwrap();
        });
    }
}

// spec: node-stage-volume.differs-is-already-exists
#[test]
fn another_device_at_the_staging_directory_is_refused() {
    private_mount_namespace(|| {
        let image = Image::new(64);
        let other = Image::new(64);
        let staging = image.target("s");
        let plan = StagePlan::new(Filesystem::Ext4);
        stage(image.path(), &staging, &plan).unwrap();
        let error = refused(stage(other.path(), &staging, &plan), ErrorKind::AlreadyMounted);
        assert!(error.to_string().contains(image.path().to_str().unwrap()), "{error}");
        // Before the reservations of the other device are looked at: it has no key of this node, and the volume that is
        // mounted there would be shut down for that.
        let fenced = plan.reserve(Reservation::new(ReservationKey::new("cluster", 1), Fencing::Required));
        refused(stage(other.path(), &staging, &fenced), ErrorKind::AlreadyMounted);
        assert!(matches!(other.open().probe(), csi_mount::internal::Probe::Blank(_)), "it was formatted");

        refused(unstage(&staging, Some(other.path())), ErrorKind::WrongDevice);
        assert!(matches!(mount_state(staging.path()).unwrap(), MountState::Mounted(_)));
        unstage(&staging, Some(image.path())).unwrap();
    });
}

/// A device number can pass to another disk, or a node can be created again. The path then leads to one disk
/// when it is examined, and to another when it is mounted. Stage must notice this.
#[test]
fn a_path_that_changes_during_the_call_is_noticed() {
    private_mount_namespace(|| {
        let images = [Image::new(16), Image::new(16)];
        let staging = images[0].target("s");
        let plan = StagePlan::new(Filesystem::Ext4);
        let nodes = ["node", "spare"].map(|name| images[0].directory().join(name));
        for (image, node) in images.iter().zip(&nodes) {
            put_node(node, image.loop_device().number());
            stage(image.path(), &staging, &plan).unwrap();
            unstage(&staging, Some(image.path())).unwrap();
        }
        let is_done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !is_done.load(Ordering::Relaxed) {
                    renameat_with(CWD, &nodes[0], CWD, &nodes[1], RenameFlags::EXCHANGE).unwrap();
                    sleep(Duration::from_millis(1));
                }
            });
            let look = || {
                let is_right = match stage(&nodes[0], &staging, &plan) {
                    Ok(staged) => device_of(staging.path()).is_ok_and(|mounted| mounted == staged.device),
                    Err(error) => return Err((error.kind(), mount_state(staging.path()).unwrap())),
                };
                Ok(unstage(&staging, None).is_ok() && is_right)
            };
            let end = EndOfWork(&is_done);
            let unusual = (0..2000).map(|_| look()).find(|found| *found != Ok(true));
            drop(end);
            assert_eq!(unusual, Some(Err((ErrorKind::WrongDevice, MountState::NotMounted))));
        });
    });
}

// spec: node-stage-volume.differs-is-already-exists
#[test]
fn the_same_device_with_other_options_is_refused() {
    with_image(64, |image, staging| {
        let plan = StagePlan::new(Filesystem::Ext4);
        stage(image.path(), staging, &plan).unwrap();
        let read_only = plan.clone().options(MountOptions::new().read_only());
        refused(stage(image.path(), staging, &read_only), ErrorKind::AlreadyMounted);
        let xfs = StagePlan::new(Filesystem::Xfs);
        assert_eq!(stage(image.path(), staging, &xfs).unwrap_err().kind(), ErrorKind::AlreadyMounted);
        unstage(staging, None).unwrap();
    });
}

#[test]
fn whatever_is_on_the_device_is_kept() {
    type Prepare = fn(&Image);
    let cases: [(Prepare, ErrorKind, &str); 6] = [
        (|image| image.write(5 * MIB, &vec![1; 64 << 20]), ErrorKind::NotBlank, "unknown data at byte"),
        (|image| image.write(320 * MIB - 1, b"x"), ErrorKind::NotBlank, "unknown data at byte 335544319"),
        (|image| image.write(510, &[0x55, 0xaa]), ErrorKind::NotBlank, "partition table dos"),
        (|image| image.write(0, b"LUKS\xba\xbe\0\x02"), ErrorKind::NotBlank, "crypto_LUKS at byte 0"),
        (
            |image| drop(run("mkfs.xfs", &["-q", image.path().to_str().unwrap()])),
            ErrorKind::NotBlank,
            "the filesystem xfs at byte 0",
        ),
        (
            |image| fs::File::options().write(true).open(image.file()).unwrap().set_len(9 * MIB).unwrap(),
            ErrorKind::Unreadable,
            "can't be read at byte",
        ),
    ];
    for (prepare, kind, text) in cases {
        private_mount_namespace(move || {
            let image = that_can_fail(320);
            prepare(&image);
            let before = image.content();
            let staging = image.target("s");
            let error = refused(stage(image.path(), &staging, &StagePlan::new(Filesystem::Ext4)), kind);
            assert!(error.to_string().contains(text), "{text}: {error}");
            assert!(error.to_string().contains(image.path().to_str().unwrap()), "{error}");
            assert_eq!(image.content(), before, "{text}: the device was changed");
            assert_eq!(mount_state(staging.path()).unwrap(), MountState::Absent);
        });
    }
}

#[test]
fn a_read_only_stage_writes_nothing() {
    with_image(64, |image, staging| {
        let read_only = StagePlan::new(Filesystem::Ext4).options(MountOptions::new().read_only());
        let before = image.content();
        refused(stage(image.path(), staging, &read_only), ErrorKind::ReadOnly);
        assert_eq!(image.content(), before);

        stage(image.path(), staging, &StagePlan::new(Filesystem::Ext4)).unwrap();
        fs::write(staging.path().join("file"), "kept").unwrap();
        unstage(staging, None).unwrap();
        image.grow_to(128);
        let before = image.content();
        stage(image.path(), staging, &read_only).unwrap();
        assert_eq!(fs::read_to_string(staging.path().join("file")).unwrap(), "kept");
        unstage(staging, None).unwrap();
        assert_eq!(image.content(), before, "a filesystem staged read-only was written to");

        let options = LoopOptions::new().access(DeviceAccess::ReadOnly);
        let protected = LoopDevice::attach(image.file(), &options).unwrap();
        refused(stage(protected.path(), staging, &StagePlan::new(Filesystem::Ext4)), ErrorKind::ReadOnly);
        stage(protected.path(), staging, &read_only).unwrap();
        unstage(staging, None).unwrap();
        protected.detach().unwrap();
    });
}

/// The device of a volume that had content can read as blank. It is then not the same volume, so a plan can
/// forbid the format.
#[test]
fn a_volume_that_must_have_content_is_never_formatted() {
    for filesystem in Filesystem::ALL {
        with_image(320, move |image, staging| {
            let plan = StagePlan::new(filesystem);
            let error =
                refused(stage(image.path(), staging, &plan.clone().never_format()), ErrorKind::Damaged);
            let text = error.to_string();
            for word in ["holds nothing", "must already have content", "not changed"] {
                assert!(text.contains(word), "{text}");
            }
            assert!(image.is_zero(), "{filesystem}");

            stage(image.path(), staging, &plan).unwrap();
            unstage(staging, None).unwrap();
            let staged = stage(image.path(), staging, &plan.never_format()).unwrap();
            assert_eq!(staged.origin, FilesystemOrigin::Existing);
            unstage(staging, None).unwrap();
        });
    }
}

#[test]
fn a_larger_device_is_used_at_the_next_stage() {
    for filesystem in Filesystem::ALL {
        with_image(320, move |image, staging| {
            let plan = StagePlan::new(filesystem);
            stage(image.path(), staging, &plan).unwrap();
            unstage(staging, None).unwrap();
            image.grow_to(640);
            if filesystem == Filesystem::Ext4 {
                // Growing needs a check, even if the plan says that no check is made.
                let no_time = plan.clone().check(StageCheck::Never, Duration::ZERO);
                refused(stage(image.path(), staging, &no_time), ErrorKind::Unresponsive);
            }
            let staged = stage(image.path(), staging, &plan).unwrap();
            let grown = Grown::Grown { from: 320 * MIB, to: 640 * MIB };
            assert_eq!(staged.grown, Some(grown), "{filesystem}");
            let stat = rustix::fs::statvfs(staging.path()).unwrap();
            assert!(stat.f_blocks * stat.f_frsize > 500 * MIB, "{filesystem}");
            unstage(staging, None).unwrap();
        });
    }
}

// spec: node-expand-volume.grows
#[test]
fn a_staged_volume_expands_or_the_error_says_what_it_needs() {
    for filesystem in Filesystem::ALL {
        with_image(320, move |image, staging| {
            let published = image.target("p");
            stage(image.path(), staging, &StagePlan::new(filesystem)).unwrap();
            publish(staging.path(), &published, MountAttributes::empty()).unwrap();
            image.grow_to(640);
            match expand(published.path()) {
                Ok(grown) => {
                    assert_eq!(grown, Grown::Grown { from: 320 * MIB, to: 640 * MIB }, "{filesystem}");
                }
                Err(error) => {
                    assert_eq!((error.kind(), filesystem), (ErrorKind::PermissionDenied, Filesystem::Ext4));
                    assert!(error.to_string().contains("CAP_SYS_RESOURCE"), "{error}");
                }
            }
            unpublish(&published).unwrap();
            unstage(staging, None).unwrap();
            // Now the path is on the node's own filesystem, which must not be grown.
            assert_eq!(expand(staging.path()).unwrap_err().kind(), ErrorKind::NotFound);
        });
    }
}

/// A disk can have a second path, or come back under another name. If its filesystem were mounted twice, it
/// would be lost.
#[test]
fn an_xfs_is_not_mounted_twice_by_two_devices_of_its_disk() {
    with_image(320, |image, staging| {
        let second = image.target("t");
        let plan = StagePlan::new(Filesystem::Xfs);
        stage(image.path(), staging, &plan).unwrap();
        let again = [
            LoopDevice::attach(image.file(), &LoopOptions::new()).unwrap(),
            LoopDevice::attach(image.path(), &LoopOptions::new()).unwrap(),
        ];
        let asked = plan.clone().options(MountOptions::parse(["nouuid"]).unwrap());
        for (device, plan) in again.iter().flat_map(|device| [(device, &plan), (device, &asked)]) {
            let error = refused(stage(device.path(), &second, plan), ErrorKind::Busy);
            assert!(error.to_string().contains(staging.path().to_str().unwrap()), "{error}");
            assert!(!matches!(mount_state(second.path()).unwrap(), MountState::Mounted(_)));
        }
        again.into_iter().for_each(|device| device.detach().unwrap());
        unstage(staging, None).unwrap();
    });
}

#[test]
fn an_xfs_clone_is_staged_together_with_its_origin() {
    with_image(320, |image, staging| {
        let second = image.target("t");
        let plan = StagePlan::new(Filesystem::Xfs);
        stage(image.path(), staging, &plan).unwrap();
        fs::write(staging.path().join("file"), "cloned").unwrap();
        unstage(staging, None).unwrap();
        let copy = image.directory().join("clone");
        fs::copy(image.file(), &copy).unwrap();
        let clone = LoopDevice::attach(&copy, &LoopOptions::new()).unwrap();

        stage(image.path(), staging, &plan).unwrap();
        let staged = stage(clone.path(), &second, &plan).unwrap();
        assert_eq!(staged.device, clone.number());
        assert_eq!(fs::read_to_string(second.path().join("file")).unwrap(), "cloned");
        unstage(&second, None).unwrap();
        unstage(staging, None).unwrap();
        clone.detach().unwrap();
    });
}

#[test]
fn unstage_does_not_wait_and_names_the_users_of_the_device() {
    with_image(64, |image, staging| {
        let published = image.target("p");
        stage(image.path(), staging, &StagePlan::new(Filesystem::Ext4)).unwrap();
        publish(staging.path(), &published, MountAttributes::empty()).unwrap();
        let error = refused(unstage(staging, Some(image.path())), ErrorKind::Busy);
        assert!(error.to_string().contains(published.path().to_str().unwrap()), "{error}");
        let again = unstage(staging, Some(image.path())).unwrap_err();
        assert_eq!(again.kind(), ErrorKind::Busy, "repeated, it is still not free");
        unpublish(&published).unwrap();
        unstage(staging, Some(image.path())).unwrap();
    });
}

#[test]
fn a_mount_left_in_another_namespace_keeps_the_device_from_being_free() {
    with_image(64, |image, staging| {
        stage(image.path(), staging, &StagePlan::new(Filesystem::Ext4)).unwrap();
        let peer = PeerNamespace::new();
        let error = refused(unstage(staging, Some(image.path())), ErrorKind::Busy);
        assert!(error.to_string().contains("mount namespace that is not visible"), "{error}");
        drop(peer);
        unstage(staging, Some(image.path())).unwrap();
    });
}

#[test]
fn publish_refuses_a_volume_that_is_not_staged() {
    with_image(8, |image, staging| {
        let published = image.target("p");
        for prepare in [
            |_: &Target| (),
            |staging: &Target| {
                let _ = staging.create_dir().unwrap();
            },
        ] {
            prepare(staging);
            refused(publish(staging.path(), &published, MountAttributes::empty()), ErrorKind::NotFound);
            assert_eq!(mount_state(published.path()).unwrap(), MountState::Absent);
        }
    });
}

/// The image file gives back what FITRIM frees, in whatever piece of the device it is.
#[test]
fn unused_space_is_freed_on_the_device() {
    for filesystem in Filesystem::ALL {
        with_image(320, move |image, staging| {
            let options = MountOptions::parse(["nodiscard"]).unwrap();
            stage(image.path(), staging, &StagePlan::new(filesystem).options(options)).unwrap();
            let used = || fs::metadata(image.file()).unwrap().blocks() * 512;
            let empty = used();
            let file = staging.path().join("file");
            fs::write(&file, vec![1; 64 * MIB as usize]).unwrap();
            File::open(&file).unwrap().sync_all().unwrap();
            fs::remove_file(&file).unwrap();
            rustix::fs::syncfs(File::open(staging.path()).unwrap()).unwrap();
            assert!(used() >= empty + 64 * MIB, "{filesystem}: a deleted file stays on the device");

            let size = 320 * MIB;
            // btrfs frees what no chunk uses in each call.
            let first_end = if filesystem == Filesystem::Btrfs { size } else { size / 2 };
            let pieces = [0..first_end, first_end..size].into_iter().filter(|piece| !piece.is_empty());
            let trim = |piece| Host::kernel().block().trim(staging.path(), piece).unwrap();
            let end = Instant::now() + Duration::from_secs(60);
            loop {
                let freed: u64 = pieces.clone().map(trim).sum();
                let left = used().saturating_sub(empty);
                if freed >= 64 * MIB && left < 16 * MIB {
                    break;
                }
                // XFS gives up the blocks of a removed file in the background.
                assert!(Instant::now() < end, "{filesystem}: {freed} freed, {left} left");
                sleep(Duration::from_millis(10));
            }
            unstage(staging, None).unwrap();
        });
    }
}

/// The kernel returns only `EINVAL` for what it was built without. This kernel's pages can be as large as these blocks.
#[test]
fn blocks_larger_than_the_kernels_pages_are_named() {
    if rustix::param::page_size() >= 65536 {
        return;
    }
    with_image(64, |image, staging| {
        run("mkfs.ext4", &["-q", "-F", "-b", "65536", image.path().to_str().unwrap()]);
        match stage(image.path(), staging, &StagePlan::new(Filesystem::Ext4)) {
            // Linux 6.19
            Ok(_) => drop(unstage(staging, None).unwrap()),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
                assert!(error.to_string().contains("blocks of 65536 bytes"), "{error}");
            }
        }
    });
}

/// A kernel without quotas mounts such an ext4 only read-only. That was blamed on any mount option.
#[test]
fn a_kernel_without_quotas_is_not_blamed_on_the_options() {
    for flags in [&["discard"][..], &[]] {
        with_image(64, |image, staging| {
            run("mkfs.ext4", &["-q", "-O", "quota", image.path().to_str().unwrap()]);
            let plan = StagePlan::new(Filesystem::Ext4).options(MountOptions::parse(flags).unwrap());
            match stage(image.path(), staging, &plan) {
                Ok(_) => drop(unstage(staging, None).unwrap()),
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
                    assert!(error.to_string().contains("CONFIG_QFMT_V2"), "{error}");
                }
            }
        });
    }
}
