//! Where the storage system does more than serve: it copies a volume that is in use, and it has no space left. Over
//! iSCSI and NVMe.
//!
//! The tests run where `cargo xtask test --kernels` provides the modules and open-iscsi, and not with
//! `cargo test` alone.

use std::fs;
use std::os::unix::fs::FileExt as _;

use csi_mount::internal::flow::block::{StagePlan, stage, unstage};
use csi_mount::remote::RemoteDisks;
use csi_mount::{ErrorKind, Filesystem, Target};

use crate::devices::{MIB, eventually};
use crate::iscsi_target::Lio;
use crate::nvme_target::Nvmet;
use crate::remote_bed::Bed;

#[test]
fn an_iscsi_clone_lives_beside_its_origin() {
    for filesystem in [Filesystem::Xfs, Filesystem::Ext4] {
        a_clone_lives_beside_its_origin(&Lio::new("clone", 2, 1), filesystem);
    }
}

#[test]
fn an_nvme_clone_lives_beside_its_origin() {
    for filesystem in [Filesystem::Xfs, Filesystem::Ext4] {
        a_clone_lives_beside_its_origin(&Nvmet::new("clone", 2, 1), filesystem);
    }
}

fn a_clone_lives_beside_its_origin(storage: &dyn Bed, filesystem: Filesystem) {
    let directory = tempfile::tempdir().unwrap();
    let disks = RemoteDisks::new(directory.path().join("remote"));
    let [origin, clone] = ["origin", "clone"].map(|name| Target::new(directory.path().join(name)).unwrap());
    let [first, second] = [0, 1].map(|index| storage.volume(index));
    let disk = disks.attach("origin", &first).unwrap();
    stage(disk.path(), &origin, &StagePlan::new(filesystem).expect(first.expected())).unwrap();
    fs::write(origin.path().join("file"), "of both").unwrap();
    fs::File::open(origin.path().join("file")).unwrap().sync_all().unwrap();
    // The storage system copies it while it is mounted, with its UUID.
    storage.image(1).copy_from(storage.image(0));

    let copy = disks.attach("clone", &second).unwrap();
    assert_ne!(copy.number(), disk.number());
    let plan = StagePlan::new(filesystem).never_format().expect(second.expected());
    stage(copy.path(), &clone, &plan).unwrap();
    assert_eq!(storage.working(), 1);
    assert_eq!(fs::read_to_string(clone.path().join("file")).unwrap(), "of both");
    fs::write(clone.path().join("own"), "of the clone").unwrap();
    assert!(!origin.path().join("own").exists());
    for (name, disk) in [("origin", &disk), ("clone", &copy)] {
        assert_eq!(disks.device(name).unwrap().unwrap().number(), disk.number());
    }
    // Whichever goes first.
    unstage(&origin, Some(disk.path())).unwrap();
    drop(disk);
    assert!(disks.detach("origin").unwrap().kept.is_some());
    assert_eq!(fs::read_to_string(clone.path().join("own")).unwrap(), "of the clone");
    unstage(&clone, Some(copy.path())).unwrap();
    drop(copy);
    assert_eq!(disks.detach("clone").unwrap().disconnected.len(), 1);
    assert_eq!(storage.left(), Vec::<String>::new());
}

/// Takes all space of the disk on which the units' images are.
fn fill(directory: &std::path::Path) -> std::path::PathBuf {
    let path = directory.join("filler");
    let filler = fs::File::create(&path).unwrap();
    let mut offset = 0;
    let mut chunk = 1 << 30;
    while chunk >= 4096 {
        match rustix::fs::fallocate(&filler, rustix::fs::FallocateFlags::empty(), offset, chunk) {
            Ok(()) => offset += chunk,
            Err(rustix::io::Errno::NOSPC) => chunk /= 2,
            Err(error) => panic!("{error}"),
        }
    }
    path
}

#[test]
fn a_full_iscsi_target_is_reported_and_nothing_is_thrown_away() {
    a_full_target_is_reported(&Lio::new("full", 1, 1));
}

#[test]
fn a_full_nvme_target_is_reported_and_nothing_is_thrown_away() {
    a_full_target_is_reported(&Nvmet::new("full", 1, 1));
}

fn a_full_target_is_reported(storage: &dyn Bed) {
    // The records are on another disk.
    let node = tempfile::tempdir_in("/run").unwrap();
    let directory = tempfile::tempdir().unwrap();
    let disks = RemoteDisks::new(node.path().join("remote"));
    let staging = Target::new(node.path().join("staging")).unwrap();
    let target = storage.volume(0);
    let device = disks.attach("pvc", &target).unwrap();
    let filler = fill(directory.path());

    let error = stage(device.path(), &staging, &StagePlan::new(Filesystem::Ext4)).unwrap_err();
    println!("stage: {error}");
    assert!(!staging.path().join("lost+found").exists());
    // The last writes can't be written: the disk stays, so that nothing says that they are stored.
    let raw = fs::OpenOptions::new().write(true).open(device.path()).unwrap();
    raw.write_all_at(&[7; 4096], 100 * MIB).unwrap();
    drop((raw, device));
    let error = disks.detach("pvc").unwrap_err();
    println!("detach: {error}");
    assert_eq!(error.kind(), ErrorKind::Unresponsive, "{error}");
    assert_eq!(storage.working(), 1);
    let device = disks.attach("pvc", &target).unwrap();

    fs::remove_file(filler).unwrap();
    eventually("there is space again", || {
        let raw = fs::OpenOptions::new().write(true).open(device.path()).unwrap();
        raw.write_all_at(b"stored", 100 * MIB).unwrap();
        raw.sync_all().ok()
    });
    drop(device);
    // The writes that were lost then are not forgotten.
    assert!(disks.detach("pvc").unwrap().not_flushed.is_some());
    assert_eq!(storage.left(), Vec::<String>::new());
    assert_eq!(storage.image(0).read(100 * MIB, 6), b"stored");
}
