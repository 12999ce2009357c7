//! Fibre Channel against the kernel's own target, on this machine: attach, grow, detach, and what must not happen.
//! With several ports over dm-multipath, with Debian's multipathd and udevd.
//!
//! The tests run where `cargo xtask test --kernels` provides the modules, and not with `cargo test` alone.

use std::fs;
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use csi_mount::remote::{FcTarget, Wwpn};
use csi_mount::{ErrorKind, Filesystem};

use crate::devices::eventually;
use crate::fc_target::{Lio, delete_all, initiator, live, luns, port, set_link, states};
use crate::multipath_node::{active, maps, multipathd_for, paths, udevd};
use crate::remote_bed::{Bed, NAME, Node, read};

/// A node without multipathd, and one port.
fn node(name: &str, volumes: usize) -> Node<Lio> {
    Node::new(Lio::new(name, volumes, 1))
}

/// A node whose multipathd has these settings for disks of LIO, and says soon that a port is lost; two ports.
fn node_with_multipathd(settings: &str, name: &str, volumes: usize) -> Node<Lio> {
    let settings = format!("fast_io_fail_tmo 2\n dev_loss_tmo 600\n {settings}");
    let daemons = vec![udevd(), multipathd_for("find_multipaths no", &settings)];
    Node::with(daemons, Lio::new(name, volumes, 2))
}

/// The unit, also with one path and no map.
fn single(lio: &Lio, index: usize) -> FcTarget {
    lio.unit(index).allow_single_path()
}

#[test]
fn a_volume_lives_on_one_port() {
    let node = node("life", 3);
    let ports = Wwpn::of_node().unwrap();
    assert!(ports.contains(&initiator(0)), "{ports:?}");
    node.lives(0, Filesystem::Ext4);
    node.lives(1, Filesystem::Xfs);
    let error = node.refuses(NAME, node.bed.unit(0), ErrorKind::Unsupported);
    assert!(error.contains("multipathd"), "{error}");
    // A port that nobody has, and one that this machine does not reach over this port.
    let unknown = node.bed.without_ports(1, 0).port("5006016000000001".parse().unwrap()).allow_single_path();
    let elsewhere = single(&node.bed, 0).initiator(initiator(1));
    for target in [unknown, elsewhere] {
        let error = node.refuses(NAME, target.wait_limit(Duration::from_secs(2)), ErrorKind::Unresponsive);
        assert!(error.contains(&initiator(0).to_string()), "{error}");
        node.assert_nothing_left();
    }
}

#[test]
fn a_volume_lives_on_two_ports() {
    let node = node_with_multipathd("", "life2", 2);
    for (index, filesystem) in [(0, Filesystem::Ext4), (1, Filesystem::Xfs)] {
        drop(node.disks.attach("map", node.bed.unit(index)).unwrap());
        assert_eq!(paths(), 2);
        node.disks.detach("map").unwrap();
        node.lives(index, filesystem);
    }
}

#[test]
fn ten_volumes_come_and_go_in_any_order() {
    node("ten", 10).ten_volumes_come_and_go();
}

#[test]
fn what_the_kernel_scanned_is_used_and_other_volumes_stay() {
    let node = node_with_multipathd("", "scanned", 3);
    let lio = &node.bed;
    lio.log_in_again();
    eventually("all units and their maps", || (luns().len() == 6 && maps().len() == 3).then_some(()));
    // The driver names one of the ports. The map that exists has both.
    let target = lio.without_ports(1, 0).port(port(0));
    let device = node.disks.attach(NAME, &target).unwrap();
    assert_eq!(luns(), [1, 1, 2, 2, 3, 3]);
    let paths = fs::read_dir(format!("/sys/dev/block/{}/slaves", device.number())).unwrap();
    assert_eq!(paths.count(), 2);
    drop(device);
    assert!(node.detach().not_flushed.is_none());
    // Both paths are gone, and nothing else.
    assert_eq!((luns(), maps().len(), live()), (vec![2, 2, 3, 3], 2, 2));

    // The number 2 belongs to another volume: that one is asked, and stays.
    let wrong = lio.unit_at(2, 0);
    node.refuses(NAME, &wrong, ErrorKind::NotFound);
    assert_eq!((luns(), maps().len()), (vec![2, 2, 3, 3], 2));
    // The kernel, and the map, remember the volume that had the number 2. It is another one now.
    lio.unmap(1);
    lio.unmap(2);
    lio.map(2, 0);
    lio.image(0).write(4096, b"right");
    let device = node.disks.attach(NAME, &wrong).unwrap();
    assert_eq!(read(&device, 4096, 5), b"right");
    drop(device);
    node.detach();
    assert_eq!((luns(), maps().len()), (vec![3, 3], 1));
    // The third one goes when it was attached.
    drop(node.disks.attach("third", lio.unit(2)).unwrap());
    node.disks.detach("third").unwrap();
    node.assert_nothing_left();
}

#[test]
fn a_reused_number_is_another_volume() {
    let node = node("reused", 2);
    let lio = &node.bed;
    lio.unmap(2);
    let target = single(lio, 0).wait_limit(Duration::from_secs(3));
    drop(node.disks.attach(NAME, &target).unwrap());
    // The LUN 1 is another volume now.
    lio.unmap(1);
    lio.map(1, 1);
    assert!(node.disks.device(NAME).unwrap().is_none(), "the device is asked who it is");
    let new = lio.unit_at(1, 1).allow_single_path();
    // The old one is still recorded.
    node.refuses("new", &new, ErrorKind::WrongDevice);
    node.refuses(NAME, &target, ErrorKind::NotFound);
    assert!(node.records().is_empty());
    // What the kernel has there is the new one.
    drop(node.disks.attach("new", &new).unwrap());
    node.disks.detach("new").unwrap();
    node.assert_nothing_left();
    // Under one name there is one disk.
    lio.map(2, 0);
    let moved = lio.unit_at(2, 0).allow_single_path();
    drop(node.disks.attach(NAME, &new).unwrap());
    node.refuses(NAME, &moved, ErrorKind::WrongDevice);
    node.detach();
    lio.unmap(2);
    let has_passed = || {
        std::thread::sleep(Duration::from_secs(1));
        true
    };
    node.a_late_volume_is_waited_for(moved, has_passed, || lio.map(2, 0));
    node.detach();
    node.assert_nothing_left();
}

#[test]
fn a_port_goes_and_comes_back_under_load() {
    let node = node_with_multipathd("no_path_retry 30", "load", 1);
    let device = node.a_late_path_is_added();
    // Held while something is written. See `set_link`.
    let writing = Mutex::new(());
    let is_done = AtomicBool::new(false);
    let take_out = |network| {
        let _nothing_is_written = writing.lock().unwrap();
        set_link(network, false);
    };
    let file = fs::OpenOptions::new().write(true).open(device.path()).unwrap();
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let mut rounds = 0_u64;
            while !is_done.load(Ordering::Relaxed) {
                std::thread::yield_now();
                let _written = writing.lock().unwrap();
                file.write_all_at(&[7; 4096], rounds % 1000 * 4096).unwrap();
                file.sync_all().unwrap();
                rounds += 1;
            }
            rounds
        });
        for network in [0, 1] {
            take_out(network);
            eventually("one path is left", || (live() == 1 && active() == 1).then_some(()));
            // The volume can be used and attached again while a port is lost.
            assert_eq!(node.attach().number(), device.number());
            set_link(network, true);
            eventually("both are back", || (live() == 2 && active() == 2).then_some(()));
        }
        is_done.store(true, Ordering::Relaxed);
        println!("{} writes", writer.join().unwrap());
    });
    // One path is lost: the other one takes the last writes, and no path is left.
    file.write_all_at(&[8; 4096], 0).unwrap();
    drop((file, device));
    set_link(0, false);
    eventually("one path is left", || (live() == 1 && active() == 1).then_some(()));
    let start = Instant::now();
    let detached = node.detach_in_time();
    println!("with one lost port in {:?}: {detached}", start.elapsed());
    assert!(detached.not_flushed.is_none(), "{detached}");
    assert_eq!(node.bed.image(0).read(0, 4096), [8; 4096]);
    node.assert_nothing_left();
}

#[test]
fn dead_ports_that_queue_do_not_keep_a_volume() {
    let node = node_with_multipathd("no_path_retry queue", "dead", 1);
    let device = node.attach();
    node.bed.stop();
    eventually("no path is left", || (live() == 0 && active() == 0).then_some(()));
    drop(device);
    node.is_detached_without_paths(Node::detach_in_time, Duration::from_secs(120));
    node.bed.start();
    // The kernel scans what is mapped there when the ports come back. It can be attached.
    eventually("the ports", || (live() == 2).then_some(()));
    drop(node.attach());
    node.detach();
    node.assert_nothing_left();
}

/// Sets a limit of all ports of targets.
fn set_limit(name: &str, value: &str) {
    let all = fs::read_dir("/sys/class/fc_remote_ports").unwrap().flatten().map(|entry| entry.path());
    let is_target =
        |place: &PathBuf| fs::read_to_string(place.join("roles")).is_ok_and(|roles| roles.contains("Target"));
    for place in all.filter(is_target) {
        fs::write(place.join(name), value).unwrap();
    }
}

#[test]
fn a_dead_port_without_multipathd_does_not_keep_a_volume() {
    let node = node("dead1", 1);
    // The port is lost for good, or its units fail while it is awaited.
    for (fast_io_fail, dev_loss) in [("off", "3"), ("2", "600")] {
        println!("fast_io_fail_tmo {fast_io_fail}, dev_loss_tmo {dev_loss}");
        set_limit("fast_io_fail_tmo", fast_io_fail);
        set_limit("dev_loss_tmo", dev_loss);
        let device = node.attach();
        let file = fs::OpenOptions::new().write(true).open(device.path()).unwrap();
        drop(device);
        file.write_all_at(&[1; 4096], 0).unwrap();
        set_link(0, false);
        eventually("the port is lost", || (live() == 1).then_some(()));
        let is_gone = || luns().is_empty() || states().iter().all(|state| state.contains("offline"));
        eventually("the kernel gives the unit up", || is_gone().then_some(()));
        drop(file);
        node.is_detached_without_paths(Node::detach_in_time, Duration::from_secs(100));
        node.bed.log_in_again();
        set_limit("dev_loss_tmo", "60");
        delete_all();
        eventually("no unit", || luns().is_empty().then_some(()));
    }
}

#[test]
fn multipathd_that_stopped_is_needed_to_attach_and_not_to_detach() {
    let mut node = node_with_multipathd("", "stopped", 1);
    node.needs_multipathd();
    // Two paths without a map are never one disk.
    node.refuses(NAME, single(&node.bed, 0), ErrorKind::Unsupported);
    node.assert_nothing_left();
}
