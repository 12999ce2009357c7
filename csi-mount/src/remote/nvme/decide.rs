//! The decisions about controllers and paths, as functions of what the kernel and the records say.

use std::net::SocketAddr;
use std::path::Path;

use super::target::{NvmeDisk, NvmeTarget};
use super::tree::{Controller, NvmePath, Tree, has_native_multipath};
use crate::error::Result;
use crate::remote::multipath::{Multipath, SinglePath};
use crate::remote::paths::{DiskPath, Paths};
use crate::remote::record::Portal;

/// The paths to a namespace, with their controllers.
pub(super) fn paths<'t>(
    tree: &'t Tree,
    disk: &'t NvmeDisk,
) -> impl Iterator<Item = (&'t Controller, &'t NvmePath)> {
    tree.of(disk)
        .flat_map(|controller| controller.paths.iter().map(move |path| (controller, path)))
        .filter(|(_, path)| path.ids.has(&disk.namespace))
}

/// The paths to a namespace. Without native multipath each is a disk of its own.
pub(super) fn disks(tree: &Tree, disk: &NvmeDisk) -> Paths {
    let path = |(controller, path): (&Controller, &NvmePath)| {
        let access = path.ana_state.as_deref().unwrap_or("accessible");
        DiskPath {
            disk: Some(path.disk.clone()),
            number: path.number,
            wwid: Some(path.ids.wwid.clone()),
            is_usable: controller.is_live() && path.is_accessible(),
            state: format!("{} is {}, its path {access}", controller.name, controller.state),
        }
    };
    let list: Vec<DiskPath> = paths(tree, disk).map(path).collect();
    let shows = |controller: &Controller| controller.paths.iter().any(|path| path.ids.has(&disk.namespace));
    let late = tree.of(disk).filter(|found| found.is_live() && !shows(found));
    Paths { exist: !list.is_empty(), without: late.map(|found| found.name.clone()).collect(), list }
}

/// dm-multipath, if NVMe needs it on this node: without the kernel's native multipath.
pub(super) fn multipath(sys: &Path) -> Option<Multipath> {
    (!has_native_multipath(sys)).then(|| Multipath::new(sys))
}

/// A target with one portal can have no second path, so the driver need not say more.
pub(super) fn single_path(target: &NvmeTarget) -> SinglePath {
    let is_allowed = target.is_single_path_allowed || target.portals.len() == 1;
    if is_allowed { SinglePath::Allowed } else { SinglePath::Refused }
}

/// The portals of the subsystem that have a controller.
pub(super) fn connected(sys: &Path, disk: &NvmeDisk) -> Result<Vec<SocketAddr>> {
    Ok(Tree::read(sys)?.of(disk).filter_map(|controller| controller.portal).collect())
}

/// The controllers that an attachment's end disconnects, unless something uses a namespace of one of them.
pub(super) fn own_controllers<'t>(
    tree: &'t Tree,
    disk: &'t NvmeDisk,
    portals: &[Portal],
) -> Vec<&'t Controller> {
    let is_own = |controller: &&Controller| {
        portals.iter().any(|portal| portal.is_own && Some(portal.address) == controller.portal)
    };
    tree.of(disk).filter(is_own).collect()
}

/// Whether a portal that the attachment connects has no controller.
pub(super) fn is_connection_missing(tree: &Tree, disk: &NvmeDisk, portals: &[Portal]) -> bool {
    let is_connected =
        |portal: &&Portal| tree.of(disk).any(|controller| controller.portal == Some(portal.address));
    !portals.iter().filter(|portal| portal.is_own).all(|portal| is_connected(&portal))
}

#[cfg(test)]
mod tests;
