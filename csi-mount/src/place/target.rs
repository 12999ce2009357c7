//! Where something is mounted: a directory that is held open, and a name in it.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{AtFlags, FileType, Mode, OFlags};
use rustix::io::Errno;

use crate::bounded::place_key::PlaceKey;
use crate::path::lookup;
use crate::path::paths;
use crate::place::other_namespaces::mounted_elsewhere;
use crate::place::owner::{Mounted, Owner};
use crate::place::protected::ProtectedPaths;
use crate::sys::fd_path::path_of;
use crate::table::facts;
use crate::table::facts::Facts;
use crate::table::mountinfo;
use crate::{Error, ErrorKind, MountEntry, MountState, Result};

/// A place to mount on: its parent directory, held open, and the last component, which is never followed.
///
/// What happens to the ancestors afterwards does not lead it elsewhere. Where the parent directory did not
/// exist when the target was made, the target is absent: there is nothing to unmount or remove, and making it
/// is [`NotFound`](ErrorKind::NotFound).
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use csi_mount::{Created, MountState, Removed, Target};
///
/// # let directory = tempfile::tempdir()?;
/// # let path = directory.path().join("target");
/// let target = Target::new(&path)?;
/// assert_eq!(target.create_dir()?, Created::Created);
/// assert_eq!(target.create_dir()?, Created::Existed);
/// assert_eq!(target.state()?, MountState::NotMounted);
/// assert_eq!(target.remove()?, Removed::Removed);
/// assert_eq!(target.remove()?, Removed::WasAbsent);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Target {
    /// None when the directory was not there.
    parent: Option<OwnedFd>,
    /// What was seen of it first. Which file it is, and on which mount, does not change while it is open.
    directory: OnceLock<Facts>,
    name: OsString,
    path: PathBuf,
    owner: Option<Owner>,
    /// Whether a call with this target made the place, or unmounted there what is proven to be its owner's.
    is_made_here: AtomicBool,
}

/// What making a target did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Created {
    /// It was made.
    Created,
    /// A directory or file, as asked, was there.
    Existed,
}

/// What removing a target did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Removed {
    /// It was removed.
    Removed,
    /// Nothing was there.
    WasAbsent,
    /// It is there, and not known to be made for the target's [`Owner`]: it stays as it is.
    Kept,
}

impl Target {
    /// The target at an absolute path, as the orchestrator gives it.
    ///
    /// The ancestors are resolved by the kernel, symbolic links included: they are the orchestrator's. For a
    /// path from somebody less trusted see [`Root`](crate::Root).
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] for a path that is empty, relative, `/`, too long, not UTF-8, or holds `..` or a NUL, and
    /// when an ancestor is no directory; [`ErrorKind::PermissionDenied`] when one can't be searched;
    /// [`ErrorKind::Unresponsive`] when the filesystem of one does not answer within five seconds.
    pub fn new(path: impl AsRef<Path>) -> Result<Self> {
        let path = paths::absolute(OPEN, path.as_ref())?;
        Self::below(path, |parent| lookup::open_path(parent, OFlags::DIRECTORY))
    }

    /// The target at a clean path, its parent opened by the caller's means.
    pub(crate) fn below(path: PathBuf, open: impl FnOnce(&Path) -> io::Result<OwnedFd>) -> Result<Self> {
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(Error::new(ErrorKind::InvalidInput, OPEN, "it is no path of a target").at(path));
        };
        let parent = match open(parent) {
            Ok(fd) => Some(fd),
            Err(error) if lookup::is_absent(&error) => None,
            Err(error) => return Err(Error::os(OPEN, path, error)),
        };
        let (directory, name) = (OnceLock::new(), name.to_owned());
        Ok(Self { parent, directory, name, path, owner: None, is_made_here: AtomicBool::new(false) })
    }

    /// The same target, of this owner: what is mounted there is marked as the owner's, and nothing else is unmounted or
    /// removed. Without an owner, all that is there is taken for the caller's.
    #[must_use]
    pub fn owned_by(mut self, owner: Owner) -> Self {
        self.owner = Some(owner);
        self
    }

    pub(crate) fn owner(&self) -> Option<&Owner> {
        self.owner.as_ref()
    }

    pub(crate) fn set_made_here(&self) {
        self.is_made_here.store(true, Ordering::Relaxed);
    }

    /// The path, for messages: what it names may have changed since the target was made.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Makes the target a directory, of mode 0750 less the umask. One that is there is kept as it is.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] when something else is there, a symbolic link to a directory included;
    /// [`ErrorKind::NotFound`] when the parent directory is not there.
    pub fn create_dir(&self) -> Result<Created> {
        let operation = "make directory";
        let parent = self.parent(operation)?;
        let make = || rustix::fs::mkdirat(parent, &self.name, Mode::from_raw_mode(0o750));
        self.created(operation, make, FileType::Directory)
    }

    /// Makes the target an empty regular file, of mode 0640 less the umask, for a device node to be bound onto.
    /// A file or device node that is there is kept as it is.
    ///
    /// # Errors
    /// As for [`create_dir`](Self::create_dir).
    pub fn create_file(&self) -> Result<Created> {
        let operation = "make file";
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let parent = self.parent(operation)?;
        let make = || rustix::fs::openat(parent, &self.name, flags, Mode::from_raw_mode(0o640)).map(drop);
        self.created(operation, make, FileType::RegularFile)
    }

    fn created(
        &self,
        operation: &'static str,
        make: impl Fn() -> rustix::io::Result<()>,
        wanted: FileType,
    ) -> Result<Created> {
        for _ in 0..ATTEMPTS {
            match make() {
                Ok(()) => return self.mark_new(operation).map(|()| Created::Created),
                Err(Errno::EXIST) => {}
                Err(error) => return Err(self.error(operation, error)),
            }
            // Removed by somebody else since: it is made again.
            let Some(found) = self.facts(operation)?.map(|facts| facts.file_type) else { continue };
            let fits = match found {
                // A device is bound onto a file, and then looks like one.
                FileType::BlockDevice | FileType::CharacterDevice => wanted == FileType::RegularFile,
                found => found == wanted,
            };
            if fits {
                return Ok(Created::Existed);
            }
            let reason = format!("there is {} already", name_of(found));
            return Err(Error::new(ErrorKind::InvalidInput, operation, reason).at(&self.path));
        }
        let reason = "somebody else makes and removes it at the same time";
        Err(Error::new(ErrorKind::Busy, operation, reason).at(&self.path))
    }

    /// Marks what was just made as its owner's, so that another process may remove it after this one was killed.
    fn mark_new(&self, operation: &'static str) -> Result<()> {
        self.set_made_here();
        if self.owner.is_none() {
            return Ok(());
        }
        let place = lookup::open_at(self.parent(operation)?, &self.name);
        let place = place.map_err(|error| self.error(operation, error))?;
        self.set_mark(operation, &place, Mounted::Nothing)
    }

    /// Removes the directory or the empty file. Nothing that holds data is deleted, and nothing below it.
    ///
    /// A target with an [`Owner`] is removed if this target's calls made it or unmounted there, if it is marked as the
    /// owner's, or if it is in one of [`Owner::roots`]; otherwise it is [`Kept`](Removed::Kept). Except right after such a
    /// call, nothing may be mounted on it in any mount namespace that has a process in sight: the kernel would detach that.
    /// Of a target without an owner that is for the caller to know.
    ///
    /// # Errors
    /// [`ErrorKind::Busy`] when something is mounted on it or it is not empty; [`ErrorKind::InvalidInput`] when
    /// it is neither a directory nor a regular file; [`ErrorKind::Protected`] for a directory of the system.
    pub fn remove(&self) -> Result<Removed> {
        let operation = "remove";
        let Some(facts) = self.facts(operation)? else { return Ok(Removed::WasAbsent) };
        let refuse = |kind, why: &str| Err(Error::new(kind, operation, why).at(&self.path));
        if facts.is_mount_root {
            return refuse(ErrorKind::Busy, "something is mounted on it");
        }
        let flags = match facts.file_type {
            FileType::Directory => AtFlags::REMOVEDIR,
            FileType::RegularFile if facts.size == 0 => AtFlags::empty(),
            FileType::RegularFile => return refuse(ErrorKind::Busy, "the file is not empty"),
            other => return refuse(ErrorKind::InvalidInput, &format!("it is {}", name_of(other))),
        };
        self.refuse_system(operation)?;
        if !self.may_remove(operation)? {
            tracing::info!(place = %self.path.display(), "stays, for it is not known to be made for the volume");
            return Ok(Removed::Kept);
        }
        match rustix::fs::unlinkat(self.parent(operation)?, &self.name, flags) {
            Ok(()) => Ok(Removed::Removed),
            Err(Errno::NOENT) => Ok(Removed::WasAbsent),
            Err(Errno::NOTEMPTY | Errno::EXIST) => refuse(ErrorKind::Busy, "the directory is not empty"),
            Err(error) => Err(self.error(operation, error)),
        }
    }

    /// Whether its owner, if it has one, lets it be removed, and so does all that is seen of other mount namespaces.
    fn may_remove(&self, operation: &'static str) -> Result<bool> {
        let Some(owner) = &self.owner else { return Ok(true) };
        if self.is_made_here.load(Ordering::Relaxed) {
            return Ok(true);
        }
        match self.mark(operation)? {
            Some(mark) if !owner.is(&mark.owner) => return Ok(false),
            None if !owner.has_root_above(self) => return Ok(false),
            _ => {}
        }
        match mounted_elsewhere(self, operation)? {
            None => Ok(true),
            Some(found) => {
                let reason = format!("mounted on it is {found}");
                Err(Error::new(ErrorKind::Busy, operation, reason)
                    .at(&self.path)
                    .mend("unmount it there first"))
            }
        }
    }

    /// The last line against a directory of the system, by where the path leads: callers check paths before that.
    pub(crate) fn refuse_system(&self, operation: &'static str) -> Result<()> {
        let Some(parent) = &self.parent else { return Ok(()) };
        let parent = rustix::fs::readlink(path_of(parent), Vec::new());
        let parent = parent.map_err(|error| self.error(operation, error))?;
        let place = Path::new(OsStr::from_bytes(parent.as_bytes())).join(&self.name);
        ProtectedPaths::system().check_text(&place).map_err(|error| error.at(&self.path))
    }

    /// What is mounted there now; see [`mount_state`](crate::mount_state).
    ///
    /// # Errors
    /// Those of `statx(2)`; an error is never taken for "not mounted".
    pub fn state(&self) -> Result<MountState> {
        let facts = self.facts("look for a mount at")?;
        Ok(facts.map_or(MountState::Absent, |facts| MountState::of(&facts)))
    }

    /// All that the mount table says of what is mounted there; of several layers, of the topmost.
    ///
    /// The time grows with the number of mounts; for whether something is mounted ask [`state`](Self::state).
    ///
    /// # Errors
    /// As [`state`](Self::state) and [`mounts`](crate::mounts).
    pub fn mounted(&self) -> Result<Option<MountEntry>> {
        let operation = "look for a mount at";
        if !matches!(self.state()?, MountState::Mounted(_)) {
            return Ok(None);
        }
        let seen = self.look(operation)?;
        if seen.facts.is_mount_root { mountinfo::mount_by_id(seen.facts.mount) } else { Ok(None) }
    }

    /// Whether a directory is there, or the root of a mount that is one: a symbolic link is none. It never asks the
    /// filesystem, so it returns on one that is dead; of a dead one it may not be known, and then it is no directory.
    ///
    /// # Errors
    /// As [`state`](Self::state).
    pub fn is_directory(&self) -> Result<bool> {
        let facts = self.facts("look at")?;
        Ok(facts.is_some_and(|facts| facts.file_type == FileType::Directory))
    }

    pub(crate) fn facts(&self, operation: &'static str) -> Result<Option<Facts>> {
        let Some(parent) = &self.parent else { return Ok(None) };
        let facts = || -> io::Result<Facts> {
            let mut facts = facts::from_fd(lookup::open_at(parent, &self.name)?)?;
            facts.is_mount_root |= facts.mount != self.directory()?.mount;
            Ok(facts)
        };
        match facts() {
            Ok(facts) => Ok(Some(facts)),
            Err(error) if lookup::is_absent(&error) => Ok(None),
            Err(error) => Err(self.error(operation, error)),
        }
    }

    /// What is at the target now, held open: the root of the topmost mount, or the bare file or directory.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] when nothing is there, [`ErrorKind::InvalidInput`] for a symbolic link.
    pub(crate) fn look(&self, operation: &'static str) -> Result<Seen> {
        let parent = self.parent(operation)?;
        let look = || -> io::Result<Seen> {
            let directory = self.directory()?;
            let fd = lookup::open_at(parent, &self.name)?;
            let mut facts = facts::from_fd(&fd)?;
            facts.is_mount_root = facts.mount != directory.mount;
            Ok(Seen { fd, facts, directory })
        };
        let seen = look().map_err(|error| {
            let absent = lookup::is_absent(&error);
            let error = self.error(operation, error);
            if absent { error.mend("make the directory or file to mount on first") } else { error }
        })?;
        if seen.facts.file_type == FileType::Symlink {
            let reason = "it is a symbolic link, and those are not followed";
            return Err(Error::new(ErrorKind::InvalidInput, operation, reason).at(&self.path));
        }
        Ok(seen)
    }

    /// Whether its parent directory was there when the target was made.
    pub(crate) fn has_parent(&self) -> bool {
        self.parent.is_some()
    }

    /// The last component of the path.
    pub(crate) fn name(&self) -> &std::ffi::OsStr {
        &self.name
    }

    /// The directory that it is in.
    pub(crate) fn parent(&self, operation: &'static str) -> Result<BorrowedFd<'_>> {
        self.parent.as_ref().map(AsFd::as_fd).ok_or_else(|| {
            Error::new(ErrorKind::NotFound, operation, "its parent directory does not exist").at(&self.path)
        })
    }

    /// Which directory that is: for what does not change of it.
    pub(crate) fn directory(&self) -> io::Result<Facts> {
        if let Some(known) = self.directory.get() {
            return Ok(*known);
        }
        let parent = self.parent.as_ref().ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))?;
        let facts = facts::from_fd(parent)?;
        Ok(*self.directory.get_or_init(|| facts))
    }

    pub(crate) fn place(&self) -> PlaceKey {
        let directory = self.directory().ok().map(|facts| (facts.device, facts.inode));
        PlaceKey { directory, name: self.name.clone() }
    }

    /// The path through the open parent, for system calls that take no descriptor. It does not follow the name.
    pub(crate) fn kernel_path(&self, operation: &'static str) -> Result<PathBuf> {
        Ok(path_of(self.parent(operation)?).join(&self.name))
    }

    pub(crate) fn error(&self, operation: &'static str, error: impl Into<io::Error>) -> Error {
        Error::os(operation, &self.path, error)
    }
}

/// What is at a target, and in which directory.
#[derive(Debug)]
pub(crate) struct Seen {
    pub(crate) fd: OwnedFd,
    pub(crate) facts: Facts,
    pub(crate) directory: Facts,
}

const OPEN: &str = "open target";
/// How often a target is made again that somebody else removes at the same time.
const ATTEMPTS: u32 = 100;

/// The words for a type of file, with their article.
pub(crate) fn name_of(file_type: FileType) -> &'static str {
    match file_type {
        FileType::RegularFile => "a regular file",
        FileType::Directory => "a directory",
        FileType::Symlink => "a symbolic link",
        FileType::BlockDevice => "a block device",
        FileType::CharacterDevice => "a character device",
        FileType::Fifo => "a pipe",
        FileType::Socket => "a socket",
        FileType::Unknown => "something unknown",
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn what_vanishes_before_it_is_looked_at_is_made_again() {
        let directory = tempfile::tempdir().unwrap();
        let target = Target::new(directory.path().join("target")).unwrap();
        for (vanished, expected) in [(1, Ok(Created::Created)), (u32::MAX, Err(ErrorKind::Busy))] {
            let left = Cell::new(vanished);
            let make = || match left.replace(left.get().saturating_sub(1)) {
                0 => Ok(()),
                _ => Err(Errno::EXIST),
            };
            let made = target.created("make directory", make, FileType::Directory);
            assert_eq!(made.map_err(|error| error.kind()), expected);
        }
    }
}
