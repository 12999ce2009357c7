//! Looking at a path without touching the filesystem behind it: what is there, and on which mount.

use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, Statx, StatxAttributes, StatxFlags};
use rustix::io::Errno;

use crate::sys::features::{self, Feature};
use crate::{DeviceNumber, Error, ErrorKind, MountId, Result};

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
    pub(crate) mount: MountId,
    pub(crate) is_mount_root: bool,
}

impl Facts {
    /// Whether both are one file, or two nodes of one device.
    pub(crate) fn is_same_file(&self, other: &Self) -> bool {
        let is_node = matches!(self.file_type, FileType::BlockDevice | FileType::CharacterDevice);
        (self.device, self.inode) == (other.device, other.inode)
            || is_node && self.file_type == other.file_type && self.node == other.node
    }
}

/// The file that a descriptor is open on.
pub(crate) fn facts(fd: impl AsFd) -> io::Result<Facts> {
    facts_at(fd, OsStr::new(""))
}

/// The file of that name in a directory, or what is mounted over it; a symbolic link is not followed.
pub(crate) fn facts_at(directory: impl AsFd, name: &OsStr) -> io::Result<Facts> {
    let directory = directory.as_fd();
    let flags = AtFlags::SYMLINK_NOFOLLOW
        | AtFlags::NO_AUTOMOUNT
        | AtFlags::STATX_DONT_SYNC
        | if name.is_empty() { AtFlags::EMPTY_PATH } else { AtFlags::empty() };
    let statx = rustix::fs::statx(directory, name, flags, StatxFlags::BASIC_STATS | StatxFlags::MNT_ID)?;
    let knows_mounts = statx.stx_attributes_mask.contains(StatxAttributes::MOUNT_ROOT)
        && statx.stx_mask & StatxFlags::MNT_ID.bits() != 0;
    let (mount, is_mount_root) = if knows_mounts && features::has(Feature::StatxMount) {
        (MountId(statx.stx_mnt_id), statx.stx_attributes.contains(StatxAttributes::MOUNT_ROOT))
    } else {
        mount_by_fdinfo(directory, name)?
    };
    Ok(facts_from(&statx, mount, is_mount_root))
}

fn facts_from(statx: &Statx, mount: MountId, is_mount_root: bool) -> Facts {
    Facts {
        file_type: FileType::from_raw_mode(statx.stx_mode.into()),
        device: DeviceNumber { major: statx.stx_dev_major, minor: statx.stx_dev_minor },
        inode: statx.stx_ino,
        node: DeviceNumber { major: statx.stx_rdev_major, minor: statx.stx_rdev_minor },
        size: statx.stx_size,
        mount,
        is_mount_root,
    }
}

/// Before Linux 5.8: a file is a mount's root when its mount is not that of its directory, and fdinfo tells.
/// Of a descriptor alone the directory is not known, and it counts as none; see `Target::look`.
fn mount_by_fdinfo(directory: BorrowedFd<'_>, name: &OsStr) -> io::Result<(MountId, bool)> {
    let parent = fdinfo_mount(directory)?;
    if name.is_empty() {
        return Ok((parent, false));
    }
    let mount = fdinfo_mount(open_at(directory, name)?.as_fd())?;
    Ok((mount, mount != parent))
}

fn fdinfo_mount(fd: BorrowedFd<'_>) -> io::Result<MountId> {
    let text = std::fs::read_to_string(format!("/proc/thread-self/fdinfo/{}", fd.as_raw_fd()))?;
    let id = text.lines().find_map(|line| line.strip_prefix("mnt_id:")?.trim().parse().ok());
    id.map(MountId).ok_or_else(|| io::Error::other("fdinfo has no mnt_id"))
}

/// Opens a place, not its contents: no filesystem is asked, and the last component is not followed.
pub(crate) fn open_at(directory: impl AsFd, name: &OsStr) -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(rustix::fs::openat(directory, name, flags, Mode::empty())?)
}

/// Opens a place by an absolute path, following symbolic links.
pub(crate) fn open_path(path: &Path, extra: OFlags) -> io::Result<OwnedFd> {
    Ok(rustix::fs::openat(CWD, path, OFlags::PATH | OFlags::CLOEXEC | extra, Mode::empty())?)
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
    let clean: PathBuf = path.components().collect();
    plain(operation, &clean)?;
    Ok(clean)
}

/// Refuses "..", NUL characters and what is too long for the kernel.
pub(crate) fn plain(operation: &'static str, path: &Path) -> Result<()> {
    let refuse = |why: &str| Err(Error::new(ErrorKind::InvalidInput, operation, why).at(path));
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
