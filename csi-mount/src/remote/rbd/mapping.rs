//! The images that are mapped on this node (`/sys/bus/rbd/devices`), and which of them is the volume's.

use std::path::{Path, PathBuf};

use super::target::RbdDisk;
use crate::error::{Error, ErrorKind, Result};
use crate::remote::ask::{entries, text};
use crate::sys::ids::DeviceNumber;

/// An image itself, and not one of its snapshots.
const HEAD: &str = "-";

/// An image that is mapped.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Mapping {
    /// The number in `/dev/rbdN`, which the kernel gives to another image later.
    pub(super) id: String,
    pub(super) place: PathBuf,
    /// None while it comes or goes.
    pub(super) number: Option<DeviceNumber>,
    pub(super) fsid: String,
    pub(super) pool_id: u64,
    /// The names at the time of the map.
    pub(super) pool: String,
    pub(super) image: String,
    pub(super) image_id: String,
    /// `-`: the image itself.
    pub(super) snapshot: String,
}

impl Mapping {
    /// The kernel's name for its disk.
    pub(super) fn name(&self) -> String {
        format!("rbd{}", self.id)
    }
}

/// The bus's directory.
pub(super) fn bus(sys: &Path) -> PathBuf {
    sys.join("bus/rbd")
}

/// All mappings. One that goes away meanwhile is left out.
pub(super) fn mappings(sys: &Path) -> Result<Vec<Mapping>> {
    let devices = entries("list the mapped images in", &bus(sys).join("devices"))?;
    Ok(devices.into_iter().filter_map(mapping).collect())
}

fn mapping(place: PathBuf) -> Option<Mapping> {
    let attribute = |name: &str| text(&place.join(name));
    let part = |name: &str| attribute(name)?.parse().ok();
    Some(Mapping {
        id: place.file_name()?.to_str()?.to_owned(),
        number: part("major").zip(part("minor")).map(|(major, minor)| DeviceNumber { major, minor }),
        fsid: attribute("cluster_fsid")?,
        pool_id: attribute("pool_id")?.parse().ok()?,
        pool: attribute("pool")?,
        image: attribute("name")?,
        image_id: attribute("image_id")?,
        snapshot: attribute("current_snap")?,
        place,
    })
}

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
            .hint("unmap those that nothing uses and that this driver did not map"));
    }
    Ok(found.pop())
}

pub(super) fn is_mapped(sys: &Path, disk: &RbdDisk) -> Result<bool> {
    Ok(!all(sys, disk)?.is_empty())
}

/// The number of the image's disk.
pub(super) fn number(sys: &Path, disk: &RbdDisk) -> Result<Option<DeviceNumber>> {
    Ok(one(sys, disk)?.and_then(|mapping| mapping.number))
}

#[cfg(test)]
mod tests;
