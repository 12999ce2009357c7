//! Copies a directory with everything in it. It walks by open directories, so that it cannot be redirected.

use std::ffi::{CStr, OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Dir, FileType, Gid, Mode, OFlags, Stat, Timespec, Timestamps, Uid, XattrFlags};
use rustix::io::Errno;

use crate::error::{Error, ErrorKind, Result};
use crate::path::lookup;
use crate::place::target::{Target, is_empty};
use crate::sys::descriptor::{path_of, reopen_file};
use crate::sys::ids::MountId;
use crate::table::facts;
use crate::tree::copy_file::{Copied, copy_contents};
use crate::tree::links::Links;
use crate::tree::trail::{Failures, Identity, Trail};

const COPY: &str = "copy the tree";

/// The extended attributes that are part of a file. All others, such as labels, belong to the node or the
/// server.
const KEPT_ATTRIBUTES: [&[u8]; 4] = [b"user.", b"trusted.", b"system.posix_acl_", b"security.capability"];

impl Target {
    /// Copies the directory and everything in it to a target that does not exist yet, or is an empty directory, on
    /// this mount or another.
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
    /// Memory does not grow with the number of files or hard links. Until the copy is complete, a directory
    /// in it has one more link of each file that has several.
    ///
    /// # Errors
    /// If files can't be copied, the others are still copied, up to 1,000 failures, and the error is that of
    /// the first file and says how many failed. An error that concerns all files, such as a full disk, ends
    /// the copy.
    ///
    /// - [`ErrorKind::Busy`]: something is mounted in the directory, or an entry was moved or replaced during
    ///   the copy.
    /// - [`ErrorKind::NotFound`]: the directory does not exist.
    /// - [`ErrorKind::InvalidInput`]: it is not a directory.
    /// - [`ErrorKind::PermissionDenied`]: the process is not allowed to set the owners of files, for example
    ///   on an NFS export with `root_squash`.
    /// - [`ErrorKind::NoSpace`]: the filesystem has no space left.
    /// - [`ErrorKind::OutOfRange`]: a file is larger than the filesystem of the copy allows, or a directory is
    ///   below 65,536 others.
    /// - [`ErrorKind::Io`] with `EEXIST`: the new target exists and has content.
    pub fn copy_tree(&self, to: &Target) -> Result<Copied> {
        let from = self.open_directory(COPY)?;
        let found = facts::from_fd(&from).map_err(|error| self.error(COPY, error))?;
        let copy = match rustix::fs::mkdirat(to.parent(COPY)?, to.name(), Mode::RWXU) {
            Err(Errno::EXIST) => {
                let existing = to.open_directory(COPY)?;
                if !is_empty(&existing).map_err(|error| to.error(COPY, error))? {
                    return Err(to.error(COPY, Errno::EXIST));
                }
                existing
            }
            made => made.map_err(|error| to.error(COPY, error)).and_then(|()| to.open_directory(COPY))?,
        };
        let top = copy.try_clone().map_err(|error| to.error(COPY, error))?;
        let mut copier = Copier {
            mount: found.mount,
            links: Links::new(top),
            path: to.path().to_owned(),
            trail: Trail::new(COPY, self.path()),
            failures: Failures::default(),
            copied: Copied::default(),
        };
        copier.copy(from, copy)?;
        copier.failures.into_error().map_or(Ok(copier.copied), Err)
    }

    pub(crate) fn open_directory(&self, operation: &'static str) -> Result<OwnedFd> {
        let parent = self.parent(operation)?;
        open(parent, self.name(), OFlags::DIRECTORY).map_err(|error| self.error(operation, error))
    }
}

fn open(directory: BorrowedFd<'_>, name: &OsStr, extra: OFlags) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    rustix::fs::openat(directory, name, flags | extra, Mode::empty())
}

fn make(parent: BorrowedFd<'_>, name: &OsStr, path: &Path) -> Result<()> {
    rustix::fs::mkdirat(parent, name, Mode::RWXU).map_err(|error| Error::os(COPY, path, error))
}

/// After this many files that can't be copied, the copy ends.
const MAX_FAILURES: u64 = 1000;

fn fail(failures: &mut Failures, error: Error) -> Result<()> {
    failures.add(error)?;
    if failures.count < MAX_FAILURES {
        return Ok(());
    }
    let failures = std::mem::take(failures);
    failures.into_error().map_or(Ok(()), |first| Err(first.add_reason("more are not counted")))
}

struct Copier {
    /// Only files on this mount are copied.
    mount: MountId,
    links: Links,
    /// The path of the copy, for messages.
    path: PathBuf,
    trail: Trail<CopyAbove>,
    failures: Failures,
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

/// An entry of the source, and the directory of its copy.
struct Entry<'d> {
    from: BorrowedFd<'d>,
    to: BorrowedFd<'d>,
    name: &'d OsStr,
    path: &'d Path,
}

impl Copier {
    /// Copies a tree of any depth, without a stack that grows with it.
    fn copy(&mut self, from: OwnedFd, to: OwnedFd) -> Result<()> {
        let mut here = Pair { from: Dir::new(from).map_err(|error| self.trail.failed(error))?, to };
        loop {
            if let Some((name, inner, offset)) = self.next_directory(&mut here)? {
                let identity = Identity::from_fd(here.to.as_fd());
                let identity = identity.map_err(|error| self.trail.failed(error))?;
                let copy = CopyAbove { open: self.trail.keeps_open().then_some(here.to), identity };
                self.trail.down(here.from, &name, offset, copy)?;
                here = inner;
                continue;
            }
            if self.trail.depth() == 0 {
                self.links.remove(&self.path)?;
            }
            if let Err(error) = finish_directory(&here) {
                fail(&mut self.failures, self.trail.failed(error))?;
            }
            let Some((from, copy)) = self.trail.up(&here.from)? else { return Ok(()) };
            let to = match copy.open {
                Some(open) => open,
                None => self.trail.above(here.to.as_fd(), copy.identity)?,
            };
            here = Pair { from, to };
        }
    }

    /// Copies the entries of a directory up to its next subdirectory, whose copy is created.
    fn next_directory(&mut self, here: &mut Pair) -> Result<Option<(OsString, Pair, i64)>> {
        while let Some(entry) =
            self.trail.next_entry(&mut here.from, |error| fail(&mut self.failures, error))?
        {
            let name = OsStr::from_bytes(entry.file_name().to_bytes());
            let from = here.from.fd().map_err(|error| self.trail.failed(error))?;
            let path = self.trail.path_to(name);
            match self.entry(&Entry { from, to: here.to.as_fd(), name, path: &path }) {
                Ok(Some(inner)) => return Ok(Some((name.to_owned(), inner, entry.offset()))),
                Ok(None) => {}
                Err(error) => fail(&mut self.failures, error)?,
            }
        }
        Ok(None)
    }

    /// Copies one entry. For a directory it creates only the directory itself, and returns it and its copy,
    /// both open.
    ///
    /// The entry is opened once, without effect on it, and is then used by its descriptor only: its name can
    /// lead to something else a moment later.
    fn entry(&mut self, entry: &Entry<'_>) -> Result<Option<Pair>> {
        let Entry { from, to, name, path } = *entry;
        let failed = |error: Errno| Error::os(COPY, path, error);
        let place = match lookup::open_at(from, name) {
            Err(error) if lookup::is_absent(&error) => return Ok(skip(path)),
            place => place.map_err(|error| Error::os(COPY, path, error))?,
        };
        let facts = facts::from_fd(&place).map_err(|error| Error::os(COPY, path, error))?;
        if facts.is_mount_root || facts.mount != self.mount {
            return Err(Error::new(ErrorKind::Busy, COPY, "something is mounted there").at(path));
        }
        let stat = match rustix::fs::fstat(&place) {
            // On a server.
            Err(Errno::STALE) if is_gone(from, name) => return Ok(skip(path)),
            stat => stat.map_err(failed)?,
        };
        if facts.file_type == FileType::Directory {
            return self.directory(entry, &place);
        }
        let has_links = stat.st_nlink > 1;
        if has_links && self.links.link(&stat, to, name).map_err(failed)? {
            self.copied.entries += 1;
            return Ok(None);
        }
        match facts.file_type {
            FileType::RegularFile => match reopen_file(&place, OFlags::RDONLY) {
                Err(Errno::STALE) if is_gone(from, name) => return Ok(skip(path)),
                file => self.file(&File::from(file.map_err(failed)?), &stat, entry)?,
            },
            FileType::Symlink => {
                let link = rustix::fs::readlinkat(&place, "", Vec::new()).map_err(failed)?;
                rustix::fs::symlinkat(&link, to, name).map_err(failed)?;
                copy_metadata_at(&place, to, name, &stat).map_err(|error| Error::os(COPY, path, error))?;
            }
            kind => {
                let mode = Mode::from_raw_mode(stat.st_mode);
                rustix::fs::mknodat(to, name, kind, mode, stat.st_rdev).map_err(failed)?;
                copy_metadata_at(&place, to, name, &stat).map_err(|error| Error::os(COPY, path, error))?;
                // The umask can have removed bits. The new directory has mode 0700 until it is complete, so
                // other users cannot replace the entry.
                rustix::fs::chmodat(to, name, mode, AtFlags::empty()).map_err(failed)?;
            }
        }
        if has_links {
            self.links.add(&stat, to, name).map_err(failed)?;
        }
        self.copied.entries += 1;
        Ok(None)
    }

    /// Creates the copy of a directory.
    fn directory(&mut self, entry: &Entry<'_>, place: &OwnedFd) -> Result<Option<Pair>> {
        let Entry { from, to, name, path } = *entry;
        let failed = |error: Errno| Error::os(COPY, path, error);
        self.trail.require_depth(name)?;
        let inner = match open(place.as_fd(), ".".as_ref(), OFlags::DIRECTORY) {
            Err(Errno::NOENT | Errno::STALE) if is_gone(from, name) => return Ok(skip(path)),
            inner => Dir::new(inner.map_err(failed)?).map_err(failed)?,
        };
        make(to, name, path)?;
        self.copied.entries += 1;
        Ok(Some(Pair { from: inner, to: open(to, name, OFlags::DIRECTORY).map_err(failed)? }))
    }

    fn file(&mut self, from: &File, stat: &Stat, entry: &Entry<'_>) -> Result<()> {
        let Entry { to, name, path, .. } = *entry;
        let failed = |error: Errno| Error::os(COPY, path, error);
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let copy = rustix::fs::openat(to, name, flags, Mode::RUSR | Mode::WUSR).map_err(failed)?;
        let copy = File::from(copy);
        let copied = copy_contents(from, &copy).map_err(|error| Error::os(COPY, path, error))?;
        self.copied.add(copied);
        copy_metadata(from, &copy, stat).map_err(failed)?;
        // Closing does not report errors of delayed writes.
        copy.sync_all().map_err(|error| Error::os(COPY, path, error))
    }
}

/// The copy of a directory gets its metadata after everything in it, which changes its times.
fn finish_directory(here: &Pair) -> rustix::io::Result<()> {
    let from = here.from.fd()?;
    copy_metadata(from, &here.to, &rustix::fs::fstat(from)?)
}

/// Skips an entry that was deleted since it was listed.
fn skip<T>(path: &Path) -> Option<T> {
    tracing::debug!(path = %path.display(), "it was removed during the copy");
    None
}

fn is_gone(directory: BorrowedFd<'_>, name: &OsStr) -> bool {
    matches!(rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW), Err(Errno::NOENT))
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

/// The same for an entry that is not opened, but for its mode.
fn copy_metadata_at(from: impl AsFd, directory: BorrowedFd<'_>, name: &OsStr, stat: &Stat) -> io::Result<()> {
    let (user, group) = owner(stat);
    rustix::fs::chownat(directory, name, user, group, AtFlags::SYMLINK_NOFOLLOW)?;
    attributes(from, lookup::open_at(directory, name)?)?;
    Ok(rustix::fs::utimensat(directory, name, &times(stat), AtFlags::SYMLINK_NOFOLLOW)?)
}

/// By paths, because the calls for descriptors refuse those that were opened with `O_PATH`.
fn attributes(from: impl AsFd, to: impl AsFd) -> rustix::io::Result<()> {
    let from = path_of(&from);
    let to = path_of(&to);
    let names = match with_growing_buffer(|buffer| rustix::fs::listxattr(&from, buffer)) {
        // A filesystem without extended attributes.
        Err(Errno::OPNOTSUPP) => return Ok(()),
        names => names?,
    };
    for name in names.split_inclusive(|byte| *byte == 0) {
        if !KEPT_ATTRIBUTES.iter().any(|kept| name.starts_with(kept)) {
            continue;
        }
        let Ok(name) = CStr::from_bytes_with_nul(name) else { continue };
        match with_growing_buffer(|buffer| rustix::fs::getxattr(&from, name, buffer)) {
            Err(Errno::NODATA) => {}
            value => rustix::fs::setxattr(&to, name, &value?, XattrFlags::empty())?,
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
