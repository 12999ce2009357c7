//! Gives a volume's files to a group, as the kubelet does for `fsGroup`, without leaving the volume.

use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, Dir, FileType, Gid, Mode, OFlags, chownat, fstat, openat};

use crate::path::lookup;
use crate::path::paths;
use crate::sys::fd_path::path_of;
use crate::table::details::Details;
use crate::table::facts;
use crate::tree::trail::Trail;
use crate::{Error, ErrorKind, MountId, Result};

const GIVE: &str = "give to a group";
/// How often progress is logged.
const LOG_INTERVAL: Duration = Duration::from_secs(30);

/// Read and write for the group.
const FILE: u32 = 0o660;
/// Read, write and search for the group. The setgid bit gives new files in it to the group too.
const DIRECTORY: u32 = 0o2770;

/// When [`give_to_group`] changes the files.
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

/// What [`give_to_group`] did.
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
    },
}

/// Gives a directory and everything in it to a group, with the permissions that the kubelet sets for
/// `fsGroup`.
///
/// The group can read and write files and enter directories, and new files in them belong to the group.
///
/// The walk uses open directories from the root on and never leaves its mount. Symbolic links get the group
/// themselves and are not followed, and mounts below are left alone, even if another process swaps them in
/// meanwhile. The memory grows only with the depth of the tree, and few directories are open. After an
/// interruption the next call continues: the root is changed last, and files that are right are not written
/// again.
///
/// The time grows with the number of files; [`IdMap`](crate::IdMap) takes no time per file. See
/// `fchownat(2)`.
///
/// # Errors
/// - [`ErrorKind::Unsupported`]: the filesystem has a server or daemon, which decides about owners and can
///   hang.
/// - [`ErrorKind::ReadOnly`]: the mount is read-only.
/// - [`ErrorKind::NotFound`]: the directory does not exist.
/// - [`ErrorKind::Busy`]: a directory was moved away during the walk. The next call continues.
pub fn give_to_group(root: impl AsRef<Path>, group: u32, change: GroupChange) -> Result<GroupOutcome> {
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
    let mut walk = Walk { group, mount: facts.mount, files: 0, changed: 0, last_logged: Instant::now() };
    walk.below(&place, &path)?;
    walk.give(&place).map_err(failed)?;
    Ok(GroupOutcome::Checked { files: walk.files, changed: walk.changed })
}

struct Walk {
    group: u32,
    mount: MountId,
    files: u64,
    changed: u64,
    last_logged: Instant,
}

impl Walk {
    fn below(&mut self, root: &OwnedFd, path: &Path) -> Result<()> {
        let failed = |error: io::Error| Error::os(GIVE, path, error);
        let mut trail = Trail::new(GIVE);
        let mut here = read(root).map_err(failed)?;
        loop {
            if let Some((below, offset)) = self.next_directory(&mut here).map_err(failed)? {
                trail.down(here, offset, ()).map_err(failed)?;
                here = below;
                continue;
            }
            let Some((above, ())) = trail.up(&here, path)? else { return Ok(()) };
            // A directory is changed after everything in it, as the root is.
            self.give(here.fd().map_err(|error| failed(error.into()))?).map_err(failed)?;
            here = above;
        }
    }

    /// Changes the files up to the next subdirectory, which it opens.
    fn next_directory(&mut self, entries: &mut Dir) -> io::Result<Option<(Dir, i64)>> {
        while let Some(entry) = entries.read().transpose()? {
            let name = OsStr::from_bytes(entry.file_name().to_bytes());
            if name == "." || name == ".." {
                continue;
            }
            let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let file = match openat(entries.fd()?, name, flags, Mode::empty()) {
                Err(rustix::io::Errno::NOENT) => continue,
                file => file?,
            };
            let facts = facts::from_fd(&file)?;
            if facts.is_mount_root || facts.mount != self.mount {
                continue;
            }
            if facts.file_type == FileType::Directory {
                return Ok(Some((read(&file)?, entry.offset())));
            }
            self.give(&file)?;
        }
        Ok(None)
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
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok(Dir::new(openat(directory, ".", flags, Mode::empty())?)?)
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
