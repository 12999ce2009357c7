//! The decisions about sessions and paths, as functions of what the kernel and the records say.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::Path;

use super::target::IscsiDisk;
use super::tree::{Session, Tree, Unit};
use crate::remote::record::Portal;
use crate::{DeviceNumber, Result};

/// The interface record of open-iscsi for a login that names none.
pub(super) const DEFAULT_INTERFACE: &str = "default";

/// The state of a logical unit on this node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Lun {
    /// No session shows a unit with its number.
    Absent,
    /// A unit with its number has other names; this is its description.
    Other(String),
    /// It has no path that can be used now, with the reason.
    Unusable(String),
    /// A path can be used.
    Usable(DeviceNumber),
    /// Sessions to several portals make several disks of it.
    SeveralDisks(Vec<String>),
}

/// The portals of the target that have a session.
pub(in crate::remote) fn connected(sys: &Path, disk: &IscsiDisk) -> Result<Vec<SocketAddr>> {
    let tree = Tree::read(sys)?;
    let mut connected: Vec<_> = tree.sessions.iter().filter(|session| is_of(session, disk)).collect();
    connected.retain(|session| session.portal.is_some());
    Ok(connected.into_iter().filter_map(|session| session.portal).collect())
}

fn is_of(session: &Session, disk: &IscsiDisk) -> bool {
    session.iqn == disk.iqn && disk.interface.as_ref().is_none_or(|name| session.interface == *name)
}

/// The sessions that an attachment uses, in the order of its portals.
pub(super) fn sessions<'t>(
    tree: &'t Tree,
    disk: &'t IscsiDisk,
    portals: &'t [Portal],
) -> impl Iterator<Item = &'t Session> {
    portals.iter().flat_map(move |portal| {
        let at_portal = move |session: &&Session| session.portal == Some(portal.address);
        tree.sessions.iter().filter(at_portal).filter(move |session| is_of(session, disk))
    })
}

/// The units with the attachment's number, whatever they are.
pub(super) fn units<'t>(
    tree: &'t Tree,
    disk: &'t IscsiDisk,
    portals: &'t [Portal],
) -> impl Iterator<Item = (&'t Session, &'t Unit)> {
    let of_session =
        |session: &'t Session| session.units.iter().map(move |unit| (session, unit)).collect::<Vec<_>>();
    sessions(tree, disk, portals).flat_map(of_session).filter(|(_, unit)| unit.lun == disk.lun)
}

/// The paths to a disk: the units that have its number and its name.
pub(super) fn paths<'t>(
    tree: &'t Tree,
    disk: &'t IscsiDisk,
    portals: &'t [Portal],
) -> impl Iterator<Item = (&'t Session, &'t Unit)> {
    units(tree, disk, portals).filter(|(_, unit)| unit.has(&disk.id))
}

/// Whether and how a logical unit can be used.
pub(super) fn state(tree: &Tree, disk: &IscsiDisk, portals: &[Portal]) -> Lun {
    if let Some((_, other)) = units(tree, disk, portals).find(|(_, unit)| !unit.has(&disk.id)) {
        return Lun::Other(other.description());
    }
    let paths: Vec<_> = paths(tree, disk, portals).collect();
    let disks: BTreeSet<&str> = paths.iter().filter_map(|(_, unit)| unit.disk.as_deref()).collect();
    if paths.is_empty() {
        return Lun::Absent;
    }
    if disks.len() > 1 {
        return Lun::SeveralDisks(disks.into_iter().map(str::to_owned).collect());
    }
    let usable = paths.iter().filter(|(session, unit)| session.is_live() && unit.is_running());
    match usable.filter_map(|(_, unit)| unit.number.filter(|_| unit.size > 0)).next() {
        Some(number) => Lun::Usable(number),
        None => {
            let states = paths.iter().map(|(session, unit)| {
                let disk = unit.disk.as_deref().unwrap_or("without a disk");
                format!("{} is {}, its unit {} ({disk})", session.name, session.state, unit.state)
            });
            Lun::Unusable(states.collect::<Vec<_>>().join("; "))
        }
    }
}

/// The live sessions that do not show a unit with the attachment's number: these are scanned for it.
pub(super) fn sessions_to_scan<'t>(
    tree: &'t Tree,
    disk: &'t IscsiDisk,
    portals: &'t [Portal],
) -> impl Iterator<Item = &'t Session> {
    let lacks = |session: &&Session| session.units.iter().all(|unit| unit.lun != disk.lun);
    sessions(tree, disk, portals).filter(|session| session.is_live()).filter(lacks)
}

/// Whether a disk whose flush failed can be deleted: only if no path to it works, so that its unwritten data
/// is lost anyway.
pub(super) fn are_paths_dead(tree: &Tree, disk: &IscsiDisk, portals: &[Portal]) -> bool {
    !paths(tree, disk, portals).any(|(session, unit)| session.is_live() && unit.is_running())
}

/// The sessions that an attachment's end logs out, unless something uses a disk of one of them.
pub(super) fn own_sessions<'t>(tree: &'t Tree, disk: &'t IscsiDisk, portals: &[Portal]) -> Vec<&'t Session> {
    let interface = disk.interface.as_deref().unwrap_or(DEFAULT_INTERFACE);
    let is_own = |session: &&Session| {
        session.iqn == disk.iqn
            && session.interface == interface
            && portals.iter().any(|portal| portal.is_own && Some(portal.address) == session.portal)
    };
    tree.sessions.iter().filter(is_own).collect()
}

/// The sizes of the paths must agree. Returns the common one.
pub(super) fn common_size<'t>(units: impl Iterator<Item = &'t Unit>) -> std::result::Result<u64, String> {
    let sizes: BTreeSet<u64> = units.map(|unit| unit.size).collect();
    match sizes.iter().collect::<Vec<_>>()[..] {
        [size] if *size > 0 => Ok(*size),
        [] => Err("no path is live".to_owned()),
        _ => Err(format!("its paths have different sizes in bytes, or none: {sizes:?}")),
    }
}

#[cfg(test)]
mod tests;
