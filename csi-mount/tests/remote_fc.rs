//! Fibre Channel against the kernel's own target, on this machine: attach, grow, detach, and what must not happen.
//! With several ports over dm-multipath, with Debian's multipathd and udevd.
//!
//! The tests run where `cargo xtask test --kernels` provides the modules, and not with `cargo test` alone.

mod devices;
mod fc_target;
mod multipath_node;

use std::fs;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use csi_mount::flow::block::{StagePlan, expand, publish_device, stage, unpublish, unstage};
use csi_mount::remote::{FcTarget, RemoteDisks, Wwpn};
use csi_mount::{DeviceAccess, ErrorKind, Filesystem, Target};
use devices::MIB;
use fc_target::{Lio, delete_all, disks, eventually, initiator, live, luns, port, set_link, states};
use multipath_node::{Daemon, dmsetup, maps, multipathd_for, udevd};

struct Node {
    directory: tempfile::TempDir,
    disks: RemoteDisks,
    daemons: Vec<Daemon>,
}

impl Node {
    /// A node without multipathd.
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let disks = RemoteDisks::new(directory.path().join("remote"));
        Self { directory, disks, daemons: Vec::new() }
    }

    /// A node whose multipathd has these settings for disks of LIO, and says soon that a port is lost.
    fn with_multipathd(lio: &str) -> Self {
        let lio = format!("fast_io_fail_tmo 2\n dev_loss_tmo 600\n {lio}");
        Self { daemons: vec![udevd(), multipathd_for("find_multipaths no", &lio)], ..Self::new() }
    }

    fn staging(&self, name: &str) -> Target {
        Target::new(self.directory.path().join(name)).unwrap()
    }

    fn records(&self) -> Vec<String> {
        let records = fs::read_dir(self.directory.path().join("remote")).unwrap().flatten();
        let names = records.map(|entry| entry.file_name().into_string().unwrap());
        names.filter(|name| !name.starts_with(".lock-")).collect()
    }

    fn assert_nothing_left(&self) {
        assert_eq!((maps(), luns(), self.records()), (vec![], vec![], vec![]));
        assert!(disks().is_empty(), "{:?}", disks());
    }

    /// A whole life: filesystem, grow, detach, raw. Returns how many paths there were.
    fn live(&self, lio: &Lio, index: usize, target: &FcTarget, filesystem: Filesystem) {
        let staging = self.staging("staging");
        let start = Instant::now();
        let device = self.disks.attach("pvc", target).unwrap();
        println!("attached in {:?}", start.elapsed());
        // Only the LUN that was asked for is there, once for each port.
        assert_eq!(luns(), vec![Lio::lun(index); lio.networks.len()]);
        stage(device.path(), &staging, &StagePlan::new(filesystem).expect(target.expected())).unwrap();
        fs::write(staging.path().join("file"), "content").unwrap();
        // Again, with the volume in use.
        assert_eq!(self.disks.attach("pvc", target).unwrap().number(), device.number());
        assert_eq!(self.disks.device("pvc").unwrap().unwrap().number(), device.number());
        let error = self.disks.detach("pvc").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Busy, "{error}");

        assert_eq!(self.disks.refresh("pvc").unwrap(), 300 * MIB);
        lio.grow(index, 400);
        assert_eq!(self.disks.refresh("pvc").unwrap(), 400 * MIB);
        assert_eq!(device.size().unwrap(), 400 * MIB);
        expand(staging.path()).unwrap();

        unstage(&staging, Some(device.path())).unwrap();
        drop(device);
        let start = Instant::now();
        let detached = self.disks.detach("pvc").unwrap();
        println!("detached in {:?}: {detached}", start.elapsed());
        assert!(detached.not_flushed.is_none() && detached.kept.is_none(), "{detached}");
        self.assert_nothing_left();
        assert!(self.disks.device("pvc").unwrap().is_none());
        self.disks.detach("pvc").unwrap();

        // What was written is there when it comes back, and raw.
        let device = self.disks.attach("pvc", target).unwrap();
        assert_eq!(device.size().unwrap(), 400 * MIB);
        let raw = fs::OpenOptions::new().write(true).open(device.path()).unwrap();
        raw.write_all_at(b"raw", 399 * MIB).unwrap();
        drop(raw);
        let published = self.staging("published");
        publish_device(device.path(), &published, DeviceAccess::ReadWrite).unwrap();
        assert_eq!(self.disks.detach("pvc").unwrap_err().kind(), ErrorKind::Busy);
        unpublish(&published).unwrap();
        stage(device.path(), &staging, &StagePlan::new(filesystem).never_format()).unwrap();
        assert_eq!(fs::read_to_string(staging.path().join("file")).unwrap(), "content");
        unstage(&staging, Some(device.path())).unwrap();
        drop(device);
        self.disks.detach("pvc").unwrap();
        self.assert_nothing_left();
        assert_eq!(lio.images[index].read(399 * MIB, 3), b"raw");
    }
}

/// The unit, also with one path and no map.
fn single(lio: &Lio, index: usize) -> FcTarget {
    lio.unit(index).allow_single_path()
}

/// The number of paths in the only map.
fn paths() -> usize {
    let [(name, _)] = &maps()[..] else { return 0 };
    dmsetup(&["deps", "-o", "devname", name]).matches("(sd").count()
}

/// The number of paths that the device mapper uses.
fn active() -> usize {
    let status = dmsetup(&["status"]);
    let words: Vec<&str> = status.split_whitespace().collect();
    words.windows(2).filter(|pair| pair[0].contains(':') && pair[1] == "A").count()
}

#[test]
fn a_volume_lives_on_one_port() {
    let (node, lio) = (Node::new(), Lio::new("life", 3, 1));
    let ports = Wwpn::of_node().unwrap();
    assert!(ports.contains(&initiator(0)), "{ports:?}");
    for (index, filesystem) in [(0, Filesystem::Ext4), (1, Filesystem::Xfs)] {
        node.live(&lio, index, &single(&lio, index), filesystem);
    }
    let error = node.disks.attach("pvc", lio.unit(0)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    assert!(error.to_string().contains("multipathd"), "{error}");
    // A port that nobody has, and one that this machine does not reach over this port.
    let unknown = lio.without_ports(1, 0).port("5006016000000001".parse().unwrap()).allow_single_path();
    let elsewhere = single(&lio, 0).initiator(initiator(1));
    for target in [unknown, elsewhere] {
        let error = node.disks.attach("pvc", target.wait_limit(Duration::from_secs(2))).unwrap_err();
        println!("{error}");
        assert_eq!(error.kind(), ErrorKind::Unresponsive, "{error}");
        assert!(error.to_string().contains(&initiator(0).to_string()), "{error}");
        node.assert_nothing_left();
    }
}

#[test]
fn a_volume_lives_on_two_ports() {
    let (node, lio) = (Node::with_multipathd(""), Lio::new("life2", 2, 2));
    for (index, filesystem) in [(0, Filesystem::Ext4), (1, Filesystem::Xfs)] {
        let device = node.disks.attach("map", lio.unit(index)).unwrap();
        assert!(device.path().to_str().unwrap().starts_with("/dev/dm-"), "{device:?}");
        assert_eq!((paths(), luns()), (2, vec![Lio::lun(index); 2]));
        drop(device);
        node.disks.detach("map").unwrap();
        node.live(&lio, index, &lio.unit(index), filesystem);
    }
}

#[test]
fn ten_volumes_come_and_go_in_any_order() {
    let (node, lio) = (Node::new(), Lio::new("ten", 10, 1));
    let name = |index: usize| format!("pvc-{index}");
    for order in [[0, 1, 2, 3, 4, 5, 6, 7, 8, 9], [9, 2, 5, 0, 7, 1, 8, 3, 6, 4]] {
        let numbers: Vec<_> = std::thread::scope(|scope| {
            let attach = |index: usize| {
                let (node, lio) = (&node, &lio);
                move || node.disks.attach(&name(index), single(lio, index)).unwrap().number()
            };
            let all: Vec<_> = (0..10).map(|index| scope.spawn(attach(index))).collect();
            all.into_iter().map(|one| one.join().unwrap()).collect()
        });
        assert_eq!(luns().len(), 10);
        for (position, index) in order.into_iter().enumerate() {
            for left in &order[position..] {
                let device = node.disks.device(&name(*left)).unwrap().expect("it is attached");
                assert_eq!(device.number(), numbers[*left]);
            }
            node.disks.detach(&name(index)).unwrap();
            assert_eq!(luns().len(), 9 - position);
            assert!(!luns().contains(&Lio::lun(index)));
        }
        node.assert_nothing_left();
    }
}

#[test]
fn what_the_kernel_scanned_is_used_and_other_volumes_stay() {
    let (node, lio) = (Node::with_multipathd(""), Lio::new("scanned", 3, 2));
    lio.log_in_again();
    eventually("all units and their maps", || (luns().len() == 6 && maps().len() == 3).then_some(()));
    // The driver names one of the ports. The map that exists has both.
    let target = lio.without_ports(1, 0).port(port(0));
    let device = node.disks.attach("pvc", &target).unwrap();
    assert_eq!(luns(), [1, 1, 2, 2, 3, 3]);
    let paths = fs::read_dir(format!("/sys/dev/block/{}/slaves", device.number())).unwrap();
    assert_eq!(paths.count(), 2);
    drop(device);
    assert!(node.disks.detach("pvc").unwrap().not_flushed.is_none());
    // Both paths are gone, and nothing else.
    assert_eq!((luns(), maps().len(), live()), (vec![2, 2, 3, 3], 2, 2));

    // The number 2 belongs to another volume: that one is asked, and stays.
    let wrong = lio.unit_at(2, 0);
    let error = node.disks.attach("pvc", &wrong).unwrap_err();
    println!("{error}");
    assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
    assert_eq!((luns(), maps().len()), (vec![2, 2, 3, 3], 2));
    // The kernel, and the map, remember the volume that had the number 2. It is another one now.
    lio.unmap(1);
    lio.unmap(2);
    lio.map(2, 0);
    lio.images[0].write(4096, b"right");
    let device = node.disks.attach("pvc", &wrong).unwrap();
    let mut bytes = [0; 5];
    fs::File::open(device.path()).unwrap().read_exact_at(&mut bytes, 4096).unwrap();
    assert_eq!(&bytes, b"right");
    drop(device);
    node.disks.detach("pvc").unwrap();
    assert_eq!((luns(), maps().len()), (vec![3, 3], 1));
    // The third one goes when it was attached.
    drop(node.disks.attach("third", lio.unit(2)).unwrap());
    node.disks.detach("third").unwrap();
    node.assert_nothing_left();
}

#[test]
fn a_reused_number_is_another_volume() {
    let (node, lio) = (Node::new(), Lio::new("reused", 2, 1));
    lio.unmap(2);
    let target = single(&lio, 0).wait_limit(Duration::from_secs(3));
    drop(node.disks.attach("pvc", &target).unwrap());
    // The LUN 1 is another volume now.
    lio.unmap(1);
    lio.map(1, 1);
    assert!(node.disks.device("pvc").unwrap().is_none(), "the device is asked who it is");
    let new = lio.unit_at(1, 1).allow_single_path();
    let error = node.disks.attach("new", &new).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::WrongDevice, "the old one is still recorded: {error}");
    let error = node.disks.attach("pvc", &target).unwrap_err();
    println!("{error}");
    assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
    assert!(node.records().is_empty());
    // What the kernel has there is the new one.
    drop(node.disks.attach("new", &new).unwrap());
    node.disks.detach("new").unwrap();
    node.assert_nothing_left();
    // Under one name there is one disk.
    lio.map(2, 0);
    drop(node.disks.attach("pvc", &new).unwrap());
    let error = node.disks.attach("pvc", lio.unit_at(2, 0).allow_single_path()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::WrongDevice, "{error}");
    node.disks.detach("pvc").unwrap();
    // A unit that comes late is waited for.
    lio.unmap(2);
    std::thread::scope(|scope| {
        let late = lio.unit_at(2, 0).allow_single_path();
        let attaching = scope.spawn(move || node.disks.attach("late", late).map(drop).map(|()| node));
        std::thread::sleep(Duration::from_secs(1));
        lio.map(2, 0);
        let node = attaching.join().unwrap().unwrap();
        node.disks.detach("late").unwrap();
        node.assert_nothing_left();
    });
}

#[test]
fn a_port_goes_and_comes_back_under_load() {
    let (node, lio) = (Node::with_multipathd("no_path_retry 30"), Lio::new("load", 1, 2));
    // It is missing at first.
    set_link(1, false);
    eventually("one port is left", || (live() == 1).then_some(()));
    let device = node.disks.attach("pvc", lio.unit(0)).unwrap();
    assert_eq!(paths(), 1);
    set_link(1, true);
    eventually("the second port", || (live() == 2).then_some(()));
    assert_eq!(node.disks.attach("pvc", lio.unit(0)).unwrap().number(), device.number());
    assert_eq!(paths(), 2);
    // Held while something is written. See `set_link`.
    let (is_done, writing) = (AtomicBool::new(false), Mutex::new(()));
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
            assert_eq!(node.disks.attach("pvc", lio.unit(0)).unwrap().number(), device.number());
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
    let detached = eventually("the detach succeeds", || detach(&node));
    println!("with one lost port in {:?}: {detached}", start.elapsed());
    assert!(detached.not_flushed.is_none(), "{detached}");
    assert_eq!(lio.images[0].read(0, 4096), [8; 4096]);
    node.assert_nothing_left();
}

fn detach(node: &Node) -> Option<csi_mount::remote::Detached> {
    match node.disks.detach("pvc") {
        Ok(detached) => Some(detached),
        Err(error) => {
            println!("repeated: {error}");
            None
        }
    }
}

#[test]
fn dead_ports_that_queue_do_not_keep_a_volume() {
    let (node, lio) = (Node::with_multipathd("no_path_retry queue"), Lio::new("dead", 1, 2));
    let device = node.disks.attach("pvc", lio.unit(0)).unwrap();
    [0, 1].into_iter().for_each(|network| set_link(network, false));
    eventually("no path is left", || (live() == 0 && active() == 0).then_some(()));
    drop(device);
    let start = Instant::now();
    let detached = eventually("the detach succeeds", || detach(&node));
    println!("{:?}: {detached}", start.elapsed());
    assert!(start.elapsed() < Duration::from_secs(120));
    assert!(detached.not_flushed.is_some(), "{detached}");
    node.assert_nothing_left();
    [0, 1].into_iter().for_each(|network| set_link(network, true));
    // The kernel scans what is mapped there when the ports come back. It can be attached.
    eventually("the ports", || (live() == 2).then_some(()));
    drop(node.disks.attach("pvc", lio.unit(0)).unwrap());
    node.disks.detach("pvc").unwrap();
    node.assert_nothing_left();
}

#[test]
fn a_dead_port_without_multipathd_does_not_keep_a_volume() {
    let (node, lio) = (Node::new(), Lio::new("dead1", 1, 1));
    let limits = |name: &str, value: &str| {
        let all = fs::read_dir("/sys/class/fc_remote_ports").unwrap().flatten().map(|entry| entry.path());
        let is_target = |place: &PathBuf| {
            fs::read_to_string(place.join("roles")).is_ok_and(|roles| roles.contains("Target"))
        };
        for place in all.filter(is_target) {
            fs::write(place.join(name), value).unwrap();
        }
    };
    // The port is lost for good, or its units fail while it is awaited.
    for (fast_io_fail, dev_loss) in [("off", "3"), ("2", "600")] {
        limits("fast_io_fail_tmo", fast_io_fail);
        limits("dev_loss_tmo", dev_loss);
        let device = node.disks.attach("pvc", single(&lio, 0)).unwrap();
        let file = fs::OpenOptions::new().write(true).open(device.path()).unwrap();
        drop(device);
        file.write_all_at(&[1; 4096], 0).unwrap();
        set_link(0, false);
        eventually("the port is lost", || (live() == 1).then_some(()));
        let is_gone = || luns().is_empty() || states().iter().all(|state| state.contains("offline"));
        eventually("the kernel gives the unit up", || is_gone().then_some(()));
        drop(file);
        let start = Instant::now();
        let detached = eventually("the detach succeeds", || detach(&node));
        println!("{fast_io_fail} {dev_loss}: {:?}: {detached}", start.elapsed());
        assert!(detached.not_flushed.is_some(), "{detached}");
        assert!(start.elapsed() < Duration::from_secs(100));
        node.assert_nothing_left();
        lio.log_in_again();
        limits("dev_loss_tmo", "60");
        delete_all();
        eventually("no unit", || luns().is_empty().then_some(()));
    }
}

#[test]
fn multipathd_that_stopped_is_needed_to_attach_and_not_to_detach() {
    let (mut node, lio) = (Node::with_multipathd(""), Lio::new("stopped", 1, 2));
    drop(node.disks.attach("pvc", lio.unit(0)).unwrap());
    drop(node.daemons.pop());
    assert!(node.disks.device("pvc").unwrap().is_some());
    assert!(node.disks.detach("pvc").unwrap().not_flushed.is_none());
    node.assert_nothing_left();
    let error = node.disks.attach("pvc", lio.unit(0)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    // Two paths without a map are never one disk.
    let error = node.disks.attach("pvc", single(&lio, 0)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    node.assert_nothing_left();
    assert!(Path::new("/sys/class/fc_host").exists());
}
