//! A directory below which paths of others are resolved without escaping from it.

use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags, ResolveFlags};

use crate::lookup;
use crate::sys::features::{self, Feature};
use crate::{Error, ErrorKind, Result, Target};

/// A directory that the caller trusts, opened once.
///
/// A path that somebody else chose (a volume's sub-directory, a name from a request) is resolved below it and
/// can't leave it: not by `..`, not by a symbolic link anywhere in it, not by a magic link of /proc, and not
/// by a rename while it is walked. `openat2(2)` with `RESOLVE_BENEATH`; before Linux 5.6 component by
/// component with `O_NOFOLLOW`.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use csi_mount::{ErrorKind, Root};
///
/// # let directory = tempfile::tempdir()?;
/// # let pods = directory.path();
/// let root = Root::open(pods)?;
/// root.target("volume")?.create_dir()?;
/// assert_eq!(root.target("../elsewhere").unwrap_err().kind(), ErrorKind::InvalidInput);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Root {
    directory: OwnedFd,
    path: PathBuf,
}

impl Root {
    /// Opens the directory at an absolute path; symbolic links in it are followed, as it is trusted.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] for a path that can never work or is no directory; [`ErrorKind::NotFound`].
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let operation = "open root";
        let path = lookup::absolute(operation, path.as_ref())?;
        let directory = lookup::open_path(&path, OFlags::DIRECTORY);
        let directory = directory.map_err(|error| Error::os(operation, &path, error))?;
        Ok(Self { directory, path })
    }

    /// The path that it was opened by.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The target at a path that is relative to the root, or absolute and below it.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] for a path that leads elsewhere or crosses a symbolic link, and as for
    /// [`Target::new`].
    pub fn target(&self, path: impl AsRef<Path>) -> Result<Target> {
        let operation = "open target";
        let path = path.as_ref();
        lookup::plain(operation, path)?;
        let relative = if path.is_absolute() { path.strip_prefix(&self.path).ok() } else { Some(path) };
        let relative: PathBuf = relative.map(|path| path.components().collect()).unwrap_or_default();
        if relative.file_name().is_none() {
            let reason = format!("it is not below {}", self.path.display());
            return Err(Error::new(ErrorKind::InvalidInput, operation, reason).at(path));
        }
        let full = self.path.join(&relative);
        lookup::plain(operation, &full)?;
        Target::below(full, |_| self.walk(relative.parent().unwrap_or(Path::new(""))))
    }

    fn walk(&self, relative: &Path) -> io::Result<OwnedFd> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        if features::has(Feature::Openat2) {
            let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
            let relative = if relative.as_os_str().is_empty() { Path::new(".") } else { relative };
            return lookup::open_below(self.directory.as_fd(), relative, flags, resolve);
        }
        let mut directory = self.directory.try_clone()?;
        for name in relative.components() {
            directory = step(&directory, name.as_os_str())?;
        }
        Ok(directory)
    }
}

/// One component down. `O_DIRECTORY` with `O_NOFOLLOW` refuses a symbolic link (ENOTDIR).
fn step(directory: impl AsFd, name: &OsStr) -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(rustix::fs::openat(directory, name, flags, Mode::empty())?)
}
