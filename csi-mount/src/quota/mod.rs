//! Directories that can hold so much and no more: project quotas of ext4 and XFS.
//!
//! | file | what it has |
//! |---|---|
//! | `mod.rs` | what a driver asks for: make, measure, change |
//! | `project.rs` | an open directory and its project: the record of what is limited |
//! | `support.rs` | whether a filesystem can enforce limits, and how to make it |
//!
//! The directory's inode is the only record: its project id and the flag that new files inherit it. The kernel counts
//! by it, it moves with a rename and with the disk, and it can't disagree with itself, as an extended attribute or a
//! file next to the directory could. The flag is set last, so it says that the limits were complete.
//!
//! An id is in use while anything belongs to it, and a volume has at least its own directory. So no list of ids
//! exists that a crash could damage: what is gone has given its id back. Two processes that choose one id at the same
//! moment see each other in the id's number of inodes, whatever paths and containers they come from.

mod project;
mod support;

use std::os::fd::{AsFd as _, OwnedFd};
use std::path::Path;
use std::time::Duration;

use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;

use crate::error::{Error, ErrorKind, Result};
use crate::mounted::stats::{FilesystemUsage, Stats};
use crate::place::target::Target;
use crate::sys::descriptor::lock_within;
use crate::table::facts;

use project::Project;

pub(crate) use project::release;
#[cfg(any(test, feature = "testing"))]
pub(crate) use project::set_first_ids;

const CREATE: &str = "make the limited directory";
const CHANGE: &str = "change the limit of";
const READ: &str = "read the limit of";
/// The unit of sizes. Blocks of both filesystems are at most this large on the usual machines.
const UNIT: u64 = 4096;
/// As many bytes as ext4 has for each inode by default.
const BYTES_PER_INODE: u64 = 16 << 10;
const LEAST_INODES: u64 = 1024;
/// How long a call waits for others in the same parent directory. Each holds the lock for some milliseconds.
const LOCK_TIME_LIMIT: Duration = Duration::from_secs(60);

/// The most that a directory can hold. See [`Directories::create`](crate::Directories::create).
///
/// ```
/// use csi_mount::DirectoryLimit;
///
/// let limit = DirectoryLimit::new(1_000_000_000);
/// assert_eq!((limit.bytes, limit.inodes), (1_000_001_536, 61_036));
/// assert_eq!(DirectoryLimit::new(1 << 20).inodes(100).inodes, 100);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct DirectoryLimit {
    /// In bytes. The directory itself and the metadata of its files count.
    pub bytes: u64,
    /// How many files and directories, with the directory itself.
    pub inodes: u64,
}

impl DirectoryLimit {
    /// This many bytes, rounded up to a multiple of 4 KiB, and an inode for each 16 KiB, at least 1,024: the ratio of
    /// ext4, so that volumes which fit into a filesystem by their bytes also fit by their inodes.
    pub const fn new(bytes: u64) -> Self {
        let bytes = bytes.div_ceil(UNIT).saturating_mul(UNIT);
        let inodes = bytes.div_ceil(BYTES_PER_INODE);
        Self { bytes, inodes: if inodes < LEAST_INODES { LEAST_INODES } else { inodes } }
    }

    /// Sets the number of inodes.
    #[must_use]
    pub const fn inodes(self, inodes: u64) -> Self {
        Self { inodes, ..self }
    }

    fn check(self, operation: &'static str, path: &Path) -> Result<()> {
        if self.bytes == 0 || self.inodes == 0 {
            let reason = "a limit of 0 bytes or 0 inodes would be none";
            return Err(Error::new(ErrorKind::InvalidInput, operation, reason).at(path));
        }
        Ok(())
    }
}

/// As many bytes, with the inodes of [`DirectoryLimit::new`].
impl From<u64> for DirectoryLimit {
    fn from(bytes: u64) -> Self {
        Self::new(bytes)
    }
}

/// See [`Directories::check_limits`](crate::Directories::check_limits).
pub(crate) fn check(path: &Path) -> Result<()> {
    let directory = open(READ, path)?;
    let project = Project::open(READ, path, directory.as_fd())?;
    project.require_enforced()?;
    project.refuse_heirs()
}

/// See [`Directories::create`](crate::Directories::create).
pub(crate) fn create(path: &Path, limit: DirectoryLimit) -> Result<DirectoryLimit> {
    limit.check(CREATE, path)?;
    let target = Target::new(path)?;
    let failed = |error: Errno| Error::os(CREATE, path, error);
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let parent = rustix::fs::openat(target.parent(CREATE)?, ".", flags, Mode::empty()).map_err(failed)?;
    match lock_within(&parent, LOCK_TIME_LIMIT) {
        Err(Errno::WOULDBLOCK) => {
            let reason = "another process keeps its parent directory locked (flock)";
            return Err(Error::new(ErrorKind::Busy, CREATE, reason).at(path));
        }
        locked => locked.map_err(failed)?,
    }
    let above = Project::open(CREATE, path, parent.as_fd())?;
    above.require_enforced()?;
    above.refuse_heirs()?;
    let is_new = match rustix::fs::mkdirat(&parent, target.name(), Mode::from_raw_mode(0o777)) {
        Err(Errno::EXIST) => false,
        made => made.map(|()| true).map_err(failed)?,
    };
    let limited = limit_new(&target, limit);
    if is_new && limited.is_err() {
        // An error of this is that of the next attempt too.
        let _ = rustix::fs::unlinkat(&parent, target.name(), AtFlags::REMOVEDIR);
    }
    let limited = limited?;
    rustix::fs::fsync(&parent).map_err(failed)?;
    Ok(limited)
}

/// Limits a directory that was just made, or whose creation was interrupted.
fn limit_new(target: &Target, limit: DirectoryLimit) -> Result<DirectoryLimit> {
    let path = target.path();
    let directory = target.open_directory(CREATE)?;
    let mount = |fd| facts::from_fd(fd).map(|facts| facts.mount).map_err(|error| target.error(CREATE, error));
    if mount(directory.as_fd())? != mount(target.parent(CREATE)?)? {
        return Err(Error::new(ErrorKind::Busy, CREATE, "something is mounted on it").at(path));
    }
    let mut project = Project::open(CREATE, path, directory.as_fd())?;
    let limited = match project.limit()? {
        Some(limit) => limit,
        None => {
            project.limit_empty(limit)?;
            limit
        }
    };
    // Also for an earlier call that was killed before this.
    project.sync()?;
    Ok(limited)
}

/// See [`Directories::limit`](crate::Directories::limit).
pub(crate) fn limit(path: &Path) -> Result<Option<DirectoryLimit>> {
    let directory = open(READ, path)?;
    Project::open(READ, path, directory.as_fd())?.limit()
}

/// See [`Directories::set_limit`](crate::Directories::set_limit).
pub(crate) fn set_limit(path: &Path, limit: DirectoryLimit) -> Result<()> {
    limit.check(CHANGE, path)?;
    let directory = open(CHANGE, path)?;
    let project = Project::open(CHANGE, path, directory.as_fd())?;
    project.change(limit)?;
    project.sync()
}

/// See [`Directories::usage`](crate::Directories::usage).
pub(crate) fn usage(path: &Path) -> Result<Option<Stats>> {
    let directory = open(READ, path)?;
    let project = Project::open(READ, path, directory.as_fd())?;
    let Some(limit) = project.enforced_limit()? else { return Ok(None) };
    let account = project.account()?;
    let of = |total: u64, used: u64| FilesystemUsage::new(total, used, total.saturating_sub(used));
    let inodes = of(limit.inodes, account.used_inodes);
    Ok(Some(Stats::new(of(limit.bytes, account.used_bytes), (limit.inodes > 0).then_some(inodes))))
}

fn open(operation: &'static str, path: &Path) -> Result<OwnedFd> {
    Target::new(path)?.open_directory(operation)
}
