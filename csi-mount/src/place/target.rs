//! The place to mount on: a directory that is held open, and a name in it.

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags};
use rustix::io::Errno;

use crate::bounded::in_flight::TargetKey;
use crate::error::{Error, ErrorKind, Result, found};
use crate::path::{lookup, paths};
use crate::place::owner::Owner;
use crate::sys::descriptor::{path_of, reopen_directory};
use crate::table::details::Details;
use crate::table::facts::{self, Facts, MountState};
use crate::table::mountinfo::{self, MountEntry};

/// A place to mount on: its parent directory, held open, and the last path component, which is never
/// followed.
///
/// Later changes to the ancestors do not redirect it. If the parent directory did not exist when the target
/// was created, the target is absent: unmounting and removing it succeed without doing anything, and creating
/// it fails with [`NotFound`](ErrorKind::NotFound).
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use csi_mount::{Created, Removed, Target};
///
/// # let directory = tempfile::tempdir()?;
/// # let path = directory.path().join("target");
/// let target = Target::new(&path)?;
/// assert_eq!(target.create_dir()?, Created::Created);
/// assert_eq!(target.create_dir()?, Created::Existed);
/// assert!(target.mounted()?.is_none());
/// assert_eq!(target.remove()?, Removed::Removed);
/// assert_eq!(target.remove()?, Removed::WasAbsent);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Target {
    /// None if the directory did not exist.
    parent: Option<OwnedFd>,
    /// Facts of the parent directory, read once. Its file and its mount do not change while it is open.
    directory: OnceLock<Facts>,
    name: OsString,
    path: PathBuf,
    owner: Option<Owner>,
    /// Whether a call with this target made the place, or unmounted there a mount that is proven to be its
    /// owner's.
    is_made_here: AtomicBool,
}

/// What creating a target did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Created {
    /// The directory or file was created.
    Created,
    /// A directory or file of the requested type existed already.
    Existed,
}

/// What removing a target did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Removed {
    /// The target was removed.
    Removed,
    /// The target did not exist.
    WasAbsent,
    /// The target exists, but is not known to be made for its [`Owner`], so it was left as it is.
    Kept,
}

impl Target {
    /// Opens the target at an absolute path, as the orchestrator gives it.
    ///
    /// The kernel resolves the ancestors and follows symbolic links in them, because the orchestrator
    /// controls them. For a path from a less trusted source use [`Root`](crate::Root).
    ///
    /// # Errors
    /// - [`ErrorKind::InvalidInput`]: the path is empty, relative, `/`, too long, not UTF-8, contains `..` or
    ///   a NUL, or an ancestor is not a directory.
    /// - [`ErrorKind::PermissionDenied`]: an ancestor cannot be searched.
    /// - [`ErrorKind::Unresponsive`]: the filesystem of an ancestor does not answer within five seconds.
    pub fn new(path: impl AsRef<Path>) -> Result<Self> {
        let path = paths::absolute(OPEN, path.as_ref())?;
        Self::below(path, |parent| lookup::open_path(parent, OFlags::DIRECTORY))
    }

    /// The target at a clean path. `open` opens its parent directory.
    pub(crate) fn below(path: PathBuf, open: impl FnOnce(&Path) -> io::Result<OwnedFd>) -> Result<Self> {
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(Error::new(ErrorKind::InvalidInput, OPEN, "it has no file name").at(path));
        };
        let parent = match open(parent) {
            Ok(fd) => Some(fd),
            Err(error) if lookup::is_absent(&error) => None,
            Err(error) => return Err(Error::os(OPEN, path, error)),
        };
        let directory = OnceLock::new();
        let name = name.to_owned();
        Ok(Self { parent, directory, name, path, owner: None, is_made_here: AtomicBool::new(false) })
    }

    /// Sets the owner of the target.
    ///
    /// A mount made there is marked as the owner's, and mounts that are not the owner's are neither unmounted
    /// nor removed. Without an owner, the target's calls treat every mount there as the caller's.
    #[must_use]
    pub(crate) fn owned_by(mut self, owner: Owner) -> Self {
        self.owner = Some(owner);
        self
    }

    pub(crate) fn owner(&self) -> Option<&Owner> {
        self.owner.as_ref()
    }

    pub(crate) fn set_made_here(&self) {
        self.is_made_here.store(true, Ordering::Relaxed);
    }

    /// The path, for messages only: since the target was opened, the path can lead to another file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Creates the target as a directory with mode 0750 minus the umask. An existing directory is left as it
    /// is.
    ///
    /// # Errors
    /// - [`ErrorKind::InvalidInput`]: something else exists there, for example a symbolic link to a
    ///   directory.
    /// - [`ErrorKind::NotFound`]: the parent directory does not exist.
    pub fn create_dir(&self) -> Result<Created> {
        let operation = "make directory";
        let parent = self.parent(operation)?;
        let make = || rustix::fs::mkdirat(parent, &self.name, Mode::from_raw_mode(0o750));
        self.created(operation, make, FileType::Directory)
    }

    /// Creates the target as an empty regular file with mode 0640 minus the umask, to bind a device node onto
    /// it.
    ///
    /// An existing file or device node is left as it is.
    ///
    /// # Errors
    /// Those of [`create_dir`](Self::create_dir).
    pub fn create_file(&self) -> Result<Created> {
        let operation = "make file";
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let parent = self.parent(operation)?;
        let make = || rustix::fs::openat(parent, &self.name, flags, Mode::from_raw_mode(0o640)).map(drop);
        self.created(operation, make, FileType::RegularFile)
    }

    /// Creates the directory or file that a publish mounts on. An existing one must be empty, or a mount: a mount
    /// over content would hide it, and the unpublish could not remove the place.
    pub(crate) fn create_for_publish(&self, wanted: FileType) -> Result<Created> {
        let created = match wanted {
            FileType::Directory => self.create_dir()?,
            _ => self.create_file()?,
        };
        match self.content(PUBLISH)? {
            None => Ok(created),
            Some(content) => Err(self.filled(PUBLISH, content)),
        }
    }

    /// The error for a place with content that no call of ours made.
    fn filled(&self, operation: &'static str, content: impl Into<String>) -> Error {
        Error::new(ErrorKind::Busy, operation, content)
            .at(&self.path)
            .hint("move what is there to another place; nothing was changed")
    }

    /// Why [`remove`](Self::remove) refuses an unmounted place, if it does.
    fn content(&self, operation: &'static str) -> Result<Option<String>> {
        let Some(opened) = found(self.open(operation))? else { return Ok(None) };
        if opened.facts.is_mount_root {
            return Ok(None);
        }
        Ok(match opened.facts.file_type {
            _ if opened.facts.is_kept => Some("it is immutable or append-only (chattr -i -a)".to_owned()),
            FileType::Directory => {
                let is_empty = is_empty(&opened.fd).map_err(|error| self.error(operation, error))?;
                (!is_empty).then(|| "the directory is not empty".to_owned())
            }
            FileType::RegularFile => (opened.facts.size > 0).then(|| "the file is not empty".to_owned()),
            other => Some(format!("it is {}", name_of(other))),
        })
    }

    fn created(
        &self,
        operation: &'static str,
        make: impl Fn() -> rustix::io::Result<()>,
        wanted: FileType,
    ) -> Result<Created> {
        for _ in 0..MAX_ATTEMPTS {
            match make() {
                Ok(()) => return self.mark_new(operation).map(|()| Created::Created),
                Err(Errno::EXIST) => {}
                Err(error) => return Err(self.error(operation, error)),
            }
            // Another process removed it since, so create it again.
            let Some(found) = self.facts(operation)?.map(|facts| facts.file_type) else { continue };
            let fits = match found {
                // A file with a device bound onto it looks like a device.
                FileType::BlockDevice | FileType::CharacterDevice => wanted == FileType::RegularFile,
                found => found == wanted,
            };
            if fits {
                return Ok(Created::Existed);
            }
            let reason = format!("{} exists there already", name_of(found));
            return Err(Error::new(ErrorKind::InvalidInput, operation, reason).at(&self.path));
        }
        let reason = "another process creates and removes it at the same time";
        Err(Error::new(ErrorKind::Busy, operation, reason).at(&self.path))
    }

    /// Removes the directory or the empty file. Never deletes data, or anything below the target.
    ///
    /// A target with an [`Owner`] is removed if one of these holds; otherwise it is [`Kept`](Removed::Kept):
    /// - a call with this `Target` made the place or unmounted the volume there;
    /// - the place is marked as the owner's;
    /// - the place has no mark and is in one of [`Owner::roots`].
    ///
    /// In the last two cases the call also checks the mount namespaces of all visible processes for mounts on
    /// the place, because the kernel detaches such mounts when the directory is removed. For a target without
    /// an owner the caller has to check this.
    ///
    /// # Errors
    /// - [`ErrorKind::Busy`]: something is mounted on it, here or in another mount namespace, or it is not
    ///   empty.
    /// - [`ErrorKind::Unresponsive`]: there are more mount namespaces than can be checked in two seconds.
    /// - [`ErrorKind::InvalidInput`]: it is neither a directory nor a regular file.
    /// - [`ErrorKind::Protected`]: it is a directory of the system.
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
            FileType::RegularFile => return Err(self.filled(operation, "the file is not empty")),
            other => return refuse(ErrorKind::InvalidInput, &format!("it is {}", name_of(other))),
        };
        self.refuse_system(operation)?;
        if !self.may_remove(operation)? {
            tracing::info!(place = %self.path.display(), "target kept: it has no mark of this volume");
            return Ok(Removed::Kept);
        }
        match rustix::fs::unlinkat(self.parent(operation)?, &self.name, flags) {
            Ok(()) => Ok(Removed::Removed),
            Err(Errno::NOENT) => Ok(Removed::WasAbsent),
            Err(Errno::NOTEMPTY | Errno::EXIST) => Err(self.filled(operation, "the directory is not empty")),
            Err(error) => Err(self.error(operation, error)),
        }
    }

    /// Whether the owner, if set, and the mounts in other visible mount namespaces allow the removal.
    fn may_remove(&self, operation: &'static str) -> Result<bool> {
        let Some(owner) = &self.owner else { return Ok(true) };
        if self.is_made_here.load(Ordering::Relaxed) {
            return Ok(true);
        }
        match self.mark(operation)? {
            Some(mark) if !owner.has_id(&mark.owner) => return Ok(false),
            None if !self.is_in_roots_of(owner) => return Ok(false),
            _ => {}
        }
        match self.mounted_elsewhere(operation)? {
            None => Ok(true),
            Some(found) => {
                let reason = format!("{found} is mounted on it");
                Err(Error::new(ErrorKind::Busy, operation, reason)
                    .at(&self.path)
                    .hint("unmount it there first"))
            }
        }
    }

    /// Returns what is mounted at the target now; see [`Mounts::state`](crate::Mounts::state).
    pub(crate) fn state(&self) -> Result<MountState> {
        let facts = self.facts("look for a mount at")?;
        Ok(facts.map_or(MountState::Absent, |facts| MountState::from_facts(&facts)))
    }

    pub(crate) fn is_mounted(&self) -> Result<bool> {
        Ok(self.state()?.mount_point().is_some())
    }

    /// Returns the mount table's row for the topmost mount at the target.
    ///
    /// The time grows with the number of mounts. To find out only whether something is mounted use
    /// [`Mounts::state`](crate::Mounts::state).
    ///
    /// # Errors
    /// Those of [`Mounts::state`](crate::Mounts::state) and [`mounts`](crate::mounts).
    pub fn mounted(&self) -> Result<Option<MountEntry>> {
        let operation = "look for a mount at";
        if !self.is_mounted()? {
            return Ok(None);
        }
        let opened = self.open(operation)?;
        if opened.facts.is_mount_root { mountinfo::mount_by_id(opened.facts.mount) } else { Ok(None) }
    }

    /// Whether the target is a directory or a mounted directory. A symbolic link to one is not.
    ///
    /// It never asks the filesystem, so it returns even if that is dead. If the type of a dead filesystem's
    /// root is not known, the result is false.
    ///
    /// # Errors
    /// Those of [`Mounts::state`](crate::Mounts::state).
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

    /// Opens what is at the target now: the root of the topmost mount, or the bare file or directory.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] if nothing exists there, [`ErrorKind::InvalidInput`] for a symbolic link.
    pub(crate) fn open(&self, operation: &'static str) -> Result<OpenTarget> {
        let parent = self.parent(operation)?;
        let look = || -> io::Result<OpenTarget> {
            let directory = self.directory()?;
            let fd = lookup::open_at(parent, &self.name)?;
            let mut facts = facts::from_fd(&fd)?;
            facts.is_mount_root = facts.mount != directory.mount;
            Ok(OpenTarget { fd, facts, directory })
        };
        let opened = look().map_err(|error| {
            let absent = lookup::is_absent(&error);
            let error = self.error(operation, error);
            if absent { error.hint("create the directory or file to mount on first") } else { error }
        })?;
        if opened.facts.file_type == FileType::Symlink {
            let reason = "it is a symbolic link, which is not followed";
            return Err(Error::new(ErrorKind::InvalidInput, operation, reason).at(&self.path));
        }
        Ok(opened)
    }

    /// Opens the root of the topmost mount. None if nothing is mounted, or it was unmounted in the meantime.
    pub(crate) fn open_mounted(&self, operation: &'static str) -> Result<Option<(OpenTarget, Details)>> {
        if !self.is_mounted()? {
            return Ok(None);
        }
        let Some(opened) = found(self.open(operation))? else { return Ok(None) };
        let details = Details::from_fd(&opened.fd, operation, &self.path)?;
        Ok(details.filter(|_| opened.facts.is_mount_root).map(|details| (opened, details)))
    }

    /// Whether the parent directory existed when the target was opened.
    pub(crate) fn has_parent(&self) -> bool {
        self.parent.is_some()
    }

    /// The last component of the path.
    pub(crate) fn name(&self) -> &std::ffi::OsStr {
        &self.name
    }

    pub(crate) fn parent(&self, operation: &'static str) -> Result<BorrowedFd<'_>> {
        self.parent.as_ref().map(AsFd::as_fd).ok_or_else(|| {
            Error::new(ErrorKind::NotFound, operation, "its parent directory does not exist").at(&self.path)
        })
    }

    /// The parent directory's path now, without symbolic links.
    pub(crate) fn resolved_parent(&self, operation: &'static str) -> Result<PathBuf> {
        path_of(self.parent(operation)?).read_link().map_err(|error| self.error(operation, error))
    }

    pub(crate) fn is_in_roots_of(&self, owner: &Owner) -> bool {
        let Ok(place) = self.resolved_parent("look at") else { return false };
        let resolved = |root: &PathBuf| {
            let root = lookup::open_path(root, OFlags::DIRECTORY).ok()?;
            path_of(&root).read_link().ok()
        };
        owner.roots.iter().filter_map(resolved).any(|root| place.starts_with(root))
    }

    /// The facts of the parent directory that do not change.
    pub(crate) fn directory(&self) -> io::Result<Facts> {
        if let Some(known) = self.directory.get() {
            return Ok(*known);
        }
        let parent = self.parent.as_ref().ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))?;
        let facts = facts::from_fd(parent)?;
        Ok(*self.directory.get_or_init(|| facts))
    }

    pub(crate) fn place(&self) -> TargetKey {
        let directory = self.directory().ok().map(|facts| (facts.device, facts.inode));
        TargetKey { directory, name: self.name.clone() }
    }

    /// The path through the open parent, for system calls that take no descriptor. The last component is not
    /// resolved.
    pub(crate) fn kernel_path(&self, operation: &'static str) -> Result<PathBuf> {
        Ok(path_of(self.parent(operation)?).join(&self.name))
    }

    pub(crate) fn error(&self, operation: &'static str, error: impl Into<io::Error>) -> Error {
        Error::os(operation, &self.path, error)
    }
}

/// What is at a target, and its parent directory.
#[derive(Debug)]
pub(crate) struct OpenTarget {
    pub(crate) fd: OwnedFd,
    pub(crate) facts: Facts,
    pub(crate) directory: Facts,
}

const OPEN: &str = "open target";
const PUBLISH: &str = "publish";
/// How many times a target is created again while another process removes it.
const MAX_ATTEMPTS: u32 = 100;

/// Whether an open directory has no entries. The descriptor leads to the directory itself, also if something is
/// mounted on it since.
pub(crate) fn is_empty(directory: impl AsFd) -> rustix::io::Result<bool> {
    for entry in Dir::new(reopen_directory(directory)?)? {
        if !matches!(entry?.file_name().to_bytes(), b"." | b"..") {
            return Ok(false);
        }
    }
    Ok(true)
}

/// The name of a file type with its article.
pub(crate) fn name_of(file_type: FileType) -> &'static str {
    match file_type {
        FileType::RegularFile => "a regular file",
        FileType::Directory => "a directory",
        FileType::Symlink => "a symbolic link",
        FileType::BlockDevice => "a block device",
        FileType::CharacterDevice => "a character device",
        FileType::Fifo => "a pipe",
        FileType::Socket => "a socket",
        FileType::Unknown => "a file of unknown type",
    }
}

/// See [`Mounts::state`](crate::Mounts::state).
pub fn mount_state(path: impl AsRef<Path>) -> Result<MountState> {
    let operation = "look for a mount at";
    if let Some(state) = lookup::quick_state(path.as_ref()) {
        return Ok(state);
    }
    let path = paths::absolute(operation, path.as_ref())?;
    if path.parent().is_some() {
        return Target::new(path)?.state();
    }
    let root = lookup::open_path(&path, OFlags::DIRECTORY).and_then(facts::from_fd);
    let facts = root.map_err(|error| Error::os(operation, &path, error))?;
    // Before Linux 5.8 nothing reports whether "/" is the root of a mount. It always is, except in a chroot.
    Ok(MountState::from_facts(&Facts { is_mount_root: true, ..facts }))
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn a_target_that_vanishes_is_created_again() {
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
