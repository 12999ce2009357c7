//! Gives a volume's files to a group, as the kubelet does for `fsGroup`, without leaving the volume.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, Dir, FileType, Gid, Mode, OFlags, chownat, fstat, openat};

use crate::bounded::in_flight::{self, Subject, c_string};
use crate::error::{Error, ErrorKind, Result};
use crate::path::{lookup, paths};
use crate::sys::child::ChildCall;
use crate::sys::descriptor::{path_of, reopen_directory};
use crate::sys::ids::MountId;
use crate::table::details::Details;
use crate::table::facts;
use crate::tree::trail::{Failures, Trail};

const GIVE: &str = "give to a group";
/// How often progress is logged.
const LOG_INTERVAL: Duration = Duration::from_secs(30);

/// Read and write for the group.
const FILE: u32 = 0o660;
/// Read, write and search for the group. The setgid bit gives new files in it to the group too.
const DIRECTORY: u32 = 0o2770;

/// When [`Directories::set_volume_ownership`](crate::Directories::set_volume_ownership) changes the files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum GroupChange {
    /// Only if the root does not have the group and its permissions yet. The root is changed last, so it
    /// shows that all files are done.
    #[default]
    OnRootMismatch,
    /// Every time, for files that others can have added meanwhile.
    Always,
}

/// What [`Directories::set_volume_ownership`](crate::Directories::set_volume_ownership) did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum GroupOutcome {
    /// Nothing: the root showed that all was done already.
    AlreadyDone,
    /// All files were checked.
    Checked {
        /// How many files.
        files: u64,
        /// How many of them had to be changed.
        changed: u64,
        /// How many of them can't be changed, for example because they are immutable (`chattr(1)`).
        failed: u64,
    },
}

/// See [`Directories::set_volume_ownership`](crate::Directories::set_volume_ownership).
pub(crate) fn set_volume_ownership(
    root: impl AsRef<Path>,
    group: u32,
    change: GroupChange,
) -> Result<GroupOutcome> {
    let path = paths::absolute(GIVE, root.as_ref())?;
    let failed = |error: io::Error| Error::os(GIVE, &path, error);
    let place = lookup::open_path(&path, OFlags::DIRECTORY).map_err(failed)?;
    let facts = facts::from_fd(&place).map_err(failed)?;
    if let Some(details) = Details::from_fd(&place, GIVE, &path)?.filter(Details::is_remote) {
        let reason =
            format!("the filesystem is {details}, whose server or daemon decides who owns its files");
        return Err(Error::new(ErrorKind::Unsupported, GIVE, reason).at(path));
    }
    if change == GroupChange::OnRootMismatch && is_right(&place, group).map_err(failed)? {
        return Ok(GroupOutcome::AlreadyDone);
    }
    let mut walk = Walk {
        group,
        mount: facts.mount,
        files: 0,
        changed: 0,
        trail: Trail::new(GIVE, &path),
        failures: Failures::default(),
        last_logged: Instant::now(),
    };
    walk.below(&place)?;
    walk.give(&place).map_err(failed)?;
    let failed = walk.failures.count;
    if let Some(error) = walk.failures.into_error() {
        tracing::warn!(%error, group, "files can't be given to the group of a volume");
    }
    Ok(GroupOutcome::Checked { files: walk.files, changed: walk.changed, failed })
}

struct Walk {
    group: u32,
    mount: MountId,
    files: u64,
    changed: u64,
    trail: Trail<()>,
    failures: Failures,
    last_logged: Instant,
}

impl Walk {
    fn below(&mut self, root: &OwnedFd) -> Result<()> {
        let mut here = read(root).map_err(|error| self.trail.failed(error))?;
        loop {
            if let Some((below, name, offset)) = self.next_directory(&mut here)? {
                self.trail.down(here, &name, offset, ())?;
                here = below;
                continue;
            }
            if self.trail.depth() == 0 {
                return Ok(());
            }
            // A directory is changed after everything in it, as the root is.
            let given = here.fd().map_err(io::Error::from).and_then(|fd| self.give(fd));
            if let Err(error) = given {
                self.failures.add(self.trail.failed(error))?;
            }
            let Some((above, ())) = self.trail.up(&here)? else { return Ok(()) };
            here = above;
        }
    }

    /// Changes the files up to the next subdirectory, which it opens.
    fn next_directory(&mut self, entries: &mut Dir) -> Result<Option<(Dir, OsString, i64)>> {
        while let Some(entry) = self.trail.next_entry(entries, |error| self.failures.add(error))? {
            let name = OsStr::from_bytes(entry.file_name().to_bytes());
            let directory = entries.fd().map_err(|error| self.trail.failed(error))?;
            match self.entry(directory, name) {
                Ok(Some(below)) => return Ok(Some((below, name.to_owned(), entry.offset()))),
                Ok(None) => {}
                Err(error) => self.failures.add(error)?,
            }
        }
        Ok(None)
    }

    /// Changes a file, or opens a directory.
    fn entry(&mut self, directory: BorrowedFd<'_>, name: &OsStr) -> Result<Option<Dir>> {
        let path = self.trail.path_to(name);
        let failed = |error: io::Error| Error::os(GIVE, &path, error);
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = match openat(directory, name, flags, Mode::empty()) {
            Err(rustix::io::Errno::NOENT) => return Ok(None),
            file => file.map_err(|error| failed(error.into()))?,
        };
        let facts = facts::from_fd(&file).map_err(failed)?;
        if facts.is_mount_root || facts.mount != self.mount {
            return Ok(None);
        }
        if facts.file_type == FileType::Directory {
            self.trail.require_depth(name)?;
            return read(&file).map(Some).map_err(failed);
        }
        self.give(&file).map(|()| None).map_err(failed)
    }

    fn give(&mut self, file: impl AsFd) -> io::Result<()> {
        let file = file.as_fd();
        self.files += 1;
        if self.last_logged.elapsed() > LOG_INTERVAL {
            self.last_logged = Instant::now();
            tracing::info!(files = self.files, changed = self.changed, "giving files to a group");
        }
        if is_right(file, self.group)? {
            return Ok(());
        }
        let found = fstat(file)?;
        chownat(file, c"", None, Some(Gid::from_raw(self.group)), AtFlags::EMPTY_PATH)?;
        if let Some(mode) = wanted(found.st_mode) {
            // Through the descriptor's link, because `fchmod` refuses an `O_PATH` descriptor. Includes the
            // bits that the change of the group cleared.
            let mode = (found.st_mode & 0o7777) | mode;
            std::fs::set_permissions(path_of(file), PermissionsExt::from_mode(mode))?;
        }
        self.changed += 1;
        Ok(())
    }
}

fn read(directory: impl AsFd) -> io::Result<Dir> {
    Ok(Dir::new(reopen_directory(directory)?)?)
}

/// The permissions that a file needs at least. A symbolic link has none.
fn wanted(mode: u32) -> Option<u32> {
    match FileType::from_raw_mode(mode) {
        FileType::Symlink => None,
        FileType::Directory => Some(DIRECTORY),
        _ => Some(FILE),
    }
}

fn is_right(file: impl AsFd, group: u32) -> io::Result<bool> {
    let found = fstat(file)?;
    Ok(found.st_gid == group && wanted(found.st_mode).is_none_or(|mode| found.st_mode & mode == mode))
}

const SET: &str = "set the permissions of";
/// How long a filesystem's server or daemon can take.
const TIME_LIMIT: Duration = Duration::from_secs(30);

/// See [`Directories::set_permissions`](crate::Directories::set_permissions).
pub(crate) fn set_permissions(directory: impl AsRef<Path>, mode: u32) -> Result<()> {
    let path = paths::absolute(SET, directory.as_ref())?;
    let failed = |error: io::Error| Error::os(SET, &path, error);
    let place = lookup::open_path(&path, OFlags::DIRECTORY).map_err(failed)?;
    let link = c_string(&path_of(&place)).map_err(failed)?;
    let mount = facts::from_fd(&place).map_err(failed)?.mount;
    let question = ChildCall::SetPermissions(place.as_fd(), &link, mode);
    let (answer, _) = in_flight::ask(Subject::Usage(mount), question, TIME_LIMIT).map_err(|unanswered| {
        Error::os(SET, &path, unanswered).hint("check whether its daemon or server works")
    })?;
    match answer.error {
        0 => Ok(()),
        number => Err(failed(io::Error::from_raw_os_error(number as i32))),
    }
}
