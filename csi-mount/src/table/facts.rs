//! What the kernel knows about a file without asking its filesystem, so nothing here can hang. The exception
//! is a file on SMB that is not the root of its mount; see `smb_root`.

use std::io;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd};

use rustix::fs::{AtFlags, FileType, Statx, StatxAttributes, StatxFlags};

use crate::sys::features::{self, Feature};
use crate::table::{mountinfo, smb_root};
use crate::{DeviceNumber, MountId};

/// What the kernel has in memory about a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Facts {
    pub(crate) file_type: FileType,
    /// The device of the filesystem and the inode number in it: together the identity of a file.
    pub(crate) device: DeviceNumber,
    pub(crate) inode: u64,
    /// The device that a device node stands for.
    pub(crate) node: DeviceNumber,
    pub(crate) size: u64,
    /// The number of links. For a directory most filesystems report two, plus one for each subdirectory.
    pub(crate) links: u32,
    /// The user and the group, as this mount shows them.
    pub(crate) owner: (u32, u32),
    pub(crate) mount: MountId,
    pub(crate) is_mount_root: bool,
}

impl Facts {
    /// Whether both are the same file, or two nodes of the same device.
    pub(crate) fn is_same_file(&self, other: &Self) -> bool {
        let is_node = matches!(self.file_type, FileType::BlockDevice | FileType::CharacterDevice);
        !self.is_broken() && (self.device, self.inode) == (other.device, other.inode)
            || is_node && self.file_type == other.file_type && self.node == other.node
    }

    /// The device that it stands for, if it is the node of a block device.
    pub(crate) fn block_device(&self) -> Option<DeviceNumber> {
        (self.file_type == FileType::BlockDevice).then_some(self.node)
    }

    /// Whether its filesystem does not report even its type, as an XFS that shut down.
    pub(crate) fn is_broken(&self) -> bool {
        self.file_type == FileType::Unknown
    }
}

/// The facts of an open file.
pub(crate) fn from_fd(fd: impl AsFd) -> io::Result<Facts> {
    let fd = fd.as_fd();
    if let Some(found) = smb_root::facts(fd)? {
        return Ok(found);
    }
    let flags =
        AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT | AtFlags::STATX_DONT_SYNC | AtFlags::EMPTY_PATH;
    let Ok(statx) = rustix::fs::statx(fd, c"", flags, StatxFlags::BASIC_STATS | StatxFlags::MNT_ID) else {
        return facts_of_broken(fd);
    };
    let (mount, is_mount_root) = if knows_mounts(&statx) && features::has(Feature::StatxMount) {
        (MountId(statx.stx_mnt_id), statx.stx_attributes.contains(StatxAttributes::MOUNT_ROOT))
    } else {
        // A descriptor alone does not show whether it is the root of a mount. It counts as not being one.
        (FdInfo::read(fd)?.mount, false)
    };
    Ok(from_statx(&statx, mount, is_mount_root))
}

pub(crate) fn knows_mounts(statx: &Statx) -> bool {
    statx.stx_attributes_mask.contains(StatxAttributes::MOUNT_ROOT)
        && statx.stx_mask & StatxFlags::MNT_ID.bits() != 0
}

pub(crate) fn from_statx(statx: &Statx, mount: MountId, is_mount_root: bool) -> Facts {
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

/// A filesystem that shut down can refuse `statx` (XFS), but must still be unmounted.
fn facts_of_broken(fd: BorrowedFd<'_>) -> io::Result<Facts> {
    let mount = FdInfo::read(fd)?.mount;
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

/// What /proc reports about a descriptor, without its filesystem.
pub(crate) struct FdInfo {
    pub(crate) mount: MountId,
    /// From Linux 5.14.
    pub(crate) inode: Option<u64>,
}

impl FdInfo {
    pub(crate) fn read(fd: BorrowedFd<'_>) -> io::Result<Self> {
        let path = format!("/proc/thread-self/fdinfo/{}", fd.as_raw_fd());
        // Drops the error number: a missing /proc must not look like a missing file.
        let unknown = |error| {
            io::Error::other(format!("{path} cannot be read; mount /proc into the container: {error}"))
        };
        Self::parse(&std::fs::read_to_string(&path).map_err(unknown)?)
    }

    /// Reads `/proc/PID/fdinfo/FD`.
    pub(crate) fn parse(text: &str) -> io::Result<Self> {
        let number = |key: &str| {
            text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':')?.trim().parse().ok())
        };
        let mount = number("mnt_id").map(MountId).ok_or_else(|| io::Error::other("fdinfo has no mnt_id"))?;
        Ok(Self { mount, inode: number("ino") })
    }
}
