//! A btrfs that is mounted next to its clone, and never twice.

use std::fs::{self, File};
use std::io::Write as _;

use csi_mount::internal::LoopDevice;
use csi_mount::internal::flow::block::{StagePlan, stage, unstage};
use csi_mount::testing::private_mount_namespace;
use csi_mount::{ErrorKind, Filesystem, KernelVersion, LoopOptions, Target};

use crate::devices::{Image, eventually, refused};

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
        let origin = Image::new(128);
        let staging = origin.target("s");
        let plan = StagePlan::new(Filesystem::Btrfs);
        stage(origin.path(), &staging, &plan).unwrap();
        rustix::fs::sync();
        let mut file = File::create(staging.path().join("file")).unwrap();
        file.write_all(b"cloned").unwrap();
        file.sync_all().unwrap();
        drop(file);
        // Its log is not empty.
        let clone = Image::copy_of(&origin.file());
        let second = clone.target("t");
        match stage(clone.path(), &second, &plan) {
            Ok(staged) => {
                assert_eq!(staged.device, clone.loop_device().number());
                assert_eq!(fs::read_to_string(second.path().join("file")).unwrap(), "cloned");
                fs::write(second.path().join("only"), "in the clone").unwrap();
                assert!(!staging.path().join("only").exists());
                unstage_when_free(&second);
            }
            Err(error) => {
                assert!(KernelVersion::running().unwrap() < KernelVersion::new(6, 7), "{error}");
                assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
            }
        }
        unstage_when_free(&staging);
    });
}

/// Another test's child process can have a file there open until it runs its program.
fn unstage_when_free(staging: &Target) {
    let done = eventually("the unstage", || match unstage(staging, None) {
        Err(error) if error.kind() == ErrorKind::Busy => None,
        done => Some(done),
    });
    done.unwrap();
}
