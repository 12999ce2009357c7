//! Failures that users of block volumes reported for other drivers, and that must not happen here. Each test
//! names the issues that report its failure.
//!
//! Other files have the tests of these failures:
//!
//! - `block_flow.rs`: the staging mount of another device (sergelogvinov/proxmox-csi-plugin#601), the clone
//!   with its origin's UUID (container-storage-interface/spec#482, topolvm/topolvm#522), mounts in other
//!   namespaces (kubernetes-sigs/azuredisk-csi-driver#3761), foreign binds
//!   (openebs/mayastor-control-plane#377, #390), the larger device (kubernetes/kubernetes#94929),
//!   the partitioned disk that was treated as empty (kubernetes/kubernetes#43378).
//! - `block_flow_raw.rs`: the writable read-only device (piraeusdatastore/linstor-csi#88).

use std::fs;
use std::os::unix::fs::symlink;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use csi_mount::internal::flow::block::{StageCheck, StagePlan, stage, unstage};
use csi_mount::internal::{CheckPolicy, DeviceQuestions as _, Format, LoopDevice, Probe, check, mount_state};
use csi_mount::testing::private_mount_namespace;
use csi_mount::{
    BlockDevice, CheckLimits, DeviceAccess, ErrorKind, ExpectedDevice, Filesystem, FormatLimit, FormatStep,
    Host, KernelVersion, LoopOptions, MkfsProfile, Mount, MountOptions, MountState, NodeNeed, Rescan, Target,
    Verdict,
};

use crate::devices::{Image, MIB, put_node, refused, run, that_can_fail, wait, with_image};

fn staging(image: &Image) -> Target {
    Target::new(image.directory().join("staging")).unwrap()
}

/// kubernetes/kubernetes#142243, #95183, longhorn/longhorn#14042, NetApp/trident#418: mkfs ran after a failed
/// probe.
#[test]
fn a_device_that_cannot_be_read_is_not_formatted() {
    private_mount_namespace(|| {
        let image = that_can_fail(32);
        image.write(20 * MIB, b"somebody's");
        fs::OpenOptions::new().write(true).open(image.file()).unwrap().set_len(30 * MIB).unwrap();
        let before = image.content();
        refused(
            stage(image.path(), &staging(&image), &StagePlan::new(Filesystem::Ext4)),
            ErrorKind::Unreadable,
        );
        assert_eq!(image.content(), before);
    });
}

/// hetznercloud/csi-driver#1346: the device was absent at the probe, and existed at mkfs.
#[test]
fn a_device_that_comes_late_is_waited_for_and_checked_first() {
    with_image(64, |image, staging| {
        image.write(100, b"somebody's");
        let link = image.directory().join("by-id");
        let plan = StagePlan::new(Filesystem::Ext4).wait_for_device(Duration::from_millis(50));
        refused(stage(&link, staging, &plan), ErrorKind::NotFound);
        let before = image.content();
        let plan = plan.wait_for_device(Duration::from_secs(60));
        std::thread::scope(|scope| {
            let waiting =
                scope.spawn(|| private_mount_namespace(|| stage(&link, staging, &plan).unwrap_err().kind()));
            symlink(image.path(), &link).unwrap();
            assert_eq!(waiting.join().unwrap(), ErrorKind::NotBlank);
        });
        assert_eq!(image.content(), before);
    });
}

/// kubernetes-sigs/aws-ebs-csi-driver#1224, hetznercloud/csi-driver#1455: a stale link led to another disk.
#[test]
fn a_stale_link_does_not_prove_the_disk() {
    with_image(64, |image, staging| {
        let other = Image::new(64);
        let link = image.directory().join("virtio-pvc-1");
        symlink(other.path(), &link).unwrap();
        let number = image.loop_device().number();
        let short = Duration::from_millis(30);
        for expected in [ExpectedDevice::new().serial("pvc-1"), ExpectedDevice::new().number(number)] {
            let plan = StagePlan::new(Filesystem::Ext4).expect(expected).wait_for_device(short);
            refused(stage(&link, staging, &plan), ErrorKind::WrongDevice);
            assert!(matches!(other.open().probe(), Probe::Blank(_)), "the wrong disk was formatted");
        }
        let found = wait(&ExpectedDevice::new().number(number).wait_limit(short)).unwrap();
        assert_eq!((found.number(), found.path()), (number, image.path()), "sysfs knows it");
        let small =
            wait(&ExpectedDevice::new().number(number).min_size(65 * MIB).wait_limit(short)).unwrap_err();
        assert_eq!(small.kind(), ErrorKind::OutOfRange, "{small}");
        assert_eq!(
            wait(&ExpectedDevice::new().wait_limit(short)).unwrap_err().kind(),
            ErrorKind::InvalidInput
        );
        refused(
            wait(&ExpectedDevice::new().serial("no disk has this").wait_limit(short)),
            ErrorKind::NotFound,
        );
        assert_eq!(found.rescan().unwrap(), Rescan::NotNeeded, "a loop device follows its file");
        assert!(found.holders().unwrap().is_empty());
    });
}

/// cocoonstack/sandbox#78: the kernel knew the disk before its node existed.
#[test]
fn a_node_with_another_number_is_not_the_disk() {
    let image = Image::new(8);
    let other = Image::new(8);
    let node = image.directory().join("node");
    put_node(&node, other.loop_device().number());
    let number = image.loop_device().number();
    let expected = ExpectedDevice::new().number(number).wait_limit(Duration::from_secs(60));
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| Host::kernel().devices().wait_at(&expected, &node).unwrap());
        // The node is replaced atomically, as udev does. The wait looks again until it finds the right node.
        let right = image.directory().join("right");
        put_node(&right, image.loop_device().number());
        fs::rename(&right, &node).unwrap();
        let found = waiting.join().unwrap();
        assert_eq!(Host::kernel().devices().number(&found).unwrap(), image.loop_device().number());
    });
}

/// kubernetes-sigs/aws-ebs-csi-driver#2110, openebs/zfs-localpv#759: mkfs.xfs was newer than the kernel.
#[test]
fn a_profile_disables_features_that_an_older_kernel_does_not_know() {
    let words = |profile: MkfsProfile| {
        let image = Image::new(300);
        let device = image.open();
        let Probe::Blank(proof) = device.probe() else { panic!("not blank") };
        Format::new(Filesystem::Xfs).profile(profile).run(proof).unwrap();
        let version = run("xfs_db", &["-r", "-c", "version", image.path().to_str().unwrap()]);
        ["BIGTIME", "INOBTCNT", "NREXT64"].map(|name| version.contains(name))
    };
    let old = MkfsProfile::Kernel(KernelVersion::new(5, 4));
    assert_eq!(words(old), [false; 3]);
    assert!(words(MkfsProfile::Mkfs)[0], "this mkfs.xfs switches it on by itself");
    for (filesystem, kernel) in [(Filesystem::Ext4, "linux-4.18"), (Filesystem::Btrfs, "linux-4.18")] {
        let image = Image::new(128);
        let device = image.open();
        let Probe::Blank(proof) = device.probe() else { panic!("not blank") };
        Format::new(filesystem).profile(kernel.parse().unwrap()).run(proof).unwrap();
    }
}

/// The same failure on the running kernel. What this mkfs creates by default is mounted, or the error says
/// why not. What the profile for the running kernel creates is mounted.
#[test]
fn features_for_a_newer_kernel_are_named() {
    private_mount_namespace(|| {
        for profile in [MkfsProfile::Mkfs, MkfsProfile::Running] {
            let image = Image::new(320);
            let plan = StagePlan::new(Filesystem::Xfs).mkfs_profile(profile);
            match stage(image.path(), &staging(&image), &plan) {
                Ok(_) => drop(unstage(&staging(&image), Some(image.path())).unwrap()),
                Err(error) => {
                    assert_eq!(
                        (profile, error.kind()),
                        (MkfsProfile::Mkfs, ErrorKind::Unsupported),
                        "{error}"
                    );
                    let text = error.to_string();
                    assert!(
                        text.contains("the filesystem has ") && text.contains("the kernel is "),
                        "{text}"
                    );
                    assert_eq!(mount_state(staging(&image).path()).unwrap(), MountState::NotMounted);
                    println!("{text}");
                }
            }
        }
    });
}

/// Microsoft local-csi-driver#458, piraeusdatastore/linstor-csi#385: fsck ran without limits, and on a
/// mounted device.
#[test]
fn a_filesystem_with_errors_is_repaired_only_before_it_is_mounted() {
    with_image(64, |image, staging| {
        let plan = StagePlan::new(Filesystem::Ext4).mkfs_arguments(["-O", "^metadata_csum,^64bit"]);
        stage(image.path(), staging, &plan).unwrap();
        fs::write(staging.path().join("file"), "kept").unwrap();
        let busy =
            check(&image.open(), Filesystem::Ext4, CheckPolicy::Preen, CheckLimits::default()).unwrap_err();
        assert_eq!(busy.kind(), ErrorKind::Busy);
        unstage(staging, None).unwrap();

        // The state field of the superblock: 2 means that errors were found.
        let has_errors = || image.read(1024 + 58, 2)[0] & 2 != 0;
        let damage = || image.write(1024 + 58, &[2, 0]);
        damage();
        let never = plan.clone().check(StageCheck::Never, Duration::from_secs(60));
        stage(image.path(), staging, &never).unwrap();
        unstage(staging, None).unwrap();
        assert!(has_errors());
        stage(image.path(), staging, &plan).unwrap();
        assert_eq!(fs::read_to_string(staging.path().join("file")).unwrap(), "kept");
        unstage(staging, None).unwrap();
        assert!(!has_errors(), "it was not mended");

        // Less memory than a program needs to start. The memory is measured while the program runs, and a
        // fast program can end before the measurement.
        let starved = plan.clone().check(StageCheck::WhenNeeded, CheckLimits::default().memory(4096));
        let attempt = || {
            damage();
            let outcome = stage(image.path(), staging, &starved);
            outcome.map(|_| unstage(staging, None).unwrap()).err()
        };
        let error = (0..100).find_map(|_| attempt()).expect("no program was seen to take memory");
        assert_eq!(error.kind(), ErrorKind::OutOfMemory, "{error}");
        assert!(error.to_string().contains("e2fsck needed more than its 0 MiB"), "{error}");
        assert_eq!(mount_state(staging.path()).unwrap(), MountState::NotMounted);
        assert!(has_errors(), "a check that was cut short counts as one");
        stage(image.path(), staging, &plan).unwrap();
        assert_eq!(fs::read_to_string(staging.path().join("file")).unwrap(), "kept");
        unstage(staging, None).unwrap();
        assert!(!has_errors(), "the retry mends it");

        damage();
        let late = plan.check(StageCheck::WhenNeeded, Duration::ZERO);
        refused(stage(image.path(), staging, &late), ErrorKind::Unresponsive);
        assert_eq!(mount_state(staging.path()).unwrap(), MountState::NotMounted);
    });
}

/// ydb-platform/nbs#2936: ext4 had become read-only, and the next pod got it.
#[test]
fn a_filesystem_that_went_read_only_is_not_staged_for_writing() {
    with_image(64, |image, staging| {
        let options = MountOptions::parse(["errors=remount-ro"]).unwrap();
        let plan = StagePlan::new(Filesystem::Ext4).options(options);
        stage(image.path(), staging, &plan).unwrap();
        let name = image.path().file_name().unwrap().to_str().unwrap();
        fs::write(format!("/sys/fs/ext4/{name}/trigger_fs_error"), "the test's error").unwrap();
        assert!(fs::write(staging.path().join("file"), "x").is_err());
        refused(stage(image.path(), staging, &plan), ErrorKind::ReadOnly);
        unstage(staging, None).unwrap();
        // A new stage repairs it, and it accepts writes.
        stage(image.path(), staging, &plan).unwrap();
        fs::write(staging.path().join("file"), "x").unwrap();
        unstage(staging, None).unwrap();
    });
}

/// longhorn/longhorn#9908: mkfs of a large volume outlasts a call, and many of them slow each other down.
#[test]
fn formats_take_turns_and_report_their_steps() {
    let images: Vec<Image> = (0..3).map(|_| Image::new(64)).collect();
    let limit = FormatLimit::new(1);
    let steps = Arc::new(Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for (index, image) in images.iter().enumerate() {
            let limit = limit.clone();
            let steps = Arc::clone(&steps);
            scope.spawn(move || {
                let device = image.open();
                let Probe::Blank(proof) = device.probe() else { panic!("not blank") };
                let watcher = move |step| steps.lock().unwrap().push((index, step));
                Format::new(Filesystem::Ext4).format_limit(&limit).on_step(watcher).run(proof).unwrap();
            });
        }
    });
    let mut steps = steps.lock().unwrap().clone();
    steps.retain(|(_, step)| matches!(step, FormatStep::Preparing | FormatStep::Verifying));
    assert_eq!(steps.len(), 6);
    for turn in steps.chunks(2) {
        assert!(turn[0].0 == turn[1].0 && turn[0].1 == FormatStep::Preparing, "two at once: {steps:?}");
    }
}

/// The device is mounted after the proof was made.
#[test]
fn a_device_mounted_elsewhere_is_neither_formatted_nor_checked() {
    with_image(64, |image, staging| {
        let device = BlockDevice::open(image.path()).unwrap();
        let Probe::Blank(proof) = device.probe() else { panic!("not blank") };
        stage(image.path(), staging, &StagePlan::new(Filesystem::Ext4)).unwrap();
        let error = refused(Format::new(Filesystem::Ext4).run(proof), ErrorKind::Busy);
        assert!(error.to_string().contains(staging.path().to_str().unwrap()), "{error}");
        unstage(staging, None).unwrap();
    });
}

/// If the filesystem's tools are missing, the error names them and their package. The device is unchanged.
#[test]
fn a_missing_mkfs_is_named_before_anything_is_written() {
    with_image(320, |image, staging| {
        for directory in ["/usr/sbin", "/sbin", "/usr/local/sbin", "/usr/bin"] {
            if fs::symlink_metadata(directory).is_ok_and(|place| place.is_dir()) {
                Mount::new("tmpfs", "no tools").at(&Target::new(directory).unwrap()).unwrap();
            }
        }
        for (filesystem, package) in [
            (Filesystem::Ext4, "e2fsprogs"),
            (Filesystem::Xfs, "xfsprogs"),
            (Filesystem::Btrfs, "btrfs-progs"),
        ] {
            let error =
                refused(stage(image.path(), staging, &StagePlan::new(filesystem)), ErrorKind::MissingTool);
            let text = error.to_string();
            assert!(text.contains(&format!("mkfs.{filesystem}")) && text.contains(package), "{text}");
            // The check at the start of the driver also reports it.
            let report =
                Host::kernel().mounts().preflight(&["/".into()], &[NodeNeed::Filesystem(filesystem)]);
            let program = format!("mkfs.{filesystem} for {filesystem}");
            let found = report.findings().iter().find(|found| found.subject == program).unwrap();
            assert!(found.verdict == Verdict::Broken && found.detail.contains(package), "{report}");
            assert!(matches!(image.open().probe(), Probe::Blank(_)));
        }
    });
}

/// A device with a new filesystem, as large as the filesystem needs.
fn formatted(filesystem: Filesystem) -> Image {
    let image = Image::new(if filesystem == Filesystem::Xfs { 320 } else { 128 });
    let staging = staging(&image);
    stage(image.path(), &staging, &StagePlan::new(filesystem)).unwrap();
    unstage(&staging, None).unwrap();
    image
}

/// The kernel says "Invalid argument" or "Input/output error" for an image that lost its end.
#[test]
fn a_device_shorter_than_its_filesystem_is_named_with_both_sizes() {
    private_mount_namespace(|| {
        for filesystem in Filesystem::ALL {
            let image = formatted(filesystem);
            let whole = image.open().size().unwrap();
            let short = whole - 16 * MIB;
            fs::OpenOptions::new().write(true).open(image.file()).unwrap().set_len(short).unwrap();
            image.loop_device().refresh_size().unwrap();
            let before = image.content();
            let plan = StagePlan::new(filesystem);
            for plan in [plan.clone(), plan.options(MountOptions::new().read_only())] {
                let error = stage(image.path(), &staging(&image), &plan).unwrap_err();
                assert_eq!(error.kind(), ErrorKind::Damaged, "{filesystem}: {error}");
                let text = error.to_string();
                let says = [format!("has {short} bytes"), format!("on it has {whole}")];
                assert!(says.iter().all(|words| text.contains(words)), "{text}");
            }
            assert_eq!(image.content(), before);
        }
    });
}

/// The last part of such an image can't be read, and the device counted as broken.
#[test]
fn an_image_with_an_incomplete_sector_is_named_by_its_size() {
    private_mount_namespace(|| {
        for extra in [512, 3584] {
            let image = Image::of_bytes(64 * MIB + extra, &LoopOptions::new().sector_size(4096));
            let error = refused(
                stage(image.path(), &staging(&image), &StagePlan::new(Filesystem::Ext4)),
                ErrorKind::OutOfRange,
            );
            assert!(error.to_string().contains("not a multiple of its sectors"), "{error}");
        }
    });
}

/// A read-only stage of a snapshot that was taken while its origin was mounted: the log is dirty. ext4 and XFS
/// said "Read-only file system", btrfs "Input/output error", and an XFS next to its origin blamed the UUID.
#[test]
fn a_log_that_a_read_only_device_cannot_replay_is_named() {
    private_mount_namespace(|| {
        for filesystem in Filesystem::ALL {
            let image = formatted(filesystem);
            let origin = staging(&image);
            stage(image.path(), &origin, &StagePlan::new(filesystem)).unwrap();
            let file = fs::File::create(origin.path().join("file")).unwrap();
            std::io::Write::write_all(&mut &file, b"data").unwrap();
            file.sync_all().unwrap();
            drop(file);
            let snapshot = image.directory().join("snapshot");
            csi_mount::copy_file(image.file(), &snapshot).unwrap();
            let read_only = LoopOptions::new().access(DeviceAccess::ReadOnly);
            let device = LoopDevice::attach(&snapshot, &read_only).unwrap();
            let place = Target::new(image.directory().join("read-only")).unwrap();
            let plan = StagePlan::new(filesystem).options(MountOptions::new().read_only());
            // XFS first refuses the UUID of a mounted filesystem.
            if filesystem != Filesystem::Xfs {
                unstage(&origin, None).unwrap();
            }
            let error = stage(device.path(), &place, &plan).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::ReadOnly, "{filesystem}: {error}");
            let text = error.to_string();
            assert!(text.contains("its log must be replayed") && !text.contains("UUID"), "{text}");
            assert!(text.contains("norecovery"), "how to read it all the same: {text}");
            if filesystem == Filesystem::Xfs {
                unstage(&origin, None).unwrap();
            }
            device.detach().unwrap();
            assert!(!place.path().exists());
        }
    });
}
