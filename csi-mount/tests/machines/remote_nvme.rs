//! NVMe over TCP, and over RDMA by the same tests, against the kernel's own target on this machine: attach, grow,
//! detach, and what must not happen.
//!
//! The tests run where `cargo xtask test --kernels` provides the modules, and not with `cargo test` alone.

use std::fs;
use std::time::Duration;

use csi_mount::{ErrorKind, Filesystem};

use crate::devices;
use crate::devices::{eventually, refused};
use crate::nvme_target;
use crate::nvme_target::{Nvmet, PORTS, controllers, disconnect_by_hand, live};
use crate::remote_bed::{NAME, Node};

fn node(name: &str, volumes: usize, ports: u16) -> Node<Nvmet> {
    Node::new(Nvmet::new(name, volumes, ports))
}

#[test]
fn a_volume_lives_on_one_portal_and_on_two() {
    for (ports, filesystem) in [(1, Filesystem::Ext4), (2, Filesystem::Xfs)] {
        let node = node("life", 2, ports);
        (0..2).for_each(|index| node.lives(index, filesystem));
    }
}

#[test]
fn ten_volumes_of_one_subsystem_come_and_go_in_any_order() {
    let node = node("ten", 10, 2);
    node.ten_volumes_come_and_go();
    node.two_volumes_come_and_go_at_the_same_time();
}

#[test]
fn what_others_use_stays_connected() {
    let node = node("others", 2, 2);
    // A controller that somebody else connected is used, and stays; the other one is this volume's.
    nvme_target::connect_by_hand(&node.bed.nqn, PORTS[0]);
    drop(node.attach());
    assert_eq!(live(), 2);
    let detached = node.detach();
    assert_eq!((detached.disconnected.len(), live()), (1, 1), "{detached}");
    disconnect_by_hand();

    node.a_volume_without_a_record_keeps_the_connection(disconnect_by_hand);
}

#[test]
fn a_reused_number_is_another_volume() {
    let node = node("reused", 2, 1);
    let target = node.bed.target(0).wait_limit(Duration::from_secs(3));
    drop(node.disks.attach(NAME, &target).unwrap());
    // The namespace with the number 1 is another volume now.
    node.bed.rename(0, 8);
    eventually("the kernel sees it", || node.disks.device(NAME).unwrap().is_none().then_some(()));
    assert_eq!(node.disks.refresh(NAME).unwrap_err().kind(), ErrorKind::Unresponsive);
    node.refuses(NAME, &target, ErrorKind::NotFound);
    node.assert_nothing_left();
    // Under one name there is one namespace.
    drop(node.disks.attach(NAME, node.bed.target(8)).unwrap());
    node.refuses(NAME, node.bed.target(1), ErrorKind::WrongDevice);
    node.detach();
    node.assert_nothing_left();
}

#[test]
fn a_number_that_was_reused_in_silence_is_another_volume() {
    let node = node("silence", 3, 1);
    drop(node.disks.attach("other", node.bed.target(2)).unwrap());
    for index in [0, 1] {
        let target = node.bed.target(index);
        drop(node.disks.attach(NAME, &target).unwrap());
        // The target announces no change, and the kernel still has the old name.
        let [(name, _)] = &controllers()[..] else { panic!("{:?}", controllers()) };
        devices::run("nvme", &["set-feature", &format!("/dev/{name}"), "--feature-id=0x0b", "--value=0"]);
        node.bed.rename(index, 8 + index);
        assert!(node.disks.device(NAME).unwrap().is_some(), "the kernel does not know it");
        refused(node.disks.refresh(NAME), ErrorKind::WrongDevice);
        let short = target.wait_limit(Duration::from_secs(3));
        let error = node.disks.attach(NAME, &short).unwrap_err();
        println!("{error}");
        assert!([ErrorKind::NotFound, ErrorKind::WrongDevice].contains(&error.kind()), "{error}");
        assert_eq!(node.records(), ["other.disk"]);
    }
    node.disks.detach("other").unwrap();
    node.assert_nothing_left();
}

#[test]
fn a_namespace_that_comes_late_is_waited_for() {
    let node = node("late", 1, 1);
    let target = node.bed.target(0);
    node.bed.set_enabled(0, false);
    node.a_late_volume_is_waited_for(&target, || live() == 1, || node.bed.set_enabled(0, true));
    node.detach();
    // Nobody listens: nothing is left, and the portal is named.
    node.bed.set_open(PORTS[0], false);
    let error = node.refuses(NAME, &target, ErrorKind::Unresponsive);
    assert!(error.contains(&nvme_target::address(PORTS[0]).to_string()), "{error}");
    node.assert_nothing_left();
}

#[test]
fn paths_go_and_come_back_under_load() {
    let node = node("paths", 1, 2);
    let device = node.a_late_path_is_added();
    node.paths_go_and_come_back_under_load(device, || {
        for state in ["inaccessible", "non-optimized", "persistent-loss", "optimized"] {
            node.bed.set_access(PORTS[0], state);
            eventually(state, || access_states().iter().any(|found| found == state).then_some(()));
        }
    });
    // Without access nothing is returned.
    PORTS.iter().for_each(|port| node.bed.set_access(*port, "inaccessible"));
    let target = node.bed.target(0).wait_limit(Duration::from_secs(3));
    let error = node.refuses(NAME, target, ErrorKind::Unresponsive);
    assert!(error.contains("inaccessible"), "{error}");
    node.assert_nothing_left();
}

/// The access states of all paths (ANA).
fn access_states() -> Vec<String> {
    let controllers = fs::read_dir("/sys/class/nvme").unwrap().flatten();
    let paths = controllers.flat_map(|controller| fs::read_dir(controller.path()).unwrap().flatten());
    let states = paths.filter_map(|path| fs::read_to_string(path.path().join("ana_state")).ok());
    states.map(|state| state.trim().to_owned()).collect()
}

#[test]
fn dead_paths_do_not_keep_a_volume() {
    let node = node("dead", 1, 2);
    for ctrl_loss in [600, 3] {
        let target = node.bed.target(0).ctrl_loss_tmo(Duration::from_secs(ctrl_loss));
        let device = node.disks.attach(NAME, &target).unwrap();
        PORTS.iter().for_each(|port| node.bed.set_open(*port, false));
        if ctrl_loss == 3 {
            eventually("the kernel gives up", || controllers().is_empty().then_some(()));
        } else {
            eventually("no path is left", || (live() == 0).then_some(()));
        }
        drop(device);
        node.is_detached_without_paths(Node::detach, Duration::from_secs(100));
        PORTS.iter().for_each(|port| node.bed.set_open(*port, true));
    }
}

#[test]
fn a_volume_that_the_kernel_gave_up_is_attached_again() {
    let node = node("gone", 2, 2);
    let target = node.bed.target(0).ctrl_loss_tmo(Duration::from_secs(3));
    node.is_attached_again(&target, || {
        controllers().is_empty() && node.disks.device(NAME).unwrap().is_none()
    });
}

#[test]
fn an_attachment_of_an_earlier_boot_is_only_forgotten() {
    let node = node("boot", 1, 1);
    node.an_earlier_boot_is_forgotten();
    disconnect_by_hand();
}

#[test]
fn keys_are_needed_and_not_printed() {
    const RIGHT: &str = "DHHC-1:00:ia6zGodOr4SEG0Zzaw398rpY0wqipUWj4jWjUh4HWUz6aQ2n:";
    const WRONG: &str = "DHHC-1:00:nJ2xzcZbFuKnBUKYGkAgnuAsMCFqFVF1W4RsXMkTGLiE0kGm:";
    const TARGETS: &str = "DHHC-1:00:BwgJCgsMDQ4PEBESExQVFhcYGRobHB0eHyAhIiMkJSYDWRHm:";
    let node = node("keys", 1, 1);
    node.bed.require_key(RIGHT, TARGETS);
    let plain = node.bed.target(0);
    let [wrong, wrong_target] =
        [(WRONG, None), (RIGHT, Some(WRONG))].map(|(own, other)| plain.clone().dhchap(own, other).unwrap());
    for target in [plain.clone(), wrong, wrong_target] {
        let error = node.disks.attach(NAME, &target).unwrap_err();
        println!("{:?}: {error}", error.kind());
        assert!(!format!("{error:?}").contains("DHHC"), "{error}");
        node.assert_nothing_left();
    }
    for of_target in [None, Some(TARGETS)] {
        let target = plain.clone().dhchap(RIGHT, of_target).unwrap();
        let device = node.disks.attach(NAME, target).unwrap();
        assert!(device.size().unwrap() > 0);
        drop(device);
        let record = fs::read_to_string(node.record(NAME)).unwrap();
        assert!(!record.contains("DHHC"), "{record}");
        node.detach();
        node.assert_nothing_left();
    }
}
