//! A filesystem held still while its device is copied.

use std::fs::File;
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};

use crate::sys::ioctl;
use crate::{Error, Result};

const FREEZE: &str = "freeze the filesystem at";
const THAW: &str = "thaw the filesystem at";

/// A mounted filesystem that takes no writes: all that was written is on its device, and whoever writes waits until this
/// is dropped. Freeze several to have their devices at one moment.
///
/// The kernel keeps it frozen when the process is killed. So a program that freezes calls [`thaw`] when it starts, for
/// each filesystem that it may have frozen before.
///
/// Man page: ioctl_fifreeze(2), or fsfreeze(8). It needs `CAP_SYS_ADMIN`.
#[derive(Debug)]
#[must_use = "dropping it thaws the filesystem"]
pub struct Frozen {
    file: File,
    path: PathBuf,
}

impl Frozen {
    /// Freezes the filesystem that this directory is on. It waits for what is being written: call it for filesystems
    /// of this node's own devices.
    ///
    /// # Errors
    /// [`Busy`](crate::ErrorKind::Busy) if it is frozen already, [`Unsupported`](crate::ErrorKind::Unsupported) if it
    /// can't be, [`PermissionDenied`](crate::ErrorKind::PermissionDenied).
    pub fn at(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref().to_owned();
        let file = File::open(&path).map_err(|error| Error::os(FREEZE, &path, error))?;
        ioctl::freeze(file.as_fd()).map_err(|error| Error::os(FREEZE, &path, error))?;
        Ok(Self { file, path })
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        match ioctl::thaw(self.file.as_fd()) {
            // Somebody else thawed it.
            Ok(()) | Err(nix::Error::EINVAL) => {}
            Err(error) => tracing::error!("{}", Error::os(THAW, &self.path, error)),
        }
    }
}

/// Thaws the filesystem that this directory is on, and says whether it was frozen.
///
/// # Errors
/// As [`Frozen::at`], but for one that is not frozen.
pub fn thaw(path: impl AsRef<Path>) -> Result<bool> {
    let path = path.as_ref();
    let failed = |error| Error::os(THAW, path, error);
    let file = File::open(path).map_err(failed)?;
    match ioctl::thaw(file.as_fd()) {
        Ok(()) => Ok(true),
        Err(nix::Error::EINVAL) => Ok(false),
        Err(error) => Err(Error::os(THAW, path, error)),
    }
}
