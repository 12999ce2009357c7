//! iSCSI against the kernel's own target, on this machine: attach, grow, detach, and what must not happen.
//!
//! The tests run where `cargo xtask test --kernels` provides the modules and open-iscsi, and not with
//! `cargo test` alone.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::time::{Duration, Instant};

use csi_mount::internal::flow::block::{StagePlan, stage};
use csi_mount::remote::IscsiTarget;
use csi_mount::{ErrorKind, Filesystem};

use crate::devices::{eventually, refused, run};
use crate::iscsi_target::{Lio, disks, iscsiadm, live, log_out_by_hand, luns, node_records, states};
use crate::remote_bed::{Bed, NAME, Node, read};

fn node(name: &str, volumes: usize, ports: u16) -> Node<Lio> {
    Node::new(Lio::new(name, volumes, ports))
}

/// Logs in as an administrator does: the kernel scans all units.
fn log_in_by_hand(lio: &Lio, units: usize) {
    iscsiadm(&["-m", "discovery", "-t", "sendtargets", "-p", "127.0.0.1:3260"]);
    iscsiadm(&["-m", "node", "-T", &lio.iqn, "--login"]);
    eventually("its disks", || (disks().len() == units).then_some(()));
}

#[test]
fn a_volume_lives_as_a_filesystem_and_raw() {
    for filesystem in [Filesystem::Ext4, Filesystem::Xfs] {
        let node = node("life", 3, 1);
        (0..2).for_each(|index| node.lives(index, filesystem));
    }
}

#[test]
fn ten_volumes_of_one_session_come_and_go_in_any_order() {
    let node = node("ten", 10, 1);
    node.ten_volumes_come_and_go();
    node.two_volumes_come_and_go_at_the_same_time();
}

#[test]
fn a_session_of_somebody_else_is_used_and_stays() {
    let node = node("others", 2, 1);
    let lio = &node.bed;
    log_in_by_hand(lio, 2);
    drop(node.attach());
    assert_eq!((live(), luns().len()), (1, 2));
    // A wrong number does not take somebody else's disk away.
    let wrong = lio.unit_at(2, 0).wait_limit(Duration::from_secs(3));
    node.refuses("wrong", wrong, ErrorKind::NotFound);
    assert_eq!((live(), luns()), (1, vec![1, 2]));
    let detached = node.detach();
    assert!(detached.disconnected.is_empty() && detached.kept.is_some(), "{detached}");
    // The volume's disk is gone, and the session and the other disk stay.
    assert_eq!((live(), luns(), node_records().len()), (1, vec![2], 1));
    iscsiadm(&["-m", "node", "-T", &lio.iqn, "--logout"]);

    // With the administrator's record and no session the record stays, and the session goes.
    drop(node.attach());
    assert_eq!(luns(), [1], "the record's own setting would scan all");
    assert_eq!(node.detach().disconnected.len(), 1);
    assert_eq!((live(), node_records().len()), (0, 1));
    iscsiadm(&["-m", "node", "-T", &lio.iqn, "-o", "delete"]);

    node.a_volume_without_a_record_keeps_the_connection(log_out_by_hand);
}

#[test]
fn a_reused_number_is_another_volume() {
    let node = node("reused", 2, 1);
    let lio = &node.bed;
    lio.unmap(2);
    let target = lio.unit(0).wait_limit(Duration::from_secs(3));
    drop(node.disks.attach(NAME, &target).unwrap());
    // The LUN 1 is another volume now.
    lio.unmap(1);
    lio.map(1, 1);
    assert!(node.disks.device(NAME).unwrap().is_none(), "the device is asked who it is");
    // The old one is still recorded.
    node.refuses("new", lio.unit_at(1, 1), ErrorKind::WrongDevice);
    node.refuses(NAME, &target, ErrorKind::NotFound);
    node.assert_nothing_left();
    // An administrator's session remembers the unit that was there before.
    log_in_by_hand(lio, 1);
    lio.unmap(1);
    lio.map(1, 0);
    lio.image(0).write(4096, b"right");
    let device = node.disks.attach(NAME, &target).unwrap();
    assert_eq!(read(&device, 4096, 5), b"right");
    drop(device);
    node.detach();
    log_out_by_hand();
    node.assert_nothing_left();
    // Under one name there is one disk.
    lio.map(2, 1);
    drop(node.disks.attach(NAME, &target).unwrap());
    node.refuses(NAME, lio.unit(1), ErrorKind::WrongDevice);
    node.detach();
    node.assert_nothing_left();
}

#[test]
fn a_unit_that_comes_late_is_waited_for_and_one_portal_is_enough() {
    let node = node("late", 1, 2);
    let several = node.bed.unit(0);
    node.refuses(NAME, &several, ErrorKind::Unsupported);
    let single = several.single_path();
    node.bed.unmap(1);
    node.bed.close(3260);
    node.a_late_volume_is_waited_for(&single, || live() == 1, || node.bed.map(1, 0));
    // The volume stays with this portal.
    node.bed.open(3260);
    drop(node.disks.attach(NAME, &single).unwrap());
    assert_eq!((live(), disks().len()), (1, 1));
    node.detach();
    node.assert_nothing_left();
    // Nobody listens: nothing is left, and the portal is named.
    node.bed.close(3260);
    node.bed.close(3261);
    let error = node.refuses(NAME, single, ErrorKind::Unresponsive);
    assert!(error.contains("127.0.0.1:3261"), "{error}");
    node.assert_nothing_left();
}

#[test]
fn a_target_goes_and_comes_back_under_load() {
    let node = node("back", 1, 1);
    node.paths_go_and_come_back_under_load(node.attach(), || {});
}

/// Whether reads and writes of a unit fail at once.
fn is_given_up() -> bool {
    states().iter().any(|state| state.contains("offline"))
}

#[test]
fn a_volume_that_the_kernel_gave_up_is_attached_again() {
    let node = node("gone", 2, 1);
    let target = node.bed.unit(0).replacement_timeout(Duration::from_secs(2));
    let [before, after] = node.is_attached_again(&target, is_given_up);
    assert_eq!(before, after);
}

#[test]
fn a_dead_portal_does_not_keep_a_volume() {
    let node = node("dead", 1, 1);
    for replacement in [600, 2] {
        println!("replacement_timeout {replacement}");
        let target = node.bed.unit(0).replacement_timeout(Duration::from_secs(replacement));
        let device = node.disks.attach(NAME, &target).unwrap();
        let staging = node.staging("staging");
        if replacement == 2 {
            stage(device.path(), &staging, &StagePlan::new(Filesystem::Ext4)).unwrap();
        }
        drop(device);
        node.bed.set_path(0, false);
        eventually("the session is lost", || (live() == 0).then_some(()));
        if replacement == 2 {
            eventually("the kernel gives the disk up", || is_given_up().then_some(()));
            // It does not open any more, and it is mounted.
            refused(node.disks.detach(NAME), ErrorKind::Busy);
            run("umount", &[staging.path().to_str().unwrap()]);
        }
        node.is_detached_without_paths(Node::detach_in_time, Duration::from_secs(100));
        node.bed.set_path(0, true);
    }
}

#[test]
fn the_lock_of_a_killed_iscsiadm_does_not_delay_all_logins() {
    let node = node("lock", 1, 1);
    // It has made the files of its lock.
    drop(node.attach());
    node.detach();
    let [file, lock] = ["lock", "lock.write"].map(|name| Path::new("/run/lock/iscsi").join(name));
    fs::hard_link(&file, &lock).unwrap();
    let start = Instant::now();
    drop(node.attach());
    println!("attached in {:?}", start.elapsed());
    assert!(!lock.exists());
    fs::hard_link(&file, &lock).unwrap();
    node.detach();
    assert!(!lock.exists());
    node.assert_nothing_left();
}

#[test]
fn secrets_are_needed_and_not_printed() {
    let node = node("chap", 1, 1);
    let lio = &node.bed;
    let one_way = lio.unit(0).chap("node", "node-secret-1").unwrap();
    let mutual = one_way.clone().mutual_chap("target", "target-secret-1").unwrap();
    let refused = |target: &IscsiTarget| {
        let start = Instant::now();
        let error = node.disks.attach(NAME, target).unwrap_err();
        println!("{:?} after {:?}: {error}", error.kind(), start.elapsed());
        assert!(!format!("{error:?}").contains("secret-1"), "{error}");
        node.assert_nothing_left();
    };
    let accepted = |target: &IscsiTarget| {
        let device = node.disks.attach(NAME, target).unwrap();
        assert!(device.size().unwrap() > 0);
        drop(device);
        let [record] = &node_records()[..] else { panic!("{:?}", node_records()) };
        assert!(fs::read_to_string(record).unwrap().contains("node-secret-1"));
        assert_eq!(fs::metadata(record).unwrap().permissions().mode() & 0o77, 0, "only root reads it");
        let record = fs::read_to_string(node.record(NAME)).unwrap();
        assert!(!record.contains("secret"), "{record}");
        node.detach();
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
    let node = node("ended", 1, 1);
    for is_ended in [true, false] {
        drop(node.attach());
        if is_ended {
            log_out_by_hand();
            assert_eq!((live(), disks()), (0, vec![]));
        }
        let detached = node.detach();
        assert_eq!(detached.not_flushed.is_some(), is_ended, "{detached}");
        node.assert_nothing_left();
    }
}

#[test]
fn an_attachment_of_an_earlier_boot_is_only_forgotten() {
    let node = node("boot", 1, 1);
    node.an_earlier_boot_is_forgotten();
    log_out_by_hand();
}
