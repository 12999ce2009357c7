//! The processes of a daemon, known again by what their environment says, whoever started them and when.

use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use rustix::process::{PidfdFlags, pidfd_open, pidfd_send_signal};

use crate::{Error, ErrorKind, Result};

/// The variable that says where a daemon mounts.
pub(super) const MARK: &str = "CSI_MOUNT_FUSE_AT";
/// How long a killed process may take to go.
const KILLING: Duration = Duration::from_secs(5);

/// All processes that serve, or are about to serve, one place.
pub(super) struct Processes {
    mark: OsString,
}

impl Processes {
    pub(super) fn of(path: &Path) -> Self {
        let mut mark = OsString::from(MARK);
        mark.push("=");
        mark.push(path);
        Self { mark }
    }

    /// Those that live now and are seen from here. One that has ended has no environment any more.
    pub(super) fn living(&self) -> Vec<i32> {
        let Ok(all) = fs::read_dir("/proc") else { return Vec::new() };
        let numbers = all.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
        let own = std::process::id().cast_signed();
        numbers.filter(|pid| *pid != own && self.is_marked(*pid)).collect()
    }

    fn is_marked(&self, pid: i32) -> bool {
        let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        environment.split(|byte| *byte == 0).any(|variable| variable == self.mark.as_bytes())
    }

    /// Waits for all to end.
    pub(super) fn end_within(&self, limit: Duration) -> bool {
        let deadline = Instant::now() + limit;
        while !self.living().is_empty() {
            if Instant::now() > deadline {
                return false;
            }
            sleep(Duration::from_millis(10));
        }
        true
    }

    /// Kills all that live, also what they start meanwhile.
    pub(super) fn kill(&self, path: &Path) -> Result<()> {
        let deadline = Instant::now() + KILLING;
        loop {
            let living = self.living();
            if living.is_empty() {
                return Ok(());
            }
            if Instant::now() > deadline {
                let reason = format!("its daemon can't be killed: process {living:?}");
                return Err(Error::new(ErrorKind::Unresponsive, "end the daemon of", reason).at(path));
            }
            living.into_iter().for_each(|pid| self.kill_one(pid));
            sleep(Duration::from_millis(5));
        }
    }

    /// By a descriptor (Linux 5.3), that a number which was given anew meanwhile is nobody else's end.
    fn kill_one(&self, pid: i32) {
        let descriptor = rustix::process::Pid::from_raw(pid).map(|pid| pidfd_open(pid, PidfdFlags::empty()));
        if !self.is_marked(pid) {
            return;
        }
        // An error: it is gone, which is looked at next.
        match descriptor {
            Some(Ok(descriptor)) => drop(pidfd_send_signal(descriptor, rustix::process::Signal::KILL)),
            _ => drop(kill(Pid::from_raw(pid), Signal::SIGKILL)),
        }
    }
}
