//! Encrypted devices that are published raw. All tests need a kernel with `dm_mod`
//! and `dm_crypt`. `cargo test` alone does not run them, but `cargo xtask test --kernels` does: it provides
//! these modules.

use std::fs;

use csi_mount::internal::flow::block::{
    FilesystemOrigin, expand, expand_encrypted, opened_device, publish_device, stage_device, unpublish,
    unstage,
};
use csi_mount::testing::private_mount_namespace;
use csi_mount::{DeviceAccess, ErrorKind, Filesystem, Grown, LuksDiscards, LuksKey};

use crate::devices::{MIB, refused, run};
use crate::luks_support::{DATA, Volume, content, dmsetup, holds, key, luks, mappings, plan, write};

#[test]
fn a_raw_publish_publishes_the_device_inside() {
    private_mount_namespace(|| {
        let volume = Volume::new(20);
        let device = volume.stage_raw().unwrap();
        assert_eq!(Some(&device), opened_device(volume.image.path()).unwrap().as_ref());
        let start = fs::read(&device).unwrap();
        assert!(start == vec![0; 4 << 20], "somebody may find something there");
        publish_device(&device, &volume.target, DeviceAccess::ReadWrite).unwrap();
        write(volume.target.path(), 0, DATA);
        assert_eq!(unstage(&volume.staging, None).unwrap_err().kind(), ErrorKind::Busy);
        unpublish(&volume.target).unwrap();
        volume.unstage();
        assert!(!holds(&volume.image, DATA));

        let device = volume.stage_raw().unwrap();
        publish_device(&device, &volume.target, DeviceAccess::ReadOnly).unwrap();
        assert!(fs::read(volume.target.path()).unwrap().starts_with(DATA));
        volume.image.grow_to(30);
        let at = volume.target.path();
        assert_eq!(expand(at).unwrap_err().kind(), ErrorKind::WrongKey);
        assert_eq!(expand_encrypted(at, &key()).unwrap(), Grown::Unchanged { size: 14 * MIB });
        unpublish(&volume.target).unwrap();
        volume.unstage();
    });
}

/// After a restart of the driver no process has the devices open. If they were closed, one device could come
/// back with the number of the other, whose node is in a pod.
#[test]
fn another_stage_does_not_close_a_published_device() {
    private_mount_namespace(|| {
        let volumes = [Volume::published(), Volume::published()];
        let before = mappings();
        let wrong = LuksKey::new("canary-of-another").unwrap();
        let open = volumes.each_ref().map(|volume| opened_device(volume.image.path()).unwrap().unwrap());
        // The device is already open, so its key is not checked.
        for key in [&wrong, &key()] {
            for (volume, open) in volumes.iter().zip(&open).rev() {
                assert_eq!(volume.stage_raw_with(&luks(), key).unwrap(), *open);
                assert_eq!(mappings(), before);
            }
        }
        for volume in &volumes {
            let error = refused(volume.stage(&plan(Filesystem::Ext4)), ErrorKind::Busy);
            assert!(error.to_string().contains(volume.target.path().to_str().unwrap()), "{error}");
            assert_eq!(mappings(), before, "{error}");
            assert!(volume.holds_its_canary(volume.target.path()));
        }
        for volume in &volumes {
            unpublish(&volume.target).unwrap();
            unstage(&volume.staging, Some(volume.image.path())).unwrap();
        }
        assert_eq!(mappings(), Vec::<String>::new());
    });
}

/// Another program closed the device. The pod's node would lead to the next device with that number.
#[test]
fn no_volume_is_opened_under_a_number_that_is_published() {
    private_mount_namespace(|| {
        let gone = Volume::published();
        let volume = Volume::new(20);
        let (name, _) = gone.name_and_uuid();
        dmsetup(&["remove", &name]);
        for volume in [&gone, &volume] {
            let error = refused(volume.stage_raw(), ErrorKind::Busy);
            assert!(error.to_string().contains(gone.target.path().to_str().unwrap()), "{error}");
            assert_eq!(mappings(), Vec::<String>::new(), "{error}");
        }
        unpublish(&gone.target).unwrap();
        let device = gone.stage_raw().unwrap();
        assert!(gone.holds_its_canary(&device));
        gone.unstage();
        volume.stage(&plan(Filesystem::Ext4)).unwrap();
        volume.unstage();
    });
}

/// A workload can discard its data. The device then reads as if nothing had ever been written there. Stage
/// must still not write to it while a process has it open.
#[test]
fn another_stage_does_not_write_to_an_open_device() {
    private_mount_namespace(|| {
        let luks = luks().discards(LuksDiscards::Passed);
        let volume = Volume::new(20);
        let device = volume.stage_raw_with(&luks, &key()).unwrap();
        // If it is published read-only, a loop device has it open. Otherwise its user has it open.
        publish_device(&device, &volume.target, DeviceAccess::ReadOnly).unwrap();
        for is_published in [true, false] {
            let user = fs::File::open(&device).unwrap();
            if !is_published {
                unpublish(&volume.target).unwrap();
            }
            run("blkdiscard", &[device.to_str().unwrap()]);
            let before = content(&volume.image);
            let open = mappings();
            assert_eq!(volume.stage_raw_with(&luks, &key()).unwrap(), device);
            assert_eq!(content(&volume.image), before, "published: {is_published}");
            assert_eq!(mappings(), open);
            drop(user);
        }
        // No process has it open now, so stage makes it read as zeros again.
        let device = volume.stage_raw_with(&luks, &key()).unwrap();
        assert!(fs::read(&device).unwrap() == vec![0; 4 << 20]);
        volume.unstage();
    });
}

/// Another node can also use the device, and write at places that stage does not read. So stage writes
/// nothing where it reads zeros.
#[test]
fn another_stage_does_not_write_where_it_reads_zeros() {
    private_mount_namespace(|| {
        let volume = Volume::new(20);
        volume.stage_raw().unwrap();
        let number = volume.image.open().number();
        let written = || {
            let statistics = fs::read_to_string(format!("/sys/dev/block/{number}/stat")).unwrap();
            statistics.split_whitespace().nth(6).unwrap().to_owned()
        };
        let before = written();
        for _ in 0..2 {
            volume.unstage();
            volume.stage_raw().unwrap();
        }
        volume.unstage();
        let device =
            stage_device(volume.image.path(), &volume.staging, &luks(), &key(), DeviceAccess::ReadOnly);
        assert!(fs::read(device.unwrap()).unwrap() == vec![0; 4 << 20]);
        assert_eq!(written(), before);
        volume.unstage();
        assert_eq!(volume.stage(&plan(Filesystem::Ext4)).unwrap().origin, FilesystemOrigin::Formatted);
        volume.unstage();
    });
}

#[test]
fn a_wrong_key_closes_nothing() {
    private_mount_namespace(|| {
        let volume = Volume::new(20);
        let device = volume.stage_raw().unwrap();
        write(&device, 0, DATA);
        let before = mappings();
        let wrong = LuksKey::new("canary-of-another").unwrap();
        let error = refused(volume.stage_raw_with(&luks(), &wrong), ErrorKind::WrongKey);
        assert_eq!(mappings(), before, "{error}");
        assert!(fs::read(&device).unwrap().starts_with(DATA));
        volume.unstage();
    });
}
