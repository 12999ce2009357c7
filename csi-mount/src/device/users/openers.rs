//! The processes that have a block device open.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, CWD, StatxFlags};

use super::DeviceUser;
use crate::DeviceNumber;
use crate::device::mount_places::program_name;

/// Time limit for the scan of all processes: some of many are better than a late answer.
const SCAN_TIME_LIMIT: Duration = Duration::from_secs(1);

/// Up to `max` of them, as far as `/proc` shows them within a second.
pub(super) fn openers(device: DeviceNumber, max: usize) -> Vec<DeviceUser> {
    let deadline = Instant::now() + SCAN_TIME_LIMIT;
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        if Instant::now() > deadline || found.len() >= max {
            break;
        }
        let Some(id) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        if id != std::process::id() && has_open(&entry.path(), device) {
            found.push(DeviceUser::Process { id, name: program_name(id) });
        }
    }
    found
}

fn has_open(process: &Path, device: DeviceNumber) -> bool {
    let files = fs::read_dir(process.join("fd")).into_iter().flatten().flatten();
    files.map(|file| file.path()).any(|link| {
        // The link is read first: it names what is open, and no filesystem has to answer for that.
        let is_node = fs::read_link(&link).is_ok_and(|path| path.starts_with("/dev"));
        is_node && node_at(&link) == Some(device)
    })
}

fn node_at(link: &Path) -> Option<DeviceNumber> {
    let flags = AtFlags::NO_AUTOMOUNT | AtFlags::STATX_DONT_SYNC;
    let found = rustix::fs::statx(CWD, link, flags, StatxFlags::TYPE).ok()?;
    Some(DeviceNumber { major: found.stx_rdev_major, minor: found.stx_rdev_minor })
}
