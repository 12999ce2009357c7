//! A tmpfs in a private mount namespace, for tests that mount. Only its empty mount point is deleted, so a
//! mistake with a mount in it cannot reach the node's own files.
#![cfg(all(feature = "mount", target_os = "linux"))]
#![allow(dead_code, reason = "each test file uses a part")]

use std::fs::File;
use std::ops::Deref;
use std::path::Path;

use csi_mount::internal::LoopDevice;
use csi_mount::testing::private_mount_namespace;
use csi_mount::{LoopOptions, Mount, Target};

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

/// A loop device over a new file of 64 MiB. It is detached at the end; until then it has to be free again.
pub(crate) struct Disk(Option<LoopDevice>);

impl Disk {
    pub(crate) fn new(file: &Path) -> Self {
        Self::with_size(file, 64 << 20)
    }

    pub(crate) fn with_size(file: &Path, bytes: u64) -> Self {
        File::create(file).unwrap().set_len(bytes).unwrap();
        let device = LoopDevice::attach(file, &LoopOptions::new());
        Self(Some(device.expect("run this as root, with loop devices")))
    }
}

impl Deref for Disk {
    type Target = LoopDevice;

    fn deref(&self) -> &LoopDevice {
        self.0.as_ref().unwrap()
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let Some(device) = self.0.take() else { return };
        if std::thread::panicking() {
            // A mount of the failed test can have it. The kernel detaches it when this is gone.
            let _ = std::process::Command::new("losetup").arg("--detach").arg(device.path()).status();
        } else if let Err(error) = device.detach() {
            panic!("a loop device is left: {error}");
        }
    }
}
