//! Freezing a filesystem while its device is copied.

use std::fs::File;
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};

use rustix::io::Errno;

use crate::error::{Error, Result};
use crate::mounted::health;
use crate::sys::ioctl;

const FREEZE: &str = "freeze the filesystem at";
const THAW: &str = "thaw the filesystem at";

/// A frozen filesystem: everything written so far is on its device, and writers wait until this is dropped.
///
/// To copy several devices in one consistent state, freeze all of them first. The kernel keeps the filesystem
/// frozen if the process is killed. So a program that freezes calls [`thaw`] when it starts, for each
/// filesystem that it can have frozen before.
///
/// Man page: ioctl_fifreeze(2), or fsfreeze(8). It needs `CAP_SYS_ADMIN`.
#[derive(Debug)]
#[must_use = "dropping it thaws the filesystem"]
pub struct Frozen {
    file: File,
    path: PathBuf,
}

impl Frozen {
    /// Freezes the filesystem of this directory.
    ///
    /// It waits for running writes without a limit: call it only for filesystems on this node's own devices.
    ///
    /// # Errors
    /// - [`Unresponsive`](crate::ErrorKind::Unresponsive): it is dead, or does not answer.
    /// - [`Busy`](crate::ErrorKind::Busy): the filesystem is frozen already.
    /// - [`Unsupported`](crate::ErrorKind::Unsupported): the filesystem cannot be frozen.
    /// - [`PermissionDenied`](crate::ErrorKind::PermissionDenied): `CAP_SYS_ADMIN` is missing.
    pub fn at(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref().to_owned();
        health::require_answer(FREEZE, &path)?;
        let file = File::open(&path).map_err(|error| Error::os(FREEZE, &path, error))?;
        ioctl::freeze(file.as_fd()).map_err(|error| Error::os(FREEZE, &path, error))?;
        Ok(Self { file, path })
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        match ioctl::thaw(self.file.as_fd()) {
            // Another process thawed it.
            Ok(()) | Err(Errno::INVAL) => {}
            Err(error) => tracing::error!("{}", Error::os(THAW, &self.path, error)),
        }
    }
}

/// Thaws the filesystem of this directory. Returns whether it was frozen.
///
/// # Errors
/// Those of [`Frozen::at`], except that a filesystem that is not frozen is no error.
pub fn thaw(path: impl AsRef<Path>) -> Result<bool> {
    let path = path.as_ref();
    let failed = |error| Error::os(THAW, path, error);
    let file = File::open(path).map_err(failed)?;
    match ioctl::thaw(file.as_fd()) {
        Ok(()) => Ok(true),
        Err(Errno::INVAL) => Ok(false),
        Err(error) => Err(Error::os(THAW, path, error)),
    }
}
