//! The kinds of volumes.

use std::path::{Path, PathBuf};

use clap::ValueEnum;
use csi_core::VolumeCapability;
use csi_core::mount::Filesystem;
use serde::{Deserialize, Serialize};

const MIB: u64 = 1 << 20;

/// What a volume is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// An image file, attached as a loop device: raw, or with a filesystem on it
    Image,
    /// A directory, whose size the disk's filesystem enforces if it has quotas for that
    Directory,
}

impl Kind {
    pub(crate) fn other(self) -> Self {
        match self {
            Self::Image => Self::Directory,
            Self::Directory => Self::Image,
        }
    }

    /// Its name in parameters and in volume contexts.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Image => "image",
            Self::Directory => "directory",
        }
    }

    /// The path of the content inside the directory of an object.
    pub(crate) fn content(self, place: &Path) -> PathBuf {
        place.join(self.name())
    }

    /// The kind of the object at a place, by its content: also if its record can't be read.
    pub(crate) fn of_content(place: &Path) -> Option<Self> {
        [Self::Image, Self::Directory].into_iter().find(|kind| kind.content(place).symlink_metadata().is_ok())
    }

    /// Whether volumes of this kind support a capability.
    ///
    /// A filesystem on a device can be written by one machine at a time. A directory is served by the
    /// machine's own filesystem, and is not a device.
    pub(crate) fn supports(self, capability: &VolumeCapability) -> bool {
        let mode = capability.access_mode;
        match self {
            Self::Image if !capability.is_mount() => true,
            Self::Image => {
                let known = capability.fs_type().is_none_or(|name| name.parse::<Filesystem>().is_ok());
                known && (!mode.is_multi_node() || mode.is_read_only())
            }
            Self::Directory => capability.is_mount() && capability.fs_type().is_none(),
        }
    }

    /// The smallest size in bytes of a volume with these capabilities.
    pub(crate) fn least(self, capabilities: &[VolumeCapability]) -> u64 {
        match self {
            Self::Image => capabilities.iter().map(VolumeCapability::min_device_size).fold(MIB, u64::max),
            Self::Directory => MIB,
        }
    }
}
