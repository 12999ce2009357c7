//! A volume's usage.

use csi_proto::v1;
use v1::volume_usage::Unit;

use super::volume::signed;
use crate::error::Result;

/// Usage in bytes or in inodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Usage {
    /// The total amount.
    pub total: u64,
    /// The used amount.
    pub used: u64,
    /// The amount still available to an ordinary user.
    pub available: u64,
}

impl Usage {
    /// Creates a usage: the total amount, the used amount, and the amount still available to an ordinary
    /// user.
    pub fn new(total: u64, used: u64, available: u64) -> Self {
        Self { total, used, available }
    }
}

/// The answer to NodeGetVolumeStats. The kubelet treats an answer with neither field as an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct VolumeStats {
    /// Usage in bytes; for a raw block volume only the total size.
    pub bytes: Option<Usage>,
    /// Usage in inodes, if the filesystem counts them.
    pub inodes: Option<Usage>,
}

impl VolumeStats {
    /// Creates the usage of a filesystem.
    pub fn from_usage(bytes: Usage, inodes: Option<Usage>) -> Self {
        Self { bytes: Some(bytes), inodes }
    }

    /// Creates the usage of a raw block device with this size in bytes; how much of it is used is unknown.
    pub fn from_device_size(size: u64) -> Self {
        Self { bytes: Some(Usage { total: size, used: 0, available: 0 }), inodes: None }
    }

    // spec: node-get-volume-stats.usage
    pub(crate) fn answer(self) -> Result<Vec<v1::VolumeUsage>> {
        let entry = |unit: Unit, usage: Option<Usage>| {
            usage.map(|Usage { total, used, available }| {
                Ok(v1::VolumeUsage {
                    available: signed("usage.available", available)?,
                    total: signed("usage.total", total)?,
                    used: signed("usage.used", used)?,
                    unit: unit as i32,
                })
            })
        };
        [entry(Unit::Bytes, self.bytes), entry(Unit::Inodes, self.inodes)].into_iter().flatten().collect()
    }
}
