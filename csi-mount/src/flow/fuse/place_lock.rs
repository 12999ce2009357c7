//! One process at a time starts a daemon for a place, and a killed one is waited for until its daemon can be known.

use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use crate::sys::file_lock;
use crate::{Error, ErrorKind, Result, Target};

/// The lock of a place, until it is dropped.
///
/// It is the lock (`flock(2)`) of the directory that the place is in, by an open file of its own, and a child process has
/// that, too, until its `exec` closes it. So while it is taken there may be a child of somebody who was killed, which is
/// going to be a daemon and does not bear the mark yet; once it is free, every daemon bears it.
///
/// The place itself can't be locked: what is mounted there may not answer. The kubelet has a directory of its own for
/// each staging directory, and locks none. Where volumes share one, they wait for each other while a daemon is started,
/// not until it is ready.
pub(super) struct PlaceLock {
    /// None on a filesystem that locks no directories, as NFS.
    _directory: Option<OwnedFd>,
}

impl PlaceLock {
    /// Waits for it so long.
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
                let reason = format!("somebody has kept its parent directory locked for {limit:?}");
                let mend = "a daemon is being started there and does not come to run: see why";
                Err(Error::new(ErrorKind::Busy, operation, reason).at(place.path()).mend(mend))
            }
            Err(error) => {
                tracing::debug!(%error, at = %place.path().display(), "no lock of the parent directory");
                Ok(Self { _directory: None })
            }
        }
    }
}
