//! The path back up in a walk through a tree: at any depth, few directories are open and little memory is used.
//!
//! A walk uses open directories from its top on, so that other processes cannot redirect it.

use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{Dir, DirEntry, Mode, OFlags};

use crate::error::{Error, ErrorKind, Result};
use crate::sys::ids::{DeviceNumber, MountId};
use crate::table::facts;

/// How many directories from the top are kept open. Further down, `..` leads back.
const MAX_OPEN_DIRECTORIES: usize = 16;
/// How deep a walk goes. At this depth its levels take about 10 MB.
const MAX_DEPTH: usize = 1 << 16;
/// How many bytes of a path are kept for messages.
const MAX_PATH: usize = 4096;

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
    /// The path of the current directory, for messages; only its beginning if it is longer than [`MAX_PATH`].
    path: PathBuf,
    /// How many names at the end of the path are left out.
    unnamed: usize,
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
    pub(crate) fn new(operation: &'static str, top: &Path) -> Self {
        Self { operation, path: top.to_owned(), unnamed: 0, above: Vec::new() }
    }

    /// The path of an entry of the current directory, for messages.
    pub(crate) fn path_to(&self, name: &OsStr) -> PathBuf {
        if self.unnamed == 0 { self.path.join(name) } else { self.path.join("…").join(name) }
    }

    /// The error of a failed call about the current directory.
    pub(crate) fn failed(&self, error: impl Into<io::Error>) -> Error {
        let path = if self.unnamed == 0 { self.path.clone() } else { self.path.join("…") };
        Error::os(self.operation, path, error)
    }

    /// How many directories are above the current one.
    pub(crate) fn depth(&self) -> usize {
        self.above.len()
    }

    /// Whether a directory that the walk leaves now stays open.
    pub(crate) fn keeps_open(&self) -> bool {
        self.above.len() < MAX_OPEN_DIRECTORIES
    }

    /// Refuses a subdirectory that is too deep in the tree.
    ///
    /// # Errors
    /// [`ErrorKind::OutOfRange`]
    pub(crate) fn require_depth(&self, name: &OsStr) -> Result<()> {
        if self.above.len() < MAX_DEPTH {
            return Ok(());
        }
        let reason = format!("it is below {MAX_DEPTH} directories, and no more are read");
        Err(Error::new(ErrorKind::OutOfRange, self.operation, reason).at(self.path_to(name)))
    }

    /// The next entry of the current directory that is not the directory itself or the one above.
    pub(crate) fn next_entry(
        &self,
        here: &mut Dir,
        mut fail: impl FnMut(Error) -> Result<()>,
    ) -> Result<Option<DirEntry>> {
        while let Some(entry) = here.read() {
            match entry {
                Ok(entry) if matches!(entry.file_name().to_bytes(), b"." | b"..") => {}
                Ok(entry) => return Ok(Some(entry)),
                // It has no further entries.
                Err(error) => fail(self.failed(error))?,
            }
        }
        Ok(None)
    }

    /// Goes down from a directory into its subdirectory of this name. If the directory must be reopened,
    /// reading continues at this offset.
    pub(crate) fn down(&mut self, here: Dir, name: &OsStr, offset: i64, note: T) -> Result<()> {
        let fd = here.fd().map_err(|error| self.failed(error))?;
        let identity = Identity::from_fd(fd).map_err(|error| self.failed(error))?;
        let directory = self.keeps_open().then_some(here);
        self.above.push(Level { directory, identity, offset, note });
        if self.unnamed > 0 || self.path.as_os_str().len() + name.len() > MAX_PATH {
            self.unnamed += 1;
        } else {
            self.path.push(name);
        }
        Ok(())
    }

    /// Returns to the directory from which `here` was entered, even if `here` was moved. None at the top.
    ///
    /// # Errors
    /// [`ErrorKind::Busy`] if `..` is the only path back and leads to another directory.
    pub(crate) fn up(&mut self, here: &Dir) -> Result<Option<(Dir, T)>> {
        let Some(level) = self.above.pop() else { return Ok(None) };
        let directory = match level.directory {
            Some(directory) => directory,
            None => self.reopened(here, level.identity, level.offset)?,
        };
        if self.unnamed > 0 {
            self.unnamed -= 1;
        } else {
            self.path.pop();
        }
        Ok(Some((directory, level.note)))
    }

    fn reopened(&self, here: &Dir, identity: Identity, offset: i64) -> Result<Dir> {
        let here = here.fd().map_err(|error| self.failed(error))?;
        let above = self.above(here, identity)?;
        let mut directory = Dir::new(above).map_err(|error| self.failed(error))?;
        directory.seek(offset).map_err(|error| self.failed(error))?;
        Ok(directory)
    }

    /// Opens the directory above `here`, which must be the one that the walk came through.
    ///
    /// # Errors
    /// [`ErrorKind::Busy`] if it is another one.
    pub(crate) fn above(&self, here: BorrowedFd<'_>, identity: Identity) -> Result<OwnedFd> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let above = rustix::fs::openat(here, "..", flags, Mode::empty());
        let above = above.map_err(|error| self.failed(error))?;
        let found = Identity::from_fd(above.as_fd()).map_err(|error| self.failed(error))?;
        if found == identity {
            return Ok(above);
        }
        let reason = "the directory was moved during the call";
        let error = Error::new(ErrorKind::Busy, self.operation, reason).at(&self.path);
        Err(error.hint("try again"))
    }
}

/// The files of a tree at which an operation failed: the first one, and how many. The operation goes on with
/// the others.
#[derive(Debug, Default)]
pub(crate) struct Failures {
    first: Option<Error>,
    pub(crate) count: u64,
}

impl Failures {
    /// Counts the failure of one file.
    ///
    /// # Errors
    /// The error itself, if it is not about this file alone: a full disk, a server that does not answer, a
    /// tree that changes.
    pub(crate) fn add(&mut self, error: Error) -> Result<()> {
        use ErrorKind::{Busy, NoSpace, NotFound, OutOfMemory, ReadOnly, Unresponsive};
        if matches!(error.kind(), Busy | NoSpace | NotFound | OutOfMemory | ReadOnly | Unresponsive) {
            return Err(error);
        }
        self.count += 1;
        self.first.get_or_insert(error);
        Ok(())
    }

    /// The first error, which says how many files failed.
    pub(crate) fn into_error(self) -> Option<Error> {
        let count = match self.count {
            1 => "no other file failed".to_owned(),
            count => format!("the first of {count} files that failed"),
        };
        self.first.map(|first| first.add_reason(count))
    }
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
        let mut trail = Trail::new("test", top);
        let mut path = top.to_owned();
        for depth in 0..DEPTH {
            let mut here = open(&path);
            fs::write(path.join("file"), "").unwrap();
            let below = path.join("below");
            fs::create_dir(&below).unwrap();
            let last = std::iter::from_fn(|| here.read()).last().unwrap().unwrap();
            trail.down(here, "below".as_ref(), last.offset(), depth).unwrap();
            path = below;
        }
        let bottom = open(&path);
        (trail, bottom, path)
    }

    #[test]
    fn the_way_up_returns_to_the_same_directories_and_reading_continues() {
        let directory = tempfile::tempdir().unwrap();
        let (mut trail, mut here, _) = at_the_bottom(directory.path());
        for depth in (0..DEPTH).rev() {
            let (mut above, note) = trail.up(&here).unwrap().unwrap();
            assert_eq!(note, depth);
            assert!(above.read().is_none(), "all in it was read, at depth {depth}");
            here = above;
        }
        assert!(trail.up(&here).unwrap().is_none(), "it is the top");
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
        let error = trail.up(&here).err().unwrap();
        assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
    }

    #[test]
    fn the_path_of_a_deep_directory_stays_short() {
        let directory = tempfile::tempdir().unwrap();
        let top = open(directory.path());
        let mut trail = Trail::new("test", directory.path());
        let name = "n".repeat(255);
        for _ in 0..100 {
            let here = Dir::read_from(top.fd().unwrap()).unwrap();
            trail.down(here, name.as_ref(), 0, ()).unwrap();
        }
        let path = trail.path_to("file".as_ref());
        assert!(path.as_os_str().len() < 2 * MAX_PATH, "{}", path.display());
        assert!(path.ends_with("…/file"), "{}", path.display());
        while trail.depth() > 0 {
            // From the open levels only: the directory is not below itself.
            trail.above.last_mut().unwrap().directory = Some(Dir::read_from(top.fd().unwrap()).unwrap());
            trail.up(&top).unwrap();
        }
        assert_eq!(trail.path_to("file".as_ref()), directory.path().join("file"));
    }

    #[test]
    fn the_first_failure_is_named_with_their_number() {
        let error = |path: &str| Error::new(ErrorKind::Io, "test", "it failed").at(path);
        let mut failures = Failures::default();
        for path in ["/one", "/two", "/three"] {
            failures.add(error(path)).unwrap();
        }
        let first = failures.into_error().unwrap();
        assert_eq!(first.to_string(), "test /one: it failed: the first of 3 files that failed");
        let full = Error::new(ErrorKind::NoSpace, "test", "it is full").at("/four");
        assert!(Failures::default().add(full).is_err(), "the others would fail too");
    }

    fn inode(of: &fs::Metadata) -> u64 {
        std::os::unix::fs::MetadataExt::ino(of)
    }
}
