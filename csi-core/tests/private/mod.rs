//! A tmpfs in a private mount namespace, for tests that mount. Only its empty mount point is deleted, so a
//! mistake with a mount in it cannot reach the node's own files.
#![allow(dead_code, reason = "each test file uses a part")]

use std::path::Path;

use csi_mount::testing::private_mount_namespace;
use csi_mount::{Mount, Target};

/// Runs the test on a runtime whose threads are in the namespace.
pub(crate) fn on_tmpfs(test: impl AsyncFnOnce(&Path) + Send) {
    let place = tempfile::tempdir().unwrap().keep();
    private_mount_namespace(|| {
        Mount::new("tmpfs", "test").at(&Target::new(&place).unwrap()).unwrap();
        // The runtime's threads are children of this one and share its mount namespace.
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(test(&place));
    });
    std::fs::remove_dir(&place).unwrap();
}
