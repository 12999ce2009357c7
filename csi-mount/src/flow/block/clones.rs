//! Clones of a device that is to be staged: it is mounted next to them, and never twice.
//!
//! The kernel knows filesystems by their UUID, which a clone shares with its origin, and devices by their
//! number, of which a disk can have several.

use std::path::Path;

use super::STAGE;
use crate::device::block_device::BlockDevice;
use crate::device::same_disk::is_same_disk;
use crate::device::sysfs::Sysfs;
use crate::error::{Error, ErrorKind, Result};
use crate::filesystem::kind::Filesystem;
use crate::mounting::diagnose;
use crate::place::target::Target;
use crate::table::mountinfo::MountEntry;

/// Finds the mounted XFS with the UUID of this one. XFS refuses to mount two filesystems with one UUID:
/// they could be the same filesystem, and mounting it twice would destroy it. Only a device that is known
/// to be on another disk is a clone.
pub(super) fn mounted_origin(device: &BlockDevice, staging: &Target) -> Result<Option<MountEntry>> {
    let Some(twin) = diagnose::mount_with_same_uuid(device.path(), device.number()) else { return Ok(None) };
    if !is_same_disk(device.number(), twin.device)? {
        return Ok(Some(twin));
    }
    let source = Path::new(&twin.source).display();
    let place = twin.mount_point.display();
    Err(mounted_twice(device, staging, &format!("at {place}, as {source}")))
}

/// Refuses a btrfs whose disk is already mounted through another device.
///
/// From Linux 6.7 the kernel mounts a second btrfs with the same UUID, as a clone with a UUID in memory. It
/// compares device numbers only, so the same disk under another number would be mounted twice and destroyed.
/// Older kernels refuse every second one.
pub(super) fn refuse_mounted_disk(
    device: &BlockDevice,
    filesystem: Filesystem,
    staging: &Target,
) -> Result<()> {
    match mounted_on_same_disk(device, filesystem)? {
        Some(name) => Err(mounted_twice(device, staging, &format!("as /dev/{name}"))),
        None => Ok(()),
    }
}

/// The name of another device of the same disk through which the filesystem is mounted, in any mount
/// namespace.
fn mounted_on_same_disk(device: &BlockDevice, filesystem: Filesystem) -> Result<Option<String>> {
    let sysfs = Sysfs::system();
    let mounted = match filesystem {
        Filesystem::Btrfs => sysfs.mounted_btrfs_devices(),
        Filesystem::Ext4 | Filesystem::Xfs => sysfs.mounted_devices(filesystem.name()),
    };
    for (name, other) in mounted {
        if other != device.number() && is_same_disk(device.number(), other)? {
            return Ok(Some(name));
        }
    }
    Ok(None)
}

fn mounted_twice(device: &BlockDevice, staging: &Target, place: &str) -> Error {
    let reason = format!("{} is a disk that is already mounted {place}", device.path().display());
    Error::new(ErrorKind::Busy, STAGE, reason)
        .at(staging.path())
        .hint("unmount it there, or combine the paths of the disk into one device (multipathd)")
}
