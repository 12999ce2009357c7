//! Volumes inside encrypted devices, from a blank device to the end. All tests need a kernel with `dm_mod`
//! and `dm_crypt`. `cargo test` alone does not run them, but `cargo xtask test --kernels` does: it provides
//! these modules.

use std::fs;

use csi_mount::internal::DeviceQuestions as _;
use csi_mount::internal::flow::block::{
    FilesystemOrigin, StagePlan, expand, expand_encrypted, opened_device, publish, unpublish, unstage, usage,
};
use csi_mount::testing::private_mount_namespace;
use csi_mount::{
    BlockDevice, ErrorKind, Filesystem, Grown, LuksDiscards, LuksKey, MountAttributes, MountOptions, Outcome,
};

use crate::devices::{MIB, refused, run};
use crate::luks_support::{DATA, KEY, Volume, assert_refused, content, holds, key, luks, plan, write};

#[test]
fn a_volume_lives_inside_an_encrypted_device() {
    lives_inside(Filesystem::Ext4, 20);
}

#[test]
fn a_volume_of_xfs_lives_inside_an_encrypted_device() {
    lives_inside(Filesystem::Xfs, 320);
}

#[test]
fn a_volume_of_btrfs_lives_inside_an_encrypted_device() {
    lives_inside(Filesystem::Btrfs, 160);
}

fn lives_inside(filesystem: Filesystem, mebibytes: u64) {
    private_mount_namespace(|| {
        let volume = Volume::new(mebibytes);
        let staged = volume.stage(&plan(filesystem)).unwrap();
        assert_eq!((staged.outcome, staged.origin), (Outcome::Mounted, FilesystemOrigin::Formatted));
        assert_ne!(staged.device, volume.image.open().number());
        let again = volume.stage(&plan(filesystem)).unwrap();
        assert_eq!((again.outcome, again.origin), (Outcome::AlreadyMounted, FilesystemOrigin::Existing));
        fs::write(volume.file(), DATA).unwrap();
        publish(volume.staging.path(), &volume.target, MountAttributes::RDONLY).unwrap();
        assert_eq!(fs::read(volume.target.path().join("file")).unwrap(), DATA);
        assert_eq!(usage(volume.target.path()).unwrap().1, Some(staged.device));
        let found = opened_device(volume.image.path()).unwrap().unwrap();
        assert_eq!(BlockDevice::open(found).unwrap().number(), staged.device);

        let busy = refused(unstage(&volume.staging, Some(volume.image.path())), ErrorKind::Busy);
        assert!(busy.to_string().contains(volume.target.path().to_str().unwrap()), "{busy}");
        unpublish(&volume.target).unwrap();
        volume.unstage();
        volume.unstage();
        for plain in [DATA, KEY.as_bytes()] {
            assert!(!holds(&volume.image, plain), "{filesystem}: it is readable beneath");
        }

        let kept = volume.stage(&plan(filesystem)).unwrap();
        assert_eq!(kept.origin, FilesystemOrigin::Existing);
        assert_eq!(fs::read(volume.file()).unwrap(), DATA);
        volume.unstage();
    });
}

#[test]
fn a_wrong_key_opens_nothing_and_has_its_own_error_kind() {
    private_mount_namespace(|| {
        let volume = Volume::with_data(20, Filesystem::Ext4);
        let wrong = LuksKey::new("canary-of-another").unwrap();
        let plan_with = StagePlan::new(Filesystem::Ext4).encrypted(luks(), wrong.clone());
        let text = assert_refused(&volume, &plan_with, ErrorKind::WrongKey);
        assert!(!text.contains("canary") && text.contains("key"), "{text}");
        volume.stage(&plan(Filesystem::Ext4)).unwrap();
        assert_eq!(fs::read(volume.file()).unwrap(), DATA);
        volume.unstage();
    });
}

#[test]
fn foreign_data_is_kept() {
    private_mount_namespace(|| {
        // Outside: a filesystem that is not encrypted, and unknown bytes.
        let volume = Volume::new(20);
        run("mkfs.ext4", &["-q", volume.image.path().to_str().unwrap()]);
        let text = assert_refused(&volume, &plan(Filesystem::Ext4), ErrorKind::NotBlank);
        assert!(text.contains("ext4") && text.contains("without encryption"), "{text}");
        for place in [0, 600, 18 * MIB, 20 * MIB - 1] {
            let volume = Volume::new(20);
            volume.image.write(place, b"x");
            assert_refused(&volume, &plan(Filesystem::Ext4), ErrorKind::NotBlank);
        }
        // An encrypted device is not staged as a plain one.
        let volume = Volume::with_data(20, Filesystem::Ext4);
        assert_refused(&volume, &StagePlan::new(Filesystem::Ext4), ErrorKind::NotBlank);
        // Inside: a filesystem other than the requested one, and unknown bytes.
        assert_refused(&volume, &plan(Filesystem::Xfs), ErrorKind::NotBlank);
        for place in [0, 3000, 3 * MIB] {
            let volume = Volume::new(20);
            let device = volume.stage_raw().unwrap();
            write(&device, place, b"somebody's");
            volume.unstage();
            assert_refused(&volume, &plan(Filesystem::Ext4), ErrorKind::NotBlank);
        }
    });
}

/// A device that another program encrypted, with either LUKS version, is opened. A filesystem is created
/// inside if nothing was ever written there.
#[test]
fn a_device_that_another_program_encrypted_is_used() {
    private_mount_namespace(|| {
        for version in ["--type=luks1", "--type=luks2"] {
            let volume = Volume::new(20);
            let file = volume.image.directory().join("key");
            fs::write(&file, KEY).unwrap();
            let file = format!("--key-file={}", file.display());
            let path = volume.image.path().to_str().unwrap();
            let cost = ["--pbkdf=pbkdf2", "--pbkdf-force-iterations=1000"];
            run("cryptsetup", &["luksFormat", "--batch-mode", &file, version, cost[0], cost[1], path]);
            let staged = volume.stage(&plan(Filesystem::Ext4)).unwrap();
            assert_eq!(staged.origin, FilesystemOrigin::Formatted, "{version}");
            fs::write(volume.file(), DATA).unwrap();
            volume.unstage();
            assert_eq!(volume.stage(&plan(Filesystem::Ext4)).unwrap().origin, FilesystemOrigin::Existing);
            assert_eq!(fs::read(volume.file()).unwrap(), DATA);
            volume.unstage();
        }
    });
}

#[test]
fn a_read_only_stage_writes_nothing_and_creates_nothing() {
    private_mount_namespace(|| {
        let read_only =
            |filesystem| plan(filesystem).options(MountOptions::parse(["noload"]).unwrap().read_only());
        let volume = Volume::new(20);
        assert_refused(&volume, &read_only(Filesystem::Ext4), ErrorKind::ReadOnly);
        volume.stage_raw().unwrap();
        volume.unstage();
        let volume = Volume::with_data(20, Filesystem::Ext4);
        let before = content(&volume.image);
        volume.stage(&read_only(Filesystem::Ext4)).unwrap();
        let device = BlockDevice::open(opened_device(volume.image.path()).unwrap().unwrap()).unwrap();
        assert!(device.is_read_only().unwrap());
        drop(device);
        assert_eq!(fs::read(volume.file()).unwrap(), DATA);
        volume.unstage();
        assert_eq!(content(&volume.image), before);
    });
}

#[test]
fn ext4_grows_only_with_the_key() {
    grows(Filesystem::Ext4, 20, 50);
}

#[test]
fn xfs_grows_only_with_the_key() {
    grows(Filesystem::Xfs, 320, 400);
}

fn grows(filesystem: Filesystem, from: u64, to: u64) {
    private_mount_namespace(|| {
        let volume = Volume::with_data(from, filesystem);
        volume.stage(&plan(filesystem)).unwrap();
        let staging = volume.staging.path();
        let Grown::Unchanged { size } = expand(staging).unwrap() else { panic!("it grew") };
        volume.image.grow_to(to);
        let wrong = LuksKey::new("canary-of-another").unwrap();
        for error in [expand(staging).unwrap_err(), expand_encrypted(staging, &wrong).unwrap_err()] {
            assert_eq!(error.kind(), ErrorKind::WrongKey, "{error}");
            assert!(!error.to_string().contains("canary"), "{error}");
        }
        let grown = expand_encrypted(staging, &key()).unwrap();
        assert!(matches!(grown, Grown::Grown { from, .. } if from == size), "{grown:?}");
        assert!(grown.size() > (to - 18) * MIB && grown.size() <= (to - 16) * MIB, "{grown:?}");
        println!("{filesystem}: {grown:?}");
        let again = Grown::Unchanged { size: grown.size() };
        assert_eq!(expand_encrypted(staging, &key()).unwrap(), again);
        assert_eq!(expand(staging).unwrap(), again, "nothing is left to grow: no key is needed");
        assert_eq!(fs::read(volume.file()).unwrap(), DATA);
        volume.unstage();

        // It also grows at the next stage.
        volume.image.grow_to(to + 40);
        let staged = volume.stage(&plan(filesystem)).unwrap();
        let grown = staged.grown.unwrap().size();
        assert!(grown > (to + 22) * MIB, "{grown}");
        assert_eq!(fs::read(volume.file()).unwrap(), DATA);
        volume.unstage();
    });
}

#[test]
fn discards_pass_only_on_request() {
    private_mount_namespace(|| {
        let volume = Volume::with_data(20, Filesystem::Ext4);
        for (discards, passes) in [(LuksDiscards::Dropped, false), (LuksDiscards::Passed, true)] {
            let plan = StagePlan::new(Filesystem::Ext4).encrypted(luks().discards(discards), key());
            let staged = volume.stage(&plan).unwrap();
            let limit = format!("/sys/dev/block/{}/queue/discard_max_bytes", staged.device);
            let limit = fs::read_to_string(limit).unwrap();
            assert_eq!(limit.trim() != "0", passes, "{discards:?}: {limit}");
            volume.unstage();
        }
    });
}
