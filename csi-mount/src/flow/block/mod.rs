//! Node flow for volumes that are block devices.
//!
//! | step | filesystem volume | raw block volume |
//! |---|---|---|
//! | stage | [`stage`]: wait, probe, format if blank, check, grow, mount | |
//! | publish | [`publish`]: bind the staged filesystem | [`publish_device`]: bind the device's node |
//! | expand | [`expand`] | [`expand`] |
//! | stats | [`usage`] | [`usage`] |
//! | unpublish | [`unpublish`] | [`unpublish`] |
//! | unstage | [`unstage`]: unmount, and the device is free | |
//!
//! With the feature `luks`, a device can be encrypted (`StagePlan::encrypted`). Stage opens it, after
//! encrypting it if it is blank, and unstage closes it. What these pages say about the device then holds
//! for the device inside, which [`opened_device`] finds. For raw use, `stage_device` opens the device.
//! `expand_encrypted` takes the key, which growing needs.
//!
//! A repeated step finds its work done and succeeds. A step that finds the work of somebody else refuses.
//!
//! ```no_run
//! use csi_mount::flow::block::{StagePlan, publish, stage, unpublish, unstage};
//! use csi_mount::{Filesystem, MountAttributes, MountOptions, Target};
//!
//! let device = "/dev/disk/by-id/virtio-vol-1";
//! let staging = Target::new("/var/lib/kubelet/plugins/kubernetes.io/csi/block.example.org/vol-1/globalmount")?;
//! let target = Target::new("/var/lib/kubelet/pods/1/volumes/kubernetes.io~csi/vol-1/mount")?;
//!
//! let plan = StagePlan::new(Filesystem::Xfs).options(MountOptions::parse(["noatime"])?);
//! let staged = stage(device, &staging, &plan)?;
//! println!("{} is staged: {:?}", staged.device, staged.origin);
//! publish(staging.path(), &target, MountAttributes::RDONLY)?;
//!
//! unpublish(&target)?;
//! unstage(&staging, Some(device.as_ref()))?;
//! # Ok::<(), csi_mount::Error>(())
//! ```

mod copies;
mod encrypted;
mod expand;
mod plan;
mod publish;
mod raw;
mod stage;
mod unstage;
mod usage;

use std::path::{Path, PathBuf};

use crate::place::on_device::block_device_at;
use crate::table::details::Details;
use crate::table::facts::Facts;
use crate::{BlockDevice, DeviceNumber, Error, ErrorKind, MountState, Result, Target};

pub use encrypted::opened_device;
#[cfg(feature = "luks")]
pub use encrypted::stage_device;
pub use expand::expand;
#[cfg(feature = "luks")]
pub use expand::expand_encrypted;
pub use plan::{StageCheck, StagePlan};
pub use publish::{publish, publish_with_id_map, unpublish};
pub use raw::publish_device;
pub use stage::{FilesystemOrigin, Staged, stage};
pub use unstage::{MountCopies, unstage, unstage_with};
pub use usage::{VolumeUsage, usage};

/// Returns the block device of a volume: the one under the filesystem mounted at this path, or the one
/// whose node is bound there.
///
/// It does not ask the filesystem, so it also returns if the filesystem hangs.
///
/// # Errors
///
/// [`NotFound`](ErrorKind::NotFound) if nothing is mounted there, [`Unsupported`](ErrorKind::Unsupported)
/// if the filesystem there has no block device.
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
struct VolumePath {
    path: PathBuf,
    facts: Facts,
    details: Details,
}

impl VolumePath {
    fn at(path: &Path, operation: &'static str) -> Result<Self> {
        let target = Target::new(path)?;
        let nothing =
            || Error::new(ErrorKind::NotFound, operation, "nothing is mounted there").at(target.path());
        // For a directory that is not the root of a mount, the device would be that of the node's own disk.
        if !matches!(target.state()?, MountState::Mounted(_)) {
            return Err(nothing());
        }
        let opened = target.open(operation)?;
        let details = Details::from_fd(&opened.fd, operation, target.path())?.ok_or_else(nothing)?;
        Ok(Self { path: target.path().to_owned(), facts: opened.facts, details })
    }

    fn is_block_device(&self) -> bool {
        self.facts.file_type == rustix::fs::FileType::BlockDevice
    }

    fn device(&self) -> Option<DeviceNumber> {
        if self.is_block_device() { Some(self.facts.node) } else { device_under(&self.details) }
    }
}

/// The block device of a mounted filesystem. For btrfs only the mount source identifies it.
fn device_under(details: &Details) -> Option<DeviceNumber> {
    match details.device.major {
        0 => block_device_at(&details.source),
        _ => Some(details.device),
    }
}

/// Waits up to one second for a device to be free: an unmount elsewhere can be in progress.
fn wait_until_free(device: &BlockDevice) -> Result<bool> {
    use std::time::{Duration, Instant};
    let end = Instant::now() + Duration::from_secs(1);
    loop {
        match device.in_use()? {
            crate::DeviceUse::Free => return Ok(true),
            crate::DeviceUse::InUse if Instant::now() >= end => return Ok(false),
            crate::DeviceUse::InUse => std::thread::sleep(Duration::from_millis(10)),
        }
    }
}
