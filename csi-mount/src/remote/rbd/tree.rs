//! What the kernel says about the images that are mapped on this node (`/sys/bus/rbd/devices`).

use std::fs;
use std::path::{Path, PathBuf};

use crate::remote::scsi::unit::text;
use crate::{DeviceNumber, Error, Result};

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

/// The bus's directory.
pub(super) fn bus(sys: &Path) -> PathBuf {
    sys.join("bus/rbd")
}

/// All mappings. One that goes away meanwhile is left out.
pub(super) fn mappings(sys: &Path) -> Result<Vec<Mapping>> {
    let devices = bus(sys).join("devices");
    let failed = |error| Error::os("list the mapped images in", &devices, error);
    let entries = match fs::read_dir(&devices) {
        // The module is not loaded.
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(failed)?,
    };
    let mut found = Vec::new();
    for entry in entries {
        found.extend(mapping(entry.map_err(failed)?.path()));
    }
    found.sort_by(|one: &Mapping, other| one.id.cmp(&other.id));
    Ok(found)
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
