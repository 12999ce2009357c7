//! Images in a Ceph cluster outside the emulated machine, and the kernel's mappings of them.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use csi_mount::remote::{RbdPool, RbdTarget};
use test_support::ceph::outside::Outside;
use test_support::ceph::{Cluster, IMAGE_NODE, IMAGES};

pub(crate) struct Rbd {
    pub(crate) cluster: Outside,
    pub(crate) fsid: String,
    pub(crate) pool_id: u64,
}

impl Rbd {
    pub(crate) fn start() -> Self {
        let cluster = Outside::start();
        cluster.make_images();
        let command = |words: &[&str]| cluster.command(words).unwrap_or_else(|| panic!("{words:?}"));
        command(&["auth", "add", "client.nobody", "mon", "allow r"]);
        let fsid = command(&["fsid"]);
        let pools = command(&["osd", "lspools"]);
        let id = pools.lines().find_map(|line| line.strip_suffix(IMAGES)?.trim().parse().ok());
        let pool_id = id.unwrap_or_else(|| panic!("{pools}"));
        Self { cluster, fsid, pool_id }
    }

    pub(crate) fn run(&self, words: &[&str]) -> String {
        self.cluster.run("rbd", words).unwrap_or_else(|| panic!("rbd {words:?}"))
    }

    /// Creates an image, and returns it as a target.
    pub(crate) fn image(&self, name: &str, mebibytes: u64) -> RbdTarget {
        let size = format!("{mebibytes}M");
        let features = "--image-feature=layering,exclusive-lock";
        self.run(&["create", "--pool", IMAGES, name, "--size", &size, features]);
        self.target(name)
    }

    /// The image that has this name now.
    pub(crate) fn target(&self, name: &str) -> RbdTarget {
        self.target_with(name, &self.id(name))
    }

    pub(crate) fn id(&self, name: &str) -> String {
        let info = self.run(&["info", "--pool", IMAGES, name]);
        info.lines().find_map(|line| line.trim().strip_prefix("id: ")).unwrap().to_owned()
    }

    pub(crate) fn target_with(&self, name: &str, id: &str) -> RbdTarget {
        let pool = RbdPool::new(&self.fsid, IMAGES, self.pool_id).unwrap();
        let target = RbdTarget::new(pool, name, id).unwrap().monitor(self.cluster.monitor());
        target.user(IMAGE_NODE, &self.cluster.key(IMAGE_NODE)).unwrap()
    }
}

/// The numbers of all mapped images.
pub(crate) fn mapped() -> Vec<String> {
    let entries = fs::read_dir("/sys/bus/rbd/devices").unwrap().flatten();
    entries.map(|entry| entry.file_name().into_string().unwrap()).collect()
}

/// Runs a step, and prints what it did and how long it took: a row of docs/hang-table.md.
pub(crate) fn timed<T, E: std::fmt::Display>(
    what: &str,
    step: impl FnOnce() -> Result<T, E>,
) -> (Result<T, E>, Duration) {
    let start = Instant::now();
    let result = step();
    let took = start.elapsed();
    let said = result.as_ref().err().map_or("ok".to_owned(), ToString::to_string);
    println!("{what} | {took:.1?} | {said}");
    (result, took)
}

pub(crate) fn names(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let names = entries.map(|entry| entry.file_name().into_string().unwrap());
    names.filter(|name| !name.starts_with(".lock-")).collect()
}
