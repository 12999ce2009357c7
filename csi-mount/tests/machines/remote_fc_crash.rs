//! An attach or a detach over Fibre Channel that is killed before one of its system calls: whatever comes next, the
//! disk is the right one, and nothing is left at the end. multipathd belongs to the node and goes on.
//!
//! The tests run where `cargo xtask test --kernels` provides the modules and multipath-tools.

use csi_mount::remote::RemoteTarget;

use crate::devices::eventually;
use crate::fc_target;
use crate::fc_target::{Lio, disks, luns, unit_of};
use crate::multipath_node::{maps, multipathd, udevd};
use crate::remote_bed::Bed as _;
use crate::remote_crash::{Site, kill_each, run_step};

/// The volume as the job's process knows it: the target belongs to the test's process.
fn target(index: usize) -> RemoteTarget {
    unit_of("crash", fc_target::lun(index), index, &[0, 1]).into()
}

/// The paths: its ports stay connected, attached or not.
fn paths() -> usize {
    disks().len()
}

fn assert_nothing_left() {
    assert_eq!((luns(), maps()), (vec![], vec![]));
    eventually("no disk is left", || disks().is_empty().then_some(()));
}

fn killed(test: &str, step: &str) {
    run_step(target);
    let lio = Lio::new("crash", 2, 2);
    let _daemons = [udevd(), multipathd("find_multipaths no")];
    let write = |index: usize, offset, bytes: &[u8]| lio.image(index).write(offset, bytes);
    let site = Site { test, write: &write, target, live: paths, paths: 2, assert_nothing_left };
    kill_each(&site, step);
}

#[test]
fn a_killed_attach_leaves_nothing() {
    killed("remote_fc_crash::a_killed_attach_leaves_nothing", "attach");
}

#[test]
fn a_killed_detach_leaves_nothing() {
    killed("remote_fc_crash::a_killed_detach_leaves_nothing", "detach");
}
