//! Whether a mounted filesystem lives on a block device.

use std::ffi::OsStr;
use std::path::Path;

use crate::path::lookup;
use crate::table::details::Details;
use crate::{DeviceNumber, MountEntry};

use crate::table::facts;

impl MountEntry {
    /// Whether its filesystem lives on this block device.
    ///
    /// The device of a btrfs is a number made up for it, so there the source has to be the path of the device.
    pub fn is_on(&self, device: DeviceNumber) -> bool {
        is_on(self.device, &self.source, device)
    }
}

impl Details {
    /// Whether the mounted filesystem lives on this block device.
    ///
    /// The device of a btrfs is a made-up number, so there the source has to name the device.
    pub(crate) fn is_on(&self, device: DeviceNumber) -> bool {
        is_on(self.device, &self.source, device)
    }
}

fn is_on(found: DeviceNumber, source: &OsStr, device: DeviceNumber) -> bool {
    found == device || found.major == 0 && block_device_at(source) == Some(device)
}

/// The number of the block device at a path; None when there is no such thing.
pub(crate) fn block_device_at(path: &OsStr) -> Option<DeviceNumber> {
    let path = Path::new(path);
    if !path.is_absolute() {
        return None;
    }
    let fd = lookup::open_path(path, rustix::fs::OFlags::empty()).ok()?;
    let facts = facts::from_fd(fd).ok()?;
    (facts.file_type == rustix::fs::FileType::BlockDevice).then_some(facts.node)
}
