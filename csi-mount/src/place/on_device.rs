//! Whether a mounted filesystem is on a block device.

use std::ffi::OsStr;
use std::path::Path;

use crate::path::lookup;
use crate::table::details::Details;
use crate::table::facts;
use crate::{DeviceNumber, MountEntry};

impl MountEntry {
    /// Whether its filesystem is on this block device.
    ///
    /// The device number of a btrfs is virtual, so for btrfs the source must be the path of the device.
    pub fn is_on(&self, device: DeviceNumber) -> bool {
        is_on(self.device, &self.source, device)
    }
}

impl Details {
    /// Whether the mounted filesystem is on this block device.
    ///
    /// The device number of a btrfs is virtual, so for btrfs the source must be the path of the device.
    pub(crate) fn is_on(&self, device: DeviceNumber) -> bool {
        is_on(self.device, &self.source, device)
    }
}

fn is_on(found: DeviceNumber, source: &OsStr, device: DeviceNumber) -> bool {
    found == device || found.major == 0 && block_device_at(source) == Some(device)
}

/// The number of the block device at a path. None if the path is not a block device.
pub(crate) fn block_device_at(path: &OsStr) -> Option<DeviceNumber> {
    let path = Path::new(path);
    if !path.is_absolute() {
        return None;
    }
    let fd = lookup::open_path(path, rustix::fs::OFlags::empty()).ok()?;
    facts::from_fd(fd).ok()?.block_device()
}
