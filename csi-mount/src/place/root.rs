//! A directory below which paths of others are resolved without escaping from it.

use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags, ResolveFlags};

use crate::detached::guard::DetachedMount;
use crate::detached::prepared::Prepared;
use crate::path::lookup;
use crate::path::paths;
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
    /// Where the directory is the root of a mount that nobody sees. Dropped after the descriptor above.
    _mount: Option<DetachedMount>,
}

impl Root {
    /// Opens the directory at an absolute path; symbolic links in it are followed, as it is trusted.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] for a path that can never work or is no directory; [`ErrorKind::NotFound`].
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let operation = "open root";
        let path = paths::absolute(operation, path.as_ref())?;
        let directory = lookup::open_path(&path, OFlags::DIRECTORY);
        let directory = directory.map_err(|error| Error::os(operation, &path, error))?;
        Ok(Self::of(directory, path))
    }

    /// A directory that is open; the path is for messages.
    pub(crate) fn of(directory: OwnedFd, path: PathBuf) -> Self {
        Self { directory, path, _mount: None }
    }

    /// The root directory of a mount, which goes with it; the path is for messages.
    pub(crate) fn of_mount(mount: Prepared, path: PathBuf) -> Result<Self> {
        let directory = mount.fd().try_clone().map_err(|error| Error::os("open root", &path, error))?;
        Ok(Self { directory, path, _mount: Some(DetachedMount::new(mount)) })
    }

    /// The path that it was opened by, or what is mounted there, where nobody sees the mount.
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

    /// Makes the directories of a path that are not there, of this mode, and gives back the last one.
    ///
    /// # Errors
    /// As [`target`](Self::target) and [`Target::create_dir`]: [`ErrorKind::InvalidInput`] for a symbolic link on the
    /// way, among others.
    pub fn create_dirs(&self, path: impl AsRef<Path>, mode: u32) -> Result<Target> {
        let path = path.as_ref();
        let mut ancestors: Vec<&Path> =
            path.ancestors().filter(|ancestor| ancestor.file_name().is_some()).collect();
        let last = self.target(path)?;
        ancestors.reverse();
        for ancestor in ancestors {
            self.target(ancestor)?.create_dir_with_mode(mode)?;
        }
        // Its parent may not have been there.
        if last.has_parent() { Ok(last) } else { self.target(path) }
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

/// One component down. `O_DIRECTORY` with `O_NOFOLLOW` refuses a symbolic link (ENOTDIR).
fn step(directory: impl AsFd, name: &OsStr) -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(rustix::fs::openat(directory, name, flags, Mode::empty())?)
}
