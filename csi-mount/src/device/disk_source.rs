//! Where a disk is looked up: the kernel, or the disks of a test.

use std::fs;
use std::path::Path;

use rustix::io::Errno;

use crate::device::sysfs::Sysfs;
use crate::{BlockDevice, DeviceNumber, Error, ErrorKind, Result};

/// Disks that can be found and opened.
pub(crate) trait DiskSource {
    type Disk;

    fn sysfs(&self) -> &Sysfs;
    fn open(&self, path: &Path) -> Result<Self::Disk>;
    fn open_number(&self, number: DeviceNumber) -> Result<Self::Disk>;
    /// Whether the path is a symbolic link, which can be changed to lead to another disk.
    fn is_link(&self, path: &Path) -> bool;

    fn number(disk: &Self::Disk) -> DeviceNumber;
    fn path(disk: &Self::Disk) -> &Path;
    /// In bytes.
    fn size(disk: &Self::Disk) -> Result<u64>;
}

/// The disks of this node.
pub(crate) struct KernelDisks {
    sysfs: Sysfs,
}

impl KernelDisks {
    pub(crate) fn new() -> Self {
        Self { sysfs: Sysfs::system() }
    }
}

impl DiskSource for KernelDisks {
    type Disk = BlockDevice;

    fn sysfs(&self) -> &Sysfs {
        &self.sysfs
    }

    fn open(&self, path: &Path) -> Result<BlockDevice> {
        BlockDevice::open(path).map_err(|error| explain_missing_driver(error, path))
    }

    fn open_number(&self, number: DeviceNumber) -> Result<BlockDevice> {
        BlockDevice::from_number(number)
    }

    fn is_link(&self, path: &Path) -> bool {
        path.is_symlink()
    }

    fn number(disk: &BlockDevice) -> DeviceNumber {
        disk.number()
    }

    fn path(disk: &BlockDevice) -> &Path {
        disk.path()
    }

    fn size(disk: &BlockDevice) -> Result<u64> {
        disk.size()
    }
}

/// A node whose number belongs to no driver: the kernel has tried to load one when the node was opened, so
/// waiting does not help.
fn explain_missing_driver(error: Error, path: &Path) -> Error {
    use std::os::unix::fs::MetadataExt as _;
    let has_no_device = [Errno::NXIO, Errno::NODEV].map(|number| Some(number.raw_os_error()));
    if !has_no_device.contains(&error.raw_os_error()) {
        return error;
    }
    let (Ok(metadata), Ok(drivers)) = (fs::metadata(path), fs::read_to_string("/proc/devices")) else {
        return error;
    };
    let major = DeviceNumber::from_dev_t(metadata.rdev()).major;
    if has_driver(&drivers, major) {
        return error;
    }
    error
        .with_kind(ErrorKind::Unsupported)
        .add_reason(format_args!("the kernel has no driver for block devices with the number {major}"))
        .hint("load the module of the driver on the node")
}

/// Whether `/proc/devices` lists a driver of block devices with this major number.
fn has_driver(drivers: &str, major: u32) -> bool {
    let block = drivers.lines().skip_while(|line| *line != "Block devices:");
    block.filter_map(|line| line.split_whitespace().next()?.parse().ok()).any(|known: u32| known == major)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_drivers_of_block_devices_count() {
        let drivers = "Character devices:\n  1 mem\n 43 x\n\nBlock devices:\n  7 loop\n259 blkext\n";
        let known = [1, 7, 43, 259].map(|major| has_driver(drivers, major));
        assert_eq!(known, [false, true, false, true]);
    }
}
