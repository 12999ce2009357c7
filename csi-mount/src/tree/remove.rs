//! Deletes a directory with everything in it, and nothing outside of it.

use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Dir, FileType, IFlags, Mode, OFlags, ioctl_getflags, ioctl_setflags};
use rustix::io::Errno;
use rustix::rand::{GetRandomFlags, getrandom};

use crate::error::{Error, ErrorKind, Result};
use crate::path::lookup;
use crate::place::target::{Removed, Target};
use crate::quota;
use crate::sys::btrfs;
use crate::sys::descriptor::{path_of, reopen_directory, reopen_file};
use crate::sys::ids::MountId;
use crate::table::facts;
use crate::table::mountinfo::mounts;
use crate::tree::trail::{Failures, Trail};

const REMOVE: &str = "remove the tree";
/// How many times a directory is emptied again while other processes fill it.
const MAX_ROUNDS: usize = 16;
/// Directories below this depth are moved to the top, so that the memory does not grow with the depth.
const MAX_DEPTH: usize = 1024;

impl Target {
    /// Removes the directory and everything in it, on its own mount only.
    ///
    /// It never enters a mount below the directory, such as a published volume or a bind of a host directory.
    /// If such a mount exists, nothing is removed; if one appears meanwhile, the removal stops there.
    /// Symbolic links are removed and never followed, even if another process swaps them in meanwhile. A
    /// retry continues after an interrupted removal. At any depth of the tree only a few directories are
    /// open, and the memory does not grow with the number of files.
    ///
    /// A file that is immutable or append-only (`chattr(1)`) loses this attribute and is removed, unless it
    /// has another name, which can be outside the directory. A read-only subvolume of btrfs becomes writable and is
    /// removed.
    ///
    /// A directory with a limit ([`Directories::create`](crate::Directories::create)) gives its project id back.
    ///
    /// # Errors
    /// If files can't be removed, all others are removed, and the error is that of the first file and says how
    /// many failed. An error that concerns all files, such as a filesystem that turned read-only, ends the
    /// removal. Only a directory that is gone with everything in it is a success.
    ///
    /// - [`ErrorKind::Busy`]: something is mounted in it (the message names the mount points), or a directory
    ///   was moved away during the removal.
    /// - [`ErrorKind::InvalidInput`]: it is not a directory.
    /// - The errors of `unlinkat(2)`.
    pub fn remove_tree(&self) -> Result<Removed> {
        let Some(facts) = self.facts(REMOVE)? else { return Ok(Removed::WasAbsent) };
        if facts.is_mount_root {
            return Err(Error::new(ErrorKind::Busy, REMOVE, "something is mounted on it").at(self.path()));
        }
        if facts.file_type != FileType::Directory {
            return Err(Error::new(ErrorKind::InvalidInput, REMOVE, "it is not a directory").at(self.path()));
        }
        let parent = self.parent(REMOVE)?;
        refuse_mounts_below(&real_path(parent, self.name(), self.path())?, facts.mount)?;
        remove(parent, self.name(), facts.mount, self.path())
    }
}

/// The directory's path as the mount table shows it, whatever links led to it.
fn real_path(parent: impl AsFd, name: &OsStr, path: &Path) -> Result<PathBuf> {
    let fd = lookup::open_at(parent, name).map_err(|error| Error::os(REMOVE, path, error))?;
    path_of(&fd).read_link().map_err(|error| Error::os(REMOVE, path, error))
}

fn refuse_mounts_below(path: &Path, mount: MountId) -> Result<()> {
    let table = mounts()?;
    // The root of a detached mount has no mounts below it, and its paths are not those of the table.
    if table.iter().all(|entry| entry.id != mount) {
        return Ok(());
    }
    let below: Vec<String> = table
        .into_iter()
        .filter(|entry| entry.mount_point.starts_with(path))
        .map(|entry| entry.mount_point.display().to_string())
        .collect();
    if below.is_empty() {
        return Ok(());
    }
    let reason = format!("there are mounts in it, at {}", below.join(", "));
    Err(Error::new(ErrorKind::Busy, REMOVE, reason).at(path).hint("unmount them first; nothing was removed"))
}

/// Removes one directory in `parent`, which must be on this mount, and everything in it.
pub(crate) fn remove(parent: impl AsFd, name: &OsStr, mount: MountId, path: &Path) -> Result<Removed> {
    let parent = parent.as_fd();
    let failed = |error: Errno| Error::os(REMOVE, path, error);
    let mut removed = Removed::WasAbsent;
    let mut rounds = 0;
    while rounds < MAX_ROUNDS {
        let top = match open_on(parent, name, mount, path) {
            Err(error) if error.raw_os_error() == Some(Errno::NOENT.raw_os_error()) => return Ok(removed),
            top => top?,
        };
        removed = Removed::Removed;
        let mut walk = Walk {
            mount,
            top: top.try_clone().map_err(|error| Error::os(REMOVE, path, error))?,
            was_moved: false,
            trail: Trail::new(REMOVE, path),
            failures: Failures::default(),
        };
        walk.empty(Dir::new(top).map_err(failed)?)?;
        match walk.failures.into_error() {
            // The directories that were moved are still to be emptied.
            Some(_) if walk.was_moved => continue,
            Some(error) => return Err(error),
            None => {}
        }
        quota::release(path, walk.top.as_fd());
        let make_removable = || make_entry_removable(parent, name, mount) == Ok(true);
        match unlink(parent, name, AtFlags::REMOVEDIR, make_removable) {
            Err(Errno::NOTEMPTY | Errno::EXIST) => {}
            Err(Errno::NOENT) => return Ok(removed),
            unlinked => return unlinked.map(|()| removed).map_err(|error| not_removed(path, error)),
        }
        rounds += usize::from(!walk.was_moved);
    }
    Err(filled_again(path))
}

fn not_removed(path: &Path, error: Errno) -> Error {
    let failed = Error::os(REMOVE, path, error);
    match error {
        Errno::PERM => failed.hint("it can be immutable or append-only (chattr -i -a), or in use as swap"),
        _ => failed,
    }
}

/// Removes an entry of a directory. If that is not permitted, it is tried again if `make_removable` changed
/// something.
fn unlink(
    directory: BorrowedFd<'_>,
    name: &OsStr,
    flags: AtFlags,
    make_removable: impl FnOnce() -> bool,
) -> rustix::io::Result<()> {
    match rustix::fs::unlinkat(directory, name, flags) {
        Err(Errno::PERM) if make_removable() => rustix::fs::unlinkat(directory, name, flags),
        removed => removed,
    }
}

/// Takes the attributes "immutable" and "append only" from an open file. False if it has neither.
fn make_removable(file: impl AsFd) -> rustix::io::Result<bool> {
    let flags = ioctl_getflags(&file)?;
    let refused = IFlags::IMMUTABLE | IFlags::APPEND;
    if !flags.intersects(refused) {
        return Ok(false);
    }
    ioctl_setflags(&file, flags - refused)?;
    Ok(true)
}

/// The same for an entry of a directory. A file with another name keeps its attributes: that name can be
/// outside the tree.
fn make_entry_removable(directory: BorrowedFd<'_>, name: &OsStr, mount: MountId) -> rustix::io::Result<bool> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let place = rustix::fs::openat(directory, name, flags, Mode::empty())?;
    let Ok(facts) = facts::from_fd(&place) else { return Ok(false) };
    if facts.is_mount_root || facts.mount != mount {
        return Ok(false);
    }
    match facts.file_type {
        FileType::Directory => make_removable(reopen_directory(&place)?),
        FileType::RegularFile if facts.links == 1 => make_removable(reopen_file(&place, OFlags::RDONLY)?),
        _ => Ok(false),
    }
}

fn filled_again(path: &Path) -> Error {
    Error::os(REMOVE, path, Errno::NOTEMPTY).add_reason("other processes add files to it while it is emptied")
}

/// Opens a directory for reading after checking that it is on this mount: reading one on another mount can
/// hang.
fn open_on(parent: impl AsFd, name: &OsStr, mount: MountId, path: &Path) -> Result<OwnedFd> {
    let elsewhere = || Err(Error::new(ErrorKind::Busy, REMOVE, "something is mounted on it").at(path));
    let on_mount = |facts: facts::Facts| !facts.is_mount_root && facts.mount == mount;
    let seen = lookup::facts_at(&parent, name).map_err(|error| Error::os(REMOVE, path, error))?;
    if !on_mount(seen) {
        return elsewhere();
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let fd = rustix::fs::openat(&parent, name, flags, Mode::empty())
        .map_err(|error| Error::os(REMOVE, path, error))?;
    // The directory can have changed between the check and the open.
    let opened = facts::from_fd(&fd).map_err(|error| Error::os(REMOVE, path, error))?;
    if on_mount(opened) { Ok(fd) } else { elsewhere() }
}

/// One removal of a directory's content, down to any depth.
struct Walk {
    mount: MountId,
    top: OwnedFd,
    /// Whether directories were moved to the top, where the next round finds them.
    was_moved: bool,
    trail: Trail<Below>,
    failures: Failures,
}

/// The subdirectory that the walk went into.
struct Below {
    name: OsString,
    /// Where reading continues behind it.
    offset: i64,
    /// How many times it was emptied before and filled again.
    rounds: usize,
    /// How many files could not be removed before.
    failures: u64,
}

impl Walk {
    fn empty(&mut self, top: Dir) -> Result<()> {
        let mut here = top;
        loop {
            if let Some((name, offset)) = self.next_directory(&mut here)? {
                here = self.enter(here, Below { name, offset, rounds: 0, failures: self.failures.count })?;
                continue;
            }
            let Some((back, below)) = self.trail.up(&here)? else { return Ok(()) };
            let path = self.trail.path_to(&below.name);
            let fd = back.fd().map_err(|error| self.trail.failed(error))?;
            match self.unlink(fd, &below.name, AtFlags::REMOVEDIR) {
                Ok(()) | Err(Errno::NOENT) => {}
                // What is in it was counted.
                Err(Errno::NOTEMPTY | Errno::EXIST) if self.failures.count > below.failures => {}
                Err(Errno::NOTEMPTY | Errno::EXIST) if below.rounds < MAX_ROUNDS => {
                    here = self.enter(back, Below { rounds: below.rounds + 1, ..below })?;
                    continue;
                }
                Err(Errno::NOTEMPTY | Errno::EXIST) => self.failures.add(filled_again(&path))?,
                Err(error) => self.failures.add(not_removed(&path, error))?,
            }
            here = back;
        }
    }

    /// Removes the entries of the directory up to its next subdirectory.
    fn next_directory(&mut self, here: &mut Dir) -> Result<Option<(OsString, i64)>> {
        while let Some(entry) = self.trail.next_entry(here, |error| self.failures.add(error))? {
            let name = OsStr::from_bytes(entry.file_name().to_bytes());
            let fd = here.fd().map_err(|error| self.trail.failed(error))?;
            match self.unlink(fd, name, AtFlags::empty()) {
                Ok(()) | Err(Errno::NOENT) => {}
                Err(Errno::ISDIR) => return Ok(Some((name.to_owned(), entry.offset()))),
                Err(error) => self.failures.add(not_removed(&self.trail.path_to(name), error))?,
            }
        }
        Ok(None)
    }

    fn unlink(&self, directory: BorrowedFd<'_>, name: &OsStr, flags: AtFlags) -> rustix::io::Result<()> {
        let remove = || {
            unlink(directory, name, flags, || {
                let changed = [make_removable(directory), make_entry_removable(directory, name, self.mount)];
                changed.contains(&Ok(true))
            })
        };
        match remove() {
            // The walk comes to the root of a read-only subvolume first, and then to what is below. One that the whole
            // tree is in stays read-only: its root is outside.
            Err(Errno::ROFS) if btrfs::make_writable(directory) == Ok(true) => remove(),
            removed => removed,
        }
    }

    /// Goes into a subdirectory, or stays in the current one if the subdirectory is gone.
    fn enter(&mut self, here: Dir, below: Below) -> Result<Dir> {
        let fd = here.fd().map_err(|error| self.trail.failed(error))?;
        let path = self.trail.path_to(&below.name);
        if self.trail.depth() >= MAX_DEPTH && self.move_to_top(fd, &below.name) {
            return Ok(here);
        }
        let inner = match open_on(fd, &below.name, self.mount, &path) {
            Err(error) if error.raw_os_error() == Some(Errno::NOENT.raw_os_error()) => return Ok(here),
            Err(error) => {
                self.failures.add(error)?;
                return Ok(here);
            }
            Ok(inner) => Dir::new(inner).map_err(|error| Error::os(REMOVE, &path, error))?,
        };
        if let Err(error) = self.trail.require_depth(&below.name) {
            self.failures.add(error)?;
            return Ok(here);
        }
        let name = below.name.clone();
        self.trail.down(here, &name, below.offset, below)?;
        Ok(inner)
    }

    /// Moves a subdirectory to the top of the tree. False if it stays where it is.
    fn move_to_top(&mut self, directory: BorrowedFd<'_>, name: &OsStr) -> bool {
        let mut random = [0; 8];
        if getrandom(&mut random, GetRandomFlags::empty()).is_err() {
            return false;
        }
        let moved = format!(".csi-mount-deep-{:016x}", u64::from_ne_bytes(random));
        let is_moved = rustix::fs::renameat(directory, name, &self.top, moved).is_ok();
        self.was_moved |= is_moved;
        is_moved
    }
}
