//! dm-multipath with Debian's multipathd and udevd: NVMe (TCP, or RDMA) without the kernel's native multipath,
//! against the kernel's own target on this machine.
//!
//! The tests run where `cargo xtask test --kernels` provides the modules, and not with `cargo test` alone.

mod devices;
mod multipath_node;
mod nvme_target;

use std::fs;
use std::os::unix::fs::FileExt as _;
use std::time::{Duration, Instant};

use csi_mount::flow::block::{StagePlan, expand, stage, unstage};
use csi_mount::remote::RemoteDisks;
use csi_mount::{ErrorKind, Filesystem, Target};
use devices::{MIB, run, under_load};
use multipath_node::{Daemon, assert_no_native_multipath, dmsetup, maps, multipathd, udevd};
use nvme_target::{Nvmet, controllers, disks, eventually, live};

struct Node {
    directory: tempfile::TempDir,
    disks: RemoteDisks,
    daemons: Vec<Daemon>,
}

impl Node {
    /// A node whose multipathd has these defaults.
    fn new(defaults: &str) -> Self {
        assert_no_native_multipath();
        let directory = tempfile::tempdir().unwrap();
        let disks = RemoteDisks::new(directory.path().join("remote"));
        Self { directory, disks, daemons: vec![udevd(), multipathd(defaults)] }
    }

    fn assert_nothing_left(&self) {
        let records = fs::read_dir(self.directory.path().join("remote")).unwrap().flatten();
        let names = records.map(|entry| entry.file_name().into_string().unwrap());
        let records: Vec<_> = names.filter(|name| !name.starts_with(".lock-")).collect();
        assert_eq!((maps(), controllers(), records), (vec![], vec![], vec![]));
        assert!(disks().is_empty(), "{:?}", disks());
    }

    fn stop_multipathd(&mut self) {
        drop(self.daemons.pop());
    }
}

/// The number of paths in the only map.
fn paths() -> usize {
    let [(name, _)] = &maps()[..] else { return 0 };
    let status = dmsetup(&["deps", "-o", "devname", name]);
    status.matches("(nvme").count()
}

/// The number of paths that the device mapper uses.
fn active() -> usize {
    let status = dmsetup(&["status"]);
    let words: Vec<&str> = status.split_whitespace().collect();
    // The state of a path follows its number.
    words.windows(2).filter(|pair| pair[0].contains(':') && pair[1] == "A").count()
}

/// The table of the only map, without the numbers of its paths, which differ each time.
fn table() -> String {
    let [(name, _)] = &maps()[..] else { panic!("{:?}", maps()) };
    let table = dmsetup(&["table", name]);
    table
        .split_whitespace()
        .map(|word| if word.contains(':') { "path" } else { word })
        .collect::<Vec<_>>()
        .join(" ")
}

#[test]
fn a_volume_lives_on_two_portals() {
    let (node, nvmet) = (Node::new("find_multipaths no"), Nvmet::new("life", 2, 2));
    let staging = Target::new(node.directory.path().join("staging")).unwrap();
    for (index, filesystem) in [(0, Filesystem::Ext4), (1, Filesystem::Xfs)] {
        let target = nvmet.target(index);
        let start = Instant::now();
        let device = node.disks.attach("pvc-1", &target).unwrap();
        println!("attached in {:?}", start.elapsed());
        assert!(device.path().to_str().unwrap().starts_with("/dev/dm-"), "{device:?}");
        stage(device.path(), &staging, &StagePlan::new(filesystem).expect(target.expected())).unwrap();
        fs::write(staging.path().join("file"), "content").unwrap();
        // Again, with the volume in use.
        let again = node.disks.attach("pvc-1", &target).unwrap();
        assert_eq!(again.number(), device.number());
        assert_eq!(node.disks.device("pvc-1").unwrap().unwrap().number(), device.number());
        let error = node.disks.detach("pvc-1").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
        drop(again);

        assert_eq!(node.disks.refresh("pvc-1").unwrap(), 300 * MIB);
        nvmet.grow(index, 400);
        assert_eq!(node.disks.refresh("pvc-1").unwrap(), 400 * MIB);
        assert_eq!(device.size().unwrap(), 400 * MIB);
        expand(staging.path()).unwrap();

        unstage(&staging, Some(device.path())).unwrap();
        drop(device);
        let start = Instant::now();
        let detached = node.disks.detach("pvc-1").unwrap();
        println!("detached in {:?}: {detached}", start.elapsed());
        assert_eq!(detached.disconnected.len(), 2);
        assert!(detached.not_flushed.is_none() && detached.kept.is_none(), "{detached}");
        node.assert_nothing_left();

        let device = node.disks.attach("pvc-1", &target).unwrap();
        let raw = fs::OpenOptions::new().write(true).open(device.path()).unwrap();
        raw.write_all_at(b"raw", 399 * MIB).unwrap();
        drop(raw);
        stage(device.path(), &staging, &StagePlan::new(filesystem).never_format()).unwrap();
        assert_eq!(fs::read_to_string(staging.path().join("file")).unwrap(), "content");
        unstage(&staging, Some(device.path())).unwrap();
        drop(device);
        node.disks.detach("pvc-1").unwrap();
        node.assert_nothing_left();
        assert_eq!(nvmet.images[index].read(399 * MIB, 3), b"raw");
    }
}

#[test]
fn a_late_path_is_added_and_strict_settings_do_not_hinder() {
    for defaults in ["find_multipaths no", "find_multipaths strict", "find_multipaths yes"] {
        let (node, nvmet) = (Node::new(defaults), Nvmet::new("late", 1, 2));
        nvmet.close(4421);
        let device = node.disks.attach("pvc", nvmet.target(0)).unwrap();
        assert_eq!((paths(), maps().len()), (1, 1), "{defaults}");
        nvmet.open(4421);
        assert_eq!(node.disks.attach("pvc", nvmet.target(0)).unwrap().number(), device.number());
        assert_eq!(paths(), 2, "{defaults}");
        drop(device);
        node.disks.detach("pvc").unwrap();
        node.assert_nothing_left();
    }
}

#[test]
fn volumes_of_one_subsystem_have_their_own_maps() {
    let (node, nvmet) = (Node::new("find_multipaths no"), Nvmet::new("two", 3, 2));
    let [first, second] = [0, 1].map(|index| {
        let name = format!("pvc-{index}");
        node.disks.attach(&name, nvmet.target(index)).unwrap().number()
    });
    assert_ne!(first, second);
    assert!(node.disks.detach("pvc-0").unwrap().kept.is_some());
    assert_eq!(node.disks.device("pvc-1").unwrap().unwrap().number(), second);
    // No event announces these paths again.
    drop(node.disks.attach("pvc-0", nvmet.target(0)).unwrap());
    assert!(node.disks.detach("pvc-1").unwrap().kept.is_some());
    // multipathd made a map of the third namespace, which nothing uses.
    let detached = node.disks.detach("pvc-0").unwrap();
    assert_eq!(detached.disconnected.len(), 2, "{detached}");
    node.assert_nothing_left();
}

#[test]
fn a_path_goes_and_comes_back_under_load() {
    let (node, nvmet) = (Node::new("find_multipaths no\n no_path_retry 30"), Nvmet::new("load", 1, 2));
    let device = node.disks.attach("pvc", nvmet.target(0)).unwrap();
    under_load(&device, || {
        for port in [4420, 4421] {
            nvmet.close(port);
            eventually("one path is left", || (live() == 1).then_some(()));
            std::thread::sleep(Duration::from_secs(2));
            nvmet.open(port);
            eventually("both are back", || (live() == 2 && active() == 2).then_some(()));
        }
        // Both are down for five seconds: the writes wait.
        [4420, 4421].iter().for_each(|port| nvmet.close(*port));
        std::thread::sleep(Duration::from_secs(5));
        [4420, 4421].iter().for_each(|port| nvmet.open(*port));
        eventually("both are back", || (live() == 2 && active() == 2).then_some(()));
        // multipathd asks the kernel for the access state, and the other path gets the writes.
        nvmet.set_access(4420, "inaccessible");
        eventually("one path is left", || (active() == 1).then_some(()));
        nvmet.set_access(4420, "optimized");
        eventually("both are back", || (active() == 2).then_some(()));
        // The target is started again.
        nvmet.stop();
        eventually("no path is left", || (live() == 0).then_some(()));
        nvmet.start();
        eventually("both are back", || (live() == 2 && active() == 2).then_some(()));
    });
    drop(device);
    assert!(node.disks.detach("pvc").unwrap().not_flushed.is_none());
    node.assert_nothing_left();
}

#[test]
fn a_volume_that_the_kernel_gave_up_is_attached_again() {
    let (node, nvmet) = (Node::new("find_multipaths no\n no_path_retry fail"), Nvmet::new("gone", 1, 2));
    nvmet.images[0].write(4096, b"right");
    let target = nvmet.target(0).ctrl_loss_tmo(Duration::from_secs(3));
    drop(node.disks.attach("pvc", &target).unwrap());
    [4420, 4421].iter().for_each(|port| nvmet.close(*port));
    eventually("the kernel gives up", || controllers().is_empty().then_some(()));
    [4420, 4421].iter().for_each(|port| nvmet.open(*port));
    let device = node.disks.attach("pvc", &target).unwrap();
    let mut bytes = [0; 5];
    fs::File::open(device.path()).unwrap().read_exact_at(&mut bytes, 4096).unwrap();
    assert_eq!((&bytes, live(), paths()), (b"right", 2, 2));
    drop(device);
    assert!(node.disks.detach("pvc").unwrap().not_flushed.is_none());
    node.assert_nothing_left();
}

#[test]
fn dead_paths_that_queue_do_not_keep_a_volume() {
    let (node, nvmet) = (Node::new("find_multipaths no\n no_path_retry queue"), Nvmet::new("dead", 1, 2));
    for ctrl_loss in [600, 3] {
        let target = nvmet.target(0).ctrl_loss_tmo(Duration::from_secs(ctrl_loss));
        let device = node.disks.attach("pvc", &target).unwrap();
        assert!(table().contains("queue_if_no_path"), "{}", table());
        nvmet.close(4420);
        nvmet.close(4421);
        if ctrl_loss == 3 {
            eventually("the kernel gives up", || controllers().is_empty().then_some(()));
            // multipathd removes a map that loses its last path, unless it is open.
            eventually("multipathd has heard of it", || (maps().len() == 1 && paths() == 0).then_some(()));
        } else {
            eventually("no path is left", || (live() == 0).then_some(()));
        }
        drop(device);
        let start = Instant::now();
        let detached = node.disks.detach("pvc").unwrap();
        println!("ctrl_loss_tmo {ctrl_loss}: {:?}: {detached}", start.elapsed());
        assert!(start.elapsed() < Duration::from_secs(120));
        assert!(detached.not_flushed.is_some(), "{detached}");
        eventually("no disk is left", || disks().is_empty().then_some(()));
        node.assert_nothing_left();
        nvmet.open(4420);
        nvmet.open(4421);
    }
}

#[test]
fn without_multipathd_several_paths_are_refused() {
    let (mut node, nvmet) = (Node::new("find_multipaths no"), Nvmet::new("stopped", 1, 2));
    drop(node.disks.attach("pvc", nvmet.target(0)).unwrap());
    node.stop_multipathd();
    // The map that exists is used, and does not grow.
    assert!(node.disks.device("pvc").unwrap().is_some());
    nvmet.grow(0, 400);
    let error = node.disks.refresh("pvc").unwrap_err();
    println!("{error}");
    assert_eq!(error.kind(), ErrorKind::Unresponsive, "{error}");
    assert!(node.disks.detach("pvc").unwrap().not_flushed.is_none());
    node.assert_nothing_left();

    let error = node.disks.attach("pvc", nvmet.target(0)).unwrap_err();
    println!("{error}");
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    assert!(error.to_string().contains("multipathd"), "{error}");
    node.assert_nothing_left();
    // One path, if the driver says so.
    nvmet.close(4421);
    let target = nvmet.target(0).allow_single_path();
    let device = node.disks.attach("pvc", &target).unwrap();
    assert!(device.path().to_str().unwrap().starts_with("/dev/nvme"), "{device:?}");
    assert_eq!(node.disks.device("pvc").unwrap().unwrap().number(), device.number());
    drop(device);
    assert!(node.disks.detach("pvc").unwrap().not_flushed.is_none());
    node.assert_nothing_left();
    nvmet.open(4421);
}

#[test]
fn a_reused_number_does_not_reach_the_map() {
    let (node, nvmet) = (Node::new("find_multipaths no"), Nvmet::new("reused", 2, 2));
    let target = nvmet.target(0);
    drop(node.disks.attach("pvc", &target).unwrap());
    let other = nvmet.images[0].read(0, 4096);
    // The namespace with the number 1 is another volume now.
    nvmet.rename(0, 8);
    eventually("the kernel sees it", || match node.disks.device("pvc") {
        Err(error) => (error.kind() == ErrorKind::WrongDevice).then_some(()),
        Ok(None) => Some(()),
        // A map without paths is left until the detach.
        Ok(Some(_)) => (paths() == 0).then_some(()),
    });
    println!("{}", node.disks.detach("pvc").unwrap());
    assert_eq!(nvmet.images[0].read(0, 4096), other);
    node.assert_nothing_left();
    let error = node.disks.attach("pvc", target.wait_limit(Duration::from_secs(3))).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
    node.assert_nothing_left();
    assert_eq!(node.disks.attach("new", nvmet.target(8)).unwrap().size().unwrap(), 300 * MIB);
    node.disks.detach("new").unwrap();
    node.assert_nothing_left();
}

#[test]
fn a_foreign_map_is_not_touched() {
    let (node, nvmet) = (Node::new("find_multipaths no"), Nvmet::new("foreign", 1, 2));
    // Another subsystem, of which this directory knows nothing.
    let other = Nvmet::at("other", 4, 4430..4432);
    other.set_enabled(0, false);
    other.set_enabled(1, false);
    other.set_enabled(2, false);
    for port in [4430, 4431] {
        connect(&other.nqn, port);
    }
    eventually("multipathd makes the map", || (paths() == 2).then_some(()));
    let before = (maps(), table());
    let device = node.disks.attach("pvc", nvmet.target(0)).unwrap();
    assert_eq!(maps().len(), 2);
    drop(device);
    node.disks.detach("pvc").unwrap();
    assert_eq!((maps(), table(), live()), (before.0.clone(), before.1, 2));
    remove_by_hand(&before.0[0].0, &other.nqn);
    node.assert_nothing_left();
}

fn connect(nqn: &str, port: u16) {
    let (ip, port) = (nvme_target::address(port).ip().to_string(), port.to_string());
    let connect = ["connect", "-t", nvme_target::transport(), "-a", &ip, "-s", &port, "-n", nqn];
    let host = ["-q", nvme_target::HOST_NQN, "-I", nvme_target::HOST_ID, "--reconnect-delay=1"];
    run("nvme", &[&connect[..], &host].concat());
}

fn remove_by_hand(map: &str, nqn: &str) {
    eventually("the map is removed", || {
        let status = std::process::Command::new("multipath").args(["-f", map]).status();
        status.unwrap().success().then_some(())
    });
    run("nvme", &["disconnect", "-n", nqn]);
    eventually("it is gone", || (disks().is_empty() && maps().is_empty()).then_some(()));
}
