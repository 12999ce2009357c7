//! The decisions about mappings, as functions of what the kernel and the records say.

use std::path::Path;

use super::target::RbdDisk;
use super::tree::{Mapping, mappings};
use crate::{DeviceNumber, Error, ErrorKind, Result};

/// An image itself, and not one of its snapshots.
const HEAD: &str = "-";

/// The mappings of an image: several nodes, and several programs of a node, can map it.
pub(super) fn all(sys: &Path, disk: &RbdDisk) -> Result<Vec<Mapping>> {
    let mut found = mappings(sys)?;
    found.retain(|mapping| is_of(mapping, disk));
    Ok(found)
}

fn is_of(mapping: &Mapping, disk: &RbdDisk) -> bool {
    mapping.fsid == disk.fsid
        && mapping.pool_id == disk.pool_id
        && mapping.image_id == disk.image_id
        && mapping.snapshot == HEAD
}

/// The mapping of an image; none if it is not mapped.
///
/// # Errors
///
/// [`WrongDevice`](ErrorKind::WrongDevice) if it is mapped twice: two disks with one content are not safe to use.
pub(super) fn one(sys: &Path, disk: &RbdDisk) -> Result<Option<Mapping>> {
    let mut found = all(sys, disk)?;
    if let [first, second, ..] = &found[..] {
        let reason = format!("it is mapped more than once: as rbd{} and rbd{}", first.id, second.id);
        return Err(Error::new(ErrorKind::WrongDevice, "find", reason)
            .at(disk.to_string())
            .hint("unmap those that this driver did not map"));
    }
    Ok(found.pop())
}

pub(in crate::remote) fn is_mapped(sys: &Path, disk: &RbdDisk) -> Result<bool> {
    Ok(!all(sys, disk)?.is_empty())
}

/// The number of the image's disk.
pub(in crate::remote) fn number(sys: &Path, disk: &RbdDisk) -> Result<Option<DeviceNumber>> {
    Ok(one(sys, disk)?.and_then(|mapping| mapping.number))
}

#[cfg(test)]
mod tests;
