//! The decisions about maps and paths, as functions of what sysfs says.

use crate::device::sysfs::{MultipathMap, Sysfs, is_same_wwn};
use crate::error::{Error, ErrorKind, Result};
use crate::sys::ids::DeviceNumber;

const CHECK: &str = "check the paths of a multipath map";

/// What the node has for a disk.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum State {
    /// The map can be used: all live paths belong to it.
    Whole(DeviceNumber),
    /// There is no such map yet.
    Incomplete {
        /// The map that lacks paths, or is not ready.
        map: Option<String>,
        /// The names of the live paths that belong to no map.
        missing: Vec<String>,
    },
}

/// The map of this disk. A map is found by its UUID only: names and paths are given to other disks.
pub(super) fn map(sysfs: &Sysfs, wwid: &str) -> Result<Option<MultipathMap>> {
    let is_wanted = |map: &MultipathMap| is_same_wwn(&map.uuid, wwid);
    Ok(sysfs.multipath_maps()?.into_iter().find(is_wanted))
}

/// Refuses a map with a path that leads to another disk, because the storage system gave its number away.
pub(super) fn check_paths(map: &MultipathMap) -> Result<()> {
    let foreign = map.paths.iter().find_map(|(number, wwn)| {
        let wwn = wwn.as_ref().filter(|wwn| !is_same_wwn(wwn, &map.uuid))?;
        Some(format!("its path {number} is the disk {wwn} now, and the map is of {}", map.uuid))
    });
    match foreign {
        Some(reason) => Err(wrong_disk(&map.device, reason)),
        None => Ok(()),
    }
}

/// Compares the map of a disk with its live paths.
///
/// # Errors
///
/// [`WrongDevice`](ErrorKind::WrongDevice) if a path leads to another disk, or belongs to the map of another.
pub(super) fn state(sysfs: &Sysfs, wwid: &str, live: &[DeviceNumber]) -> Result<State> {
    let maps = sysfs.multipath_maps()?;
    let map = maps.iter().find(|map| is_same_wwn(&map.uuid, wwid));
    if let Some(map) = map {
        check_paths(map)?;
    }
    let mut missing = Vec::new();
    for number in live {
        // A path that goes away meanwhile belongs to no map, and is not in the next list.
        let Some(name) = sysfs.name(*number) else { continue };
        let found = sysfs.identity(*number)?.wwn;
        if !found.as_deref().is_some_and(|found| is_same_wwn(found, wwid)) {
            let found = found.as_deref().unwrap_or("not known");
            return Err(wrong_disk(&name, format!("its world-wide name is {found}, not {wwid}")));
        }
        let has_path = |map: &&MultipathMap| map.paths.iter().any(|(path, _)| path == number);
        match maps.iter().find(has_path) {
            Some(other) if !is_same_wwn(&other.uuid, wwid) => {
                let reason =
                    format!("it belongs to the map {} of another disk, {}", other.device, other.uuid);
                return Err(
                    wrong_disk(&name, reason).hint("remove that map if nothing uses it (multipath -f)")
                );
            }
            Some(_) => {}
            None => missing.push(name),
        }
    }
    Ok(match map {
        Some(map) if missing.is_empty() && !live.is_empty() && !map.is_suspended && map.size > 0 => {
            State::Whole(map.number)
        }
        map => State::Incomplete { map: map.map(|map| map.device.clone()), missing },
    })
}

fn wrong_disk(device: &str, reason: String) -> Error {
    Error::new(ErrorKind::WrongDevice, CHECK, reason).at(format!("/dev/{device}"))
}

#[cfg(test)]
mod tests;
