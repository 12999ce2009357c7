//! The subvolume of a directory on btrfs: made, limited and measured by its quota group.

use std::ffi::OsStr;
use std::os::fd::BorrowedFd;
use std::path::Path;

use rustix::io::Errno;

use super::{DirectoryLimit, Quota, support};
use crate::error::{Error, ErrorKind, Result};
use crate::mounted::stats::{FilesystemUsage, Stats};
use crate::place::target::is_empty;
use crate::sys::btrfs;

/// An open directory on btrfs.
pub(super) struct Subvolume<'d> {
    operation: &'static str,
    path: &'d Path,
    directory: BorrowedFd<'d>,
    /// The subvolume that the directory is in.
    id: u64,
    /// Whether the directory is the root of the subvolume.
    is_root: bool,
}

impl<'d> Subvolume<'d> {
    /// `None` on another filesystem.
    pub(super) fn open(
        operation: &'static str,
        path: &'d Path,
        directory: BorrowedFd<'d>,
    ) -> Result<Option<Self>> {
        let id = match btrfs::subvolume(directory) {
            Err(Errno::NOTTY | Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => return Ok(None),
            id => id.map_err(|error| Error::os(operation, path, error))?,
        };
        let stat = rustix::fs::fstat(directory).map_err(|error| Error::os(operation, path, error))?;
        Ok(Some(Self { operation, path, directory, id, is_root: stat.st_ino == btrfs::ROOT_INODE }))
    }

    fn refused(&self, error: Errno) -> Error {
        match error {
            Errno::PERM => support::not_permitted(self.operation, self.path),
            error => Error::os(self.operation, self.path, error),
        }
    }

    fn unsupported(&self, reason: impl Into<String>) -> Error {
        Error::new(ErrorKind::Unsupported, self.operation, reason).at(self.path)
    }

    fn require_enforced(&self) -> Result<()> {
        let state = btrfs::quota_state(self.directory).map_err(|error| self.refused(error))?;
        if state & btrfs::ON == 0 {
            let reason = "the quotas of this btrfs are switched off";
            return Err(self.unsupported(reason).hint("run on its filesystem: btrfs quota enable"));
        }
        // The kernel counts nothing until a scan has ended. This passes, and a directory that was made without a limit
        // never gets one.
        if state & btrfs::INCONSISTENT != 0 {
            let reason = "btrfs enforces no limits until it has counted again what subvolumes use";
            let error = Error::new(ErrorKind::Busy, self.operation, reason).at(self.path);
            return Err(error.hint("run on its filesystem: btrfs quota rescan -w"));
        }
        Ok(())
    }

    fn bytes(&self) -> Result<Option<u64>> {
        btrfs::limit(self.directory, self.id).map_err(|error| self.refused(error))
    }

    fn used_bytes(&self) -> Result<u64> {
        btrfs::used_bytes(self.directory, self.id).map_err(|error| self.refused(error))
    }

    fn set(&self, limit: DirectoryLimit) -> Result<()> {
        if limit.inodes != DirectoryLimit::new(limit.bytes).inodes {
            return Err(self.unsupported("btrfs can't limit the number of inodes"));
        }
        btrfs::set_limit(self.directory, limit.bytes).map_err(|error| self.refused(error))
    }
}

impl Quota for Subvolume<'_> {
    fn require_limits_below(&self) -> Result<()> {
        self.require_enforced()?;
        if self.bytes()?.is_none() {
            return Ok(());
        }
        let reason =
            format!("it is in subvolume {}, whose limit would not count for what is made there", self.id);
        Err(self.unsupported(reason).hint("use another parent directory, or run: btrfs qgroup limit none"))
    }

    fn make(&self, name: &OsStr) -> rustix::io::Result<()> {
        btrfs::create_subvolume(self.directory, name)
    }

    fn limit(&self) -> Result<Option<DirectoryLimit>> {
        let bytes = if self.is_root { self.bytes()? } else { None };
        Ok(bytes.map(|bytes| DirectoryLimit { bytes, inodes: 0 }))
    }

    fn limit_empty(&mut self, limit: DirectoryLimit) -> Result<DirectoryLimit> {
        let failed = |error| Error::os(self.operation, self.path, error);
        if !self.is_root || !is_empty(self.directory).map_err(failed)? {
            return Err(self
                .unsupported("it was made without a limit")
                .hint("only a new subvolume can get one: copy its content into a new directory"));
        }
        self.set(limit)?;
        Ok(DirectoryLimit { inodes: 0, ..limit })
    }

    fn change(&self, limit: DirectoryLimit) -> Result<()> {
        let Some(now) = self.limit()? else { return Err(self.unsupported("it was made without a limit")) };
        if limit.bytes < now.bytes {
            // What was written since the last commit is not counted yet.
            self.sync()?;
            let used = self.used_bytes()?;
            if used > limit.bytes {
                let reason = format!("it holds {used} bytes, more than {}", limit.bytes);
                return Err(Error::new(ErrorKind::OutOfRange, self.operation, reason).at(self.path));
            }
        }
        self.set(limit)
    }

    fn usage(&self) -> Result<Option<Stats>> {
        if !self.is_root {
            return Ok(None);
        }
        match self.require_enforced() {
            Err(error) if [ErrorKind::Unsupported, ErrorKind::Busy].contains(&error.kind()) => {
                return Ok(None);
            }
            enforced => enforced?,
        }
        let Some(total) = self.bytes()? else { return Ok(None) };
        let used = self.used_bytes()?;
        Ok(Some(Stats::new(FilesystemUsage::new(total, used, total.saturating_sub(used)), None)))
    }

    fn sync(&self) -> Result<()> {
        btrfs::commit(self.directory).map_err(|error| self.refused(error))
    }
}
