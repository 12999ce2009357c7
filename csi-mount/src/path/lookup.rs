//! Looks up a path without access to the filesystem behind it: what is there, and on which mount.

use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::fs::{AtFlags, CWD, Mode, OFlags, ResolveFlags, StatxAttributes, StatxFlags};
use rustix::io::Errno;

use crate::bounded::allow_blocking::may_block;
use crate::bounded::in_flight::{self, LOOKUP_TIME_LIMIT, PathStart, Repeat, Subject, Unanswered};
use crate::path::paths;
use crate::sys::child::{ChildCall, Open};
use crate::sys::features::{self, Feature};
use crate::sys::ids::{DeviceNumber, MountId};
use crate::table::details::Details;
use crate::table::facts::{self, Facts, MountState};
use crate::table::smb_root;

/// The facts of the file with that name in a directory, or of what is mounted over it. A symbolic link is not
/// followed.
pub(crate) fn facts_at(directory: impl AsFd, name: &OsStr) -> io::Result<Facts> {
    let mut found = facts::from_fd(open_at(&directory, name)?)?;
    found.is_mount_root |= found.mount != facts::from_fd(directory)?.mount;
    Ok(found)
}

/// What is mounted at an absolute path, if the kernel's cache has the answer. The last component is not
/// followed.
///
/// This is one lookup of the whole path instead of one for the directory and one for the name. None if a
/// filesystem must be asked, and for a path that is not clean.
pub(crate) fn quick_state(path: &Path) -> Option<MountState> {
    let is_possible = features::has(Feature::StatxMount) && !smb_root::can_exist();
    if !is_possible || !paths::is_clean(path.as_os_str().as_bytes()) {
        return None;
    }
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let fd = match open_cached(CWD, path, flags, ResolveFlags::empty())? {
        Ok(fd) => fd,
        Err(error) => return is_absent(&error).then_some(MountState::Absent),
    };
    let flags = AtFlags::NO_AUTOMOUNT | AtFlags::STATX_DONT_SYNC | AtFlags::EMPTY_PATH;
    let statx = rustix::fs::statx(&fd, c"", flags, StatxFlags::MNT_ID).ok()?;
    facts::knows_mounts(&statx).then(|| {
        let mount = MountId(statx.stx_mnt_id);
        let is_root = statx.stx_attributes.contains(StatxAttributes::MOUNT_ROOT);
        MountState::from_facts(&facts::from_statx(&statx, mount, is_root))
    })
}

/// Opens a place with `O_PATH`, not its content; the last component is not followed.
pub(crate) fn open_at(directory: impl AsFd, name: &OsStr) -> io::Result<OwnedFd> {
    let directory = directory.as_fd();
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let resolve = ResolveFlags::empty();
    match open_cached(directory, name.as_ref(), flags, resolve) {
        Some(opened) => opened,
        None if is_remote(directory) => open_in_child(Some(directory), name.as_ref(), flags, resolve),
        None => Ok(rustix::fs::openat(directory, name, flags, Mode::empty())?),
    }
}

/// Opens a place by an absolute path, following symbolic links. If a filesystem along the path must be asked
/// and does not answer, the error is `TimedOut`.
pub(crate) fn open_path(path: &Path, extra: OFlags) -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::CLOEXEC | extra;
    // The content of these directories depends on the calling process.
    let is_special =
        ["/proc", "/dev"].iter().any(|top| path.as_os_str().as_bytes().starts_with(top.as_bytes()));
    if is_special && ["/proc/self", "/proc/thread-self", "/dev/fd"].iter().any(|own| path.starts_with(own)) {
        return Ok(rustix::fs::openat(CWD, path, flags, Mode::empty())?);
    }
    open_cached(CWD, path, flags, ResolveFlags::empty())
        .unwrap_or_else(|| open_in_child(None, path, flags, ResolveFlags::empty()))
}

/// Opens a place below a directory with `openat2(2)`. Linux 5.6.
pub(crate) fn open_below(
    directory: BorrowedFd<'_>,
    path: &Path,
    flags: OFlags,
    resolve: ResolveFlags,
) -> io::Result<OwnedFd> {
    open_cached(directory, path, flags, resolve)
        .unwrap_or_else(|| open_in_child(Some(directory), path, flags, resolve))
}

/// The answer from the kernel's cache, which asks no filesystem. None if the cache does not have it.
fn open_cached(
    directory: BorrowedFd<'_>,
    path: &Path,
    flags: OFlags,
    resolve: ResolveFlags,
) -> Option<io::Result<OwnedFd>> {
    if !features::has(Feature::Openat2) || !features::has(Feature::CachedLookup) {
        return None;
    }
    match rustix::fs::openat2(directory, path, flags, Mode::empty(), resolve | ResolveFlags::CACHED) {
        // EINVAL: before Linux 5.12 the kernel does not know the flag.
        Err(Errno::AGAIN | Errno::INVAL) => None,
        opened => Some(opened.map_err(Into::into)),
    }
}

/// Whether a path leads into a filesystem with a server or daemon, as far as the kernel's cache shows. Asks
/// no filesystem.
pub(crate) fn leads_into_remote(path: &Path) -> bool {
    known_end(path).is_some_and(|end| is_remote(end.as_fd()))
}

/// The device of the node at an absolute path, if the kernel's cache has it. Asks no filesystem.
pub(crate) fn cached_node(path: &Path) -> Option<DeviceNumber> {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let fd = open_cached(CWD, path, flags, ResolveFlags::empty())?.ok()?;
    facts::from_fd(fd).ok()?.block_device()
}

/// The mount that the file at an absolute path is on, if the kernel's cache has it. Asks no filesystem.
pub(crate) fn cached_mount(path: &Path) -> Option<MountId> {
    let fd = open_cached(CWD, path, OFlags::PATH | OFlags::CLOEXEC, ResolveFlags::empty())?.ok()?;
    Some(facts::from_fd(fd).ok()?.mount)
}

/// What a mount shows at its mount point.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ShownNode {
    /// The node of this block device, or no such node.
    Node(Option<DeviceNumber>),
    /// The path leads to another mount.
    Covered,
    /// The kernel's cache does not have the answer.
    Unknown,
}

impl ShownNode {
    fn new(facts: &Facts, mount: MountId) -> Self {
        if facts.mount == mount { Self::Node(facts.block_device()) } else { Self::Covered }
    }
}

/// What this mount shows at its mount point, an absolute path or one below a directory.
pub(crate) fn cached_node_state(directory: BorrowedFd<'_>, path: &Path, mount: MountId) -> ShownNode {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    match open_cached(directory, path, flags, ResolveFlags::empty()) {
        Some(Ok(fd)) => facts::from_fd(fd).map_or(ShownNode::Unknown, |facts| ShownNode::new(&facts, mount)),
        Some(Err(error)) if is_absent(&error) => ShownNode::Node(None),
        _ => ShownNode::Unknown,
    }
}

/// As [`cached_node_state`], for an absolute path that leads through foreign filesystems that must be asked.
pub(crate) fn node_of_foreign(path: &Path, mount: MountId, repeat: Repeat) -> Result<ShownNode, Unanswered> {
    let text = in_flight::c_string(path).map_err(Unanswered::Failed)?;
    let flags = OFlags::PATH | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let place = Open { directory: CWD, path: &text, flags, resolve: ResolveFlags::empty() };
    let subject = subject(None, path).map_err(Unanswered::Failed)?;
    let (_, fd) = in_flight::ask_foreign(subject, ChildCall::Open(place), repeat)?;
    let facts = fd.map(facts::from_fd).transpose().map_err(Unanswered::Failed)?;
    Ok(facts.map_or(ShownNode::Unknown, |facts| ShownNode::new(&facts, mount)))
}

/// Whether a foreign filesystem on the path that was silent before is to be asked again now.
pub(crate) fn takes_next_turn(path: &Path) -> bool {
    subject(None, path).is_ok_and(|subject| in_flight::takes_next_turn(&subject))
}

/// The longest prefix of an absolute path, possibly all of it, that is in the kernel's cache.
fn known_end(path: &Path) -> Option<OwnedFd> {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    path.ancestors().find_map(|above| open_cached(CWD, above, flags, ResolveFlags::empty())?.ok())
}

fn open_in_child(
    directory: Option<BorrowedFd<'_>>,
    path: &Path,
    flags: OFlags,
    resolve: ResolveFlags,
) -> io::Result<OwnedFd> {
    let text = in_flight::c_string(path)?;
    let place = Open { directory: directory.unwrap_or(CWD), path: &text, flags, resolve };
    if may_block() {
        return Ok(place.open()?);
    }
    in_flight::open(subject(directory, path)?, place, LOOKUP_TIME_LIMIT)
}

/// The subject of a lookup: the remote filesystem at the end of the cached part of the path, so that at most
/// one lookup into it runs at a time. If that end is local or not known, each path is a subject of its own,
/// because it can lead anywhere.
fn subject(directory: Option<BorrowedFd<'_>>, path: &Path) -> io::Result<Subject> {
    if let Some(directory) = directory {
        let facts = facts::from_fd(directory)?;
        return Ok(if is_remote(directory) {
            Subject::Lookup(facts.mount)
        } else {
            Subject::Path(PathStart::Directory(facts.mount, facts.inode), path.to_owned())
        });
    }
    let end = path.parent().and_then(known_end).filter(|end| is_remote(end.as_fd()));
    Ok(match end {
        Some(end) => Subject::Lookup(facts::from_fd(end)?.mount),
        None => {
            let namespace = std::fs::read_link("/proc/thread-self/ns/mnt").unwrap_or_default();
            Subject::Path(PathStart::Namespace(namespace), path.to_owned())
        }
    })
}

/// Whether asking the filesystem of this directory can hang.
pub(crate) fn is_remote(directory: BorrowedFd<'_>) -> bool {
    let Ok(facts) = facts::from_fd(directory) else { return true };
    // Without `statmount` the type is slow to read, but a filesystem on a block device is never remote.
    if !features::has(Feature::Statmount) && facts.device.major != 0 {
        return false;
    }
    let details = Details::from_fd(directory, "read the details of a filesystem", Path::new(""));
    details.ok().flatten().is_none_or(|details| details.is_remote())
}

/// Whether the error says that the path does not exist.
pub(crate) fn is_absent(error: &io::Error) -> bool {
    Errno::from_io_error(error) == Some(Errno::NOENT)
}
