//! Locks that let one thread, and one process at a time, start a daemon for a place. A killed starter's child holds
//! that of the processes until its daemon can be recognized.

use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::time::Duration;

use nix::fcntl::{FcntlArg, fcntl};
use nix::libc;
use rustix::io::Errno;

use crate::error::{Error, ErrorKind, Result};
use crate::place::target::Target;
use crate::place::target_lock::{Purpose, TargetLock};
use crate::sys::descriptor::{Locked, byte_lock, reopen_directory};

/// How long to wait for another start of a daemon that is in progress.
pub(super) const START_TIME_LIMIT: Duration = Duration::from_secs(20);

/// Takes the lock under which the threads of this process start and end the daemon of a place.
pub(super) fn lock_threads(operation: &'static str, staging: &Target, limit: Duration) -> Result<TargetLock> {
    TargetLock::take_within(staging, Purpose::StartDaemon, limit).ok_or_else(|| {
        let reason = "another thread is starting or ending its daemon";
        Error::new(ErrorKind::Busy, operation, reason).at(staging.path())
    })
}

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
pub(super) struct DaemonStartLock {
    /// None if the directory can't be locked: a filesystem such as NFS might not lock directories.
    directory: Option<Locked<OwnedFd>>,
}

impl DaemonStartLock {
    /// Takes the lock, and waits for it up to this limit.
    pub(super) fn take(operation: &'static str, place: &Target, limit: Duration) -> Result<Self> {
        if !place.has_parent() {
            return Ok(Self { directory: None });
        }
        let directory =
            reopen_directory(place.parent(operation)?).map_err(|error| place.error(operation, error))?;
        match Locked::within(directory, limit) {
            Ok(directory) => Ok(Self { directory: Some(directory) }),
            Err(Errno::WOULDBLOCK) => {
                let reason = format!("another process has kept its parent directory locked for {limit:?}");
                let hint = "a daemon is being started there and does not run; find out why";
                Err(Error::new(ErrorKind::Busy, operation, reason).at(place.path()).hint(hint))
            }
            Err(error) => {
                tracing::debug!(%error, at = %place.path().display(), "the parent directory could not be \
                    locked");
                Ok(Self { directory: None })
            }
        }
    }

    /// Says that this process starts the daemon of the place from now on; none if another process does that.
    pub(super) fn begin_start(&self, place: &Target) -> Option<StartInProgress> {
        let nothing = || Some(StartInProgress(None));
        let Some(directory) = &self.directory else { return nothing() };
        // An open file of its own, because this lock is held for longer.
        let Ok(own) = reopen_directory(directory) else { return nothing() };
        let lock = |kind| byte_lock(place.name().as_bytes(), kind);
        let mut found = lock(libc::F_WRLCK);
        match fcntl(&own, FcntlArg::F_OFD_GETLK(&mut found)) {
            Ok(_) if found.l_type != libc::F_UNLCK as libc::c_short => return None,
            Ok(_) => {}
            Err(error) => tracing::debug!(%error, "the lock of a starting daemon could not be read"),
        }
        if let Err(error) = fcntl(&own, FcntlArg::F_OFD_SETLK(&lock(libc::F_RDLCK))) {
            tracing::debug!(%error, "the start of a daemon could not be locked");
            return nothing();
        }
        Some(StartInProgress(Some((own, lock(libc::F_UNLCK)))))
    }
}

/// Says, until it is dropped or its process ends, that a process starts the daemon of a place and waits for
/// the mount.
///
/// A daemon without a mount is either about to mount or left by a killed stage. This lock tells the two
/// apart. Without it, processes that stage at the same time would each kill the daemon of the other.
///
/// It is a read lock on one byte of the parent directory (an open file description lock, `fcntl(2)`). A
/// directory can't be locked for writing this way, so a start takes it while it holds the [`DaemonStartLock`].
/// Where a filesystem has no such locks, nobody is waited for.
///
/// It holds the directory and what unlocks the byte: see [`Locked`] for why that is not left to the close.
pub(super) struct StartInProgress(Option<(OwnedFd, libc::flock)>);

impl Drop for StartInProgress {
    fn drop(&mut self) {
        if let Some((directory, unlock)) = &self.0 {
            let _ = fcntl(directory, FcntlArg::F_OFD_SETLK(unlock));
        }
    }
}
