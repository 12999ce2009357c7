//! The processes of FUSE volumes.
#![cfg(all(feature = "mount", target_os = "linux"))]
#![allow(dead_code, reason = "each test file uses a part")]

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

/// The processes that were started for a volume at this place or below it, and what they started.
pub(crate) fn daemons(place: &Path) -> Vec<u32> {
    let all = fs::read_dir("/proc").unwrap();
    let numbers = all.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    let is_marked = |pid: &u32| {
        let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        let environment = String::from_utf8_lossy(&environment);
        let mut marks =
            environment.split('\0').filter_map(|variable| variable.strip_prefix("CSI_MOUNT_FUSE_AT="));
        marks.any(|mark| Path::new(mark).starts_with(place))
    };
    numbers.filter(is_marked).collect()
}

/// Sends a signal. A process that is gone is no error.
pub(crate) fn signal(name: &str, processes: &[u32]) {
    let numbers = processes.iter().map(u32::to_string);
    Command::new("kill").args(["-s", name]).args(numbers).stderr(Stdio::null()).status().unwrap();
}

/// Kills the daemons of a failed test, which would otherwise keep its output open.
pub(crate) struct NoDaemons<'a>(pub(crate) &'a Path);

impl Drop for NoDaemons<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            signal("KILL", &daemons(self.0));
        }
    }
}
