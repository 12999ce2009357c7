//! Volumes that are frozen while their content is copied.

use csi_core::mount::mounts;
use csi_core::node_plugins::mounted_from;
use csi_core::{Error, Result, mount};

use crate::freezer::Hold;
use crate::host::Host;
use crate::kind::Kind;
use crate::records::VolumeRecord;
use crate::store::sync;

/// The consistency that copies need.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Consistency {
    /// The copy has the state that a crash at that moment would leave. This is enough for one volume.
    Crash,
    /// No volume of the set is written until all of them are released.
    Group,
}

/// A volume whose filesystem, if one is mounted, is frozen.
#[derive(Debug)]
#[must_use = "dropping it lets writes go on"]
pub(crate) struct QuiescedVolume {
    _holds: Vec<Hold>,
}

impl Host {
    /// Freezes the filesystem that is mounted from the volume's image. For a raw device it flushes earlier
    /// writes to the image. A directory is not frozen: only the whole disk could be, and the copies are
    /// written to that disk.
    ///
    /// # Errors
    /// [`Error::NotPossible`] for a raw device or a directory in use if `consistency` is
    /// [`Consistency::Group`]: neither can be frozen. [`Error::Unavailable`] if the image is attached as a
    /// device and has a filesystem, but this process sees no mount of it: a copy would be inconsistent.
    pub(crate) fn quiesce(
        &self,
        node: &mount::Host,
        id: &str,
        record: &VolumeRecord,
        consistency: Consistency,
    ) -> Result<QuiescedVolume> {
        let content = record.kind.content(&self.volumes.place(id));
        let mut holds = Vec::new();
        if record.kind == Kind::Directory {
            return match mounted_from(node, &content)?.first() {
                Some(target) if consistency == Consistency::Group => Err(Error::NotPossible(
                    format!("volume {id} is a directory in use, at {}", target.display()).into(),
                )),
                _ => Ok(QuiescedVolume { _holds: holds }),
            };
        }
        for device in node.devices().loop_devices(&content)? {
            let table = mounts()?;
            let path = device.path.display();
            match table.iter().find(|entry| entry.is_on(device.number)) {
                Some(mounted) => holds.push(self.freezer.hold(device.number, &mounted.mount_point)?),
                None if record.is_filesystem() => {
                    return Err(Error::Unavailable(
                        format!(
                            "volume {id} is {path}, and its mount is not visible: it is being staged or \
                         unstaged, or the node's mounts are not shared with this process"
                        )
                        .into(),
                    ));
                }
                None if consistency == Consistency::Group => {
                    return Err(Error::NotPossible(
                        format!(
                            "{path} is a raw device in use: its workload can write between two snapshots"
                        )
                        .into(),
                    ));
                }
                None => sync(&device.path)?,
            }
        }
        Ok(QuiescedVolume { _holds: holds })
    }
}
