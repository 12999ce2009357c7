//! A block device as such at the place where a workload sees it.

use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use super::publish::take_back;
use crate::fnv::fnv1a;
use crate::intent;
use crate::{
    Bind, BlockDevice, DeviceAccess, DeviceNumber, Error, ErrorKind, LoopCache, LoopDevice, LoopOptions,
    Outcome, Result, Target,
};

const PUBLISH: &str = "publish device at";

/// Binds a block device's node onto the target file.
///
/// A read-only bind does not stop writes to a device, so for [`ReadOnly`](DeviceAccess::ReadOnly) the node is that of a
/// read-only loop device over it, which refuses them whoever opens it; other targets of the device stay writable. A
/// device that refuses writes itself is bound as it is. The loop device has a cache of its own: beside a writer, a
/// reader sees again what it once read, unless it reads with `O_DIRECT`.
///
/// # Errors
///
/// [`ReadOnly`](ErrorKind::ReadOnly) if the device refuses writes and they are asked for,
/// [`AlreadyMounted`](ErrorKind::AlreadyMounted) if another device is there or the same with other access, and those
/// of [`BlockDevice::open`], [`LoopDevice::attach`], [`Bind::at`] and [`Target::create_file`].
pub fn publish_device(device: impl AsRef<Path>, target: &Target, access: DeviceAccess) -> Result<Outcome> {
    let device = BlockDevice::open(device)?;
    let refuses_writes = device.is_read_only()?;
    if access == DeviceAccess::ReadWrite {
        if refuses_writes {
            let reason = format!("{} refuses writes", device.path().display());
            return Err(Error::new(ErrorKind::ReadOnly, PUBLISH, reason)
                .at(target.path())
                .mend("publish it read-only"));
        }
        // From now on what is on it is its user's, whatever an interrupted format left.
        intent::settle(&device)?;
        return bind(&device, target);
    }
    if refuses_writes {
        return bind(&device, target);
    }
    let (loop_device, is_new) = read_only_over(&device, target)?;
    let bound = BlockDevice::open(loop_device.path()).and_then(|node| bind(&node, target));
    if bound.is_err()
        && is_new
        && let Err(left) = loop_device.detach()
    {
        tracing::warn!(%left, "the loop device of a target that could not be published is left");
    }
    bound
}

fn bind(device: &BlockDevice, target: &Target) -> Result<Outcome> {
    let created = target.create_file()?;
    let outcome = Bind::new(device.path()).at(target).inspect_err(|_| take_back(created, target))?;
    let bound = target.facts(PUBLISH)?.map(|facts| facts.node);
    if bound == Some(device.number()) {
        return Ok(outcome);
    }
    let reason = format!("asked for {}, the kernel has {bound:?}", device.number());
    Err(Error::new(ErrorKind::WrongDevice, PUBLISH, reason).at(target.path()))
}

/// The read-only loop device of this target over this device, and whether it is new.
fn read_only_over(device: &BlockDevice, target: &Target) -> Result<(LoopDevice, bool)> {
    let mark = mark(target);
    for (found, beneath) in LoopDevice::find_marked(&mark)? {
        if beneath == device.number() && found.access()? == DeviceAccess::ReadOnly {
            return Ok((found, false));
        }
    }
    let options = LoopOptions::new().access(DeviceAccess::ReadOnly).cache(LoopCache::Direct).mark(mark);
    Ok((LoopDevice::attach(device.path(), &options)?, true))
}

/// Detaches the loop devices that were made for this target, also by a process that has since died.
pub(super) fn detach_read_only(target: &Target) -> Result<()> {
    for (found, _) in LoopDevice::find_marked(&mark(target))? {
        found.detach()?;
    }
    Ok(())
}

/// The loop device of this number, if it was made for this target, and what is beneath it.
pub(super) fn made_for(number: DeviceNumber, target: &Path) -> Result<Option<(LoopDevice, DeviceNumber)>> {
    let marked = LoopDevice::find_marked(&mark_of(target))?;
    Ok(marked.into_iter().find(|(found, _)| found.number() == number))
}

fn mark(target: &Target) -> String {
    mark_of(target.path())
}

/// The name kept by the kernel with a target's loop device, by which it is found again: paths can be longer than fits.
fn mark_of(target: &Path) -> String {
    format!("csi-mount read-only {:016x}", fnv1a(target.as_os_str().as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_the_same_in_every_version_and_fit() {
        assert_eq!(mark_of(Path::new("/target")), "csi-mount read-only e2e6a944b2d2df2f");
        assert_ne!(mark_of(Path::new("/target")), mark_of(Path::new("/targeu")));
        assert!(mark_of(Path::new("/")).len() < 64);
    }
}
