//! dm-multipath with Debian's multipathd and udevd: NVMe (TCP, or RDMA) without the kernel's native multipath,
//! against the kernel's own target on this machine.
//!
//! The tests run where `cargo xtask test --kernels` provides the modules, and not with `cargo test` alone.

use std::time::Duration;

use csi_mount::flow::block::{MountCopies, StagePlan};
use csi_mount::reservation::{Fencing, Reservation, ReservationKey, WriteRight};
use csi_mount::{ErrorKind, Filesystem, Host, OwnedPath, Owner};

use crate::devices;
use crate::devices::{MIB, eventually, run};
use crate::multipath_node::{active, dmsetup, has_native_multipath, maps, multipathd, paths, udevd};
use crate::nvme_target::{Nvmet, PORTS, connect_by_hand, controllers, disks, live};
use crate::remote_bed::{NAME, Node};

/// A node whose multipathd has these defaults.
fn node(defaults: &str, name: &str, volumes: usize) -> Node<Nvmet> {
    assert!(!has_native_multipath(), "boot with nvme_core.multipath=N");
    let daemons = vec![udevd(), multipathd(defaults)];
    Node::with(daemons, Nvmet::new(name, volumes, 2))
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
    let node = node("find_multipaths no", "life", 2);
    node.lives(0, Filesystem::Ext4);
    node.lives(1, Filesystem::Xfs);
}

#[test]
fn a_late_path_is_added_and_strict_settings_do_not_hinder() {
    for defaults in ["find_multipaths no", "find_multipaths strict", "find_multipaths yes"] {
        println!("{defaults}");
        let node = node(defaults, "late", 1);
        drop(node.a_late_path_is_added());
        node.detach();
        node.assert_nothing_left();
    }
}

#[test]
fn volumes_of_one_subsystem_have_their_own_maps() {
    node("find_multipaths no", "two", 3).two_volumes_have_their_own_maps();
}

#[test]
fn a_path_goes_and_comes_back_under_load() {
    let node = node("find_multipaths no\n no_path_retry 30", "load", 1);
    node.paths_go_and_come_back_under_load(node.attach(), || {
        // multipathd asks the kernel for the access state, and the other path gets the writes.
        node.bed.set_access(PORTS[0], "inaccessible");
        eventually("one path is left", || (active() == 1).then_some(()));
        node.bed.set_access(PORTS[0], "optimized");
        eventually("both are back", || (active() == 2).then_some(()));
    });
}

#[test]
fn a_volume_that_the_kernel_gave_up_is_attached_again() {
    let node = node("find_multipaths no\n no_path_retry fail", "gone", 1);
    let target = node.bed.target(0).ctrl_loss_tmo(Duration::from_secs(3));
    node.is_attached_again(&target, || controllers().is_empty());
}

#[test]
fn dead_paths_that_queue_do_not_keep_a_volume() {
    let node = node("find_multipaths no\n no_path_retry queue", "dead", 1);
    for ctrl_loss in [600, 3] {
        let target = node.bed.target(0).ctrl_loss_tmo(Duration::from_secs(ctrl_loss));
        let device = node.disks.attach(NAME, &target).unwrap();
        assert!(table().contains("queue_if_no_path"), "{}", table());
        PORTS.iter().for_each(|port| node.bed.set_open(*port, false));
        if ctrl_loss == 3 {
            eventually("the kernel gives up", || controllers().is_empty().then_some(()));
            // multipathd removes a map that loses its last path, unless it is open.
            eventually("multipathd has heard of it", || (maps().len() == 1 && paths() == 0).then_some(()));
        } else {
            eventually("no path is left", || (live() == 0).then_some(()));
        }
        drop(device);
        node.is_detached_without_paths(Node::detach, Duration::from_secs(120));
        PORTS.iter().for_each(|port| node.bed.set_open(*port, true));
    }
}

#[test]
fn without_multipathd_several_paths_are_refused() {
    let mut node = node("find_multipaths no", "stopped", 1);
    node.needs_multipathd();
    // One path, if the driver says so.
    node.bed.set_open(PORTS[1], false);
    let target = node.bed.target(0).allow_single_path();
    let device = node.disks.attach(NAME, &target).unwrap();
    assert!(device.path().to_str().unwrap().starts_with("/dev/nvme"), "{device:?}");
    assert_eq!(node.disks.device(NAME).unwrap().unwrap().number(), device.number());
    drop(device);
    assert!(node.detach().not_flushed.is_none());
    node.assert_nothing_left();
    node.bed.set_open(PORTS[1], true);
}

/// A path that joins the map later would not be registered.
#[test]
fn a_map_is_refused_before_it_is_written_if_a_reservation_is_required() {
    let node = node("find_multipaths no", "reserve", 1);
    let device = node.attach();
    let staging = OwnedPath::new(node.staging("staging").path(), Owner::new("fence.example.org", "volume"));
    let key = ReservationKey::new("cluster", 1);
    let stage = |fencing| {
        let plan = StagePlan::new(Filesystem::Ext4).reserve(Reservation::new(key, fencing));
        Host::kernel().block().stage(device.path(), &staging, &plan).map(drop)
    };
    let error = stage(Fencing::Required).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    assert!(error.to_string().contains("dm-multipath"), "{error}");
    assert!(node.bed.images[0].read(0, MIB as usize).iter().all(|byte| *byte == 0), "it was written");
    stage(Fencing::IfSupported).unwrap();
    assert_eq!(Host::kernel().block().write_right(device.path(), key).unwrap(), WriteRight::Unsupported);
    Host::kernel().block().unstage(&staging, Some(device.path()), MountCopies::Kept).unwrap();
    drop(device);
    node.detach();
    node.assert_nothing_left();
}

#[test]
fn a_reused_number_does_not_reach_the_map() {
    let node = node("find_multipaths no", "reused", 2);
    let target = node.bed.target(0);
    drop(node.attach());
    let other = node.bed.images[0].read(0, 4096);
    // The namespace with the number 1 is another volume now.
    node.bed.rename(0, 8);
    eventually("the kernel sees it", || match node.disks.device(NAME) {
        Err(error) => (error.kind() == ErrorKind::WrongDevice).then_some(()),
        Ok(None) => Some(()),
        // A map without paths is left until the detach.
        Ok(Some(_)) => (paths() == 0).then_some(()),
    });
    println!("{}", node.detach());
    assert_eq!(node.bed.images[0].read(0, 4096), other);
    node.assert_nothing_left();
    node.refuses(NAME, target.wait_limit(Duration::from_secs(3)), ErrorKind::NotFound);
    node.assert_nothing_left();
    assert_eq!(node.disks.attach("new", node.bed.target(8)).unwrap().size().unwrap(), 300 * devices::MIB);
    node.disks.detach("new").unwrap();
    node.assert_nothing_left();
}

#[test]
fn a_foreign_map_is_not_touched() {
    let node = node("find_multipaths no", "foreign", 1);
    // Another subsystem, of which this directory knows nothing.
    let other = Nvmet::at("other", 4, 4430..4432);
    (0..3).for_each(|index| other.set_enabled(index, false));
    other.ports.iter().for_each(|port| connect_by_hand(&other.nqn, *port));
    eventually("multipathd makes the map", || (paths() == 2).then_some(()));
    let maps_before = maps();
    let table_before = table();
    drop(node.attach());
    assert_eq!(maps().len(), 2);
    node.detach();
    assert_eq!((&maps(), table(), live()), (&maps_before, table_before, 2));

    eventually("the map is removed", || {
        let status = std::process::Command::new("multipath").args(["-f", &maps_before[0].0]).status();
        status.unwrap().success().then_some(())
    });
    run("nvme", &["disconnect", "-n", &other.nqn]);
    eventually("it is gone", || (disks().is_empty() && maps().is_empty()).then_some(()));
    node.assert_nothing_left();
}
