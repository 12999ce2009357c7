//! Common parts of the mount tests: a shared tmpfs in a mount namespace that ends with the test.
#![allow(dead_code, reason = "each test file uses a part")]

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use csi_mount::testing::{private_mount_namespace, share};
use csi_mount::{ErrorKind, Mount, Outcome, Target, unmount};

/// An empty directory to mount on. It is removed by rmdir only, so nothing mounted below it is ever entered.
struct MountPoint(PathBuf);

impl Drop for MountPoint {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir(&self.0)
            && !std::thread::panicking()
        {
            panic!("{} is left behind: {error}", self.0.display());
        }
    }
}

/// Runs a test in a directory that is a shared tmpfs, in a separate namespace.
pub(crate) fn sandbox(test: impl FnOnce(&Path) + Send) {
    let directory = MountPoint(tempfile::tempdir().unwrap().keep());
    private_mount_namespace(|| {
        let path = directory.0.as_path();
        let target = Target::new(path).unwrap();
        assert_eq!(Mount::new("tmpfs", "sandbox").at(&target).unwrap(), Outcome::Mounted);
        share(path);
        test(path);
    });
}

/// Like [`sandbox`], for a test that needs only a directory to mount on.
pub(crate) fn with_target(test: impl FnOnce(&Target) + Send) {
    sandbox(|sandbox| test(&target(sandbox, "target")));
}

/// Makes a directory with a file in it, as the source of a bind.
pub(crate) fn source(sandbox: &Path, name: &str) -> PathBuf {
    let path = sandbox.join(name);
    fs::create_dir(&path).unwrap();
    fs::write(path.join("file"), name).unwrap();
    path
}

/// Makes a directory to mount on.
pub(crate) fn target(sandbox: &Path, name: &str) -> Target {
    let target = Target::new(sandbox.join(name)).unwrap();
    target.create_dir().unwrap();
    target
}

/// Returns the error number of an attempt to write a new file in a directory.
pub(crate) fn write_error(directory: &Path) -> Option<i32> {
    fs::write(directory.join("new"), "x").err().and_then(|error: io::Error| error.raw_os_error())
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

/// Unmounts a target that threads of the test read: on a slow machine one can have it open at each attempt.
pub(crate) fn unmount_watched(target: &Target) {
    let deadline = Instant::now() + Duration::from_secs(120);
    loop {
        match unmount(target) {
            Err(error) if error.kind() == ErrorKind::Busy && Instant::now() < deadline => {}
            unmounted => {
                unmounted.unwrap();
                return;
            }
        }
    }
}
