//! Lock that lets one process at a time start a daemon for a place, and that a killed starter's child holds
//! until its daemon can be recognized.

use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use crate::sys::file_lock;
use crate::{Error, ErrorKind, Result, Target};

/// The lock of a place, until it is dropped.
///
/// It is a lock (`flock(2)`) on the parent directory, through an open file of its own. A child process
/// shares that open file until its `exec` closes it. So while the lock is taken, a child of a killed
/// process can exist that will become a daemon and does not have the mark yet. When the lock is free, every
/// daemon has its mark.
///
/// The place itself can't be locked: what is mounted there might not answer. The kubelet has a separate
/// directory for each staging directory, and locks none. Volumes that share a parent directory wait for
/// each other while a daemon is started, but not until it is ready.
pub(super) struct PlaceLock {
    /// None if the directory can't be locked: a filesystem such as NFS might not lock directories.
    _directory: Option<OwnedFd>,
}

impl PlaceLock {
    /// Takes the lock, and waits for it up to this limit.
    pub(super) fn take(operation: &'static str, place: &Target, limit: Duration) -> Result<Self> {
        if !place.has_parent() {
            return Ok(Self { _directory: None });
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = rustix::fs::openat(place.parent(operation)?, ".", flags, Mode::empty())
            .map_err(|error| place.error(operation, error))?;
        match file_lock::take_within(&directory, limit) {
            Ok(()) => Ok(Self { _directory: Some(directory) }),
            Err(Errno::WOULDBLOCK) => {
                let reason = format!("another process has kept its parent directory locked for {limit:?}");
                let hint = "a daemon is being started there and does not run; find out why";
                Err(Error::new(ErrorKind::Busy, operation, reason).at(place.path()).hint(hint))
            }
            Err(error) => {
                tracing::debug!(%error, at = %place.path().display(), "the parent directory could not be \
                    locked");
                Ok(Self { _directory: None })
            }
        }
    }
}
