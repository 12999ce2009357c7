//! A filesystem grows to its device's size, mounted or unmounted, depending on what it supports.

use std::fs;

use csi_mount::internal::flow::block::{StagePlan, expand, stage};
use csi_mount::internal::{
    CheckPolicy, CheckReport, DeviceQuestions as _, Format, Probe, check, grow_mounted, grow_unmounted,
};
use csi_mount::testing::private_mount_namespace;
use csi_mount::{CheckLimits, ErrorKind, Filesystem, Grown, Mount, Target, unmount};

use crate::devices::{Image, MIB, eventually, refused, run};

fn formatted(filesystem: Filesystem) -> Image {
    formatted_with(320, filesystem)
}

fn formatted_with(mebibytes: u64, filesystem: Filesystem) -> Image {
    let image = Image::new(mebibytes);
    let device = image.open();
    let Probe::Blank(proof) = device.probe() else { panic!("not blank") };
    Format::new(filesystem).run(proof).unwrap();
    image
}

fn mounted(image: &Image, filesystem: Filesystem) -> Target {
    let target = Target::new(image.directory().join("at")).unwrap();
    target.create_dir().unwrap();
    Mount::new(filesystem.name(), image.path()).at(&target).unwrap();
    target
}

fn total(target: &Target) -> u64 {
    let stat = rustix::fs::statvfs(target.path()).unwrap();
    stat.f_blocks * stat.f_frsize
}

#[test]
fn xfs_and_btrfs_grow_mounted() {
    for filesystem in [Filesystem::Xfs, Filesystem::Btrfs] {
        private_mount_namespace(move || {
            let image = formatted(filesystem);
            let target = mounted(&image, filesystem);
            let device = image.open();
            fs::write(target.path().join("file"), "kept").unwrap();
            let same = grow_mounted(&device, filesystem, target.path()).unwrap();
            assert_eq!(same, Grown::Unchanged { size: 320 * MIB }, "{filesystem}");
            let before = total(&target);
            image.grow_to(640);
            let grown = grow_mounted(&device, filesystem, target.path()).unwrap();
            assert_eq!(grown, Grown::Grown { from: 320 * MIB, to: 640 * MIB }, "{filesystem}");
            assert!(total(&target) >= before + 300 * MIB, "{filesystem}");
            assert_eq!(fs::read_to_string(target.path().join("file")).unwrap(), "kept");

            let busy = grow_unmounted(&device, filesystem, CheckLimits::default()).unwrap_err();
            assert_eq!(busy.kind(), ErrorKind::Unsupported, "{filesystem}");
            unmount(&target).unwrap();
            assert_eq!(
                check(&device, filesystem, CheckPolicy::ReportOnly, CheckLimits::default()).unwrap(),
                CheckReport::Clean
            );
        });
    }
}

#[test]
fn a_small_btrfs_reports_its_minimum_size_and_is_staged() {
    private_mount_namespace(|| {
        let image = formatted_with(120, Filesystem::Btrfs);
        let staging = Target::new(image.directory().join("at")).unwrap();
        let stage = || stage(image.path(), &staging, &StagePlan::new(Filesystem::Btrfs)).unwrap();
        image.grow_to(200);
        assert_eq!(stage().grown, None);
        let error = refused(expand(staging.path()), ErrorKind::OutOfRange);
        assert!(error.to_string().contains("256 MiB or more"), "{error}");
        image.grow_to(256);
        assert_eq!(stage().grown, Some(Grown::Grown { from: 120 * MIB, to: 256 * MIB }));
        unmount(&staging).unwrap();
    });
}

#[test]
fn ext4_grows_unmounted() {
    private_mount_namespace(|| {
        let image = formatted(Filesystem::Ext4);
        let device = image.open();
        let target = mounted(&image, Filesystem::Ext4);
        fs::write(target.path().join("file"), "kept").unwrap();
        image.grow_to(640);
        assert_eq!(
            grow_unmounted(&device, Filesystem::Ext4, CheckLimits::default()).unwrap_err().kind(),
            ErrorKind::Busy
        );
        unmount(&target).unwrap();

        let grown = grow_unmounted(&device, Filesystem::Ext4, CheckLimits::default()).unwrap();
        assert_eq!(grown, Grown::Grown { from: 320 * MIB, to: 640 * MIB });
        assert_eq!(
            grow_unmounted(&device, Filesystem::Ext4, CheckLimits::default()).unwrap(),
            Grown::Unchanged { size: 640 * MIB }
        );
        let target = mounted(&image, Filesystem::Ext4);
        assert!(total(&target) > 500 * MIB);
        assert_eq!(fs::read_to_string(target.path().join("file")).unwrap(), "kept");
        unmount(&target).unwrap();
    });
}

fn may_resize() -> bool {
    use rustix::thread::{CapabilitySet, capabilities};
    capabilities(None).unwrap().effective.contains(CapabilitySet::SYS_RESOURCE)
}

#[test]
fn ext4_grows_mounted_or_names_the_capability() {
    private_mount_namespace(|| {
        let image = formatted(Filesystem::Ext4);
        let device = image.open();
        let target = mounted(&image, Filesystem::Ext4);
        let same = grow_mounted(&device, Filesystem::Ext4, target.path()).unwrap();
        assert_eq!(same, Grown::Unchanged { size: 320 * MIB });
        image.grow_to(640);
        match grow_mounted(&device, Filesystem::Ext4, target.path()) {
            Ok(grown) => assert_eq!(grown.size(), 640 * MIB),
            Err(error) => {
                // This variable says that the machine allows it.
                assert!(std::env::var_os("CSI_TEST_EXT4_GROWS_MOUNTED").is_none(), "{error}");
                assert!(!may_resize(), "this process has the capability: {error}");
                assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{error}");
                let text = error.to_string();
                assert!(text.contains("CAP_SYS_RESOURCE") && text.contains("staged again"), "{text}");
            }
        }
        unmount(&target).unwrap();
    });
}

/// A last block group that is too small to be used must not cause a check and a resize at every stage.
#[test]
fn a_remainder_that_ext4_cannot_use_is_no_reason_to_grow() {
    let image = Image::new(1025);
    let device = image.open();
    let Probe::Blank(proof) = device.probe() else { panic!("not blank") };
    Format::new(Filesystem::Ext4).arguments(["-b", "4096"]).run(proof).unwrap();
    let before = image.content();
    let unchanged = grow_unmounted(&device, Filesystem::Ext4, CheckLimits::default()).unwrap();
    assert_eq!(unchanged, Grown::Unchanged { size: 1024 * MIB }, "mke2fs left the last MiB unused");
    assert_eq!(image.content(), before, "it was checked, which writes to it");
    image.grow_to(1064);
    assert_eq!(grow_unmounted(&device, Filesystem::Ext4, CheckLimits::default()).unwrap().size(), 1064 * MIB);
}

#[test]
fn ext4_grows_by_small_amounts_if_possible() {
    for size in [16, 600] {
        let image = Image::new(size);
        let device = image.open();
        let Probe::Blank(proof) = device.probe() else { panic!("not blank") };
        Format::new(Filesystem::Ext4).run(proof).unwrap();
        image.grow_to(size + 1);
        let grown = grow_unmounted(&device, Filesystem::Ext4, CheckLimits::default()).unwrap();
        assert_eq!(grown, Grown::Grown { from: size * MIB, to: (size + 1) * MIB });
    }
}

#[test]
fn another_device_at_the_mount_is_refused() {
    for filesystem in Filesystem::ALL {
        private_mount_namespace(move || {
            let image = formatted(filesystem);
            let other = formatted(filesystem);
            let target = mounted(&image, filesystem);
            let error = grow_mounted(&other.open(), filesystem, target.path()).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::WrongDevice, "{filesystem}: {error}");
            unmount(&target).unwrap();
        });
    }
}

/// A volume must not become unusable because its device grew.
#[test]
fn an_ext4_that_cannot_grow_unmounted_is_staged_as_it_is() {
    // A feature that e2fsck does not know and each kernel accepts: the last compatible one.
    let unknown = (1024 + 0x5c + 3, 0x80);
    let no_checksum = ["-O", "^metadata_csum"];
    let cases = [
        ("bigalloc", &["-O", "bigalloc"][..], 128, None),
        ("32 bits", &["-O", "^64bit", "-b", "1024"], 5 << 20, None),
        ("an old e2fsck", &no_checksum, 128, Some(unknown)),
    ];
    for (what, arguments, mebibytes, change) in cases {
        private_mount_namespace(move || {
            let image = Image::new(64);
            let path = image.path().to_str().unwrap();
            run("mkfs.ext4", &[&["-q"], arguments, &[path]].concat());
            if let Some((place, bit)) = change {
                let byte = image.read(place, 1)[0];
                image.write(place, &[byte | bit]);
            }
            let staging = image.target("at");
            let stage = || stage(image.path(), &staging, &StagePlan::new(Filesystem::Ext4)).unwrap();
            stage();
            fs::write(staging.path().join("file"), "kept").unwrap();
            unmount(&staging).unwrap();
            image.grow_to(mebibytes);

            // A child process of another test inherits what holds the device, until it runs its program.
            let error = eventually("the device is let go", || {
                let grown = grow_unmounted(&image.open(), Filesystem::Ext4, CheckLimits::default());
                grown.err().filter(|error| error.kind() != ErrorKind::Busy)
            });
            assert_eq!(error.kind(), ErrorKind::Unsupported, "{what}: {error}");
            assert_eq!(stage().grown, None, "{what}");
            assert_eq!(fs::read_to_string(staging.path().join("file")).unwrap(), "kept", "{what}");
            unmount(&staging).unwrap();
        });
    }
}
