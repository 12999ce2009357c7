//! Volumes held still while their content is copied.

use std::fs::File;
use std::path::Path;

use csi_core::mount::{Frozen, LoopDevice, mounts};
use csi_core::{Error, Result};

/// What several copies at one moment have to be sure of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Moment {
    /// A crash at that moment would leave the same: what is enough for one volume.
    Crash,
    /// Nobody writes to any of them from now on until it is dropped.
    Shared,
}

/// Images whose filesystems take no writes.
#[derive(Debug, Default)]
#[must_use = "dropping it lets writes go on"]
pub(crate) struct Still {
    _frozen: Vec<Frozen>,
}

impl Still {
    /// Holds this image still, too: freezes the filesystem that is mounted from it. What was written to a raw device before
    /// now is in the image then.
    ///
    /// # Errors
    /// [`Error::NotPossible`] for a raw device in use where a moment has to be shared: nothing can hold that still.
    pub(crate) fn hold(&mut self, image: &Path, moment: Moment) -> Result<()> {
        for device in LoopDevice::find(image)? {
            let table = mounts()?;
            match table.iter().find(|entry| entry.is_on(device.number())) {
                Some(mounted) => self._frozen.push(Frozen::at(&mounted.mount_point)?),
                None if moment == Moment::Shared => {
                    return Err(Error::NotPossible(format!(
                        "{} is a raw device in use: nothing keeps its workload from writing between two cuts",
                        device.path().display()
                    )));
                }
                None => File::open(device.path())?.sync_all()?,
            }
        }
        Ok(())
    }
}
