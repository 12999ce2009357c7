//! A raw block volume at its target: it is the right device, and it is read-only if that was requested.

use std::fs::{self, OpenOptions};
use std::io::{Read as _, Write as _};
use std::path::Path;

use csi_mount::internal::flow::block::{
    StagePlan, VolumeUsage, device_of, expand, publish, publish_device, stage, unpublish, unstage, usage,
};
use csi_mount::internal::{DeviceQuestions as _, LoopDevice, mount_state};
use csi_mount::testing::private_mount_namespace;
use csi_mount::{
    BlockDevice, DeviceAccess, ErrorKind, Filesystem, LoopOptions, MountAttributes, MountState, Outcome,
    OwnedPath, Owner, Removed, Target, Unmounted,
};
use nix::mount::{MsFlags, mount, umount};

use crate::devices::{Image, MIB, refused, run, with_image};

fn unstaged(image: &Image) -> csi_mount::Result<Unmounted> {
    unstage(&image.target("staging"), Some(image.path()))
}

fn write_to(path: &Path) -> std::io::Result<()> {
    let mut device = OpenOptions::new().write(true).open(path)?;
    device.write_all(b"written")?;
    device.sync_all()
}

fn start_of(path: &Path) -> [u8; 7] {
    let mut start = [0; 7];
    fs::File::open(path).unwrap().read_exact(&mut start).unwrap();
    start
}

#[test]
fn a_writable_target_is_the_device() {
    with_image(8, |image, at| {
        for expected in [Outcome::Mounted, Outcome::AlreadyMounted] {
            assert_eq!(publish_device(image.path(), at, DeviceAccess::ReadWrite).unwrap(), expected);
        }
        let number = image.loop_device().number();
        assert_eq!(device_of(at.path()).unwrap(), number);
        assert_eq!(usage(at.path()).unwrap(), (VolumeUsage::Device { size: 8 * MIB }, Some(number)));
        write_to(at.path()).unwrap();
        assert_eq!(&start_of(image.path()), b"written");

        let other = Image::new(8);
        refused(publish_device(other.path(), at, DeviceAccess::ReadWrite), ErrorKind::AlreadyMounted);
        refused(publish_device(image.path(), at, DeviceAccess::ReadOnly), ErrorKind::AlreadyMounted);
        assert!(LoopDevice::find(image.path()).unwrap().is_empty(), "a refused target leaves a loop device");

        image.grow_to(16);
        assert_eq!(expand(at.path()).unwrap().size(), 16 * MIB);
        assert_eq!(unpublish(at).unwrap(), Removed::Removed);
        assert_eq!(unpublish(at).unwrap(), Removed::WasAbsent);
    });
}

#[test]
fn a_read_only_target_refuses_writes_next_to_a_writable_one() {
    private_mount_namespace(|| {
        let image = Image::new(8);
        let writable = image.target("w");
        let read_only = image.target("r");
        publish_device(image.path(), &writable, DeviceAccess::ReadWrite).unwrap();
        for expected in [Outcome::Mounted, Outcome::AlreadyMounted] {
            assert_eq!(publish_device(image.path(), &read_only, DeviceAccess::ReadOnly).unwrap(), expected);
        }
        assert_eq!(LoopDevice::find(image.path()).unwrap().len(), 1, "repeated, no second loop device");
        assert!(write_to(read_only.path()).is_err());
        write_to(writable.path()).unwrap();
        assert!(BlockDevice::open(read_only.path()).unwrap().is_read_only().unwrap());
        assert_eq!(&start_of(read_only.path()), b"written");

        image.grow_to(16);
        assert_eq!(expand(read_only.path()).unwrap().size(), 16 * MIB);
        unpublish(&read_only).unwrap();
        assert!(LoopDevice::find(image.path()).unwrap().is_empty());
        unpublish(&writable).unwrap();
    });
}

/// After unstage, the driver detaches the device, and the next device gets its number. So unstage refuses
/// while the device is published.
#[test]
fn a_published_device_is_not_unstaged() {
    private_mount_namespace(|| {
        let image = Image::new(8);
        let other = Image::new(8);
        let at = image.target("t");
        for access in [DeviceAccess::ReadWrite, DeviceAccess::ReadOnly] {
            publish_device(image.path(), &at, access).unwrap();
            let error = refused(unstaged(&image), ErrorKind::Busy);
            assert!(error.to_string().contains(at.path().to_str().unwrap()), "{error}");
            assert_eq!(unstaged(&other).unwrap(), Unmounted::NotMounted, "it is another device");
            // The state if the process had died after the unmount.
            csi_mount::unmount(&at).unwrap();
            let is_over = !LoopDevice::find(image.path()).unwrap().is_empty();
            assert_eq!(unstaged(&image).is_err(), is_over);
            unpublish(&at).unwrap();
            assert_eq!(unstaged(&image).unwrap(), Unmounted::NotMounted);
        }
    });
}

#[test]
fn the_next_unpublish_detaches_the_loop_device_of_an_interrupted_one() {
    with_image(8, |image, at| {
        publish_device(image.path(), at, DeviceAccess::ReadOnly).unwrap();
        // The state if the process had died after the unmount.
        csi_mount::unmount(at).unwrap();
        assert_eq!(LoopDevice::find(image.path()).unwrap().len(), 1);
        unpublish(at).unwrap();
        assert!(LoopDevice::find(image.path()).unwrap().is_empty());
    });
}

/// Unpublish also detaches the loop device if the target's file was removed together with its pod.
#[test]
fn unpublish_detaches_the_loop_device_of_a_target_without_its_file() {
    with_image(8, |image, at| {
        publish_device(image.path(), at, DeviceAccess::ReadOnly).unwrap();
        csi_mount::unmount(at).unwrap();
        at.remove().unwrap();
        let held_up = unstaged(image).unwrap_err().to_string();
        assert!(held_up.contains("unpublish"), "{held_up}");
        unpublish(at).unwrap();
        assert!(LoopDevice::find(image.path()).unwrap().is_empty());
        assert_eq!(unstaged(image).unwrap(), Unmounted::NotMounted);
    });
}

/// If nothing exists at the path, only the volume's name identifies the loop device.
#[test]
fn the_loop_device_of_another_volumes_target_stays() {
    private_mount_namespace(|| {
        let image = Image::new(8);
        let place = image.target("t").path().to_owned();
        let of = |volume| OwnedPath::new(&place, Owner::new("block.example.org", volume)).target().unwrap();
        publish_device(image.path(), &of("vol-1"), DeviceAccess::ReadOnly).unwrap();
        csi_mount::unmount(&of("vol-1")).unwrap();
        let _ = of("vol-1").remove().unwrap();
        assert_eq!(unpublish(&of("vol-2")).unwrap(), Removed::WasAbsent);
        assert_eq!(LoopDevice::find(image.path()).unwrap().len(), 1, "it is of another volume");
        assert_eq!(unpublish(&of("vol-1")).unwrap(), Removed::WasAbsent);
        assert!(LoopDevice::find(image.path()).unwrap().is_empty());
    });
}

/// Two drivers on one machine, each with its own root, can have targets with the same path.
#[test]
fn the_loop_device_of_the_same_path_in_another_mount_namespace_stays() {
    with_image(8, |image, at| {
        publish_device(image.path(), at, DeviceAccess::ReadOnly).unwrap();
        let number = device_of(at.path()).unwrap();
        // A mount namespace is visible from another one only through its processes, not through a thread.
        let mut driver = std::process::Command::new("sleep").arg("600").spawn().unwrap();
        private_mount_namespace(|| {
            // In this namespace the target's path is a different file, and nothing exists there.
            csi_mount::unmount(&image.target("t")).unwrap();
            let directory = image.directory();
            let tmpfs = Some("tmpfs");
            mount(tmpfs, directory, tmpfs, MsFlags::empty(), None::<&str>).unwrap();
            assert_eq!(unpublish(&image.target("t")).unwrap(), Removed::WasAbsent);
            umount(directory).unwrap();
        });
        driver.kill().and_then(|()| driver.wait()).unwrap();
        assert_eq!(device_of(at.path()).unwrap(), number);
        assert_eq!(LoopDevice::find(image.path()).unwrap().len(), 1, "it was detached beneath its target");
        unpublish(at).unwrap();
        assert!(LoopDevice::find(image.path()).unwrap().is_empty());
    });
}

/// A loop device that was detached while a program has it open disappears with that program. Its number then
/// passes to another volume.
#[test]
fn a_loop_device_that_is_already_detached_is_not_published_again() {
    with_image(8, |image, at| {
        publish_device(image.path(), at, DeviceAccess::ReadOnly).unwrap();
        csi_mount::unmount(at).unwrap();
        let detached = LoopDevice::find(image.path()).unwrap().pop().unwrap();
        let reader = fs::File::open(detached.path()).unwrap();
        run("losetup", &["--detach", detached.path().to_str().unwrap()]);
        publish_device(image.path(), at, DeviceAccess::ReadOnly).unwrap();
        assert_ne!(device_of(at.path()).unwrap(), detached.number());
        drop(reader);
        assert!(BlockDevice::open(at.path()).unwrap().is_read_only().unwrap());
        unpublish(at).unwrap();
        assert!(LoopDevice::find(image.path()).unwrap().is_empty());
    });
}

#[test]
fn a_device_that_refuses_writes_is_not_published_writable() {
    private_mount_namespace(|| {
        let image = Image::with(8, &LoopOptions::new().access(DeviceAccess::ReadOnly));
        let at = image.target("t");
        refused(publish_device(image.path(), &at, DeviceAccess::ReadWrite), ErrorKind::ReadOnly);
        assert_eq!(mount_state(at.path()).unwrap(), MountState::Absent);
        publish_device(image.path(), &at, DeviceAccess::ReadOnly).unwrap();
        assert_eq!(device_of(at.path()).unwrap(), image.loop_device().number(), "it needs no loop device");
        unpublish(&at).unwrap();
    });
}

#[test]
fn a_source_that_is_not_a_device_is_refused() {
    with_image(8, |image, at| {
        for (path, kind) in [("/dev/null", ErrorKind::InvalidInput), ("/dev/absent", ErrorKind::NotFound)] {
            for access in [DeviceAccess::ReadOnly, DeviceAccess::ReadWrite] {
                assert_eq!(publish_device(path, at, access).unwrap_err().kind(), kind, "{path}");
            }
        }
        at.create_dir().unwrap();
        for access in [DeviceAccess::ReadOnly, DeviceAccess::ReadWrite] {
            refused(publish_device(image.path(), at, access), ErrorKind::InvalidInput);
        }
        assert!(LoopDevice::find(image.path()).unwrap().is_empty());
    });
}

/// A mount point that an operator keeps with `chattr +i` was published, and could never be unpublished.
#[test]
fn a_target_that_could_not_be_removed_is_not_published() {
    with_image(64, |image, staging| {
        // A filesystem that has these attributes.
        let plan = StagePlan::new(Filesystem::Ext4);
        stage(image.path(), staging, &plan).unwrap();
        let volume = Image::new(64);
        let source = volume.target("source");
        stage(volume.path(), &source, &plan).unwrap();
        let raw = Image::new(8);
        let directory = Target::new(staging.path().join("directory")).unwrap();
        let file = Target::new(staging.path().join("file")).unwrap();
        directory.create_dir().unwrap();
        file.create_file().unwrap();
        let empty = MountAttributes::empty();
        for attribute in ["i", "a"] {
            let change = |sign: &str| {
                for target in [&directory, &file] {
                    run("chattr", &[&format!("{sign}{attribute}"), target.path().to_str().unwrap()]);
                }
            };
            change("+");
            for error in [
                refused(publish(source.path(), &directory, empty), ErrorKind::Busy),
                refused(publish_device(raw.path(), &file, DeviceAccess::ReadWrite), ErrorKind::Busy),
            ] {
                assert!(error.to_string().contains("chattr"), "{error}");
            }
            change("-");
        }
        publish(source.path(), &directory, empty).unwrap();
        unpublish(&directory).unwrap();
        drop((directory, file));
        unstage(&source, None).unwrap();
        unstage(staging, None).unwrap();
    });
}
