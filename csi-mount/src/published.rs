//! Where block devices are published raw, by the nodes of them that are bound somewhere.

use std::path::{Path, PathBuf};

use crate::{DeviceNumber, MountEntry, Result, Target, details, mounts};

/// A place where the node of one of these devices is bound. Such a device is in its user's hands, though nobody may have it
/// open: the node keeps nothing open, and would be that of whatever volume gets the number next.
pub(crate) fn published_at(devices: &[DeviceNumber]) -> Result<Option<PathBuf>> {
    let is_node = |entry: &MountEntry| -> Result<bool> {
        if entry.root == Path::new("/") || details::is_remote(&entry.fs_type) {
            return Ok(false);
        }
        let facts = Target::new(&entry.mount_point)?.facts("look for a device at")?;
        Ok(facts.is_some_and(|facts| devices.contains(&facts.node)))
    };
    // What can't be looked at is no place where this crate has published it.
    let found = mounts()?.into_iter().find(|entry| is_node(entry).unwrap_or(false));
    Ok(found.map(|entry| entry.mount_point))
}
