//! The steps of a detach: the image is unmapped.

use std::path::Path;
use std::time::{Duration, Instant};

use nix::libc;

use super::attach::switch;
use super::decide;
use super::target::RbdDisk;
use super::tree::{Mapping, mappings};
use crate::device::users;
use crate::remote::ask;
use crate::remote::detach::DETACH;
use crate::{Error, ErrorKind, Result};

const UNMAP: &str = "unmap";
/// How long the kernel has to give the lock back, and to tell the cluster that it does not watch the image any more.
const UNMAP_LIMIT: Duration = Duration::from_secs(60);
/// How long another program can have the disk open: udev looks at it when it comes, and after each write.
const OPENERS_LIMIT: Duration = Duration::from_secs(3);
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Unmaps an image that was flushed. Returns the names of its disks.
///
/// The kernel refuses it while anything has the disk open: the check of the users, and this step, can't be torn
/// apart. It is never forced.
pub(in crate::remote) fn unmap(sys: &Path, disk: &RbdDisk) -> Result<Vec<String>> {
    let mappings = decide::all(sys, disk)?;
    mappings.iter().map(|mapping| unmap_one(sys, mapping).map(|()| format!("rbd{}", mapping.id))).collect()
}

pub(super) fn unmap_one(sys: &Path, mapping: &Mapping) -> Result<()> {
    let (switch, start) = (switch(sys, "remove"), Instant::now());
    // Its number can be another image's as soon as it is gone.
    while mappings(sys)?.contains(mapping) {
        match ask::write(UNMAP, &switch, mapping.id.as_bytes(), UNMAP_LIMIT) {
            Ok(()) => return Ok(()),
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {
                if start.elapsed() > OPENERS_LIMIT {
                    return Err(busy(mapping, error));
                }
            }
            // An earlier unmap is not finished yet.
            Err(error) if error.raw_os_error() == Some(libc::EINPROGRESS) => {}
            Err(error) => return Err(error.at(&mapping.place)),
        }
        if start.elapsed() > UNMAP_LIMIT {
            let reason = format!("it is still being unmapped after {UNMAP_LIMIT:?}");
            return Err(Error::new(ErrorKind::Unresponsive, UNMAP, reason).at(&mapping.place));
        }
        std::thread::sleep(POLL_INTERVAL);
    }
    Ok(())
}

fn busy(mapping: &Mapping, error: Error) -> Error {
    let users = mapping.number.and_then(|number| users::identified_users(&[number]).ok()).unwrap_or_default();
    match &users[..] {
        [] => error.with_kind(ErrorKind::Busy).at(&mapping.place),
        users => users::in_use_error(DETACH, &format!("rbd{}", mapping.id), users),
    }
}
