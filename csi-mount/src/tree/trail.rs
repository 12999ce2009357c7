//! The path back up in a walk through a tree: at any depth, few directories are open.
//!
//! A walk uses open directories from its top on, so that other processes cannot redirect it.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{Dir, Mode, OFlags};

use crate::table::facts;
use crate::{DeviceNumber, Error, ErrorKind, MountId, Result};

/// How many directories from the top are kept open. Further down, `..` leads back.
const MAX_OPEN_DIRECTORIES: usize = 16;

/// The identity of a directory: its device, its inode and its mount.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Identity(DeviceNumber, u64, MountId);

impl Identity {
    pub(crate) fn from_fd(directory: BorrowedFd<'_>) -> io::Result<Self> {
        let facts = facts::from_fd(directory)?;
        Ok(Self(facts.device, facts.inode, facts.mount))
    }
}

/// The directories between the top of a tree and the current one, each with a note of the walk.
pub(crate) struct Trail<T> {
    operation: &'static str,
    above: Vec<Level<T>>,
}

struct Level<T> {
    /// None below the first few levels: it is reopened by `..` and must have this identity.
    directory: Option<Dir>,
    identity: Identity,
    /// Where reading continues in a directory that was reopened.
    offset: i64,
    note: T,
}

impl<T> Trail<T> {
    pub(crate) fn new(operation: &'static str) -> Self {
        Self { operation, above: Vec::new() }
    }

    /// Whether a directory that the walk leaves now stays open.
    pub(crate) fn keeps_open(&self) -> bool {
        self.above.len() < MAX_OPEN_DIRECTORIES
    }

    /// Goes down from a directory into a subdirectory. If the directory must be reopened, reading continues
    /// at this offset.
    pub(crate) fn down(&mut self, here: Dir, offset: i64, note: T) -> io::Result<()> {
        let identity = Identity::from_fd(here.fd()?)?;
        let directory = self.keeps_open().then_some(here);
        self.above.push(Level { directory, identity, offset, note });
        Ok(())
    }

    /// Returns to the directory from which `here` was entered, even if `here` was moved. None at the top.
    /// `path` is the path of `here`, for messages.
    ///
    /// # Errors
    /// [`ErrorKind::Busy`] if `..` is the only path back and leads to another directory.
    pub(crate) fn up(&mut self, here: &Dir, path: &Path) -> Result<Option<(Dir, T)>> {
        let Some(level) = self.above.pop() else { return Ok(None) };
        let failed = |error: io::Error| Error::os(self.operation, path, error);
        let directory = match level.directory {
            Some(directory) => directory,
            None => {
                let above = parent(here.fd().map_err(|error| failed(error.into()))?).map_err(failed)?;
                require(self.operation, above.as_fd(), level.identity, path)?;
                let mut directory = Dir::new(above).map_err(|error| failed(error.into()))?;
                directory.seek(level.offset).map_err(|error| failed(error.into()))?;
                directory
            }
        };
        Ok(Some((directory, level.note)))
    }
}

/// Opens the parent directory of a directory for reading.
pub(crate) fn parent(directory: impl AsFd) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(rustix::fs::openat(directory, "..", flags, Mode::empty())?)
}

/// Refuses a directory that is not the one that the walk came through.
pub(crate) fn require(
    operation: &'static str,
    directory: BorrowedFd<'_>,
    identity: Identity,
    path: &Path,
) -> Result<()> {
    let found = Identity::from_fd(directory).map_err(|error| Error::os(operation, path, error))?;
    if found == identity {
        return Ok(());
    }
    let reason = "the directory was moved during the call";
    Err(Error::new(ErrorKind::Busy, operation, reason).at(path).hint("try again"))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::PathBuf;

    use super::*;

    const DEPTH: usize = MAX_OPEN_DIRECTORIES + 4;

    fn open(path: &Path) -> Dir {
        Dir::new(fs::File::open(path).unwrap()).unwrap()
    }

    /// A trail down to the bottom of a tree in which each directory has one more file.
    fn at_the_bottom(top: &Path) -> (Trail<usize>, Dir, PathBuf) {
        let (mut trail, mut path) = (Trail::new("test"), top.to_owned());
        for depth in 0..DEPTH {
            let mut here = open(&path);
            fs::write(path.join("file"), "").unwrap();
            let below = path.join("below");
            fs::create_dir(&below).unwrap();
            let last = std::iter::from_fn(|| here.read()).last().unwrap().unwrap();
            trail.down(here, last.offset(), depth).unwrap();
            path = below;
        }
        let bottom = open(&path);
        (trail, bottom, path)
    }

    #[test]
    fn the_way_up_returns_to_the_same_directories_and_reading_continues() {
        let directory = tempfile::tempdir().unwrap();
        let (mut trail, mut here, path) = at_the_bottom(directory.path());
        for depth in (0..DEPTH).rev() {
            let (mut above, note) = trail.up(&here, &path).unwrap().unwrap();
            assert_eq!(note, depth);
            assert!(above.read().is_none(), "all in it was read, at depth {depth}");
            here = above;
        }
        assert!(trail.up(&here, &path).unwrap().is_none(), "it is the top");
        assert_eq!(
            here.stat().unwrap().st_ino,
            fs::metadata(directory.path()).map(|top| inode(&top)).unwrap()
        );
    }

    #[test]
    fn a_directory_that_was_moved_leads_nowhere_else() {
        let directory = tempfile::tempdir().unwrap();
        let (mut trail, here, path) = at_the_bottom(directory.path());
        fs::rename(&path, directory.path().join("elsewhere")).unwrap();
        let error = trail.up(&here, &path).err().unwrap();
        assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
    }

    fn inode(of: &fs::Metadata) -> u64 {
        std::os::unix::fs::MetadataExt::ino(of)
    }
}
