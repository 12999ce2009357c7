//! What is mounted at a volume's path: its device, and how full it is.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use crate::device::block_device::BlockDevice;
use crate::error::{Error, ErrorKind, Result};
use crate::mounted::stats::{Stats, stats};
use crate::place::target::Target;
use crate::sys::ids::DeviceNumber;
use crate::table::details::Details;
use crate::table::facts::Facts;

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

/// See [`BlockVolumes::usage`](crate::BlockVolumes::usage).
pub fn usage(at: impl AsRef<Path>) -> Result<(VolumeUsage, Option<DeviceNumber>)> {
    let place = VolumePath::at(at.as_ref(), "read the usage of")?;
    let usage = if place.is_block_device() {
        VolumeUsage::Device { size: BlockDevice::from_number(place.facts.node)?.size()? }
    } else {
        VolumeUsage::Filesystem(stats(&place.path)?)
    };
    Ok((usage, place.device()))
}

/// See [`BlockVolumes::device_of`](crate::BlockVolumes::device_of).
pub fn device_of(path: impl AsRef<Path>) -> Result<DeviceNumber> {
    const ASK: &str = "find the device at";
    let place = VolumePath::at(path.as_ref(), ASK)?;
    place.device().ok_or_else(|| {
        let reason =
            format!("the mounted filesystem is {}, which has no block device", place.details.fs_type);
        Error::new(ErrorKind::Unsupported, ASK, reason).at(place.path)
    })
}

/// The mount of a volume, as seen without asking its filesystem.
pub(super) struct VolumePath {
    pub(super) path: PathBuf,
    pub(super) facts: Facts,
    pub(super) details: Details,
    /// Its root, as a path only.
    pub(super) root: OwnedFd,
}

impl VolumePath {
    pub(super) fn at(path: &Path, operation: &'static str) -> Result<Self> {
        let target = Target::new(path)?;
        let nothing =
            || Error::new(ErrorKind::NotFound, operation, "nothing is mounted there").at(target.path());
        // For a directory that is not the root of a mount, the device would be that of the node's own disk.
        let (opened, details) = target.open_mounted(operation)?.ok_or_else(nothing)?;
        Ok(Self { path: target.path().to_owned(), facts: opened.facts, details, root: opened.fd })
    }

    pub(super) fn is_block_device(&self) -> bool {
        self.facts.file_type == rustix::fs::FileType::BlockDevice
    }

    pub(super) fn device(&self) -> Option<DeviceNumber> {
        if self.is_block_device() { Some(self.facts.node) } else { self.details.block_device() }
    }
}
