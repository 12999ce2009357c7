//! Copies a directory with everything in it. It walks by open directories, so that it cannot be redirected.

use std::collections::HashMap;
use std::ffi::{CStr, OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Dir, FileType, Gid, Mode, OFlags, Stat, Timespec, Timestamps, Uid, XattrFlags};
use rustix::io::Errno;

use crate::path::lookup;
use crate::table::facts;
use crate::tree::copy_file::copy_contents;
use crate::tree::trail::{Identity, Trail, parent, require};
use crate::{Copied, Error, ErrorKind, MountId, Result, Root, Target};

const COPY: &str = "copy the tree";

/// The extended attributes that are part of a file. All others, such as labels, belong to the node or the
/// server.
const KEPT_ATTRIBUTES: [&[u8]; 4] = [b"user.", b"trusted.", b"system.posix_acl_", b"security.capability"];

impl Target {
    /// Copies the directory and everything in it to a target that does not exist yet, on this mount or
    /// another.
    ///
    /// Owners, modes, times, hard links, holes, special files, ACLs, capabilities, and the extended
    /// attributes `user.*` and `trusted.*` are kept. Symbolic links are copied and never followed, even if
    /// another process swaps them in meanwhile. Files share their blocks if both places are on one filesystem
    /// that supports it (see [`copy_file`](crate::copy_file())), or are copied by its server
    /// (`copy_file_range(2)`). Each file is on stable storage when it is done.
    ///
    /// The copy is not a snapshot: it contains parts of what others write meanwhile. A source file that is
    /// deleted meanwhile is skipped; a deletion in the copy is an error. A failed copy stays as far as it
    /// came; remove it.
    ///
    /// # Errors
    /// - [`ErrorKind::Busy`]: something is mounted in the directory, or an entry was moved or replaced during
    ///   the copy.
    /// - [`ErrorKind::NotFound`]: the directory does not exist.
    /// - [`ErrorKind::InvalidInput`]: it is not a directory.
    /// - [`ErrorKind::PermissionDenied`]: the process is not allowed to set the owners of files, for example
    ///   on an NFS export with `root_squash`.
    /// - [`ErrorKind::NoSpace`]: the filesystem has no space left.
    /// - [`ErrorKind::Io`] with `EEXIST`: the new target exists.
    pub fn copy_tree(&self, to: &Target) -> Result<Copied> {
        let from = self.open_directory(COPY)?;
        let found = facts::from_fd(&from).map_err(|error| self.error(COPY, error))?;
        make(to.parent(COPY)?, to.name(), to.path())?;
        let copy = to.open_directory(COPY)?;
        let root = copy.try_clone().map_err(|error| to.error(COPY, error))?;
        let mut copier = Copier {
            mount: found.mount,
            root: Root::from_directory(root, to.path().to_owned()),
            below: PathBuf::new(),
            path: self.path().to_owned(),
            links: HashMap::new(),
            copied: Copied::default(),
        };
        copier.copy(from, copy)?;
        Ok(copier.copied)
    }

    /// Opens the directory for reading.
    pub(crate) fn open_directory(&self, operation: &'static str) -> Result<OwnedFd> {
        let parent = self.parent(operation)?;
        open(parent, self.name(), OFlags::DIRECTORY).map_err(|error| self.error(operation, error))
    }
}

fn open(directory: BorrowedFd<'_>, name: &OsStr, extra: OFlags) -> rustix::io::Result<OwnedFd> {
    // Non-blocking, so that a pipe in place of the file does not block us.
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    rustix::fs::openat(directory, name, flags | extra, Mode::empty())
}

fn make(parent: BorrowedFd<'_>, name: &OsStr, path: &Path) -> Result<()> {
    rustix::fs::mkdirat(parent, name, Mode::RWXU).map_err(|error| Error::os(COPY, path, error))
}

struct Copier {
    /// Only files on this mount are copied.
    mount: MountId,
    /// The top directory of the copy.
    root: Root,
    /// The current directory, relative to the top of the tree.
    below: PathBuf,
    /// The path of the current directory in the source, for messages.
    path: PathBuf,
    /// For each file with more than one name: its path in the copy, by its device and inode.
    links: HashMap<(u64, u64), PathBuf>,
    copied: Copied,
}

/// A directory and its copy.
struct Pair {
    from: Dir,
    to: OwnedFd,
}

/// The copy of a parent directory: open, or with the identity by which `..` is checked later.
struct CopyAbove {
    open: Option<OwnedFd>,
    identity: Identity,
}

impl Copier {
    /// Copies a tree of any depth, without a stack that grows with it.
    fn copy(&mut self, from: OwnedFd, to: OwnedFd) -> Result<()> {
        let mut trail = Trail::new(COPY);
        let mut here = Pair { from: Dir::new(from).map_err(|error| self.failed(error))?, to };
        loop {
            if let Some((name, inner, offset)) = self.next_directory(&mut here)? {
                let failed = |error| Error::os(COPY, &self.path, error);
                let identity = Identity::from_fd(here.to.as_fd()).map_err(failed)?;
                let copy = CopyAbove { open: trail.keeps_open().then_some(here.to), identity };
                trail.down(here.from, offset, copy).map_err(failed)?;
                (self.below, self.path) = (self.below.join(&name), self.path.join(&name));
                here = inner;
                continue;
            }
            let from = here.from.fd().map_err(|error| self.failed(error))?;
            let stat = rustix::fs::fstat(from).map_err(|error| self.failed(error))?;
            copy_metadata(from, &here.to, &stat).map_err(|error| self.failed(error))?;
            let Some((from, copy)) = trail.up(&here.from, &self.path)? else { return Ok(()) };
            let to = match copy.open {
                Some(open) => open,
                None => {
                    let above = parent(&here.to).map_err(|error| Error::os(COPY, &self.path, error))?;
                    require(COPY, above.as_fd(), copy.identity, &self.path)?;
                    above
                }
            };
            here = Pair { from, to };
            self.below.pop();
            self.path.pop();
        }
    }

    /// Copies the entries of a directory up to its next subdirectory, whose copy is created.
    fn next_directory(&mut self, here: &mut Pair) -> Result<Option<(OsString, Pair, i64)>> {
        while let Some(entry) = here.from.read() {
            let entry = entry.map_err(|error| self.failed(error))?;
            let name = OsStr::from_bytes(entry.file_name().to_bytes());
            if name == "." || name == ".." {
                continue;
            }
            let from = here.from.fd().map_err(|error| self.failed(error))?;
            let (below, path) = (self.below.join(name), self.path.join(name));
            if let Some((from, to)) = self.entry(from, here.to.as_fd(), name, &below, &path)? {
                let from = Dir::new(from).map_err(|error| Error::os(COPY, &path, error))?;
                return Ok(Some((name.to_owned(), Pair { from, to }, entry.offset())));
            }
        }
        Ok(None)
    }

    fn failed(&self, error: Errno) -> Error {
        Error::os(COPY, &self.path, error)
    }

    /// Copies one entry. For a directory it creates only the directory itself, and returns it and its copy,
    /// both open.
    fn entry(
        &mut self,
        from: BorrowedFd<'_>,
        to: BorrowedFd<'_>,
        name: &OsStr,
        below: &Path,
        path: &Path,
    ) -> Result<Option<(OwnedFd, OwnedFd)>> {
        let failed = |error: Errno| Error::os(COPY, path, error);
        let Some(place) = unless_gone(lookup::open_at(from, name), path)? else { return Ok(None) };
        let facts = facts::from_fd(&place).map_err(|error| Error::os(COPY, path, error))?;
        if facts.is_mount_root || facts.mount != self.mount {
            return Err(Error::new(ErrorKind::Busy, COPY, "something is mounted there").at(path));
        }
        match facts.file_type {
            FileType::Directory => {
                let inner = open(from, name, OFlags::DIRECTORY);
                let Some(inner) = unless_gone(inner, path)? else { return Ok(None) };
                make(to, name, path)?;
                self.copied.entries += 1;
                return Ok(Some((inner, open(to, name, OFlags::DIRECTORY).map_err(failed)?)));
            }
            FileType::RegularFile => {
                let file = open(from, name, OFlags::empty());
                let Some(file) = unless_gone(file, path)? else { return Ok(None) };
                let stat = rustix::fs::fstat(&file).map_err(failed)?;
                if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
                    return Err(Error::new(ErrorKind::Busy, COPY, "it changes while it is copied").at(path));
                }
                self.file(File::from(file), &stat, to, name, below, path)?;
            }
            FileType::Symlink => {
                let link = rustix::fs::readlinkat(from, name, Vec::new());
                let link = link.and_then(|link| Ok((link, stat_at(from, name)?)));
                let Some((link, stat)) = unless_gone(link, path)? else { return Ok(None) };
                rustix::fs::symlinkat(&link, to, name).map_err(failed)?;
                copy_metadata_at(to, name, &stat).map_err(failed)?;
            }
            kind => {
                let Some(stat) = unless_gone(stat_at(from, name), path)? else { return Ok(None) };
                let mode = Mode::from_raw_mode(stat.st_mode);
                rustix::fs::mknodat(to, name, kind, mode, stat.st_rdev).map_err(failed)?;
                copy_metadata_at(to, name, &stat).map_err(failed)?;
                // The umask can have removed bits. The new directory has mode 0700 until it is complete, so
                // other users cannot replace the entry.
                rustix::fs::chmodat(to, name, mode, AtFlags::empty()).map_err(failed)?;
            }
        }
        self.copied.entries += 1;
        Ok(None)
    }

    fn file(
        &mut self,
        from: File,
        stat: &Stat,
        to: BorrowedFd<'_>,
        name: &OsStr,
        below: &Path,
        path: &Path,
    ) -> Result<()> {
        let failed = |error: Errno| Error::os(COPY, path, error);
        if stat.st_nlink > 1 {
            if let Some(first) = self.links.get(&(stat.st_dev, stat.st_ino)) {
                let first = self.root.target(first)?;
                let linked =
                    rustix::fs::linkat(first.parent(COPY)?, first.name(), to, name, AtFlags::empty());
                match linked {
                    // Servers without hard links.
                    Err(Errno::OPNOTSUPP | Errno::PERM | Errno::MLINK) => {}
                    linked => return linked.map_err(failed),
                }
            } else {
                self.links.insert((stat.st_dev, stat.st_ino), below.to_owned());
            }
        }
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let copy = rustix::fs::openat(to, name, flags, Mode::RUSR | Mode::WUSR).map_err(failed)?;
        let copy = File::from(copy);
        let copied = copy_contents(&from, &copy).map_err(|error| Error::os(COPY, path, error))?;
        self.copied.add(copied);
        copy_metadata(&from, &copy, stat).map_err(failed)?;
        // Closing does not report errors of delayed writes.
        copy.sync_all().map_err(|error| Error::os(COPY, path, error))
    }
}

/// What was found of a tree entry. None if it was deleted since it was listed.
fn unless_gone<T>(found: std::result::Result<T, impl Into<io::Error>>, path: &Path) -> Result<Option<T>> {
    match found.map_err(Into::into) {
        Ok(found) => Ok(Some(found)),
        Err(error) if error.raw_os_error() == Some(Errno::NOENT.raw_os_error()) => {
            tracing::debug!(path = %path.display(), "it was removed during the copy");
            Ok(None)
        }
        Err(error) => Err(Error::os(COPY, path, error)),
    }
}

fn stat_at(directory: BorrowedFd<'_>, name: &OsStr) -> rustix::io::Result<Stat> {
    rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW)
}

fn owner(stat: &Stat) -> (Option<Uid>, Option<Gid>) {
    (Some(Uid::from_raw(stat.st_uid)), Some(Gid::from_raw(stat.st_gid)))
}

#[allow(clippy::unnecessary_cast, reason = "the fields differ in type between architectures")]
fn times(stat: &Stat) -> Timestamps {
    let time = |seconds: i64, nanos: i64| Timespec { tv_sec: seconds, tv_nsec: nanos };
    Timestamps {
        last_access: time(stat.st_atime as i64, stat.st_atime_nsec as i64),
        last_modification: time(stat.st_mtime as i64, stat.st_mtime_nsec as i64),
    }
}

/// Sets the owner of a copy, then what a change of owner clears (capabilities, mode bits), and last the
/// times.
fn copy_metadata(from: impl AsFd, copy: impl AsFd, stat: &Stat) -> rustix::io::Result<()> {
    let (user, group) = owner(stat);
    rustix::fs::fchown(&copy, user, group)?;
    attributes(from, &copy)?;
    rustix::fs::fchmod(&copy, Mode::from_raw_mode(stat.st_mode))?;
    rustix::fs::futimens(&copy, &times(stat))
}

/// The same for an entry that is not opened.
fn copy_metadata_at(directory: BorrowedFd<'_>, name: &OsStr, stat: &Stat) -> rustix::io::Result<()> {
    let (user, group) = owner(stat);
    rustix::fs::chownat(directory, name, user, group, AtFlags::SYMLINK_NOFOLLOW)?;
    rustix::fs::utimensat(directory, name, &times(stat), AtFlags::SYMLINK_NOFOLLOW)
}

fn attributes(from: impl AsFd, to: impl AsFd) -> rustix::io::Result<()> {
    let names = match with_growing_buffer(|buffer| rustix::fs::flistxattr(&from, buffer)) {
        // A filesystem without extended attributes.
        Err(Errno::OPNOTSUPP) => return Ok(()),
        names => names?,
    };
    for name in names.split_inclusive(|byte| *byte == 0) {
        if !KEPT_ATTRIBUTES.iter().any(|kept| name.starts_with(kept)) {
            continue;
        }
        let Ok(name) = CStr::from_bytes_with_nul(name) else { continue };
        match with_growing_buffer(|buffer| rustix::fs::fgetxattr(&from, name, buffer)) {
            Err(Errno::NODATA) => {}
            value => rustix::fs::fsetxattr(&to, name, &value?, XattrFlags::empty())?,
        }
    }
    Ok(())
}

/// The result of a call that fills a buffer, with a buffer that grows as needed.
fn with_growing_buffer(call: impl Fn(&mut [u8]) -> rustix::io::Result<usize>) -> rustix::io::Result<Vec<u8>> {
    let mut buffer = vec![0; 1024];
    loop {
        match call(&mut buffer) {
            Ok(size) => {
                buffer.truncate(size);
                return Ok(buffer);
            }
            Err(Errno::RANGE) if buffer.len() < 1 << 20 => buffer.resize(buffer.len() * 4, 0),
            Err(error) => return Err(error),
        }
    }
}
