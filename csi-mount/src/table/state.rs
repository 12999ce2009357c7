//! Whether something is mounted at a place, as far as its facts tell.

use crate::table::facts::Facts;
use crate::{DeviceNumber, MountId};

/// What is at a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MountState {
    /// Nothing is there, no file either.
    Absent,
    /// A file or directory, and nothing mounted on it.
    NotMounted,
    /// The root of a mount; of several on top of each other, the topmost.
    Mounted(MountPoint),
}

impl MountState {
    pub(crate) fn of(facts: &Facts) -> Self {
        if facts.is_mount_root {
            Self::Mounted(MountPoint { id: facts.mount, device: facts.device })
        } else {
            Self::NotMounted
        }
    }

    /// The mount that is there, if one is.
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
    /// Which mount it is.
    pub id: MountId,
    /// `st_dev` of its root: the block device of an ext4 or xfs filesystem. Of a btrfs it is a number made up
    /// for the subvolume, and the block device is in [`MountEntry::source`](crate::MountEntry::source).
    pub device: DeviceNumber,
}
