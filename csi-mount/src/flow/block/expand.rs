//! Growing a volume that is staged or published.

use std::path::Path;

use super::{VolumePath, raw};
use crate::{BlockDevice, DeviceNumber, Error, ErrorKind, Filesystem, Grown, Result, grow_mounted};

const EXPAND: &str = "expand";

/// Grows the volume at a staging or target path to the whole size of its device, which has grown.
///
/// A filesystem grows while it is mounted. A published raw device has its new size already, except one that
/// is published read-only: its loop device is made to read the size again.
///
/// # Errors
///
/// [`NotFound`](ErrorKind::NotFound) if nothing is mounted there. [`Unsupported`](ErrorKind::Unsupported)
/// for a filesystem other than ext4, XFS and btrfs. Those of [`grow_mounted`]: for ext4 without
/// `CAP_SYS_RESOURCE` it is [`PermissionDenied`](ErrorKind::PermissionDenied), and the filesystem grows the
/// next time it is staged. With the feature `luks`, [`WrongKey`](ErrorKind::WrongKey) if the volume is
/// inside an encrypted device that has grown: see `expand_encrypted`.
pub fn expand(at: impl AsRef<Path>) -> Result<Grown> {
    #[cfg(feature = "luks")]
    let grow_inside = |number| grow_inside(number, None);
    #[cfg(not(feature = "luks"))]
    let grow_inside = |_| Ok(());
    expand_after(at.as_ref(), grow_inside)
}

/// As [`expand`], for a volume that can be inside an encrypted device, which grows first.
///
/// # Errors
///
/// As for [`expand`], and [`WrongKey`](ErrorKind::WrongKey) if the key is not the device's.
#[cfg(feature = "luks")]
pub fn expand_encrypted(at: impl AsRef<Path>, key: &crate::LuksKey) -> Result<Grown> {
    expand_after(at.as_ref(), |number| grow_inside(number, Some(key)))
}

/// If the device is inside an encrypted device, grows it to the whole size of that device.
#[cfg(feature = "luks")]
fn grow_inside(number: DeviceNumber, key: Option<&crate::LuksKey>) -> Result<()> {
    match crate::device::mapping::Mapping::find_by_number(number)? {
        Some(mapping) => crate::luks::grow(&mapping, key),
        None => Ok(()),
    }
}

fn expand_after(at: &Path, grow_device: impl FnOnce(DeviceNumber) -> Result<()>) -> Result<Grown> {
    let place = VolumePath::at(at, EXPAND)?;
    let at = place.path.as_path();
    if place.is_block_device() {
        match raw::made_for(place.facts.node, at)? {
            Some((over, beneath)) => {
                grow_device(beneath)?;
                over.refresh_size()?;
            }
            None => grow_device(place.facts.node)?,
        }
        return Ok(Grown::Unchanged { size: BlockDevice::from_number(place.facts.node)?.size()? });
    }
    let filesystem: Filesystem = place.details.fs_type.parse().map_err(|error: Error| error.at(at))?;
    let number = place.device().ok_or_else(|| {
        Error::new(ErrorKind::NotFound, EXPAND, "the filesystem's device is not present").at(at)
    })?;
    grow_device(number)?;
    grow_mounted(&BlockDevice::from_number(number)?, filesystem, at)
}
