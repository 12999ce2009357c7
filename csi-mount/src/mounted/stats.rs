//! The usage of a filesystem, read without a risk to hang the caller.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use rustix::fs::OFlags;

use crate::bounded::in_flight::{self, Subject};
use crate::error::{Error, Result};
use crate::path::{lookup, paths};
use crate::place::root::Root;
use crate::sys::child::{self, ChildCall, ChildReply};
use crate::table::details::Details;
use crate::table::facts;

/// How long [`stats`] waits for a filesystem.
pub const STATS_TIME_LIMIT: Duration = Duration::from_secs(5);
const USAGE: &str = "read the usage of";

/// An amount of bytes, or of inodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct FilesystemUsage {
    /// The total amount.
    pub total: u64,
    /// The amount in use.
    pub used: u64,
    /// The amount that an ordinary user can still use. If some is reserved for root, `used + available` is
    /// less than `total`.
    pub available: u64,
}

impl FilesystemUsage {
    /// A usage of these amounts.
    pub(crate) const fn new(total: u64, used: u64, available: u64) -> Self {
        Self { total, used, available }
    }
}

/// The usage of a filesystem.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// In bytes.
    pub bytes: FilesystemUsage,
    /// In inodes. None if the filesystem creates inodes on demand (btrfs, vfat, many network filesystems), or
    /// does not say how many are free (CephFS).
    pub inodes: Option<FilesystemUsage>,
}

impl Stats {
    /// A usage in bytes, and in inodes if the filesystem has a number of them.
    pub(crate) const fn new(bytes: FilesystemUsage, inodes: Option<FilesystemUsage>) -> Self {
        Self { bytes, inodes }
    }
}

/// See [`Mounts::stats`](crate::Mounts::stats).
pub fn stats(path: impl AsRef<Path>) -> Result<Stats> {
    stats_within(path, STATS_TIME_LIMIT)
}

/// As [`stats`], with another time limit.
pub fn stats_within(path: impl AsRef<Path>, limit: Duration) -> Result<Stats> {
    let path = paths::absolute(USAGE, path.as_ref())?;
    let open = lookup::open_path(&path, OFlags::empty());
    let fd = open.map_err(|error| Error::os(USAGE, &path, error))?;
    usage_of(&path, &fd, limit)
}

/// As [`stats`], for the filesystem of an open descriptor.
pub(crate) fn usage_of(path: &Path, fd: &OwnedFd, limit: Duration) -> Result<Stats> {
    let details = Details::from_statmount(fd).ok().flatten();
    let answer = ask(ChildCall::Usage, USAGE, path, fd, details.as_ref(), limit)?;
    match answer.error {
        0 => Ok(Stats::from(answer)),
        number => Err(Error::os(USAGE, path, io::Error::from_raw_os_error(number as i32))),
    }
}

/// Asks the filesystem of an open descriptor, in a child process unless it is known to answer from memory.
pub(crate) fn ask<'a>(
    question: impl FnOnce(BorrowedFd<'a>) -> ChildCall<'a>,
    operation: &'static str,
    path: &Path,
    fd: &'a OwnedFd,
    details: Option<&Details>,
    limit: Duration,
) -> Result<ChildReply> {
    if details.is_some_and(Details::answers_from_memory) {
        in_flight::reap_exited();
        return Ok(child::usage_from_memory(fd.as_fd()));
    }
    let mount = facts::from_fd(fd).map_err(|error| Error::os(operation, path, error))?.mount;
    let asked = in_flight::ask(Subject::Usage(mount), question(fd.as_fd()), limit);
    asked.map(|(answer, _)| answer).map_err(|unanswered| {
        Error::os(operation, path, unanswered).hint("check whether its daemon or server works")
    })
}

impl From<ChildReply> for Stats {
    fn from(answer: ChildReply) -> Self {
        let bytes = |blocks: u64| blocks.saturating_mul(answer.block_size);
        let inodes = FilesystemUsage {
            total: answer.inodes,
            used: answer.inodes.saturating_sub(answer.inodes_free),
            available: answer.inodes_free,
        };
        // Below 0 if more is used than root's reserve leaves. A server or a daemon can also say more than it has.
        let available = i64::try_from(answer.blocks_available).map_or(0, |_| answer.blocks_available);
        Self {
            bytes: FilesystemUsage {
                total: bytes(answer.blocks),
                used: bytes(answer.blocks.saturating_sub(answer.blocks_free)),
                available: bytes(available.min(answer.blocks)),
            },
            // CephFS reports -1 free inodes.
            inodes: (answer.inodes > 0 && answer.inodes_free <= answer.inodes).then_some(inodes),
        }
    }
}

impl Root {
    /// Returns the usage of the root's filesystem, as [`Mounts::stats`](crate::Mounts::stats), within the given time.
    ///
    /// # Errors
    /// [`Unresponsive`](crate::ErrorKind::Unresponsive) if there is no answer in time.
    pub fn stats_within(&self, limit: Duration) -> Result<Stats> {
        usage_of(self.path(), self.directory(), limit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_reserved_for_root_is_neither_used_nor_available() {
        let answer = ChildReply {
            block_size: 10,
            blocks: 100,
            blocks_free: 40,
            blocks_available: 35,
            ..ChildReply::default()
        };
        let stats = Stats::from(answer);
        assert_eq!(stats.bytes, FilesystemUsage { total: 1000, used: 600, available: 350 });
        assert_eq!(stats.inodes, None);
    }

    #[test]
    fn not_more_is_available_than_there_is() {
        let available = |blocks_available| {
            let answer =
                ChildReply { block_size: 10, blocks: 100, blocks_available, ..ChildReply::default() };
            Stats::from(answer).bytes.available
        };
        assert_eq!([available(100), available(101), available(u64::MAX - 4)], [1000, 1000, 0]);
    }

    #[test]
    fn more_free_inodes_than_all_are_no_number() {
        let stats = |inodes_free| Stats::from(ChildReply { inodes: 7, inodes_free, ..ChildReply::default() });
        assert_eq!(stats(7).inodes, Some(FilesystemUsage { total: 7, used: 0, available: 7 }));
        assert_eq!(stats(u64::MAX).inodes, None);
    }
}
