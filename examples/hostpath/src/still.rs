//! Volumes held still while their content is copied.

use csi_core::mount::{LoopDevice, mounts};
use csi_core::{Error, Result, mounted_from};

use crate::freezer::Hold;
use crate::host::Host;
use crate::kind::Kind;
use crate::records::VolumeRecord;
use crate::store::sync;

/// What several copies at one moment have to be sure of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Moment {
    /// A crash at that moment would leave the same: what is enough for one volume.
    Crash,
    /// Nobody writes to any of them from now on until it is dropped.
    Shared,
}

/// A volume whose filesystem takes no writes, if it has one that is mounted.
#[derive(Debug)]
#[must_use = "dropping it lets writes go on"]
pub(crate) struct Still {
    _holds: Vec<Hold>,
}

impl Host {
    /// Holds a volume still: freezes the filesystem that is mounted from its image. What was written to a raw device before
    /// now is in the image then. A directory stays as it is: nothing can be frozen but all of the disk, which the copies go
    /// to.
    ///
    /// # Errors
    /// [`Error::NotPossible`] for a raw device or a directory in use where a moment has to be shared: nothing can hold that
    /// still. [`Error::Unavailable`] where the image is a device of this machine, for a filesystem, and nobody here sees it
    /// mounted: a copy would be torn.
    pub(crate) fn hold(&self, id: &str, record: &VolumeRecord, moment: Moment) -> Result<Still> {
        let content = record.kind.content(&self.volumes.place(id));
        let mut holds = Vec::new();
        if record.kind == Kind::Directory {
            return match mounted_from(&content)?.first() {
                Some(target) if moment == Moment::Shared => Err(Error::NotPossible(format!(
                    "volume {id} is a directory in use, at {}",
                    target.display()
                ))),
                _ => Ok(Still { _holds: holds }),
            };
        }
        for device in LoopDevice::find(&content)? {
            let (table, path) = (mounts()?, device.path().display());
            match table.iter().find(|entry| entry.is_on(device.number())) {
                Some(mounted) => holds.push(self.freezer.hold(device.number(), &mounted.mount_point)?),
                None if record.is_filesystem() => {
                    return Err(Error::Unavailable(format!(
                        "volume {id} is {path}, and nobody here sees it mounted: it is being staged or unstaged, or the \
                         node's mounts are not shared with this process"
                    )));
                }
                None if moment == Moment::Shared => {
                    return Err(Error::NotPossible(format!(
                        "{path} is a raw device in use: nothing keeps its workload from writing between two cuts"
                    )));
                }
                None => sync(device.path())?,
            }
        }
        Ok(Still { _holds: holds })
    }
}
