//! From a mounted filesystem to a device that nobody uses.

use std::path::Path;

use super::encrypted::mapping_of;
use super::{device_under, is_free_soon};
use crate::details::Details;
use crate::mapping::Mapping;
use crate::published::published_at;
use crate::{
    BlockDevice, DeviceNumber, Error, ErrorKind, LoopDevice, MountState, Result, Target, Unmounted, mounts,
    unmount,
};

const UNSTAGE: &str = "unstage";

/// Unmounts the staging directory, every layer, and makes sure that the device is free in every mount namespace. An encrypted
/// device that was opened for it is closed, however far that had come, and though the device be gone.
///
/// The directory stays: it is the orchestrator's. Give the device where it is known: repeated after it failed with
/// [`Busy`](ErrorKind::Busy), nothing is mounted any more that would tell which device was meant. A device that is
/// gone is free.
///
/// - spec: `node-unstage-volume.undoes`, `node-unstage-volume.not-staged-is-ok`
///
/// # Errors
///
/// [`Busy`](ErrorKind::Busy) if the staged filesystem is in use, or still mounted elsewhere: the message lists where,
/// or says that it is another mount namespace; or if the device, or the one inside an encrypted one, is still published raw.
/// [`WrongDevice`](ErrorKind::WrongDevice) if another device than the
/// given one is mounted there; it stays mounted.
pub fn unstage(staging: &Target, device: Option<&Path>) -> Result<Unmounted> {
    let known = device.map(open_if_there).transpose()?.flatten();
    let mapping = mapping_of(staging)?;
    let mounted = mounted_device(staging)?;
    // Of an encrypted device the one inside is mounted, or nothing yet.
    let beneath = match &mapping {
        Some(mapping) if mounted.as_ref().is_none_or(|mounted| mounted.number() == mapping.number()) => {
            mapping.beneath()
        }
        _ => mounted.as_ref().map(BlockDevice::number),
    };
    if let (Some(known), Some(found)) = (&known, beneath)
        && known.number() != found
    {
        let reason = format!("asked for {} ({}), {found} is there", known.path().display(), known.number());
        return Err(Error::new(ErrorKind::WrongDevice, UNSTAGE, reason).at(staging.path()));
    }
    refuse_published([known.as_ref(), mounted.as_ref()], mapping.as_ref(), staging)?;
    if let Some(mapping) = &mapping {
        mapping.go_on()?;
    }
    let unmounted = unmount(staging)?;
    // It is closed only once nobody has it open, this included.
    let mounted = mounted.filter(|_| mapping.is_none());
    if let Some(mapping) = mapping {
        mapping.close().map_err(|error| match (error.kind(), mapping.device()) {
            (ErrorKind::Busy, Ok(inside)) => still_in_use(&inside, staging),
            _ => error,
        })?;
    }
    match known.or(mounted) {
        Some(device) if !is_free(&device)? => Err(still_in_use(&device, staging)),
        _ => Ok(unmounted),
    }
}

/// A node of a device that is bound somewhere keeps nothing open, and neither keeps a read-only loop device over it others from
/// opening it exclusively. Left there, they would be those of whatever volume gets the number next.
fn refuse_published(
    devices: [Option<&BlockDevice>; 2],
    mapping: Option<&Mapping>,
    staging: &Target,
) -> Result<()> {
    let busy = |reason| Error::new(ErrorKind::Busy, UNSTAGE, reason).at(staging.path());
    let (mut numbers, mut loops) = (Vec::<DeviceNumber>::new(), Vec::new());
    for device in devices.into_iter().flatten() {
        // What is mounted is the device that was named, as a rule, and each look asks all loop devices.
        if !numbers.contains(&device.number()) {
            loops.extend(LoopDevice::find(device.path())?);
            numbers.push(device.number());
        }
    }
    numbers.extend(mapping.map(Mapping::number).into_iter().chain(loops.iter().map(LoopDevice::number)));
    if let Some(place) = published_at(&numbers)? {
        let reason = format!("its device is still published at {}", place.display());
        return Err(busy(reason).mend("unpublish it first"));
    }
    match loops.first() {
        Some(over) => {
            let reason = format!("the loop device {} is still over its device", over.path().display());
            Err(busy(reason).mend("unpublish what it was made for once more, or detach it"))
        }
        None => Ok(()),
    }
}

fn is_free(device: &BlockDevice) -> Result<bool> {
    match is_free_soon(device) {
        // It went away, or its number is another disk's by now.
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::WrongDevice) => Ok(true),
        other => other,
    }
}

fn open_if_there(path: &Path) -> Result<Option<BlockDevice>> {
    match BlockDevice::open(path) {
        Ok(device) => Ok(Some(device)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// The device mounted at staging; none if it has none, or is gone.
fn mounted_device(staging: &Target) -> Result<Option<BlockDevice>> {
    if !matches!(staging.state()?, MountState::Mounted(_)) {
        return Ok(None);
    }
    // The descriptor is closed before the unmount, which it would keep from succeeding.
    let seen = staging.look(UNSTAGE)?;
    let Some(number) = Details::of(&seen.fd, UNSTAGE, staging.path())?.as_ref().and_then(device_under) else {
        return Ok(None);
    };
    match BlockDevice::by_number(number) {
        Ok(device) => Ok(Some(device)),
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::WrongDevice) => Ok(None),
        Err(error) => Err(error),
    }
}

fn still_in_use(device: &BlockDevice, staging: &Target) -> Error {
    let holders: Vec<String> = mounts()
        .unwrap_or_default()
        .into_iter()
        .filter(|entry| device_under(&entry.clone().into()) == Some(device.number()))
        .map(|entry| entry.mount_point.display().to_string())
        .collect();
    let reason = format!("the device {} ({}) is still in use", device.path().display(), device.number());
    let error = Error::new(ErrorKind::Busy, UNSTAGE, reason).at(staging.path());
    if holders.is_empty() {
        error.mend("it is mounted in another mount namespace, or opened exclusively: end what holds it")
    } else {
        error.because(format!("it is mounted at {}", holders.join(", "))).mend("unpublish it first")
    }
}
