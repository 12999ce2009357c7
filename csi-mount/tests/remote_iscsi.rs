//! iSCSI against the kernel's own target, on this machine: attach, grow, detach, and what must not happen.
//!
//! The tests run where `cargo xtask test --kernels` provides the modules and open-iscsi, and not with
//! `cargo test` alone.

mod devices;
mod iscsi_target;

use std::fs;
use std::os::unix::fs::{FileExt as _, PermissionsExt as _};
use std::path::Path;
use std::time::{Duration, Instant};

use csi_mount::flow::block::{StagePlan, expand, publish_device, stage, unpublish, unstage};
use csi_mount::remote::{IscsiTarget, RemoteDisks};
use csi_mount::{DeviceAccess, ErrorKind, Filesystem, Target};
use devices::{MIB, run};
use iscsi_target::{Lio, disks, eventually, iscsiadm, live, log_out_by_hand, luns, node_records, sessions};

struct Node {
    directory: tempfile::TempDir,
    disks: RemoteDisks,
}

impl Node {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let disks = RemoteDisks::new(directory.path().join("remote"));
        Self { directory, disks }
    }

    /// The names of the records.
    fn records(&self) -> Vec<String> {
        let entries = fs::read_dir(self.directory.path().join("remote")).unwrap().flatten();
        let names = entries.map(|entry| entry.file_name().into_string().unwrap());
        names.filter(|name| !name.starts_with(".lock-")).collect()
    }

    fn staging(&self, name: &str) -> Target {
        Target::new(self.directory.path().join(name)).unwrap()
    }

    fn assert_nothing_left(&self) {
        assert_eq!((sessions(), self.records(), luns()), (vec![], vec![], vec![]));
        assert!(disks().is_empty() && node_records().is_empty(), "{:?} {:?}", disks(), node_records());
    }

    fn stage(&self, name: &str, target: &IscsiTarget, filesystem: Filesystem) -> Target {
        let device = self.disks.attach(name, target).unwrap();
        let staging = self.staging(&format!("staging-{name}"));
        let plan = StagePlan::new(filesystem).expect(target.expected());
        stage(device.path(), &staging, &plan).unwrap();
        staging
    }
}

#[test]
fn a_volume_lives_as_a_filesystem_and_raw() {
    for filesystem in [Filesystem::Ext4, Filesystem::Xfs] {
        let (node, lio) = (Node::new(), Lio::new("life", 3, 1));
        for index in 0..2 {
            let target = lio.unit(index);
            let start = Instant::now();
            let staging = node.stage("pvc", &target, filesystem);
            println!("attached and staged in {:?}", start.elapsed());
            // Only the LUN that was asked for is there.
            assert_eq!((live(), luns()), (1, vec![Lio::lun(index)]));
            fs::write(staging.path().join("file"), "content").unwrap();
            // Again, with the volume in use.
            let device = node.disks.attach("pvc", &target).unwrap();
            assert_eq!(node.disks.device("pvc").unwrap().unwrap().number(), device.number());
            let error = node.disks.detach("pvc").unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Busy, "{error}");

            assert_eq!(node.disks.refresh("pvc").unwrap(), 300 * MIB);
            lio.grow(index, 400);
            assert_eq!(node.disks.refresh("pvc").unwrap(), 400 * MIB);
            assert_eq!(device.size().unwrap(), 400 * MIB);
            expand(staging.path()).unwrap();

            unstage(&staging, Some(device.path())).unwrap();
            drop(device);
            let start = Instant::now();
            let detached = node.disks.detach("pvc").unwrap();
            println!("detached in {:?}: {detached}", start.elapsed());
            assert!(detached.not_flushed.is_none() && detached.kept.is_none(), "{detached}");
            assert_eq!(detached.disconnected.len(), 1);
            node.assert_nothing_left();
            assert!(node.disks.device("pvc").unwrap().is_none());
            assert!(node.disks.detach("pvc").unwrap().disconnected.is_empty(), "again");

            // What was written is there when it comes back, and raw.
            let device = node.disks.attach("pvc", &target).unwrap();
            assert_eq!(device.size().unwrap(), 400 * MIB);
            let raw = fs::OpenOptions::new().write(true).open(device.path()).unwrap();
            raw.write_all_at(b"raw", 399 * MIB).unwrap();
            drop(raw);
            let published = node.staging("published");
            publish_device(device.path(), &published, DeviceAccess::ReadWrite).unwrap();
            assert_eq!(node.disks.detach("pvc").unwrap_err().kind(), ErrorKind::Busy);
            unpublish(&published).unwrap();
            stage(device.path(), &staging, &StagePlan::new(filesystem).never_format()).unwrap();
            assert_eq!(fs::read_to_string(staging.path().join("file")).unwrap(), "content");
            unstage(&staging, Some(device.path())).unwrap();
            drop(device);
            node.disks.detach("pvc").unwrap();
            assert_eq!(lio.images[index].read(399 * MIB, 3), b"raw");
            node.assert_nothing_left();
        }
    }
}

#[test]
fn ten_volumes_of_one_session_come_and_go_in_any_order() {
    let (node, lio) = (Node::new(), Lio::new("ten", 10, 1));
    let name = |index: usize| format!("pvc-{index}");
    for order in [[0, 1, 2, 3, 4, 5, 6, 7, 8, 9], [9, 2, 5, 0, 7, 1, 8, 3, 6, 4]] {
        let numbers: Vec<_> = std::thread::scope(|scope| {
            let attach = |index: usize| {
                let (node, lio) = (&node, &lio);
                move || node.disks.attach(&name(index), lio.unit(index)).unwrap().number()
            };
            let all: Vec<_> = (0..10).map(|index| scope.spawn(attach(index))).collect();
            all.into_iter().map(|one| one.join().unwrap()).collect()
        });
        assert_eq!((live(), luns().len()), (1, 10));
        for (position, index) in order.into_iter().enumerate() {
            for left in &order[position..] {
                let device = node.disks.device(&name(*left)).unwrap().expect("it is attached");
                assert_eq!(device.number(), numbers[*left]);
            }
            let detached = node.disks.detach(&name(index)).unwrap();
            assert_eq!(detached.disconnected.len(), usize::from(position == 9), "{detached}");
            assert!(!luns().contains(&Lio::lun(index)));
        }
        node.assert_nothing_left();
    }
    // Two volumes that come and go at the same time.
    std::thread::scope(|scope| {
        for index in 0..2 {
            let (node, lio) = (&node, &lio);
            scope.spawn(move || {
                for _ in 0..5 {
                    let device = node.disks.attach(&name(index), lio.unit(index)).unwrap();
                    let mut bytes = [0; 4096];
                    fs::File::open(device.path()).unwrap().read_exact_at(&mut bytes, 0).unwrap();
                    drop(device);
                    node.disks.detach(&name(index)).unwrap();
                }
            });
        }
    });
    node.assert_nothing_left();
}

#[test]
fn a_session_of_somebody_else_is_used_and_stays() {
    let (node, lio) = (Node::new(), Lio::new("others", 2, 1));
    iscsiadm(&["-m", "discovery", "-t", "sendtargets", "-p", "127.0.0.1:3260"]);
    iscsiadm(&["-m", "node", "-T", &lio.iqn, "--login"]);
    eventually("its disks", || (disks().len() == 2).then_some(()));
    drop(node.disks.attach("own", lio.unit(0)).unwrap());
    assert_eq!((live(), luns().len()), (1, 2));
    // A wrong number does not take somebody else's disk away.
    let wrong = lio.unit_at(2, 0).wait_limit(Duration::from_secs(3));
    let error = node.disks.attach("wrong", wrong).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
    assert_eq!((live(), luns()), (1, vec![1, 2]));
    let detached = node.disks.detach("own").unwrap();
    assert!(detached.disconnected.is_empty() && detached.kept.is_some(), "{detached}");
    // The volume's disk is gone, and the session and the other disk stay.
    assert_eq!((live(), luns(), node_records().len()), (1, vec![2], 1));
    iscsiadm(&["-m", "node", "-T", &lio.iqn, "--logout"]);

    // With the administrator's record and no session the record stays, and the session goes.
    drop(node.disks.attach("own", lio.unit(0)).unwrap());
    assert_eq!(luns(), [1], "the record's own setting would scan all");
    assert_eq!(node.disks.detach("own").unwrap().disconnected.len(), 1);
    assert_eq!((live(), node_records().len()), (0, 1));
    iscsiadm(&["-m", "node", "-T", &lio.iqn, "-o", "delete"]);

    // Another volume of our session, which no record names: mounted, and only open.
    drop(node.disks.attach("own", lio.unit(0)).unwrap());
    let staging = node.stage("other", &lio.unit(1), Filesystem::Ext4);
    let path = node.disks.device("other").unwrap().unwrap().path().to_owned();
    fs::remove_file(node.directory.path().join("remote/other.disk")).unwrap();
    let detached = node.disks.detach("own").unwrap();
    assert!(detached.kept.as_ref().is_some_and(|why| why.contains("mounted")), "{detached}");
    assert_eq!((live(), luns()), (1, vec![2]));
    unstage(&staging, Some(&path)).unwrap();
    drop(node.disks.attach("own", lio.unit(0)).unwrap());
    let mut opener = std::process::Command::new("sleep")
        .arg("1000")
        .stdin(fs::File::open(&path).unwrap())
        .spawn()
        .unwrap();
    let detached = node.disks.detach("own").unwrap();
    assert!(detached.disconnected.is_empty() && live() == 1, "{detached}");
    opener.kill().unwrap();
    opener.wait().unwrap();
    log_out_by_hand();
    node.assert_nothing_left();
}

#[test]
fn a_reused_number_is_another_volume() {
    let (node, lio) = (Node::new(), Lio::new("reused", 2, 1));
    lio.unmap(2);
    let target = lio.unit(0).wait_limit(Duration::from_secs(3));
    drop(node.disks.attach("pvc", &target).unwrap());
    // The LUN 1 is another volume now.
    lio.unmap(1);
    lio.map(1, 1);
    assert!(node.disks.device("pvc").unwrap().is_none(), "the device is asked who it is");
    let error = node.disks.attach("new", lio.unit_at(1, 1)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::WrongDevice, "the old one is still recorded: {error}");
    let error = node.disks.attach("pvc", &target).unwrap_err();
    println!("{error}");
    assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
    node.assert_nothing_left();
    // An administrator's session remembers the unit that was there before.
    iscsiadm(&["-m", "discovery", "-t", "sendtargets", "-p", "127.0.0.1:3260"]);
    iscsiadm(&["-m", "node", "-T", &lio.iqn, "--login"]);
    eventually("its disk", || (disks().len() == 1).then_some(()));
    lio.unmap(1);
    lio.map(1, 0);
    lio.images[0].write(4096, b"right");
    let device = node.disks.attach("pvc", &target).unwrap();
    let mut bytes = [0; 5];
    fs::File::open(device.path()).unwrap().read_exact_at(&mut bytes, 4096).unwrap();
    assert_eq!(&bytes, b"right");
    drop(device);
    node.disks.detach("pvc").unwrap();
    log_out_by_hand();
    node.assert_nothing_left();
    // Under one name there is one disk.
    lio.map(2, 1);
    drop(node.disks.attach("pvc", &target).unwrap());
    let error = node.disks.attach("pvc", lio.unit(1)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::WrongDevice, "{error}");
    node.disks.detach("pvc").unwrap();
    node.assert_nothing_left();
}

#[test]
fn a_unit_that_comes_late_is_waited_for_and_one_portal_is_enough() {
    let (node, lio) = (Node::new(), Lio::new("late", 1, 2));
    let several = lio.unit(0);
    let error = node.disks.attach("pvc", &several).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    lio.unmap(1);
    lio.close(3260);
    std::thread::scope(|scope| {
        let attaching =
            scope.spawn(|| node.disks.attach("pvc", several.clone().single_path()).unwrap().number());
        eventually("the session", || (live() == 1).then_some(()));
        lio.map(1, 0);
        attaching.join().unwrap();
    });
    // The volume stays with this portal.
    lio.open(3260);
    drop(node.disks.attach("pvc", several.clone().single_path()).unwrap());
    assert_eq!((live(), disks().len()), (1, 1));
    node.disks.detach("pvc").unwrap();
    node.assert_nothing_left();
    // Nobody listens: nothing is left, and the portal is named.
    lio.close(3260);
    lio.close(3261);
    let start = Instant::now();
    let error = node.disks.attach("pvc", several.single_path()).unwrap_err();
    println!("{:?}: {error}", start.elapsed());
    assert_eq!(error.kind(), ErrorKind::Unresponsive, "{error}");
    assert!(error.to_string().contains("127.0.0.1:3261"), "{error}");
    node.assert_nothing_left();
}

#[test]
fn a_target_goes_and_comes_back_under_load() {
    let (node, lio) = (Node::new(), Lio::new("back", 1, 1));
    let device = node.disks.attach("pvc", lio.unit(0)).unwrap();
    let file = fs::OpenOptions::new().write(true).open(device.path()).unwrap();
    // The portal, and the whole target.
    for is_whole in [false, true] {
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| {
                for round in 0..200 {
                    file.write_all_at(&[7; 4096], round * 4096).unwrap();
                    file.sync_all().unwrap();
                }
            });
            if is_whole {
                lio.stop();
            } else {
                lio.set_enabled(false);
            }
            eventually("the session is lost", || (live() == 0).then_some(()));
            std::thread::sleep(Duration::from_secs(5));
            if is_whole {
                lio.start();
            } else {
                lio.set_enabled(true);
            }
            eventually("it is back", || (live() == 1).then_some(()));
            writer.join().unwrap();
        });
        assert_eq!(node.disks.device("pvc").unwrap().unwrap().number(), device.number());
    }
    drop((file, device));
    assert!(node.disks.detach("pvc").unwrap().not_flushed.is_none());
    node.assert_nothing_left();
}

#[test]
fn a_volume_that_the_kernel_gave_up_is_attached_again() {
    let (node, lio) = (Node::new(), Lio::new("gone", 2, 1));
    lio.images[0].write(4096, b"right");
    let target = lio.unit(0).replacement_timeout(Duration::from_secs(2));
    let number = node.disks.attach("pvc", &target).unwrap().number();
    run("ip", &["link", "set", "lo", "down"]);
    eventually("the kernel gives the disk up", || is_given_up().then_some(()));
    run("ip", &["link", "set", "lo", "up"]);
    let device = node.disks.attach("pvc", &target).unwrap();
    let mut bytes = [0; 5];
    fs::File::open(device.path()).unwrap().read_exact_at(&mut bytes, 4096).unwrap();
    assert_eq!((&bytes, live(), device.number()), (b"right", 1, number));
    drop(device);
    assert!(node.disks.detach("pvc").unwrap().not_flushed.is_none());
    node.assert_nothing_left();
}

/// Whether reads and writes of a unit fail at once.
fn is_given_up() -> bool {
    let places = fs::read_dir("/sys/bus/scsi/devices").unwrap().flatten();
    let mut states = places.filter_map(|place| fs::read_to_string(place.path().join("state")).ok());
    states.any(|state| state.contains("offline"))
}

#[test]
fn a_dead_portal_does_not_keep_a_volume() {
    let (node, lio) = (Node::new(), Lio::new("dead", 1, 1));
    for replacement in [600, 2] {
        let target = lio.unit(0).replacement_timeout(Duration::from_secs(replacement));
        let device = node.disks.attach("pvc", &target).unwrap();
        let staging = node.staging("staging");
        if replacement == 2 {
            stage(device.path(), &staging, &StagePlan::new(Filesystem::Ext4)).unwrap();
        }
        drop(device);
        // No packet arrives any more.
        run("ip", &["link", "set", "lo", "down"]);
        eventually("the session is lost", || (live() == 0).then_some(()));
        if replacement == 2 {
            eventually("the kernel gives the disk up", || is_given_up().then_some(()));
            // It does not open any more, and it is mounted.
            let error = node.disks.detach("pvc").unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
            run("umount", &[staging.path().to_str().unwrap()]);
        }
        let start = Instant::now();
        let detached = eventually("the detach succeeds", || match node.disks.detach("pvc") {
            Ok(detached) => Some(detached),
            Err(error) => {
                println!("repeated: {error}");
                None
            }
        });
        println!("replacement_timeout {replacement}: {:?}: {detached}", start.elapsed());
        assert!(start.elapsed() < Duration::from_secs(100));
        assert!(detached.not_flushed.is_some(), "{detached}");
        eventually("nothing is left", || (sessions().is_empty() && disks().is_empty()).then_some(()));
        run("ip", &["link", "set", "lo", "up"]);
        node.assert_nothing_left();
    }
}

#[test]
fn the_lock_of_a_killed_iscsiadm_does_not_delay_all_logins() {
    let (node, lio) = (Node::new(), Lio::new("lock", 1, 1));
    // It has made the files of its lock.
    drop(node.disks.attach("pvc", lio.unit(0)).unwrap());
    node.disks.detach("pvc").unwrap();
    let [file, lock] = ["lock", "lock.write"].map(|name| Path::new("/run/lock/iscsi").join(name));
    fs::hard_link(&file, &lock).unwrap();
    let start = Instant::now();
    drop(node.disks.attach("pvc", lio.unit(0)).unwrap());
    println!("attached in {:?}", start.elapsed());
    assert!(!lock.exists());
    fs::hard_link(&file, &lock).unwrap();
    node.disks.detach("pvc").unwrap();
    assert!(!lock.exists());
    node.assert_nothing_left();
}

#[test]
fn secrets_are_needed_and_not_printed() {
    let (node, lio) = (Node::new(), Lio::new("chap", 1, 1));
    let one_way = lio.unit(0).chap("node", "node-secret-1").unwrap();
    let mutual = one_way.clone().mutual_chap("target", "target-secret-1").unwrap();
    let refused = |target: &IscsiTarget| {
        let start = Instant::now();
        let error = node.disks.attach("pvc", target).unwrap_err();
        println!("{:?} after {:?}: {error}", error.kind(), start.elapsed());
        assert!(!format!("{error:?}").contains("secret-1"), "{error}");
        node.assert_nothing_left();
    };
    let accepted = |target: &IscsiTarget| {
        let device = node.disks.attach("pvc", target).unwrap();
        assert!(device.size().unwrap() > 0);
        drop(device);
        let [record] = &node_records()[..] else { panic!("{:?}", node_records()) };
        assert!(fs::read_to_string(record).unwrap().contains("node-secret-1"));
        assert_eq!(fs::metadata(record).unwrap().permissions().mode() & 0o77, 0, "only root reads it");
        let record = fs::read_to_string(node.directory.path().join("remote/pvc.disk")).unwrap();
        assert!(!record.contains("secret"), "{record}");
        node.disks.detach("pvc").unwrap();
        node.assert_nothing_left();
    };
    lio.require_chap("node", "node-secret-1");
    refused(&lio.unit(0));
    refused(&lio.unit(0).chap("node", "wrong-secret-11").unwrap());
    accepted(&one_way);
    // From here on, the targets of older kernels refuse a node that does not ask for this secret.
    lio.prove_itself("target", "target-secret-1");
    refused(&one_way.mutual_chap("target", "wrong-secret-1").unwrap());
    accepted(&mutual);
}

#[test]
fn a_session_that_somebody_else_ended_is_reported() {
    let (node, lio) = (Node::new(), Lio::new("ended", 1, 1));
    for is_ended in [true, false] {
        drop(node.disks.attach("pvc", lio.unit(0)).unwrap());
        if is_ended {
            log_out_by_hand();
            assert_eq!((live(), disks()), (0, vec![]));
        }
        let detached = node.disks.detach("pvc").unwrap();
        assert_eq!(detached.not_flushed.is_some(), is_ended, "{detached}");
        node.assert_nothing_left();
    }
}

#[test]
fn an_attachment_of_an_earlier_boot_is_only_forgotten() {
    let (node, lio) = (Node::new(), Lio::new("boot", 1, 1));
    drop(node.disks.attach("pvc", lio.unit(0)).unwrap());
    let file = node.directory.path().join("remote/pvc.disk");
    let text = fs::read_to_string(&file).unwrap();
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
    fs::write(&file, text.replace(boot.trim(), "an-earlier-boot")).unwrap();
    assert!(node.disks.device("pvc").unwrap().is_none());
    assert!(node.disks.detach("pvc").unwrap().disconnected.is_empty());
    assert_eq!((live(), node.records()), (1, vec![]));
    log_out_by_hand();
}
