//! More room for a volume that is staged or published.

use std::path::Path;

use super::{Place, raw};
use crate::{BlockDevice, DeviceNumber, Error, ErrorKind, Filesystem, Grown, Result, grow_mounted};

const EXPAND: &str = "expand";

/// Lets the volume at a staging or target path use the whole of its device, which has grown.
///
/// A filesystem is grown while mounted; a published device has its new size by itself, but for the read-only one, whose
/// loop device is told.
///
/// # Errors
///
/// [`NotFound`](ErrorKind::NotFound) if nothing is mounted there, [`Unsupported`](ErrorKind::Unsupported) if it is another
/// filesystem than ext4, XFS and btrfs, and those of [`grow_mounted`]: for ext4 without `CAP_SYS_RESOURCE`
/// [`PermissionDenied`](ErrorKind::PermissionDenied), and it grows when it is staged next. With the feature `luks`,
/// [`WrongKey`](ErrorKind::WrongKey) if it is inside an encrypted device that has grown: see `expand_encrypted`.
pub fn expand(at: impl AsRef<Path>) -> Result<Grown> {
    #[cfg(feature = "luks")]
    let grow_inside = |number| grow_inside(number, None);
    #[cfg(not(feature = "luks"))]
    let grow_inside = |_| Ok(());
    expand_after(at.as_ref(), grow_inside)
}

/// As [`expand`], for a volume that may be inside an encrypted device, which grows first.
///
/// # Errors
///
/// As for [`expand`], and [`WrongKey`](ErrorKind::WrongKey) if the key is not the device's.
#[cfg(feature = "luks")]
pub fn expand_encrypted(at: impl AsRef<Path>, key: &crate::LuksKey) -> Result<Grown> {
    expand_after(at.as_ref(), |number| grow_inside(number, Some(key)))
}

/// Lets the device use the whole of the encrypted device that it is inside of, if it is.
#[cfg(feature = "luks")]
fn grow_inside(number: DeviceNumber, key: Option<&crate::LuksKey>) -> Result<()> {
    match crate::device::mapping::Mapping::numbered(number)? {
        Some(mapping) => crate::luks::grow(&mapping, key),
        None => Ok(()),
    }
}

fn expand_after(at: &Path, grow_device: impl FnOnce(DeviceNumber) -> Result<()>) -> Result<Grown> {
    let place = Place::at(at, EXPAND)?;
    let at = place.path.as_path();
    if place.is_block_device() {
        match raw::made_for(place.facts.node, at)? {
            Some((over, beneath)) => {
                grow_device(beneath)?;
                over.refresh_size()?;
            }
            None => grow_device(place.facts.node)?,
        }
        return Ok(Grown::Unchanged { size: BlockDevice::by_number(place.facts.node)?.size()? });
    }
    let filesystem: Filesystem = place.details.fs_type.parse().map_err(|error: Error| error.at(at))?;
    let number = place.device().ok_or_else(|| {
        Error::new(ErrorKind::NotFound, EXPAND, "the device of the filesystem is not there").at(at)
    })?;
    grow_device(number)?;
    grow_mounted(&BlockDevice::by_number(number)?, filesystem, at)
}
