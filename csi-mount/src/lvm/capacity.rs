//! How much more fits: thick volumes by free extents, thin ones by their sizes and by what the pool can still take.

use std::sync::PoisonError;

use crate::error::{Error, ErrorKind, Result};
use crate::lvm::group::{Group, LvmLayout, LvmOptions, VolumeGroup};
use crate::lvm::pool::LvmPool;
use crate::lvm::report::{Kind, Report};

/// A thin pool gets no new volume above these, because its volumes need the rest.
const MAX_DATA_PERCENT: f64 = 80.0;
const MAX_METADATA_PERCENT: f64 = 70.0;

/// What the metadata areas must have left, in bytes: in all, and for the mark of each volume that is deleted.
const METADATA_RESERVE: u64 = 16 << 10;
const METADATA_OF_MARK: u64 = 64;

/// What can be created, in bytes. All are whole extents.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct LvmCapacity {
    /// For all new volumes together. A volume that is being erased is not free.
    pub available: u64,
    /// The largest new volume.
    pub maximum: u64,
    /// The smallest volume: one extent.
    pub minimum: u64,
}

impl VolumeGroup {
    /// How much more fits with this layout: for GetCapacity.
    ///
    /// Nothing is available while the group's own metadata areas are nearly full.
    /// Of a thin pool that does not exist, is broken, does not zero new blocks, or has more than 80 % of its data or 70 %
    /// of its metadata in use, nothing is available.
    ///
    /// # Errors
    /// Those of [`open`](Self::open).
    pub fn capacity(&self, layout: &LvmLayout) -> Result<LvmCapacity> {
        let report = self.0.read()?;
        let available = match report.room(&self.0, layout) {
            Err(error) if [ErrorKind::NoSpace, ErrorKind::Unsupported].contains(&error.kind()) => 0,
            room => room?,
        };
        Ok(LvmCapacity { available, maximum: available, minimum: report.extent })
    }

    /// All thin pools of the volume group, for health and metrics.
    ///
    /// # Errors
    /// Those of [`open`](Self::open).
    pub fn pools(&self) -> Result<Vec<LvmPool>> {
        Ok(self.0.read()?.pools())
    }

    /// All thin pools, as the last call found them that read the volume group. No lvm is run: for metrics.
    pub fn last_pools(&self) -> Vec<LvmPool> {
        self.0.pools.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Report {
    /// The smallest number of bytes in whole extents that is at least this; none if it is too large.
    pub(super) fn round_up(&self, bytes: u64) -> Option<u64> {
        bytes.max(1).checked_next_multiple_of(self.extent)
    }

    fn round_down(&self, bytes: u64) -> u64 {
        bytes - bytes % self.extent
    }

    /// How many bytes a volume with this layout can take.
    ///
    /// # Errors
    /// Those of [`room_in_pool`](Self::room_in_pool).
    pub(super) fn room(&self, group: &Group, layout: &LvmLayout) -> Result<u64> {
        self.require_metadata(&group.name)?;
        match layout {
            LvmLayout::Thin(pool) => self.room_in_pool(&group.name, &group.options, pool),
            thick => Ok(self.free(&group.options, thick)),
        }
    }

    /// Refuses another volume where the marks of those that are deleted would not fit any more.
    ///
    /// # Errors
    /// [`ErrorKind::NoSpace`] if less is left.
    pub(super) fn require_metadata(&self, group: &str) -> Result<()> {
        let needed = METADATA_RESERVE + self.volumes.len() as u64 * METADATA_OF_MARK;
        if self.metadata_free >= needed {
            return Ok(());
        }
        let reason = format!(
            "the group's metadata areas have {} bytes left for {} logical volumes, and deletes need {needed}",
            self.metadata_free,
            self.volumes.len()
        );
        let error = Error::new(ErrorKind::NoSpace, ROOM, reason).at(group);
        Err(error.hint("a new group can have larger ones (vgcreate --metadatasize)"))
    }

    /// How many bytes a thick volume can take.
    pub(super) fn free(&self, options: &LvmOptions, layout: &LvmLayout) -> u64 {
        let has_tag = |tags: &[String]| match layout {
            LvmLayout::ThickOn(tag) => tags.contains(tag),
            LvmLayout::Thick | LvmLayout::Thin(_) => true,
        };
        let disks = self.disks.iter().filter(|disk| has_tag(&disk.tags));
        let on_disks: u64 = disks.map(|disk| self.round_down(disk.free)).sum();
        let in_group = (self.free_extents * self.extent).saturating_sub(options.reserve);
        self.round_down(on_disks.min(in_group))
    }

    /// How many bytes the volumes of a thin pool can still get.
    ///
    /// # Errors
    /// [`ErrorKind::NoSpace`] if there is no such pool, or it must not get any; [`ErrorKind::Unsupported`] if it does not
    /// zero new blocks.
    pub(super) fn room_in_pool(&self, group: &str, options: &LvmOptions, pool: &str) -> Result<u64> {
        let error = |kind, reason: String| Error::new(kind, ROOM, reason).at(group);
        let found = self.volumes.iter().find(|found| found.name == pool);
        let Some((found, Kind::Pool(facts))) = found.map(|found| (found, &found.kind)) else {
            return Err(error(ErrorKind::NoSpace, format!("it has no thin pool {pool}")));
        };
        if !facts.zeroes {
            let reason =
                format!("the thin pool {pool} does not zero new blocks: a volume would show old data");
            return Err(error(ErrorKind::Unsupported, reason).hint("lvchange --zero y for the pool"));
        }
        let refuse =
            |reason: String| Err(error(ErrorKind::NoSpace, format!("the thin pool {pool}: {reason}")));
        if let Some(fault) = facts.fault() {
            return refuse(fault);
        }
        for (what, percent, limit) in [
            ("data", facts.data_percent, MAX_DATA_PERCENT),
            ("metadata", facts.metadata_percent, MAX_METADATA_PERCENT),
        ] {
            if let Some(percent) = percent.filter(|percent| *percent > limit) {
                return refuse(format!("{percent} % of its {what} are in use, more than {limit} %"));
            }
        }
        let limit = u128::from(found.bytes) * u128::from(options.overcommit) / 100;
        let limit = u64::try_from(limit).unwrap_or(u64::MAX);
        Ok(self.round_down(limit.saturating_sub(self.promised(pool))))
    }
}

const ROOM: &str = "find space in volume group";
