//! An attach or a detach over NVMe (TCP, or RDMA) that is killed before one of its system calls: whatever comes next,
//! the disk is the right one, and nothing is left at the end.
//!
//! The tests run where `cargo xtask test --kernels` provides the modules.

use csi_mount::remote::RemoteTarget;

use crate::devices::eventually;
use crate::nvme_target;
use crate::nvme_target::{Nvmet, controllers, disks, live};
use crate::remote_crash::{Site, kill_each, run_step};

/// The volume as the job's process knows it: the subsystem belongs to the test's process.
fn target(index: usize) -> RemoteTarget {
    nvme_target::namespace_of("crash", index, &[4420, 4421]).into()
}

fn assert_nothing_left() {
    assert_eq!(controllers(), vec![]);
    eventually("no disk is left", || disks().is_empty().then_some(()));
}

fn killed(test: &str, step: &str) {
    run_step(target);
    let nvmet = Nvmet::new("crash", 2, 2);
    let write = |index: usize, offset, bytes: &[u8]| nvmet.images[index].write(offset, bytes);
    kill_each(&Site { test, write: &write, target, live, paths: 2, assert_nothing_left }, step);
}

#[test]
fn a_killed_attach_leaves_nothing() {
    killed("remote_nvme_crash::a_killed_attach_leaves_nothing", "attach");
}

#[test]
fn a_killed_detach_leaves_nothing() {
    killed("remote_nvme_crash::a_killed_detach_leaves_nothing", "detach");
}
