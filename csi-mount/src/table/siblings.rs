//! The other mounts of a filesystem. An operation on the filesystem through one mount affects all of them.

use std::path::PathBuf;

use crate::{DeviceNumber, MountEntry};

/// The mounts of the same filesystem at other places. A copy of the mount by propagation covers the same
/// directory by another path and disappears together with the mount, so it does not count.
pub(crate) fn siblings<'t>(table: &'t [MountEntry], mount: &MountEntry) -> Vec<&'t MountEntry> {
    let own = place(table, mount);
    let is_sibling = |other: &&MountEntry| {
        other.id != mount.id && other.device == mount.device && (own.is_none() || place(table, other) != own)
    };
    table.iter().filter(is_sibling).collect()
}

/// The directory that a mount covers, and its filesystem.
fn place(table: &[MountEntry], entry: &MountEntry) -> Option<(DeviceNumber, PathBuf)> {
    let below = table.iter().find(|other| other.id == entry.parent)?;
    let path = entry.mount_point.strip_prefix(&below.mount_point).ok()?;
    Some((below.device, below.root.join(path)))
}
