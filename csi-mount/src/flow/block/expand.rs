//! Growing a volume that is staged or published.

use std::path::Path;

use super::raw;
use super::usage::VolumePath;
use crate::device::block_device::BlockDevice;
use crate::device::loop_device::LoopDevice;
use crate::device::mapping::Mapping;
use crate::error::{Error, ErrorKind, Result};
use crate::filesystem::grow::{Grown, grow_mounted};
use crate::filesystem::kind::Filesystem;
use crate::mounted::health;
use crate::sys::ids::DeviceNumber;

const EXPAND: &str = "expand";

/// See [`BlockVolumes::expand`](crate::BlockVolumes::expand).
pub fn expand(at: impl AsRef<Path>) -> Result<Grown> {
    #[cfg(feature = "luks")]
    let grow_inside = |number| grow_inside(number, None);
    #[cfg(not(feature = "luks"))]
    let grow_inside = |_| Ok(());
    expand_after(at.as_ref(), grow_inside)
}

/// See [`BlockVolumes::expand_encrypted`](crate::BlockVolumes::expand_encrypted).
#[cfg(feature = "luks")]
pub fn expand_encrypted(at: impl AsRef<Path>, key: &crate::LuksKey) -> Result<Grown> {
    expand_after(at.as_ref(), |number| grow_inside(number, Some(key)))
}

/// If the device is inside an encrypted device, grows it to the whole size of that device.
#[cfg(feature = "luks")]
fn grow_inside(number: DeviceNumber, key: Option<&crate::LuksKey>) -> Result<()> {
    match Mapping::find_by_number(number)? {
        Some(mapping) => crate::luks::grow(&mapping, key),
        None => Ok(()),
    }
}

/// See [`BlockVolumes::device_size`](crate::BlockVolumes::device_size).
pub fn device_size(at: impl AsRef<Path>) -> Result<u64> {
    const READ: &str = "read the size of the device at";
    let place = VolumePath::at(at.as_ref(), READ)?;
    let (number, _) = device_beneath(&place, READ)?;
    let encrypted = Mapping::find_by_number(number)?.and_then(|mapping| mapping.beneath());
    BlockDevice::from_number(encrypted.unwrap_or(number))?.size()
}

fn expand_after(at: &Path, grow_device: impl FnOnce(DeviceNumber) -> Result<()>) -> Result<Grown> {
    let place = VolumePath::at(at, EXPAND)?;
    let at = place.path.as_path();
    let (number, over) = device_beneath(&place, EXPAND)?;
    if place.is_block_device() {
        grow_device(number)?;
        over.map_or(Ok(()), |over| over.refresh_size())?;
        return Ok(Grown::Unchanged { size: BlockDevice::from_number(place.facts.node)?.size()? });
    }
    health::require_answer(EXPAND, at)?;
    let filesystem: Filesystem = place.details.fs_type.parse().map_err(|error: Error| error.at(at))?;
    grow_device(number)?;
    grow_mounted(&BlockDevice::from_number(number)?, filesystem, at)
}

/// The device of the volume, and the loop device over it if it is published read-only.
fn device_beneath(place: &VolumePath, operation: &'static str) -> Result<(DeviceNumber, Option<LoopDevice>)> {
    if place.is_block_device()
        && let Some((over, beneath)) = raw::made_for(place.facts.node, &place.path)?
    {
        return Ok((beneath, Some(over)));
    }
    let device = place.device().ok_or_else(|| {
        Error::new(ErrorKind::NotFound, operation, "the filesystem's device is not present").at(&place.path)
    })?;
    Ok((device, None))
}
