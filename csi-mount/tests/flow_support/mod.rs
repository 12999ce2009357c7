//! Common parts of the flow tests: a tmpfs in a separate mount namespace. Only its empty mount point is
//! deleted, so that a mistake with a mount in it can't reach the node's own files.
#![allow(dead_code, reason = "each test file uses a part")]

use std::path::Path;
use std::time::{Duration, Instant};

use csi_mount::testing::private_mount_namespace;
use csi_mount::{Mount, Target};

/// Runs the closure with a tmpfs that disappears with the namespace.
pub(crate) fn on_tmpfs(run: impl FnOnce(&Path) + Send) {
    let place = tempfile::tempdir().unwrap().keep();
    private_mount_namespace(|| {
        Mount::new("tmpfs", "test").at(&Target::new(&place).unwrap()).unwrap();
        run(&place);
    });
    std::fs::remove_dir(&place).unwrap();
}

/// Returns how many mounts are stacked at a path.
pub(crate) fn layers(path: &Path) -> usize {
    csi_mount::mounts().unwrap().iter().filter(|entry| entry.mount_point == path).count()
}

pub(crate) fn mount_count() -> usize {
    csi_mount::mounts().unwrap().len()
}

/// Waits for a condition, for a bounded time that is long enough on a machine that has other work.
pub(crate) fn eventually(what: &str, is_so: impl Fn() -> bool) {
    let end = Instant::now() + Duration::from_secs(120);
    while !is_so() {
        assert!(Instant::now() < end, "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}
