//! iSCSI over dm-multipath, with Debian's multipathd and udevd, against the kernel's own target on this machine.
//!
//! The tests run where `cargo xtask test --kernels` provides the modules and open-iscsi, and not with
//! `cargo test` alone.

use std::fs;
use std::time::Duration;

use csi_mount::{ErrorKind, Filesystem};

use crate::devices::{MIB, eventually, run};
use crate::iscsi_target::{Lio, live, states};
use crate::multipath_node::{active, multipathd_for, paths, udevd};
use crate::remote_bed::{Bed, NAME, Node};

/// A node whose multipathd has these settings for disks of LIO.
fn node(settings: &str, name: &str, volumes: usize) -> Node<Lio> {
    let daemons = vec![udevd(), multipathd_for("find_multipaths no", settings)];
    Node::with(daemons, Lio::on_two_addresses(name, volumes))
}

#[test]
fn a_volume_lives_on_two_portals() {
    let node = node("", "mlife", 2);
    node.lives(0, Filesystem::Ext4);
    node.lives(1, Filesystem::Xfs);
}

#[test]
fn volumes_of_one_target_have_their_own_maps() {
    node("", "mtwo", 2).two_volumes_have_their_own_maps();
}

#[test]
fn a_portal_goes_and_comes_back_under_load() {
    let node = node("no_path_retry 30", "mload", 1);
    let device = node.a_late_path_is_added();
    node.paths_go_and_come_back_under_load(device, || {});
}

#[test]
fn a_volume_that_the_kernel_gave_up_is_attached_again() {
    let node = node("no_path_retry 60", "mgone", 1);
    let is_offline = |state: &&String| state.contains("offline");
    node.is_attached_again(node.bed.volume(0), || {
        live() == 0 && active() == 0 && states().iter().filter(is_offline).count() == 2
    });
}

#[test]
fn dead_portals_that_queue_do_not_keep_a_volume() {
    let node = node("no_path_retry queue", "mdead", 1);
    let device = node.attach();
    run("ip", &["link", "set", "lo", "down"]);
    eventually("no path is left", || (live() == 0 && active() == 0).then_some(()));
    drop(device);
    node.is_detached_without_paths(Node::detach_in_time, Duration::from_secs(120));
    run("ip", &["link", "set", "lo", "up"]);
}

#[test]
fn a_reused_number_does_not_reach_the_map() {
    let node = node("", "mreuse", 2);
    let lio = &node.bed;
    lio.unmap(2);
    let device = node.attach();
    let other = lio.image(1).read(0, 4096);
    // The LUN 1 is another volume now.
    lio.unmap(1);
    lio.map(1, 1);
    match node.disks.device(NAME) {
        Err(error) => assert_eq!(error.kind(), ErrorKind::WrongDevice, "{error}"),
        // multipathd was faster, and the map has no path to the other volume any more.
        Ok(found) => {
            assert_eq!(found.unwrap().number(), device.number());
            let paths = fs::read_dir(format!("/sys/dev/block/{}/slaves", device.number())).unwrap();
            assert_eq!(paths.count(), 0);
        }
    }
    drop(device);
    println!("{}", node.detach());
    assert_eq!(lio.image(1).read(0, 4096), other);
    node.assert_nothing_left();
    assert_eq!(node.disks.attach("new", lio.unit_at(1, 1)).unwrap().size().unwrap(), 300 * MIB);
    assert_eq!(node.disks.detach("new").unwrap().disconnected.len(), 2);
    node.assert_nothing_left();
}

#[test]
fn without_multipathd_one_portal_is_used_and_with_it_its_map() {
    let mut node = node("", "mone", 1);
    let single = node.bed.unit(0).replacement_timeout(Duration::from_secs(3)).single_path();
    // multipathd takes each disk, so the map of the only path is the volume.
    let device = node.disks.attach(NAME, &single).unwrap();
    assert_eq!((live(), paths()), (1, 1));
    assert!(device.path().to_str().unwrap().starts_with("/dev/dm-"), "{device:?}");
    drop(device);
    node.detach();
    node.assert_nothing_left();

    node.needs_multipathd();
    let device = node.disks.attach(NAME, single).unwrap();
    assert!(device.path().to_str().unwrap().starts_with("/dev/sd"), "{device:?}");
    drop(device);
    node.detach();
    node.assert_nothing_left();
}
