//! Directories that can hold so much and no more: project quotas of ext4 and XFS, subvolumes of btrfs.
//!
//! | file | what it has |
//! |---|---|
//! | `mod.rs` | what a driver asks for: make, measure, change |
//! | `project.rs` | an open directory and its project: the record of what is limited |
//! | `subvolume.rs` | an open directory on btrfs, which is a subvolume with a limit |
//! | `support.rs` | whether a filesystem can enforce limits, and how to make it |
//!
//! On ext4 and XFS the directory's inode is the only record: its project id and the flag that new files inherit it. The
//! kernel counts by it, and it moves with a rename and with the disk. The flag is set last, so it says that the limits were
//! complete. A volume's owner can change both, so an extended attribute that only root can write says which id the
//! directory got: limits are read and changed by that one.
//!
//! An id is in use while anything belongs to it, and a volume has at least its own directory. So no list of ids
//! exists that a crash could damage: what is gone has given its id back. Two processes that choose one id at the same
//! moment see each other in the id's number of inodes, whatever paths and containers they come from.
//!
//! On btrfs the directory is a subvolume, and the record is the limit of its quota group. The kernel chooses the ids of
//! subvolumes, and removes the group with the subvolume (Linux 6.11). A subvolume is removed as any directory is, file by
//! file and then by rmdir(2): `BTRFS_IOC_SNAP_DESTROY` would detach mounts in it, and return before the data is gone.

mod project;
mod subvolume;
mod support;

use std::ffi::OsStr;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use rustix::fs::AtFlags;
use rustix::io::Errno;

use crate::error::{Error, ErrorKind, Result};
use crate::mounted::stats::Stats;
use crate::place::target::Target;
use crate::sys::descriptor::{Locked, reopen_directory};
use crate::table::facts;

use project::Project;
use subvolume::Subvolume;

pub(crate) use project::release;
#[cfg(any(test, feature = "testing"))]
pub use project::set_first_project_ids;

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
    /// How many files and directories, with the directory itself. 0 in the limit of a directory on btrfs, which can't
    /// limit their number.
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

/// How the filesystem of an open directory limits what is in it.
trait Quota {
    /// Refuses a parent directory below which nothing can be limited now, and says how to change that.
    fn require_limits_below(&self) -> Result<()>;

    /// Makes a directory in this one, which can be limited, with the mode 0777 minus the umask.
    fn make(&self, name: &OsStr) -> rustix::io::Result<()>;

    /// The limit of the directory, also while the filesystem only counts.
    fn limit(&self) -> Result<Option<DirectoryLimit>>;

    /// Gives an empty directory its first limit, and returns it.
    fn limit_empty(&mut self, limit: DirectoryLimit) -> Result<DirectoryLimit>;

    /// Changes the limit of a directory that has one of ours.
    fn change(&self, limit: DirectoryLimit) -> Result<()>;

    /// What is used of the limit. `None` without a limit that is enforced.
    fn usage(&self) -> Result<Option<Stats>>;

    /// Writes the directory and its limit to the disk.
    fn sync(&self) -> Result<()>;
}

fn quota_of<'d>(
    operation: &'static str,
    path: &'d Path,
    directory: BorrowedFd<'d>,
) -> Result<Box<dyn Quota + 'd>> {
    match Subvolume::open(operation, path, directory)? {
        Some(subvolume) => Ok(Box::new(subvolume)),
        None => Ok(Box::new(Project::open(operation, path, directory)?)),
    }
}

/// See [`Directories::check_limits`](crate::Directories::check_limits).
pub(crate) fn check(path: &Path) -> Result<()> {
    let directory = open(READ, path)?;
    quota_of(READ, path, directory.as_fd())?.require_limits_below()
}

/// See [`Directories::create`](crate::Directories::create).
pub(crate) fn create(path: &Path, limit: DirectoryLimit) -> Result<DirectoryLimit> {
    limit.check(CREATE, path)?;
    let target = Target::new(path)?;
    let failed = |error: Errno| Error::os(CREATE, path, error);
    let parent = reopen_directory(target.parent(CREATE)?).map_err(failed)?;
    let parent = match Locked::within(parent, LOCK_TIME_LIMIT) {
        Err(Errno::WOULDBLOCK) => {
            let reason = "another process keeps its parent directory locked (flock)";
            return Err(Error::new(ErrorKind::Busy, CREATE, reason).at(path));
        }
        locked => locked.map_err(failed)?,
    };
    let above = quota_of(CREATE, path, parent.as_fd())?;
    above.require_limits_below()?;
    let is_new = match above.make(target.name()) {
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
    let mut quota = quota_of(CREATE, path, directory.as_fd())?;
    let limited = match quota.limit()? {
        Some(limit) => limit,
        None => quota.limit_empty(limit)?,
    };
    // Also for an earlier call that was killed before this.
    quota.sync()?;
    Ok(limited)
}

/// See [`Directories::limit`](crate::Directories::limit).
pub(crate) fn limit(path: &Path) -> Result<Option<DirectoryLimit>> {
    let directory = open(READ, path)?;
    quota_of(READ, path, directory.as_fd())?.limit()
}

/// See [`Directories::set_limit`](crate::Directories::set_limit).
pub(crate) fn set_limit(path: &Path, limit: DirectoryLimit) -> Result<()> {
    limit.check(CHANGE, path)?;
    let directory = open(CHANGE, path)?;
    let quota = quota_of(CHANGE, path, directory.as_fd())?;
    quota.change(limit)?;
    quota.sync()
}

/// See [`Directories::usage`](crate::Directories::usage).
pub(crate) fn usage(path: &Path) -> Result<Option<Stats>> {
    let directory = open(READ, path)?;
    quota_of(READ, path, directory.as_fd())?.usage()
}

fn open(operation: &'static str, path: &Path) -> Result<OwnedFd> {
    Target::new(path)?.open_directory(operation)
}
