//! How full a volume is, for filesystems and raw devices.

use std::path::Path;

use super::VolumePath;

use crate::stats;
use crate::{BlockDevice, DeviceNumber, Result, Stats};

/// How full a published or staged volume is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum VolumeUsage {
    /// A filesystem's bytes and inodes.
    Filesystem(Stats),
    /// A raw device's size in bytes. How much of it is in use is unknown.
    Device {
        /// The size in bytes.
        size: u64,
    },
}

/// Returns how full the volume at a staging or target path is, and the number of its device.
///
/// # Errors
///
/// [`NotFound`](crate::ErrorKind::NotFound) if nothing is mounted there,
/// [`Unresponsive`](crate::ErrorKind::Unresponsive) if the filesystem does not answer, and those of
/// [`stats()`].
pub fn usage(at: impl AsRef<Path>) -> Result<(VolumeUsage, Option<DeviceNumber>)> {
    let place = VolumePath::at(at.as_ref(), "read the usage of")?;
    let usage = if place.is_block_device() {
        VolumeUsage::Device { size: BlockDevice::from_number(place.facts.node)?.size()? }
    } else {
        VolumeUsage::Filesystem(stats(&place.path)?)
    };
    Ok((usage, place.device()))
}
