//! An attach or a detach over iSCSI that is killed before one of its system calls, or of those of `iscsiadm`:
//! whatever comes next, the disk is the right one, and nothing is left at the end. `iscsid` and multipathd
//! belong to the node and go on.
//!
//! The tests run where `cargo xtask test --kernels` provides the modules, open-iscsi and multipath-tools.

use std::path::Path;
use std::time::Duration;

use csi_mount::remote::RemoteTarget;

use crate::devices::eventually;
use crate::iscsi_target;
use crate::iscsi_target::{ADDRESSES, Lio, disks, live, luns, node_records, sessions};
use crate::multipath_node::{maps, multipathd, udevd};
use crate::remote_bed::Bed as _;
use crate::remote_crash::{Site, kill_each, run_step};

/// The volumes as the job's process knows them: the target belongs to the test's process.
fn on_one_portal(index: usize) -> RemoteTarget {
    iscsi_target::unit_of("crash", iscsi_target::lun(index), index, &[iscsi_target::address(3260)]).into()
}

fn on_two_portals(index: usize) -> RemoteTarget {
    let portals = ADDRESSES.map(|address| (address, 3260).into());
    let unit = iscsi_target::unit_of("mcrash", iscsi_target::lun(index), index, &portals);
    unit.replacement_timeout(Duration::from_secs(3)).into()
}

fn assert_nothing_left() {
    assert_eq!((sessions(), luns(), node_records()), (vec![], vec![], vec![]));
    eventually("no disk is left", || disks().is_empty().then_some(()));
    // With it, iscsiadm of an administrator would wait for half a minute.
    assert!(!Path::new("/run/lock/iscsi/lock.write").exists(), "the lock of open-iscsi is left");
}

fn assert_nor_a_map() {
    assert_nothing_left();
    assert_eq!(maps(), vec![]);
}

fn killed(test: &str, step: &str) {
    run_step(on_one_portal);
    let lio = Lio::new("crash", 2, 1);
    let write = |index: usize, offset, bytes: &[u8]| lio.image(index).write(offset, bytes);
    kill_each(
        &Site { test, write: &write, target: on_one_portal, live, paths: 1, assert_nothing_left },
        step,
    );
}

fn killed_with_maps(test: &str, step: &str) {
    run_step(on_two_portals);
    let lio = Lio::on_two_addresses("mcrash", 2);
    let _daemons = [udevd(), multipathd("find_multipaths no")];
    let write = |index: usize, offset, bytes: &[u8]| lio.image(index).write(offset, bytes);
    let target = on_two_portals;
    let site = Site { test, write: &write, target, live, paths: 2, assert_nothing_left: assert_nor_a_map };
    kill_each(&site, step);
}

#[test]
fn a_killed_attach_leaves_nothing() {
    killed("remote_iscsi_crash::a_killed_attach_leaves_nothing", "attach");
}

#[test]
fn a_killed_detach_leaves_nothing() {
    killed("remote_iscsi_crash::a_killed_detach_leaves_nothing", "detach");
}

#[test]
fn a_killed_attach_with_a_map_leaves_nothing() {
    killed_with_maps("remote_iscsi_crash::a_killed_attach_with_a_map_leaves_nothing", "attach");
}

#[test]
fn a_killed_detach_with_a_map_leaves_nothing() {
    killed_with_maps("remote_iscsi_crash::a_killed_detach_with_a_map_leaves_nothing", "detach");
}
