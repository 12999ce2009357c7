//! Whether something is mounted at a place, from the facts of the place.

use crate::table::facts::Facts;
use crate::{DeviceNumber, MountId};

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

impl MountPoint {
    /// The mount with this id, whose root has this `st_dev`.
    pub const fn new(id: MountId, device: DeviceNumber) -> Self {
        Self { id, device }
    }
}
