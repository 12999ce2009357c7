//! A trusted directory, below which untrusted paths are resolved.

use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags, ResolveFlags};

use crate::detached::prepared::{DetachedMount, Prepared};
use crate::error::{Error, ErrorKind, Result};
use crate::path::{lookup, paths};
use crate::place::target::{Created, Target};
use crate::sys::features::{self, Feature};

/// A directory that the caller trusts, opened once.
///
/// An untrusted path (a volume's sub-directory, a name from a request) is resolved below it and cannot leave
/// it: not by `..`, a symbolic link, a magic link of /proc, or a rename during the walk. It uses `openat2(2)`
/// with `RESOLVE_BENEATH`; before Linux 5.6 it walks component by component with `O_NOFOLLOW`.
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
    /// Set if the directory is the root of a detached mount. It is dropped after the descriptor above.
    _mount: Option<DetachedMount>,
}

impl Root {
    /// Opens the directory at an absolute path. Symbolic links in it are followed, because the path is
    /// trusted.
    ///
    /// # Errors
    /// - [`ErrorKind::InvalidInput`]: the path can never work, or is not a directory.
    /// - [`ErrorKind::NotFound`]: the path does not exist.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let operation = "open root";
        let path = paths::absolute(operation, path.as_ref())?;
        let directory = lookup::open_path(&path, OFlags::DIRECTORY);
        let directory = directory.map_err(|error| Error::os(operation, &path, error))?;
        Ok(Self::from_directory(directory, path))
    }

    /// Wraps an open directory; the path is for messages.
    pub(crate) fn from_directory(directory: OwnedFd, path: PathBuf) -> Self {
        Self { directory, path, _mount: None }
    }

    /// Wraps the root directory of a detached mount and owns the mount; the path is for messages.
    pub(crate) fn from_mount(mount: Prepared, path: PathBuf) -> Result<Self> {
        let directory = mount.fd().try_clone().map_err(|error| Error::os("open root", &path, error))?;
        Ok(Self { directory, path, _mount: Some(DetachedMount::new(mount)) })
    }

    /// The path that the root was opened by. For a detached mount, its source.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Opens the target at a path that is relative to the root, or absolute and below it.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] for a path that leads out of the root or crosses a symbolic link, and the
    /// errors of [`Target::new`].
    pub fn target(&self, path: impl AsRef<Path>) -> Result<Target> {
        let operation = "open target";
        let path = path.as_ref();
        paths::plain(operation, path)?;
        let relative = if path.is_absolute() { path.strip_prefix(&self.path).ok() } else { Some(path) };
        let relative: PathBuf = relative.map(|path| path.components().collect()).unwrap_or_default();
        if relative.file_name().is_none() {
            let reason = format!("it is not below {}", self.path.display());
            return Err(Error::new(ErrorKind::InvalidInput, operation, reason).at(path));
        }
        let full = self.path.join(&relative);
        paths::plain(operation, &full)?;
        Target::below(full, |_| self.walk(relative.parent().unwrap_or(Path::new(""))))
    }

    /// Creates the missing directories of a path with this mode, and returns the last one.
    ///
    /// # Errors
    /// Those of [`target`](Self::target) and [`Target::create_dir`], for example [`ErrorKind::InvalidInput`]
    /// for a symbolic link in the path.
    pub fn create_dirs(&self, path: impl AsRef<Path>, mode: u32) -> Result<Target> {
        let path = path.as_ref();
        let mut ancestors: Vec<&Path> =
            path.ancestors().filter(|ancestor| ancestor.file_name().is_some()).collect();
        let last = self.target(path)?;
        ancestors.reverse();
        for ancestor in ancestors {
            let target = self.target(ancestor)?;
            if target.create_dir()? == Created::Created {
                target.set_directory_mode(mode)?;
            }
        }
        // Its parent did not necessarily exist when `last` was opened.
        if last.has_parent() { Ok(last) } else { self.target(path) }
    }

    /// Opens the directory at a path that is relative to the root, with `O_PATH`. None if it does not exist.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] for a path that leads out of the root or crosses a symbolic link.
    pub fn directory_at(&self, path: impl AsRef<Path>) -> Result<Option<OwnedFd>> {
        let operation = "open directory";
        let path = path.as_ref();
        paths::plain(operation, path)?;
        match self.walk(path) {
            Ok(directory) => Ok(Some(directory)),
            Err(error) if lookup::is_absent(&error) => Ok(None),
            Err(error) => Err(Error::os(operation, self.path.join(path), error)),
        }
    }

    pub(crate) fn directory(&self) -> &OwnedFd {
        &self.directory
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

/// Opens one component. `O_DIRECTORY` with `O_NOFOLLOW` refuses a symbolic link (ENOTDIR).
fn step(directory: impl AsFd, name: &OsStr) -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(rustix::fs::openat(directory, name, flags, Mode::empty())?)
}
