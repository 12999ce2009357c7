//! The steps of a detach: the paths of a disk are deleted.

use std::path::Path;
use std::time::{Duration, Instant};

use super::decide;
use super::login;
use super::target::IscsiDisk;
use super::tree::{Tree, Unit};
use crate::remote::ask;
use crate::remote::detach::{Connection, DETACH, claim};
use crate::remote::record::Portal;
use crate::{Error, ErrorKind, Result};

const DELETE: &str = "delete a path with";
const DELETE_LIMIT: Duration = Duration::from_secs(30);
/// How long another program can have the disk open: udev looks at it when it comes, and after each write.
const OPENERS_LIMIT: Duration = Duration::from_secs(3);
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Deletes every path to a disk that nobody uses, and whose data was written out.
pub(in crate::remote) fn delete_paths(
    sys: &Path,
    disk: &IscsiDisk,
    portals: &[Portal],
    not_flushed: Option<&Error>,
) -> Result<()> {
    let tree = Tree::read(sys)?;
    if let Some(error) = not_flushed.filter(|_| !decide::are_paths_dead(&tree, disk, portals)) {
        return Err(not_written(disk, error));
    }
    let mut paths = decide::paths(&tree, disk, portals);
    paths.try_for_each(|(_, unit)| delete(unit))
}

pub(super) fn not_written(disk: &IscsiDisk, error: &Error) -> Error {
    let reason = format!("the disk does not take its last writes: {error}");
    Error::new(ErrorKind::Unresponsive, DETACH, reason).at(disk.iqn.as_str())
}

/// Deletes a unit, if it is no disk that somebody uses. What the target has stays as it is.
pub(super) fn delete(unit: &Unit) -> Result<()> {
    let end = Instant::now() + OPENERS_LIMIT;
    let held = loop {
        match unit.number.map(claim).transpose() {
            Err(error) if error.kind() == ErrorKind::Busy && Instant::now() < end => {
                std::thread::sleep(POLL_INTERVAL);
            }
            held => break held?,
        }
    };
    let switch = unit.place.join("delete");
    let end = Instant::now() + DELETE_LIMIT;
    let deleted = ask::write(DELETE, &switch, b"1", DELETE_LIMIT);
    drop(held);
    deleted?;
    while unit.place.exists() {
        if Instant::now() > end {
            let reason = format!("it still exists after {DELETE_LIMIT:?}");
            return Err(Error::new(ErrorKind::Unresponsive, DELETE, reason).at(switch));
        }
        std::thread::sleep(POLL_INTERVAL);
    }
    Ok(())
}

/// The sessions that the attachment made, with the disks that they still have. A login that is still running
/// is awaited.
pub(in crate::remote) fn connections(
    sys: &Path,
    disk: &IscsiDisk,
    portals: &[Portal],
) -> Result<Vec<Connection>> {
    let tree = Tree::read(sys)?;
    for portal in portals.iter().filter(|portal| portal.is_own) {
        let mut sessions = tree.sessions.iter().filter(|session| session.iqn == disk.iqn);
        if !sessions.any(|session| session.portal == Some(portal.address)) {
            login::settle(sys, disk, portal.address)?;
        }
    }
    let tree = Tree::read(sys)?;
    let of_session = |session: &super::tree::Session| Connection {
        name: session.name.clone(),
        disks: session.units.iter().filter_map(|unit| unit.number).collect(),
    };
    Ok(decide::own_sessions(&tree, disk, portals).into_iter().map(of_session).collect())
}
