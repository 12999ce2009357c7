//! How full a volume is.

use csi_proto::v1;
use v1::volume_usage::Unit;

use super::volume::signed;
use crate::Result;

/// How much of something there is, in bytes or in inodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Usage {
    /// All of it.
    pub total: u64,
    /// What is taken.
    pub used: u64,
    /// What an ordinary user can still take.
    pub available: u64,
}

/// What NodeGetVolumeStats answers. The kubelet takes an answer with neither for an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct VolumeStats {
    /// Bytes; of a raw block volume, its size alone.
    pub bytes: Option<Usage>,
    /// Inodes, where the filesystem counts them.
    pub inodes: Option<Usage>,
}

impl VolumeStats {
    /// Of a filesystem.
    pub fn of_filesystem(bytes: Usage, inodes: Option<Usage>) -> Self {
        Self { bytes: Some(bytes), inodes }
    }

    /// Of a raw block device of this many bytes: nobody knows how much of it is in use.
    pub fn of_device(size: u64) -> Self {
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
