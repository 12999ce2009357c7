//! iSCSI over dm-multipath, with Debian's multipathd and udevd, against the kernel's own target on this machine.
//!
//! The tests run where `cargo xtask test --kernels` provides the modules and open-iscsi, and not with
//! `cargo test` alone.

mod devices;
mod iscsi_target;
mod multipath_node;

use std::fs;
use std::os::unix::fs::FileExt as _;
use std::time::{Duration, Instant};

use csi_mount::flow::block::{StagePlan, expand, stage, unstage};
use csi_mount::remote::{IscsiTarget, RemoteDisks};
use csi_mount::{ErrorKind, Filesystem, Target};
use devices::{MIB, run, under_load};
use iscsi_target::{ADDRESSES, Lio, disks, eventually, live, luns, node_records, sessions, set_address};
use multipath_node::{Daemon, dmsetup, maps, multipathd_for, udevd};

struct Node {
    directory: tempfile::TempDir,
    disks: RemoteDisks,
    daemons: Vec<Daemon>,
}

impl Node {
    /// A node whose multipathd has these defaults, and these settings for disks of LIO.
    fn new(defaults: &str, lio: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let disks = RemoteDisks::new(directory.path().join("remote"));
        Self { directory, disks, daemons: vec![udevd(), multipathd_for(defaults, lio)] }
    }

    fn assert_nothing_left(&self) {
        let records = fs::read_dir(self.directory.path().join("remote")).unwrap().flatten();
        let names = records.map(|entry| entry.file_name().into_string().unwrap());
        let records: Vec<_> = names.filter(|name| !name.starts_with(".lock-")).collect();
        assert_eq!((maps(), sessions(), luns(), records), (vec![], vec![], vec![], vec![]));
        assert!(disks().is_empty() && node_records().is_empty(), "{:?} {:?}", disks(), node_records());
    }

    fn stop_multipathd(&mut self) {
        drop(self.daemons.pop());
    }
}

/// The unit, with sessions that say soon that they are lost.
fn unit(lio: &Lio, index: usize) -> IscsiTarget {
    lio.unit(index).replacement_timeout(Duration::from_secs(3))
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
    // The state of a path follows its number.
    words.windows(2).filter(|pair| pair[0].contains(':') && pair[1] == "A").count()
}

#[test]
fn a_volume_lives_on_two_portals() {
    let (node, lio) = (Node::new("find_multipaths no", ""), Lio::on_two_addresses("mlife", 2));
    let staging = Target::new(node.directory.path().join("staging")).unwrap();
    for (index, filesystem) in [(0, Filesystem::Ext4), (1, Filesystem::Xfs)] {
        let target = unit(&lio, index);
        let start = Instant::now();
        let device = node.disks.attach("pvc", &target).unwrap();
        println!("attached in {:?}", start.elapsed());
        assert!(device.path().to_str().unwrap().starts_with("/dev/dm-"), "{device:?}");
        assert_eq!((live(), paths(), luns()), (2, 2, vec![Lio::lun(index); 2]));
        stage(device.path(), &staging, &StagePlan::new(filesystem).expect(target.expected())).unwrap();
        fs::write(staging.path().join("file"), "content").unwrap();
        // Again, with the volume in use.
        let again = node.disks.attach("pvc", &target).unwrap();
        assert_eq!(again.number(), device.number());
        assert_eq!(node.disks.device("pvc").unwrap().unwrap().number(), device.number());
        let error = node.disks.detach("pvc").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
        assert_eq!((live(), paths()), (2, 2));
        drop(again);

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
        assert_eq!(detached.disconnected.len(), 2);
        assert!(detached.not_flushed.is_none() && detached.kept.is_none(), "{detached}");
        node.assert_nothing_left();

        let device = node.disks.attach("pvc", &target).unwrap();
        let raw = fs::OpenOptions::new().write(true).open(device.path()).unwrap();
        raw.write_all_at(b"raw", 399 * MIB).unwrap();
        drop(raw);
        stage(device.path(), &staging, &StagePlan::new(filesystem).never_format()).unwrap();
        assert_eq!(fs::read_to_string(staging.path().join("file")).unwrap(), "content");
        unstage(&staging, Some(device.path())).unwrap();
        drop(device);
        node.disks.detach("pvc").unwrap();
        node.assert_nothing_left();
        assert_eq!(lio.images[index].read(399 * MIB, 3), b"raw");
    }
}

#[test]
fn volumes_of_one_target_have_their_own_maps() {
    let (node, lio) = (Node::new("find_multipaths no", ""), Lio::on_two_addresses("mtwo", 2));
    let [first, second] = [0, 1].map(|index| {
        let name = format!("pvc-{index}");
        node.disks.attach(&name, unit(&lio, index)).unwrap().number()
    });
    assert_ne!(first, second);
    assert_eq!((live(), maps().len(), luns()), (2, 2, vec![1, 1, 2, 2]));
    assert!(node.disks.detach("pvc-0").unwrap().kept.is_some());
    assert_eq!(node.disks.device("pvc-1").unwrap().unwrap().number(), second);
    assert_eq!((live(), maps().len(), luns()), (2, 1, vec![2, 2]));
    drop(node.disks.attach("pvc-0", unit(&lio, 0)).unwrap());
    assert!(node.disks.detach("pvc-1").unwrap().kept.is_some());
    assert_eq!(node.disks.detach("pvc-0").unwrap().disconnected.len(), 2);
    node.assert_nothing_left();
}

#[test]
fn a_portal_goes_and_comes_back_under_load() {
    let (node, lio) =
        (Node::new("find_multipaths no", "no_path_retry 30"), Lio::on_two_addresses("mload", 1));
    // It is missing at first.
    set_address(ADDRESSES[1], false);
    let device = node.disks.attach("pvc", unit(&lio, 0)).unwrap();
    assert_eq!((live(), paths()), (1, 1));
    set_address(ADDRESSES[1], true);
    assert_eq!(node.disks.attach("pvc", unit(&lio, 0)).unwrap().number(), device.number());
    assert_eq!((live(), paths()), (2, 2));
    under_load(&device, || {
        for address in ADDRESSES {
            set_address(address, false);
            eventually("one path is left", || (live() == 1 && active() == 1).then_some(()));
            // The volume can be used and attached again while a session is lost.
            assert_eq!(node.disks.attach("pvc", unit(&lio, 0)).unwrap().number(), device.number());
            set_address(address, true);
            eventually("both are back", || (live() == 2 && active() == 2).then_some(()));
        }
        // Both are lost, and back after five seconds: the writes wait.
        ADDRESSES.iter().for_each(|address| set_address(*address, false));
        eventually("no session is left", || (live() == 0).then_some(()));
        std::thread::sleep(Duration::from_secs(5));
        ADDRESSES.iter().for_each(|address| set_address(*address, true));
        eventually("both are back", || (live() == 2 && active() == 2).then_some(()));
        // The target is started again.
        lio.stop();
        eventually("no session is left", || (live() == 0).then_some(()));
        lio.start();
        eventually("both are back", || (live() == 2 && active() == 2).then_some(()));
    });
    drop(device);
    assert!(node.disks.detach("pvc").unwrap().not_flushed.is_none());
    node.assert_nothing_left();
}

#[test]
fn a_volume_that_the_kernel_gave_up_is_attached_again() {
    let (node, lio) =
        (Node::new("find_multipaths no", "no_path_retry 60"), Lio::on_two_addresses("mgone", 1));
    lio.images[0].write(4096, b"right");
    drop(node.disks.attach("pvc", unit(&lio, 0)).unwrap());
    ADDRESSES.iter().for_each(|address| set_address(*address, false));
    eventually("no path is left", || (live() == 0 && active() == 0).then_some(()));
    eventually("the kernel gives the disks up", || {
        let places = fs::read_dir("/sys/bus/scsi/devices").unwrap().flatten();
        let states = places.filter_map(|place| fs::read_to_string(place.path().join("state")).ok());
        (states.filter(|state| state.contains("offline")).count() == 2).then_some(())
    });
    ADDRESSES.iter().for_each(|address| set_address(*address, true));
    let device = node.disks.attach("pvc", unit(&lio, 0)).unwrap();
    let mut bytes = [0; 5];
    fs::File::open(device.path()).unwrap().read_exact_at(&mut bytes, 4096).unwrap();
    assert_eq!(&bytes, b"right");
    drop(device);
    assert!(node.disks.detach("pvc").unwrap().not_flushed.is_none());
    node.assert_nothing_left();
}

#[test]
fn dead_portals_that_queue_do_not_keep_a_volume() {
    let node = Node::new("find_multipaths no", "no_path_retry queue");
    let lio = Lio::on_two_addresses("mdead", 1);
    let device = node.disks.attach("pvc", unit(&lio, 0)).unwrap();
    run("ip", &["link", "set", "lo", "down"]);
    eventually("no path is left", || (live() == 0 && active() == 0).then_some(()));
    drop(device);
    let start = Instant::now();
    let detached = eventually("the detach succeeds", || match node.disks.detach("pvc") {
        Ok(detached) => Some(detached),
        Err(error) => {
            println!("repeated: {error}");
            None
        }
    });
    println!("{:?}: {detached}", start.elapsed());
    assert!(start.elapsed() < Duration::from_secs(120));
    assert!(detached.not_flushed.is_some(), "{detached}");
    run("ip", &["link", "set", "lo", "up"]);
    node.assert_nothing_left();
}

#[test]
fn a_reused_number_does_not_reach_the_map() {
    let (node, lio) = (Node::new("find_multipaths no", ""), Lio::on_two_addresses("mreuse", 2));
    lio.unmap(2);
    let device = node.disks.attach("pvc", unit(&lio, 0)).unwrap();
    let other = lio.images[1].read(0, 4096);
    // The LUN 1 is another volume now.
    lio.unmap(1);
    lio.map(1, 1);
    match node.disks.device("pvc") {
        Err(error) => assert_eq!(error.kind(), ErrorKind::WrongDevice, "{error}"),
        // multipathd was faster, and the map has no path to the other volume any more.
        Ok(found) => {
            assert_eq!(found.unwrap().number(), device.number());
            let paths = fs::read_dir(format!("/sys/dev/block/{}/slaves", device.number())).unwrap();
            assert_eq!(paths.count(), 0);
        }
    }
    drop(device);
    println!("{}", node.disks.detach("pvc").unwrap());
    assert_eq!(lio.images[1].read(0, 4096), other);
    node.assert_nothing_left();
    let new = lio.unit_at(1, 1);
    assert_eq!(node.disks.attach("new", &new).unwrap().size().unwrap(), 300 * MIB);
    assert_eq!(node.disks.detach("new").unwrap().disconnected.len(), 2);
    node.assert_nothing_left();
}

#[test]
fn without_multipathd_one_portal_is_used_and_with_it_its_map() {
    let (mut node, lio) = (Node::new("find_multipaths no", ""), Lio::on_two_addresses("mone", 1));
    let two = unit(&lio, 0);
    // multipathd takes each disk, so the map of the only path is the volume.
    let device = node.disks.attach("pvc", two.clone().single_path()).unwrap();
    assert_eq!((live(), paths()), (1, 1));
    assert!(device.path().to_str().unwrap().starts_with("/dev/dm-"), "{device:?}");
    drop(device);
    node.disks.detach("pvc").unwrap();
    node.assert_nothing_left();

    drop(node.disks.attach("pvc", &two).unwrap());
    node.stop_multipathd();
    // The map that exists is used, and does not grow.
    assert!(node.disks.device("pvc").unwrap().is_some());
    lio.grow(0, 400);
    let error = node.disks.refresh("pvc").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unresponsive, "{error}");
    assert!(node.disks.detach("pvc").unwrap().not_flushed.is_none());
    node.assert_nothing_left();

    let error = node.disks.attach("pvc", &two).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    assert!(error.to_string().contains("multipathd"), "{error}");
    let device = node.disks.attach("pvc", two.single_path()).unwrap();
    assert!(device.path().to_str().unwrap().starts_with("/dev/sd"), "{device:?}");
    drop(device);
    node.disks.detach("pvc").unwrap();
    node.assert_nothing_left();
}
