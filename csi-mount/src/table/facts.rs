//! What the kernel knows about a file without asking its filesystem, so nothing here can hang. The exception
//! is a file on SMB that is not the root of its mount; see `smb_root`.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::fs::{AtFlags, FileType, Statx, StatxAttributes, StatxFlags};

use crate::sys::features::{self, Feature};
use crate::sys::ids::{DeviceNumber, MountId};
use crate::table::fd_info::FdInfo;
use crate::table::mountinfo;
use crate::table::smb_root::{self, SmbRoot};

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
    /// Immutable or append-only (`chattr(1)`): it can't be removed.
    pub(crate) is_kept: bool,
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
    if let Some(SmbRoot { device, inode, mount }) = smb_root::find(fd)? {
        let facts = without_statx(FileType::Directory, device, inode, mount);
        return Ok(Facts { is_mount_root: true, ..facts });
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
        is_kept: statx.stx_attributes.intersects(StatxAttributes::IMMUTABLE | StatxAttributes::APPEND),
    }
}

/// A filesystem that shut down can refuse `statx` (XFS), but must still be unmounted.
fn facts_of_broken(fd: BorrowedFd<'_>) -> io::Result<Facts> {
    let mount = FdInfo::read(fd)?.mount;
    let entry = mountinfo::mount_by_id(mount).map_err(io::Error::other)?;
    let device = entry.map_or(DeviceNumber { major: 0, minor: 0 }, |entry| entry.device);
    Ok(without_statx(FileType::Unknown, device, 0, mount))
}

/// Facts of a file about which only this is known.
fn without_statx(file_type: FileType, device: DeviceNumber, inode: u64, mount: MountId) -> Facts {
    Facts {
        file_type,
        device,
        inode,
        node: DeviceNumber { major: 0, minor: 0 },
        size: 0,
        links: 0,
        owner: (0, 0),
        mount,
        is_mount_root: false,
        is_kept: false,
    }
}

/// What is at a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MountState {
    /// Nothing exists at the path.
    Absent,
    /// A file or directory, with nothing mounted on it.
    NotMounted,
    /// The root of a mount. If several are on top of each other, the topmost.
    Mounted(MountPoint),
}

impl MountState {
    pub(crate) fn from_facts(facts: &Facts) -> Self {
        if facts.is_mount_root {
            Self::Mounted(MountPoint { id: facts.mount, device: facts.device })
        } else {
            Self::NotMounted
        }
    }

    /// The mount, if there is one.
    pub fn mount_point(self) -> Option<MountPoint> {
        match self {
            Self::Mounted(mount_point) => Some(mount_point),
            Self::Absent | Self::NotMounted => None,
        }
    }
}

/// A mount as seen from its root.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct MountPoint {
    /// The id of the mount.
    pub id: MountId,
    /// The `st_dev` of its root: the block device of an ext4 or xfs filesystem. For btrfs it is a virtual
    /// number of the subvolume, and the block device is in [`MountEntry::source`](crate::MountEntry::source).
    pub device: DeviceNumber,
}
