//! Filesystems on mappings of a volume, as LUKS makes them. The device mapper freezes what is on the volume itself for the moment
//! of a snapshot, and not these.

use std::path::PathBuf;

use crate::device::sysfs::Sysfs;
use crate::error::Result;
use crate::lvm::group::{Group, Ours};
use crate::lvm::report::Report;
use crate::mounted::freeze::{Frozen, thaw};
use crate::sys::ids::DeviceNumber;
use crate::table::mountinfo::mounts;

impl Group {
    /// Freezes them until the result is dropped.
    ///
    /// # Errors
    /// Those of [`Frozen::at`].
    pub(super) fn freeze_above(&self, ours: &Ours<'_>) -> Result<Vec<Frozen>> {
        self.mounted_above(&ours.found.uuid)?.into_iter().map(Frozen::at).collect()
    }

    /// Thaws what a process left frozen that was killed.
    pub(super) fn thaw_above(&self, report: &Report) -> Result<()> {
        let mut places = Vec::new();
        for ours in report.ours(self).filter(|ours| ours.found.is_active) {
            places.extend(self.mounted_above(&ours.found.uuid)?);
        }
        if places.is_empty() {
            return Ok(());
        }
        // Nobody else makes a snapshot meanwhile.
        let _turn = self.lvm.turn("thaw what is mounted from")?;
        for place in places {
            match thaw(&place) {
                Ok(false) => {}
                Ok(true) => tracing::warn!("thawed {}, which was left frozen", place.display()),
                Err(error) => tracing::warn!("{error}"),
            }
        }
        Ok(())
    }

    /// One place for each filesystem that is mounted on a mapping of this logical volume.
    fn mounted_above(&self, uuid: &str) -> Result<Vec<PathBuf>> {
        let all = Sysfs::system().all_mapped()?;
        let own = self.mapper_uuid(uuid);
        let Some(volume) = all.iter().find(|mapped| mapped.uuid == own) else { return Ok(Vec::new()) };
        let mut above: Vec<DeviceNumber> = vec![volume.number];
        let mut at = 0;
        while let Some(beneath) = above.get(at).copied() {
            above.extend(
                all.iter().filter(|mapped| mapped.beneath == Some(beneath)).map(|mapped| mapped.number),
            );
            at += 1;
        }
        if above.len() == 1 {
            return Ok(Vec::new());
        }
        let table = mounts()?;
        let place = |number: &DeviceNumber| table.iter().find(|entry| entry.is_on(*number));
        Ok(above[1..].iter().filter_map(place).map(|entry| entry.mount_point.clone()).collect())
    }
}
