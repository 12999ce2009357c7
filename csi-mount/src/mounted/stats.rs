//! How full a filesystem is, asked in a way that can't hang the asker.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use rustix::fs::OFlags;

use crate::Root;
use crate::bounded::in_flight::{self, Subject};
use crate::path::lookup;
use crate::path::paths;
use crate::sys::child::{self, Answer, Question};
use crate::table::details::Details;
use crate::table::facts;
use crate::{Error, Result};

/// How long [`stats`] waits for a filesystem.
pub const STATS_TIMEOUT: Duration = Duration::from_secs(5);
const USAGE: &str = "ask for the usage of";

/// An amount of bytes, or of inodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Usage {
    /// All there is.
    pub total: u64,
    /// What is in use.
    pub used: u64,
    /// What an ordinary user can still use; with `used` less than `total` where some is reserved for root.
    pub available: u64,
}

/// How full a filesystem is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stats {
    /// In bytes.
    pub bytes: Usage,
    /// In inodes; none where the filesystem makes them as it needs them (btrfs, vfat, many network filesystems).
    pub inodes: Option<Usage>,
}

/// How full the filesystem at an absolute path is; waits [`STATS_TIMEOUT`] at most.
///
/// `statfs(2)` on a filesystem whose daemon or server is dead does not return and can't always be interrupted,
/// so a child process makes the call, and is killed when the time is over. Only of ext4, XFS and tmpfs, which answer from
/// memory, it is not needed (Linux 6.13, and without quotas of projects; else they are asked by a child too). Of one mount one is asked at a time:
/// a second caller waits for its turn, longer than the limit if it must while others are answered, and gets the error
/// at once while an earlier child can't be ended.
///
/// ```
/// # fn main() -> csi_mount::Result<()> {
/// let stats = csi_mount::stats("/")?;
/// assert!(stats.bytes.available <= stats.bytes.total);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// [`Unresponsive`](crate::ErrorKind::Unresponsive) when there is no answer in time or the filesystem's daemon is gone;
/// [`Busy`](crate::ErrorKind::Busy) when so many ask a slow filesystem that the turn does not come in half a minute;
/// [`NotFound`](crate::ErrorKind::NotFound); [`InvalidInput`](crate::ErrorKind::InvalidInput) for a path that can
/// never work.
#[doc(alias = "statfs")]
pub fn stats(path: impl AsRef<Path>) -> Result<Stats> {
    stats_within(path, STATS_TIMEOUT)
}

/// As [`stats`], with another limit of time.
///
/// # Errors
/// As [`stats`].
pub fn stats_within(path: impl AsRef<Path>, limit: Duration) -> Result<Stats> {
    let path = paths::absolute(USAGE, path.as_ref())?;
    let open = lookup::open_path(&path, OFlags::empty());
    let fd = open.map_err(|error| Error::os(USAGE, &path, error))?;
    usage_of(&path, &fd, limit)
}

/// As [`stats`], of the filesystem that a descriptor is open on.
pub(crate) fn usage_of(path: &Path, fd: &OwnedFd, limit: Duration) -> Result<Stats> {
    let details = Details::at_once(fd).ok().flatten();
    let answer = ask(Question::Usage, USAGE, path, fd, details.as_ref(), limit)?;
    match answer.error {
        0 => Ok(Stats::from(answer)),
        number => Err(Error::os(USAGE, path, io::Error::from_raw_os_error(number as i32))),
    }
}

/// Asks the filesystem that a descriptor is open on: by a child, unless it is known that it answers from memory.
pub(crate) fn ask<'a>(
    question: impl FnOnce(BorrowedFd<'a>) -> Question<'a>,
    operation: &'static str,
    path: &Path,
    fd: &'a OwnedFd,
    details: Option<&Details>,
    limit: Duration,
) -> Result<Answer> {
    if details.is_some_and(Details::answers_from_memory) {
        in_flight::collect();
        return Ok(child::usage_at_once(fd.as_fd()));
    }
    let mount = facts::from_fd(fd).map_err(|error| Error::os(operation, path, error))?.mount;
    let asked = in_flight::ask(Subject::Usage(mount), question(fd.as_fd()), limit);
    asked.map(|(answer, _)| answer).map_err(|unanswered| {
        Error::os(operation, path, unanswered).mend("see whether its daemon or server is alive")
    })
}

impl From<Answer> for Stats {
    fn from(answer: Answer) -> Self {
        let bytes = |blocks: u64| blocks.saturating_mul(answer.block_size);
        let inodes = Usage {
            total: answer.inodes,
            used: answer.inodes.saturating_sub(answer.inodes_free),
            available: answer.inodes_free,
        };
        Self {
            bytes: Usage {
                total: bytes(answer.blocks),
                used: bytes(answer.blocks.saturating_sub(answer.blocks_free)),
                available: bytes(answer.blocks_available),
            },
            inodes: (answer.inodes > 0).then_some(inodes),
        }
    }
}

impl Root {
    /// How full its filesystem is, and whether that answers; as [`stats`](crate::stats()), in the time given.
    ///
    /// # Errors
    /// [`ErrorKind::Unresponsive`] when there is no answer in time.
    pub fn stats_within(&self, limit: Duration) -> Result<Stats> {
        usage_of(self.path(), self.directory(), limit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_reserved_for_root_is_neither_used_nor_available() {
        let answer = Answer {
            block_size: 10,
            blocks: 100,
            blocks_free: 40,
            blocks_available: 35,
            ..Answer::default()
        };
        let stats = Stats::from(answer);
        assert_eq!(stats.bytes, Usage { total: 1000, used: 600, available: 350 });
        assert_eq!(stats.inodes, None);
    }
}
