//! Publishing a block device itself where a workload sees it.

use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use rustix::fs::FileType;

use crate::device::block_device::{BlockDevice, DeviceAccess};
use crate::device::loop_device::{LoopCache, LoopDevice, LoopOptions};
use crate::device::mount_places;
use crate::error::{Error, ErrorKind, Result};
use crate::filesystem::format::record;
use crate::flow::remove_created;
use crate::mounting::attach::Outcome;
use crate::mounting::bind::Bind;
use crate::mounting::unmount::unmount;
use crate::place::target::Target;
use crate::sys::hash::fnv1a;
use crate::sys::ids::DeviceNumber;

const PUBLISH: &str = "publish device at";

/// See [`BlockVolumes::publish_device`](crate::BlockVolumes::publish_device).
pub fn publish_device(device: impl AsRef<Path>, target: &Target, access: DeviceAccess) -> Result<Outcome> {
    let device = BlockDevice::open(device)?;
    let refuses_writes = device.is_read_only()?;
    if access == DeviceAccess::ReadWrite {
        if refuses_writes {
            let reason = format!("{} refuses writes", device.path().display());
            return Err(Error::new(ErrorKind::ReadOnly, PUBLISH, reason)
                .at(target.path())
                .hint("publish it read-only"));
        }
        // From here on the content belongs to the workload: no record of a format must allow formatting it.
        record::remove_record(&device)?;
    }
    // The file is made first: an unpublish after a crash then finds it, and through it the loop device.
    let created = target.create_for_publish(FileType::RegularFile)?;
    let published = match access {
        DeviceAccess::ReadOnly if !refuses_writes => bind_read_only(&device, target),
        _ => bind(&device, target),
    };
    published.inspect_err(|_| remove_created(created, target))
}

/// Binds the node of this target's read-only loop device over the device.
fn bind_read_only(device: &BlockDevice, target: &Target) -> Result<Outcome> {
    let (loop_device, is_new) = read_only_over(device, target)?;
    let bound = BlockDevice::open(loop_device.path()).and_then(|node| bind(&node, target));
    if bound.is_err()
        && is_new
        && let Err(left) = loop_device.detach()
    {
        tracing::warn!(%left, "a loop device stays after a failed publish");
    }
    bound
}

fn bind(device: &BlockDevice, target: &Target) -> Result<Outcome> {
    let outcome = Bind::new(device.path()).at(target)?;
    let bound = target.facts(PUBLISH)?.map(|facts| facts.node);
    if bound == Some(device.number()) {
        return Ok(outcome);
    }
    if outcome == Outcome::Mounted
        && let Err(left) = unmount(target)
    {
        tracing::warn!(%left, "the target shows another device, and stays");
    }
    let reason = format!("{} was requested, but the node at the target is {bound:?}", device.number());
    Err(Error::new(ErrorKind::WrongDevice, PUBLISH, reason).at(target.path()))
}

/// Returns the read-only loop device of this target over this device, and whether it is new.
fn read_only_over(device: &BlockDevice, target: &Target) -> Result<(LoopDevice, bool)> {
    let mark = mark(target);
    for (found, beneath) in LoopDevice::find_marked(|found| found == mark.as_bytes())? {
        if beneath == device.number() && !found.is_autoclear() && found.access()? == DeviceAccess::ReadOnly {
            // A loop device left by a killed process still has the size that the device had then.
            found.refresh_size()?;
            return Ok((found, false));
        }
    }
    let options = LoopOptions::new().access(DeviceAccess::ReadOnly).cache(LoopCache::Direct).mark(mark);
    Ok((LoopDevice::attach(device.path(), &options)?, true))
}

/// Detaches the loop devices that were made for this target and its volume, also those of a process that
/// has since died.
///
/// The same path in another mount namespace is another target. So a loop device whose node is still bound
/// somewhere stays: at this target it is no longer bound.
pub(super) fn detach_read_only(target: &Target) -> Result<()> {
    let of_path = mark_of(target.path());
    let own = mark(target);
    let is_own = |found: &[u8]| match target.owner() {
        Some(_) => found == own.as_bytes() || found == of_path.as_bytes(),
        None => found.starts_with(of_path.as_bytes()),
    };
    for (found, _) in LoopDevice::find_marked(is_own)? {
        match mount_places::bound_at(found.number())? {
            None => found.detach()?,
            Some(place) => tracing::debug!(device = %found.path().display(), %place,
                "a loop device with this target's mark is published at another path, and stays"),
        }
    }
    Ok(())
}

/// Detaches the loop devices over a device that a killed publish left without the mark of its target.
pub(super) fn detach_unfinished(device: &Path) -> Result<()> {
    LoopDevice::find_unfinished(device)?.into_iter().try_for_each(LoopDevice::detach)
}

/// The loop device with this number, if it was made for this target, and the device beneath it.
pub(super) fn made_for(number: DeviceNumber, target: &Path) -> Result<Option<(LoopDevice, DeviceNumber)>> {
    let mark = mark_of(target);
    let marked = LoopDevice::find_marked(|found| found.starts_with(mark.as_bytes()))?;
    Ok(marked.into_iter().find(|(found, _)| found.number() == number))
}

/// The mark of a target's loop device: a name that the kernel stores with it and by which it is found
/// again. It contains the hash of the path and, if the target has an owner, of the volume.
fn mark(target: &Target) -> String {
    let mark = mark_of(target.path());
    match target.owner() {
        Some(owner) => format!("{mark} {:016x}", fnv1a(owner.volume().as_bytes())),
        None => mark,
    }
}

/// The first part of the mark, made from the path. The path is hashed because it can be longer than the
/// kernel stores.
fn mark_of(target: &Path) -> String {
    format!("csi-mount read-only {:016x}", fnv1a(target.as_os_str().as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::place::owner::Owner;

    #[test]
    fn marks_are_the_same_in_every_version_and_fit() {
        assert_eq!(mark_of(Path::new("/target")), "csi-mount read-only e2e6a944b2d2df2f");
        assert_ne!(mark_of(Path::new("/target")), mark_of(Path::new("/targeu")));
        let owned = Target::new("/target").unwrap().owned_by(Owner::new("driver", "vol-1"));
        assert_eq!(mark(&owned), "csi-mount read-only e2e6a944b2d2df2f 9d5e6182992a0acc");
        assert!(mark(&owned).len() < 64);
    }
}
