//! Whether a mounted filesystem is on a block device.

use std::ffi::OsStr;
use std::path::Path;

use crate::path::lookup;
use crate::sys::ids::DeviceNumber;
use crate::table::details::Details;
use crate::table::facts;
use crate::table::mountinfo::MountEntry;

/// Filesystems on a block device whose mounts show an anonymous device number. The source of every other mount
/// with such a number is any text: that of a FUSE filesystem can be the path of a device.
pub(crate) const ANONYMOUS_DEVICE_TYPES: [&str; 2] = ["btrfs", "bcachefs"];

impl MountEntry {
    /// Whether its filesystem is on this block device.
    ///
    /// The device number of a btrfs is virtual, so for btrfs the source must be the path of the device.
    pub fn is_on(&self, device: DeviceNumber) -> bool {
        device_of(self.device, &self.fs_type, &self.source) == Some(device)
    }
}

impl Details {
    /// Whether the mounted filesystem is on this block device.
    pub(crate) fn is_on(&self, device: DeviceNumber) -> bool {
        self.block_device() == Some(device)
    }

    /// The block device of the mounted filesystem; none if it has none. For btrfs only the mount source
    /// identifies it.
    pub(crate) fn block_device(&self) -> Option<DeviceNumber> {
        device_of(self.device, &self.fs_type, &self.source)
    }
}

fn device_of(number: DeviceNumber, fs_type: &str, source: &OsStr) -> Option<DeviceNumber> {
    match number.major {
        0 if ANONYMOUS_DEVICE_TYPES.contains(&fs_type) => block_device_at(source),
        0 => None,
        _ => Some(number),
    }
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

#[cfg(test)]
mod needs_root {
    use super::*;
    use crate::table::mountinfo::parse_mountinfo;

    /// The source of a FUSE or tmpfs mount is any text. That of a device is known by its number.
    #[test]
    fn a_source_that_names_a_device_is_not_on_it() {
        let entry = |line: &str| parse_mountinfo(line.as_bytes()).unwrap().remove(0);
        const NODE: &str = "/dev/loop0";
        let device = DeviceNumber { major: 8, minor: 1 };
        assert!(entry("30 1 8:1 / /at rw - ext4 /dev/other rw").is_on(device));
        let Some(number) = block_device_at(OsStr::new(NODE)) else { panic!("{NODE} does not exist") };
        for fs_type in ["fuse", "fuse.sshfs", "tmpfs", "nfs4", "overlay"] {
            assert!(!entry(&format!("30 1 0:50 / /at rw - {fs_type} {NODE} rw")).is_on(number), "{fs_type}");
        }
        assert!(entry(&format!("30 1 0:50 / /at rw - btrfs {NODE} rw")).is_on(number));
    }
}
