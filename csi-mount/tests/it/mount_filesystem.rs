//! Filesystems are mounted with their options, once, and the error of a failed mount says what is wrong.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use csi_mount::internal::{Feature, LoopDevice, PeerNamespace, mount_state, without_features};
use csi_mount::{
    DeviceAccess, Error, ErrorKind, LoopOptions, Mount, MountOptions, MountState, Outcome, Target, mounts,
    unmount,
};
use nix::libc;

use crate::devices::{Image, refused};
use crate::mount_support::{layers, sandbox, target, with_target, write_error};

/// The running kernel, and a kernel that has only `mount(2)`.
const KERNELS: [&[Feature]; 2] = [&[], &[Feature::FsContext, Feature::MountSetattr, Feature::Statmount]];

/// An image with a filesystem from the standard mkfs program.
fn image(filesystem: &str) -> Image {
    let image = Image::new(if filesystem == "xfs" { 300 } else { 128 });
    let program = format!("mkfs.{filesystem}");
    let status = Command::new(&program).arg("-q").arg(image.path()).stdin(Stdio::null()).status();
    assert!(status.unwrap_or_else(|error| panic!("{program}: {error}")).success());
    image
}

fn options(flags: &[&str]) -> MountOptions {
    MountOptions::parse(flags).unwrap()
}

/// A process that another thread has just forked holds the device of a failed mount until it runs its program.
fn try_mount(filesystem: &str, image: &Image, flags: &[&str], target: &Target) -> Result<Outcome, Error> {
    let end = Instant::now() + Duration::from_secs(60);
    loop {
        let mounted = Mount::new(filesystem, image.path()).options(&options(flags)).at(target);
        let is_busy = mounted.as_ref().is_err_and(|error| error.kind() == ErrorKind::Busy);
        if !is_busy || Instant::now() >= end {
            return mounted;
        }
        sleep(Duration::from_millis(5));
    }
}

#[test]
fn each_filesystem_is_mounted_once() {
    for filesystem in ["ext4", "xfs", "btrfs"] {
        let image = image(filesystem);
        for kernel in KERNELS {
            with_target(|target| {
                let mount =
                    || without_features(kernel, || try_mount(filesystem, &image, &["noatime"], target));
                assert_eq!(mount().unwrap(), Outcome::Mounted);
                fs::write(target.path().join("file"), "data").unwrap();
                assert_eq!(mount().unwrap(), Outcome::AlreadyMounted, "{filesystem} without {kernel:?}");
                assert_eq!(layers(target.path()), 1);
                let entry = target.mounted().unwrap().unwrap();
                assert!(
                    entry.is_on(image.loop_device().number()) && entry.fs_type == filesystem,
                    "{entry:?}"
                );

                let error = refused(
                    try_mount(filesystem, &image, &["noatime", "ro"], target),
                    ErrorKind::AlreadyMounted,
                );
                assert!(error.to_string().contains("ro,noatime was requested"), "{error}");
                unmount(target).unwrap();
            });
        }
    }
}

#[test]
fn another_device_is_not_the_same() {
    let one = image("ext4");
    let two = image("ext4");
    with_target(|target| {
        try_mount("ext4", &one, &[], target).unwrap();
        let error = refused(try_mount("ext4", &two, &[], target), ErrorKind::AlreadyMounted);
        let text = error.to_string();
        assert!(text.contains(&format!("{} (", two.path().display())), "what was asked for: {text}");
        assert!(
            text.contains(&format!("the existing mount is ext4 from {}", one.path().display())),
            "{text}"
        );
        unmount(target).unwrap();
    });
}

#[test]
fn a_bad_option_is_named_by_the_filesystem_and_its_value_is_not() {
    let image = image("ext4");
    with_target(|target| {
        let error = refused(
            try_mount("ext4", &image, &["no_such_option=s3cretvalue"], target),
            ErrorKind::InvalidOption,
        );
        let text = format!("{error} {error:?}");
        assert!(text.contains("Unknown parameter 'no_such_option'"), "the kernel's words: {text}");
        assert!(!text.contains("s3cretvalue"), "{text}");

        let error = try_mount("ext4", &image, &["commit=s3cretvalue"], target).unwrap_err();
        assert!(
            error.to_string().contains("commit") && !error.to_string().contains("s3cretvalue"),
            "{error}"
        );
        assert_eq!(mount_state(target.path()).unwrap(), MountState::NotMounted);
    });
}

/// An unknown subvolume or log device read as a missing device, and was tried again for ever.
#[test]
fn a_wrong_option_is_recognized_in_every_filesystem() {
    let missing = ["device=/dev/no-such-device", "subvol=no-such-subvolume", "subvolid=4242424242"];
    let behind_the_end = "sb=1000000000";
    let of_ext4 = [
        "commit=s3cret",
        "data=s3cret",
        "stripe=-1",
        "data=journal,delalloc",
        "sb=8",
        behind_the_end,
        "nonesuch",
    ];
    let of_xfs = ["logbsize=777", "norecovery", "logdev=/dev/no-such-device", "swidth=128", "nonesuch"];
    let of_btrfs = [missing[0], missing[1], missing[2], "compress=s3cret", "rescue=s3cret", "nonesuch"];
    let of_tmpfs = ["size=s3cret", "huge=s3cret", "mode=s3cret", "nonesuch"];
    let cases: [(&str, &[&str]); 4] =
        [("ext4", &of_ext4), ("xfs", &of_xfs), ("btrfs", &of_btrfs), ("tmpfs", &of_tmpfs)];
    for (filesystem, wrong) in cases {
        let image = if filesystem == "tmpfs" { Image::new(16) } else { image(filesystem) };
        // What mkfs wrote is in the image.
        fs::File::open(image.path()).unwrap().sync_all().unwrap();
        let before = image.content();
        for (kernel, wrong) in KERNELS.iter().flat_map(|kernel| wrong.iter().map(move |it| (kernel, it))) {
            with_target(|target| {
                let mut flags: Vec<&str> = wrong.split(',').collect();
                // A btrfs looks for its subvolume when it is mounted already.
                flags.extend((filesystem == "btrfs").then_some("ro"));
                let mounted = without_features(kernel, || try_mount(filesystem, &image, &flags, target));
                let error = mounted.expect_err(wrong);
                assert_eq!(error.kind(), ErrorKind::InvalidOption, "{filesystem} {wrong}: {error}");
                let text = error.to_string();
                let key = flags[0].split('=').next().unwrap();
                assert!(text.contains(key) && !text.contains("s3cret"), "{filesystem} {wrong}: {text}");
                assert_eq!(mount_state(target.path()).unwrap(), MountState::NotMounted);
            });
        }
        fs::File::open(image.path()).unwrap().sync_all().unwrap();
        assert_eq!(image.content(), before, "nothing was written to the device: {filesystem}");
    }
}

/// `EINVAL` for a journal was blamed on `discard`, which was then removed for nothing.
#[test]
fn a_journal_that_cannot_be_loaded_is_not_blamed_on_the_options() {
    // The header of the journal's superblock.
    const HEADER: [u8; 8] = [0xc0, 0x3b, 0x39, 0x98, 0, 0, 0, 4];
    for is_dirty in [false, true] {
        with_target(|target| {
            let image = image("ext4");
            let mounted = try_mount("ext4", &image, &[], target);
            mounted.unwrap();
            fs::write(target.path().join("file"), "data").unwrap();
            fs::File::open(target.path().join("file")).unwrap().sync_all().unwrap();
            let dirty = Image::copy_of(&image.file());
            unmount(target).unwrap();
            let image = if is_dirty { dirty } else { image };
            let journal = image.nonzero_blocks().find_map(|(place, block)| {
                let at = (0..block.len()).step_by(1024).find(|at| block[*at..].starts_with(&HEADER))?;
                Some(place + at as u64)
            });
            image.write(journal.unwrap(), &[0; 4]);
            let before = image.content();
            for (kernel, flags) in
                KERNELS.iter().flat_map(|kernel| [(kernel, &["discard"][..]), (kernel, &[])])
            {
                let error =
                    without_features(kernel, || try_mount("ext4", &image, flags, target)).unwrap_err();
                let expected = if is_dirty { ErrorKind::InvalidInput } else { ErrorKind::Damaged };
                assert_eq!(error.kind(), expected, "{flags:?}: {error}");
                assert!(error.to_string().contains("journal"), "{flags:?}: {error}");
                if is_dirty {
                    let wrong =
                        without_features(kernel, || try_mount("ext4", &image, &["commit=-1"], target));
                    assert_eq!(wrong.unwrap_err().kind(), ErrorKind::InvalidOption);
                }
            }
            fs::File::open(image.path()).unwrap().sync_all().unwrap();
            assert_eq!(image.content(), before, "nothing was written to the device");
        });
    }
}

/// A device without a filesystem stays what it is, whatever the options.
#[test]
fn a_device_is_not_blamed_on_the_options() {
    with_target(|target| {
        let blank = Image::new(16);
        for kernel in KERNELS {
            without_features(kernel, || {
                refused(try_mount("ext4", &blank, &["data=ordered"], target), ErrorKind::InvalidInput);
                let absent = Mount::new("ext4", "/dev/no-such-device").options(&options(&["commit=9"]));
                assert_eq!(absent.at(target).unwrap_err().kind(), ErrorKind::NotFound);
            });
        }
    });
}

#[test]
fn a_failure_is_explained_by_the_device() {
    with_target(|target| {
        let failure = |fs_type: &str, source: &Path| Mount::new(fs_type, source).at(target).unwrap_err();

        let error = failure("no_such_fs", Path::new("/dev/null"));
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.to_string().contains("modprobe no_such_fs"), "{error}");
        assert_eq!(failure("ext4", Path::new("/dev/no_such_device")).kind(), ErrorKind::NotFound);
        let error = failure("ext4", Path::new("/dev/null"));
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
        assert!(error.to_string().contains("/dev/null is not a block device"), "{error}");

        let blank = Image::new(16);
        assert_eq!(failure("ext4", blank.path()).kind(), ErrorKind::InvalidInput);
    });
}

#[test]
fn a_read_only_device_needs_a_read_only_mount() {
    let image = image("ext4");
    let read_only = LoopOptions::new().access(DeviceAccess::ReadOnly);
    let device = LoopDevice::attach(image.file(), &read_only).unwrap();
    for kernel in KERNELS {
        with_target(|target| {
            without_features(kernel, || {
                let error = refused(Mount::new("ext4", device.path()).at(target), ErrorKind::ReadOnly);
                assert!(error.to_string().contains("is read-only; ask for a read-only mount"), "{error}");
                let mount = Mount::new("ext4", device.path()).options(&options(&["ro"])).at(target);
                assert_eq!(mount.unwrap(), Outcome::Mounted);
            });
            assert_eq!(write_error(target.path()), Some(libc::EROFS));
            unmount(target).unwrap();
        });
    }
    device.detach().unwrap();
}

#[test]
fn a_clone_of_a_mounted_xfs_is_explained() {
    let original = image("xfs");
    let copy = tempfile::tempdir().unwrap();
    let file = copy.path().join("copy");
    // The copy is sparse, like the original.
    assert!(
        Command::new("cp").arg("--sparse=always").arg(original.file()).arg(&file).status().unwrap().success()
    );
    let device = LoopDevice::attach(&file, &LoopOptions::new()).unwrap();
    sandbox(|sandbox| {
        let one = target(sandbox, "one");
        let two = target(sandbox, "two");
        try_mount("xfs", &original, &[], &one).unwrap();
        let error = refused(Mount::new("xfs", device.path()).at(&two), ErrorKind::Busy);
        let text = error.to_string();
        assert!(
            text.contains(&format!("{} is mounted and has the same XFS UUID", original.path().display())),
            "{text}"
        );
        assert!(text.contains("nouuid"), "{text}");
        Mount::new("xfs", device.path()).options(&options(&["nouuid"])).at(&two).unwrap();
        unmount(&two).unwrap();
        unmount(&one).unwrap();
    });
    device.detach().unwrap();
}

#[test]
fn attributes_are_received_with_the_filesystem() {
    let image = image("ext4");
    for kernel in KERNELS {
        with_target(|target| {
            let host = PeerNamespace::new();
            let flags = ["ro", "nosuid", "nodev", "noexec"];
            without_features(kernel, || try_mount("ext4", &image, &flags, target)).unwrap();
            let path = target.path().to_owned();
            host.run(move || {
                let entry = mounts().unwrap().into_iter().rfind(|entry| entry.mount_point == path).unwrap();
                assert_eq!(entry.attributes, options(&flags).attributes());
                assert!(entry.super_options.has_flag("ro"), "nothing writes to the device");
                assert_eq!(write_error(&path), Some(libc::EROFS));
            });
            unmount(target).unwrap();
        });
    }
}

#[test]
fn a_filesystem_that_turned_read_only_does_not_count_as_writable() {
    use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, MoveMountFlags};
    let image = image("ext4");
    with_target(|target| {
        // A writable mount of a read-only superblock, as after an error with errors=remount-ro.
        let context = rustix::mount::fsopen("ext4", FsOpenFlags::FSOPEN_CLOEXEC).unwrap();
        rustix::mount::fsconfig_set_string(&context, "source", image.path()).unwrap();
        rustix::mount::fsconfig_set_flag(&context, "ro").unwrap();
        rustix::mount::fsconfig_create(&context).unwrap();
        let flags = (FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty());
        let mount = rustix::mount::fsmount(&context, flags.0, flags.1).unwrap();
        let empty = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
        rustix::mount::move_mount(&mount, c"", rustix::fs::CWD, target.path(), empty).unwrap();
        drop((mount, context));

        for kernel in KERNELS {
            let error = refused(
                without_features(kernel, || try_mount("ext4", &image, &[], target)),
                ErrorKind::ReadOnly,
            );
            assert!(error.to_string().contains("turned read-only"), "{error}");
        }
        unmount(target).unwrap();
    });
}
