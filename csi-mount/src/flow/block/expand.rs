//! More room for a volume that is staged or published.

use std::path::Path;

use super::{Place, raw};
use crate::{BlockDevice, Error, ErrorKind, Filesystem, Grown, Result, grow_mounted};

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
/// [`PermissionDenied`](ErrorKind::PermissionDenied), and it grows when it is staged next.
pub fn expand(at: impl AsRef<Path>) -> Result<Grown> {
    let place = Place::at(at.as_ref(), EXPAND)?;
    let at = place.path.as_path();
    if place.is_block_device() {
        raw::refresh(place.facts.node, at)?;
        return Ok(Grown::Unchanged { size: BlockDevice::by_number(place.facts.node)?.size()? });
    }
    let filesystem: Filesystem = place.details.fs_type.parse().map_err(|error: Error| error.at(at))?;
    let number = place.device().ok_or_else(|| {
        Error::new(ErrorKind::NotFound, EXPAND, "the device of the filesystem is not there").at(at)
    })?;
    grow_mounted(&BlockDevice::by_number(number)?, filesystem, at)
}
