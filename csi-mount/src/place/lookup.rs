//! Looking at a path without touching the filesystem behind it: what is there, and on which mount.

use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};
use std::time::Duration;

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, ResolveFlags, Statx, StatxAttributes, StatxFlags};
use rustix::io::Errno;

use crate::bounded::in_flight::{self, LOOKUP_LIMIT, Start, Subject};
use crate::bounded::patiently::is_patient;
use crate::sys::child::Open;
use crate::sys::features::{self, Feature};
use crate::table::details::Details;
use crate::table::mountinfo;
use crate::{DeviceNumber, Error, ErrorKind, MountId, MountState, Result};

/// The longest path the kernel takes, without its final NUL (`PATH_MAX`).
const LONGEST_PATH: usize = 4095;
/// The longest name of one component (`NAME_MAX`).
const LONGEST_NAME: usize = 255;

/// What the kernel has in memory about a file; nothing here asks a filesystem, so nothing here can hang.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Facts {
    pub(crate) file_type: FileType,
    /// The device of the filesystem, and the inode in it: the identity of a file.
    pub(crate) device: DeviceNumber,
    pub(crate) inode: u64,
    /// The device that a device node stands for.
    pub(crate) node: DeviceNumber,
    pub(crate) size: u64,
    /// How many names it has; of a directory most filesystems say two, and one more for each directory in it.
    pub(crate) links: u32,
    /// The user and the group, as this mount shows them.
    pub(crate) owner: (u32, u32),
    pub(crate) mount: MountId,
    pub(crate) is_mount_root: bool,
}

impl Facts {
    /// Whether both are one file, or two nodes of one device.
    pub(crate) fn is_same_file(&self, other: &Self) -> bool {
        let is_node = matches!(self.file_type, FileType::BlockDevice | FileType::CharacterDevice);
        !self.is_broken() && (self.device, self.inode) == (other.device, other.inode)
            || is_node && self.file_type == other.file_type && self.node == other.node
    }

    /// The device that it stands for, if it is a block device's node.
    pub(crate) fn block_device(&self) -> Option<DeviceNumber> {
        (self.file_type == FileType::BlockDevice).then_some(self.node)
    }

    /// Whether its filesystem does not even tell what it is, as an XFS that shut down.
    pub(crate) fn is_broken(&self) -> bool {
        self.file_type == FileType::Unknown
    }
}

/// The file of that name in a directory, or what is mounted over it; a symbolic link is not followed.
pub(crate) fn facts_at(directory: impl AsFd, name: &OsStr) -> io::Result<Facts> {
    let mut found = facts(open_at(&directory, name)?)?;
    found.is_mount_root |= found.mount != facts(directory)?.mount;
    Ok(found)
}

/// The file that a descriptor is open on.
pub(crate) fn facts(fd: impl AsFd) -> io::Result<Facts> {
    let fd = fd.as_fd();
    let flags =
        AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT | AtFlags::STATX_DONT_SYNC | AtFlags::EMPTY_PATH;
    let Ok(statx) = rustix::fs::statx(fd, c"", flags, StatxFlags::BASIC_STATS | StatxFlags::MNT_ID) else {
        return facts_of_broken(fd);
    };
    let (mount, is_mount_root) = if knows_mounts(&statx) && features::has(Feature::StatxMount) {
        (MountId(statx.stx_mnt_id), statx.stx_attributes.contains(StatxAttributes::MOUNT_ROOT))
    } else {
        // Of a descriptor alone it is not known whether it is a mount's root, and it counts as none.
        (fdinfo_mount(fd)?, false)
    };
    Ok(facts_from(&statx, mount, is_mount_root))
}

/// What is mounted at an absolute path whose last component is not followed, where the kernel's memory has the answer:
/// one look at the whole path instead of one at the directory and one at the name. None where more has to be asked, and
/// for a path that is not as clean as it could be.
pub(crate) fn quick_state(path: &Path) -> Option<MountState> {
    if !features::has(Feature::StatxMount) || !is_clean(path.as_os_str().as_bytes()) {
        return None;
    }
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let fd = match open_cached(CWD, path, flags, ResolveFlags::empty())? {
        Ok(fd) => fd,
        Err(error) => return is_absent(&error).then_some(MountState::Absent),
    };
    let flags = AtFlags::NO_AUTOMOUNT | AtFlags::STATX_DONT_SYNC | AtFlags::EMPTY_PATH;
    let statx = rustix::fs::statx(&fd, c"", flags, StatxFlags::MNT_ID).ok()?;
    knows_mounts(&statx).then(|| {
        let mount = MountId(statx.stx_mnt_id);
        let is_root = statx.stx_attributes.contains(StatxAttributes::MOUNT_ROOT);
        MountState::of(&facts_from(&statx, mount, is_root))
    })
}

fn knows_mounts(statx: &Statx) -> bool {
    statx.stx_attributes_mask.contains(StatxAttributes::MOUNT_ROOT)
        && statx.stx_mask & StatxFlags::MNT_ID.bits() != 0
}

fn facts_from(statx: &Statx, mount: MountId, is_mount_root: bool) -> Facts {
    Facts {
        file_type: FileType::from_raw_mode(statx.stx_mode.into()),
        device: DeviceNumber { major: statx.stx_dev_major, minor: statx.stx_dev_minor },
        inode: statx.stx_ino,
        node: DeviceNumber { major: statx.stx_rdev_major, minor: statx.stx_rdev_minor },
        size: statx.stx_size,
        links: statx.stx_nlink,
        owner: (statx.stx_uid, statx.stx_gid),
        mount,
        is_mount_root,
    }
}

/// A filesystem that shut down may refuse to tell anything (XFS), and still has to be unmounted.
fn facts_of_broken(fd: BorrowedFd<'_>) -> io::Result<Facts> {
    let mount = fdinfo_mount(fd)?;
    let entry = mountinfo::mount_by_id(mount).map_err(io::Error::other)?;
    let device = entry.map_or(DeviceNumber { major: 0, minor: 0 }, |entry| entry.device);
    let (file_type, inode, node) = (FileType::Unknown, 0, DeviceNumber { major: 0, minor: 0 });
    Ok(Facts {
        file_type,
        device,
        inode,
        node,
        size: 0,
        links: 0,
        owner: (0, 0),
        mount,
        is_mount_root: false,
    })
}

/// From /proc: for what statx does not tell, before Linux 5.8.
fn fdinfo_mount(fd: BorrowedFd<'_>) -> io::Result<MountId> {
    let path = format!("/proc/thread-self/fdinfo/{}", fd.as_raw_fd());
    // Without its number: that /proc is not there does not make the file one that is not there.
    let unknown = |error| {
        io::Error::other(format!("{path} is not to be read, mount /proc into the container: {error}"))
    };
    let text = std::fs::read_to_string(&path).map_err(unknown)?;
    let id = text.lines().find_map(|line| line.strip_prefix("mnt_id:")?.trim().parse().ok());
    id.map(MountId).ok_or_else(|| io::Error::other("fdinfo has no mnt_id"))
}

/// Opens a place, not its contents; the last component is not followed.
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

/// Opens a place by an absolute path, following symbolic links. On the way a filesystem may have to be asked
/// that does not answer, which then is the error (`TimedOut`).
pub(crate) fn open_path(path: &Path, extra: OFlags) -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::CLOEXEC | extra;
    // What these show depends on who asks.
    let is_special =
        ["/proc", "/dev"].iter().any(|top| path.as_os_str().as_bytes().starts_with(top.as_bytes()));
    if is_special && ["/proc/self", "/proc/thread-self", "/dev/fd"].iter().any(|own| path.starts_with(own)) {
        return Ok(rustix::fs::openat(CWD, path, flags, Mode::empty())?);
    }
    open_cached(CWD, path, flags, ResolveFlags::empty())
        .unwrap_or_else(|| open_in_child(None, path, flags, ResolveFlags::empty()))
}

/// Opens a place below a directory as `openat2(2)` does. Linux 5.6.
pub(crate) fn open_below(
    directory: BorrowedFd<'_>,
    path: &Path,
    flags: OFlags,
    resolve: ResolveFlags,
) -> io::Result<OwnedFd> {
    open_cached(directory, path, flags, resolve)
        .unwrap_or_else(|| open_in_child(Some(directory), path, flags, resolve))
}

/// Whether the kernel has a feature that only the answer of a call tells.
pub(crate) fn has(feature: Feature) -> bool {
    let root = Path::new("/");
    match feature {
        Feature::CachedLookup => {
            let flags = OFlags::PATH | OFlags::CLOEXEC;
            let opened = rustix::fs::openat2(CWD, root, flags, Mode::empty(), ResolveFlags::CACHED);
            !matches!(opened, Err(Errno::INVAL | Errno::NOSYS))
        }
        Feature::StatxMount => {
            let found = rustix::fs::statx(CWD, root, AtFlags::NO_AUTOMOUNT, StatxFlags::MNT_ID);
            found.is_ok_and(|found| found.stx_mask & StatxFlags::MNT_ID.bits() != 0)
        }
        _ => features::has(feature),
    }
}

/// The answer of the kernel's memory, which asks no filesystem; none where that does not suffice.
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
        // EINVAL: the flag is of Linux 5.12.
        Err(Errno::AGAIN | Errno::INVAL) => None,
        opened => Some(opened.map_err(Into::into)),
    }
}

/// Whether a path leads into a filesystem with a server or daemon, as far as the kernel's memory shows. Asks nobody.
pub(crate) fn leads_into_remote(path: &Path) -> bool {
    known_end(path).is_some_and(|end| is_remote(end.as_fd()))
}

/// The device that the node at an absolute path stands for, where the kernel's memory shows one. Asks nobody.
pub(crate) fn cached_node(path: &Path) -> Option<DeviceNumber> {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let fd = open_cached(CWD, path, flags, ResolveFlags::empty())?.ok()?;
    facts(fd).ok()?.block_device()
}

/// As [`cached_node`], of an absolute path or one below a directory. None where the kernel's memory does not suffice; none
/// inside where it shows that no block device is there.
pub(crate) fn cached_node_state(directory: BorrowedFd<'_>, path: &Path) -> Option<Option<DeviceNumber>> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    match open_cached(directory, path, flags, ResolveFlags::empty())? {
        Ok(fd) => facts(fd).ok().map(|facts| facts.block_device()),
        Err(error) => is_absent(&error).then_some(None),
    }
}

/// The device that the node at an absolute path stands for. It waits so long for the filesystems on the way.
pub(crate) fn node_within(path: &Path, limit: Duration) -> io::Result<Option<DeviceNumber>> {
    let text = in_flight::c_string(path)?;
    let flags = (OFlags::CLOEXEC | OFlags::NOFOLLOW).bits().cast_signed();
    let place = Open { directory: None, path: &text, flags, resolve: 0 };
    let fd = in_flight::open(subject(None, path)?, place, limit)?;
    Ok(facts(fd)?.block_device())
}

/// The longest part of an absolute path, itself included, that the kernel has in memory.
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
    if is_patient() {
        let directory = directory.unwrap_or(CWD);
        // Only who has the one call has something to resolve.
        return match resolve.is_empty() {
            true => Ok(rustix::fs::openat(directory, path, flags, Mode::empty())?),
            false => Ok(rustix::fs::openat2(directory, path, flags, Mode::empty(), resolve)?),
        };
    }
    let subject = subject(directory, path)?;
    let path = in_flight::c_string(path)?;
    let flags = flags.bits().cast_signed();
    let place = Open { directory, path: &path, flags, resolve: resolve.bits() };
    in_flight::open(subject, place, LOOKUP_LIMIT)
}

/// What a lookup waits for: the remote filesystem where what is known of the way ends, so that of all ways into it one is
/// gone at a time. Where that end is local, or not known, each path is one of its own: it may lead anywhere.
fn subject(directory: Option<BorrowedFd<'_>>, path: &Path) -> io::Result<Subject> {
    if let Some(directory) = directory {
        let facts = facts(directory)?;
        return Ok(match is_remote(directory) {
            true => Subject::Lookup(facts.mount),
            false => Subject::Path(Start::Directory(facts.mount, facts.inode), path.to_owned()),
        });
    }
    let end = path.parent().and_then(known_end).filter(|end| is_remote(end.as_fd()));
    Ok(match end {
        Some(end) => Subject::Lookup(facts(end)?.mount),
        None => {
            let namespace = std::fs::read_link("/proc/thread-self/ns/mnt").unwrap_or_default();
            Subject::Path(Start::Namespace(namespace), path.to_owned())
        }
    })
}

/// Whether to ask the filesystem of this directory could hang.
pub(crate) fn is_remote(directory: BorrowedFd<'_>) -> bool {
    let Ok(facts) = facts(directory) else { return true };
    // Without a quick way to know its type: a filesystem on a block device is no remote one.
    if !features::has(Feature::Statmount) && facts.device.major != 0 {
        return false;
    }
    let details = Details::of(directory, "look at a filesystem", Path::new(""));
    details.ok().flatten().is_none_or(|details| details.is_remote())
}

/// The path by which a system call that takes no descriptor reaches the file of one. Needs /proc.
pub(crate) fn path_of(fd: impl AsFd) -> PathBuf {
    format!("/proc/self/fd/{}", fd.as_fd().as_raw_fd()).into()
}

/// An absolute path without "." and trailing slashes; refused with a reason when it can never work.
pub(crate) fn absolute(operation: &'static str, path: &Path) -> Result<PathBuf> {
    let refuse = |why: &str| Err(Error::new(ErrorKind::InvalidInput, operation, why).at(path));
    if path.as_os_str().is_empty() {
        return Err(Error::new(ErrorKind::InvalidInput, operation, "the path is empty"));
    }
    if !path.is_absolute() {
        return refuse("the path is not absolute");
    }
    if is_clean(path.as_os_str().as_bytes()) {
        return Ok(path.to_owned());
    }
    let clean: PathBuf = path.components().collect();
    plain(operation, &clean)?;
    Ok(clean)
}

/// Whether an absolute path is as it would be put together anew, and passes [`plain`]: nearly every one does.
fn is_clean(path: &[u8]) -> bool {
    is_plainly_clean(path) || is_clean_by_name(path)
}

/// Without a look at each name: no name of so short a path is too long, none begins with a dot, and what is ASCII is text.
/// Without a way out of the loop either, so that it is done many bytes at a time.
fn is_plainly_clean(path: &[u8]) -> bool {
    let [b'/', .., last] = path else { return false };
    let pairs = path.iter().zip(&path[1..]);
    let is_odd =
        |one: u8, next: u8| next == 0 || !next.is_ascii() || one == b'/' && (next == b'/' || next == b'.');
    let has_odd = pairs.fold(false, |found, (one, next)| found | is_odd(*one, *next));
    path.len() <= LONGEST_NAME && *last != b'/' && !has_odd
}

fn is_clean_by_name(path: &[u8]) -> bool {
    let is_name =
        |name: &[u8]| !matches!(name, b"" | b"." | b"..") && name.len() <= LONGEST_NAME && !name.contains(&0);
    path.len() <= LONGEST_PATH
        && std::str::from_utf8(path).is_ok()
        && path.strip_prefix(b"/").is_some_and(|rest| rest.split(|byte| *byte == b'/').all(is_name))
}

/// Refuses a path that is no UTF-8. An orchestrator has none (a protobuf string is UTF-8), and what is mounted at one
/// would be in no log, table or message by its name.
pub(crate) fn text(operation: &'static str, path: &Path) -> Result<()> {
    match path.to_str() {
        Some(_) => Ok(()),
        None => {
            Err(Error::new(ErrorKind::InvalidInput, operation, format!("the path {path:?} is not UTF-8"))
                .mend("give it a name that is"))
        }
    }
}

/// Refuses "..", NUL characters, what is no text and what is too long for the kernel.
pub(crate) fn plain(operation: &'static str, path: &Path) -> Result<()> {
    let refuse = |why: &str| Err(Error::new(ErrorKind::InvalidInput, operation, why).at(path));
    text(operation, path)?;
    if path.as_os_str().as_bytes().contains(&0) {
        return Err(Error::new(ErrorKind::InvalidInput, operation, "the path holds a NUL character"));
    }
    if path.as_os_str().len() > LONGEST_PATH {
        return Err(Error::new(ErrorKind::InvalidInput, operation, "the path is longer than 4095 bytes"));
    }
    for component in path.components() {
        match component {
            Component::ParentDir => return refuse("the path holds \"..\""),
            Component::Normal(name) if name.len() > LONGEST_NAME => {
                return refuse("a name in the path is longer than 255 bytes");
            }
            _ => {}
        }
    }
    Ok(())
}

/// Whether the error says that nothing is there.
pub(crate) fn is_absent(error: &io::Error) -> bool {
    Errno::from_io_error(error) == Some(Errno::NOENT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_that_passes_as_clean_is_what_it_would_become() {
        let long = format!("/a/{}", "x".repeat(LONGEST_NAME + 1));
        let longest = "/a".repeat(LONGEST_PATH / 2 + 1);
        let texts = [
            "/", "/a", "/a/b", "/a/", "//a", "/a//b", "/a/./b", "/.", "/a/..", "/..a/.b.", "/a\0", &long,
            &longest, "/\u{fc}",
        ];
        for path in texts.map(str::as_bytes).into_iter().chain([&b"/a/\xff"[..], b"/\xc3", b"//\xc3"]) {
            let path = Path::new(OsStr::from_bytes(path));
            let slow: PathBuf = path.components().collect();
            let is_same = slow.as_os_str() == path.as_os_str();
            let passes = is_same && plain("test", &slow).is_ok() && path != Path::new("/");
            assert_eq!(is_clean(path.as_os_str().as_bytes()), passes, "{path:?}");
        }
    }
}
