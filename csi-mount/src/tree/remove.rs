//! Deletes a directory with everything in it, and nothing outside of it.

use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags};
use rustix::io::Errno;

use crate::path::lookup;
use crate::sys::fd_path::path_of;
use crate::table::facts;
use crate::tree::trail::Trail;
use crate::{Error, ErrorKind, MountId, Removed, Result, Target, mounts};

const REMOVE: &str = "remove the tree";
/// How many times a directory is emptied again while other processes fill it.
const MAX_ROUNDS: usize = 16;

impl Target {
    /// Removes the directory and everything in it, on its own mount only.
    ///
    /// It never enters a mount below the directory, such as a published volume or a bind of a host directory.
    /// If such a mount exists, nothing is removed; if one appears meanwhile, the removal stops there.
    /// Symbolic links are removed and never followed, even if another process swaps them in meanwhile. A
    /// retry continues after an interrupted removal. At any depth of the tree only a few directories are
    /// open.
    ///
    /// # Errors
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
        match remove(parent, self.name(), facts.mount, self.path()) {
            Err(error) if error.raw_os_error() == Some(Errno::NOENT.raw_os_error()) => Ok(Removed::WasAbsent),
            removed => removed.map(|()| Removed::Removed),
        }
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
fn remove(parent: impl AsFd, name: &OsStr, mount: MountId, path: &Path) -> Result<()> {
    let parent = parent.as_fd();
    let failed = |error: Errno| Error::os(REMOVE, path, error);
    for _ in 0..MAX_ROUNDS {
        let mut walk = Walk { mount, path: path.to_owned(), trail: Trail::new(REMOVE) };
        walk.empty(Dir::new(open_on(parent, name, mount, path)?).map_err(failed)?)?;
        match rustix::fs::unlinkat(parent, name, AtFlags::REMOVEDIR) {
            Err(Errno::NOTEMPTY | Errno::EXIST) => {}
            removed => return removed.map_err(failed),
        }
    }
    Err(filled_again(path))
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
    /// The current path, for messages.
    path: PathBuf,
    trail: Trail<Below>,
}

/// The subdirectory that the walk went into.
struct Below {
    name: OsString,
    /// How many times it was emptied before and filled again.
    rounds: usize,
}

impl Walk {
    fn empty(&mut self, top: Dir) -> Result<()> {
        let mut here = top;
        loop {
            if let Some(name) = self.next_directory(&mut here)? {
                here = self.enter(here, Below { name, rounds: 0 })?;
                continue;
            }
            let Some((back, below)) = self.trail.up(&here, &self.path)? else { return Ok(()) };
            let fd = back.fd().map_err(|error| self.failed(error))?;
            let removed = rustix::fs::unlinkat(fd, &below.name, AtFlags::REMOVEDIR);
            here = match removed {
                Err(Errno::NOTEMPTY | Errno::EXIST) if below.rounds >= MAX_ROUNDS => {
                    return Err(filled_again(&self.path));
                }
                Err(Errno::NOTEMPTY | Errno::EXIST) => {
                    self.path.pop();
                    self.enter(back, Below { rounds: below.rounds + 1, ..below })?
                }
                Ok(()) | Err(Errno::NOENT) => {
                    self.path.pop();
                    back
                }
                Err(error) => return Err(self.failed(error)),
            };
        }
    }

    /// Removes the entries of the directory up to its next subdirectory.
    fn next_directory(&self, here: &mut Dir) -> Result<Option<OsString>> {
        while let Some(entry) = here.read() {
            let entry = entry.map_err(|error| self.failed(error))?;
            let name = OsStr::from_bytes(entry.file_name().to_bytes());
            if name == "." || name == ".." {
                continue;
            }
            let fd = here.fd().map_err(|error| self.failed(error))?;
            match rustix::fs::unlinkat(fd, name, AtFlags::empty()) {
                Ok(()) | Err(Errno::NOENT) => {}
                Err(Errno::ISDIR) => return Ok(Some(name.to_owned())),
                Err(error) => return Err(Error::os(REMOVE, self.path.join(name), error)),
            }
        }
        Ok(None)
    }

    /// Goes into a subdirectory, or stays in the current one if the subdirectory is gone.
    fn enter(&mut self, here: Dir, below: Below) -> Result<Dir> {
        let fd = here.fd().map_err(|error| self.failed(error))?;
        let path = self.path.join(&below.name);
        let inner = match open_on(fd, &below.name, self.mount, &path) {
            Err(error) if error.raw_os_error() == Some(Errno::NOENT.raw_os_error()) => return Ok(here),
            inner => Dir::new(inner?).map_err(|error| self.failed(error))?,
        };
        // The directory is read again from its start, so entries that remain are read again after each
        // subdirectory.
        self.trail.down(here, 0, below).map_err(|error| Error::os(REMOVE, &self.path, error))?;
        self.path = path;
        Ok(inner)
    }

    fn failed(&self, error: Errno) -> Error {
        Error::os(REMOVE, &self.path, error)
    }
}
