//! An attach or a detach of an image of a Ceph cluster that is killed before one of its system calls: whatever comes
//! next, the disk is the right one, and nothing is left at the end.
//!
//! The tests run in an emulated machine next to a cluster: `cargo xtask test --systems ceph`.

use std::fs;
use std::os::unix::fs::FileExt as _;

use csi_mount::remote::{RbdPool, RbdTarget, RemoteDisks, RemoteTarget};
use test_support::ceph::{Cluster as _, IMAGE_NODE, IMAGES};

use crate::rbd_cluster::{Rbd, mapped};
use crate::remote_crash::{Site, kill_each, run_step};

/// Where the test's process writes what the job's process must know.
const KNOWN: &str = "/run/rbd-crash";
const NAMES: [&str; 2] = ["csi-right", "csi-other"];

/// The volume as the job's process knows it: the cluster belongs to the test's process.
fn target(index: usize) -> RemoteTarget {
    let known = fs::read_to_string(KNOWN).unwrap();
    let lines: Vec<&str> = known.lines().collect();
    let [monitor, key, fsid, pool_id, ids @ ..] = &lines[..] else { panic!("{}", lines.len()) };
    let pool = RbdPool::new(fsid, IMAGES, pool_id.parse().unwrap()).unwrap();
    let target = RbdTarget::new(pool, NAMES[index], ids[index]).unwrap();
    target.user(IMAGE_NODE, key).unwrap().monitor(monitor.parse().unwrap()).into()
}

fn assert_nothing_left() {
    assert_eq!(mapped(), [""; 0]);
}

fn killed(test: &str, step: &str) {
    run_step(target);
    let rbd = Rbd::start();
    let ids = NAMES.map(|name| {
        drop(rbd.image(name, 300));
        rbd.id(name)
    });
    let monitor = rbd.cluster.monitor();
    let key = rbd.cluster.key(IMAGE_NODE);
    let known = [&monitor.to_string(), &key, &rbd.fsid, &rbd.pool_id.to_string(), &ids[0], &ids[1]];
    fs::write(KNOWN, known.map(String::as_str).join("\n")).unwrap();
    let directory = tempfile::tempdir().unwrap();
    let disks = RemoteDisks::new(directory.path());
    let write = |index: usize, offset, bytes: &[u8]| {
        let device = disks.attach("mark", target(index)).unwrap();
        fs::File::options().write(true).open(device.path()).unwrap().write_all_at(bytes, offset).unwrap();
        drop(device);
        disks.detach("mark").unwrap();
    };
    let live = || mapped().len();
    kill_each(&Site { test, write: &write, target, live, paths: 1, assert_nothing_left }, step);
}

#[test]
fn a_killed_attach_leaves_nothing() {
    killed("remote_rbd_crash::a_killed_attach_leaves_nothing", "attach");
}

#[test]
fn a_killed_detach_leaves_nothing() {
    killed("remote_rbd_crash::a_killed_detach_leaves_nothing", "detach");
}
