//! A mounter's process for a test, in the place of its pod.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Stdio};

use csi_mount::Target;

use crate::fuse_process::{in_place, itself, kill, processes};
use crate::mount_support::eventually;

/// The user of a mounter.
pub(crate) const USER: u32 = 65534;

/// A mounter's process, with its daemons. They are killed with it, as in a container.
pub(crate) struct Pod<'a> {
    pub(crate) child: Child,
    pub(crate) staging: &'a Target,
}

impl<'a> Pod<'a> {
    pub(crate) fn start(directory: &Path, staging: &'a Target) -> Self {
        let mut command = itself("mounter", directory);
        command.env("TMPDIR", directory).stdin(Stdio::piped()).stdout(Stdio::null());
        let child = command.uid(USER).gid(USER).spawn().unwrap();
        let pod = Self { child, staging };
        let socket = directory.join("mounter.sock");
        eventually("the mounter serves", || UnixStream::connect(&socket).is_ok());
        pod
    }

    /// Its first process is killed first: it starts no other daemon.
    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        processes(self.staging).into_iter().for_each(kill);
    }

    /// As SIGTERM does in a driver's program.
    pub(crate) fn drain(&mut self, limit: u32) {
        let mut input = self.child.stdin.take().unwrap();
        write!(input, "{limit}").unwrap();
    }
}

impl Drop for Pod<'_> {
    fn drop(&mut self) {
        // It can have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs a test with a place, a target, and a mounter's directory.
pub(crate) fn with_directory(test: impl FnOnce(&Target, &Target, &Path) + Send) {
    in_place(|staging, pod| {
        let place = staging.path().parent().unwrap();
        fs::set_permissions(place, fs::Permissions::from_mode(0o755)).unwrap();
        let directory = place.join("mounter");
        fs::create_dir(&directory).unwrap();
        chown(&directory, Some(USER), Some(USER)).unwrap();
        test(staging, pod, &directory);
    });
}
