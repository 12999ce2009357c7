//! What the mount tests share: a shared tmpfs in a mount namespace that dies with the test.
#![allow(dead_code, reason = "each test file uses a part")]

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use csi_mount::testing::{private_mount_namespace, share};
use csi_mount::{ErrorKind, Mount, Outcome, Target, unmount};

/// An empty directory to mount on. It goes by rmdir alone, so whatever may be mounted below is never entered.
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

/// Runs a test in a directory that is a shared tmpfs, in a namespace of its own.
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

/// A directory with a file in it, to be bound.
pub(crate) fn source(sandbox: &Path, name: &str) -> PathBuf {
    let path = sandbox.join(name);
    fs::create_dir(&path).unwrap();
    fs::write(path.join("file"), name).unwrap();
    path
}

/// A directory to mount on.
pub(crate) fn target(sandbox: &Path, name: &str) -> Target {
    let target = Target::new(sandbox.join(name)).unwrap();
    target.create_dir().unwrap();
    target
}

/// The error number of an attempt to write a new file in a directory.
pub(crate) fn write_error(directory: &Path) -> Option<i32> {
    fs::write(directory.join("new"), "x").err().and_then(|error: io::Error| error.raw_os_error())
}

/// How many mounts are on top of each other at a path.
pub(crate) fn layers(path: &Path) -> usize {
    csi_mount::mounts().unwrap().iter().filter(|entry| entry.mount_point == path).count()
}

/// Unmounts what threads of the test keep looking at: on a slow machine one of them may have it open whenever it is tried.
pub(crate) fn unmount_watched(target: &Target) {
    let deadline = Instant::now() + Duration::from_secs(30);
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
