//! Whether something is mounted at a path: one call, flat in the number of mounts, that never hangs.

use std::fmt;
use std::path::Path;

use rustix::fs::OFlags;

use crate::place::lookup::{self, Facts};
use crate::{DeviceNumber, Error, Result, Target};

/// The kernel's number of a mount, as in the first field of mountinfo.
///
/// It is unique among the mounts that exist and may be given again after an unmount.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MountId(pub u64);

impl fmt::Display for MountId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

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

/// What is mounted at an absolute path. The last component is not followed when it is a symbolic link.
///
/// It never asks the filesystem there, so it returns on a mount whose daemon or server is dead. One
/// `openat2(2)` with `RESOLVE_CACHED` and one `statx(2)` with `AT_STATX_DONT_SYNC`; before Linux 5.8 `/proc/self/fdinfo` serves instead.
///
/// ```
/// # fn main() -> csi_mount::Result<()> {
/// use csi_mount::{MountState, mount_state};
///
/// assert!(matches!(mount_state("/proc")?, MountState::Mounted(_)));
/// assert_eq!(mount_state("/no/such/path")?, MountState::Absent);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// [`InvalidInput`](crate::ErrorKind::InvalidInput) for a path that can never work;
/// [`PermissionDenied`](crate::ErrorKind::PermissionDenied) when an ancestor can't be searched. Never takes an
/// error for "not mounted".
pub fn mount_state(path: impl AsRef<Path>) -> Result<MountState> {
    let operation = "look for a mount at";
    if let Some(state) = lookup::quick_state(path.as_ref()) {
        return Ok(state);
    }
    let path = lookup::absolute(operation, path.as_ref())?;
    if path.parent().is_some() {
        return Target::new(path)?.state();
    }
    let root = lookup::open_path(&path, OFlags::DIRECTORY).and_then(lookup::facts);
    let facts = root.map_err(|error| Error::os(operation, &path, error))?;
    // Before Linux 5.8 nothing tells that "/" is a mount's root, and it always is but in a chroot.
    Ok(MountState::of(&Facts { is_mount_root: true, ..facts }))
}
