//! The decisions about controllers and paths, as functions of what the kernel and the records say.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::Path;

use super::connect;
use super::target::NvmeDisk;
use super::tree::{Controller, NvmePath, Tree};
use crate::remote::detach::Connection;
use crate::remote::record::Portal;
use crate::{DeviceNumber, Result};

/// The state of a namespace on this node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::remote) enum Namespace {
    /// No controller of the subsystem shows it.
    Absent,
    /// It has no path that can be used now, with the reason.
    Unusable(String),
    /// At least one path can be used.
    Usable(DeviceNumber),
    /// The kernel made several disks of it, because its native multipath is off.
    SeveralDisks(Vec<String>),
}

/// The paths to a namespace, with their controllers.
pub(in crate::remote) fn paths<'t>(
    tree: &'t Tree,
    disk: &'t NvmeDisk,
) -> impl Iterator<Item = (&'t Controller, &'t NvmePath)> {
    tree.of(disk)
        .flat_map(|controller| controller.paths.iter().map(move |path| (controller, path)))
        .filter(|(_, path)| path.ids.has(&disk.namespace))
}

/// Whether and how a namespace can be used.
pub(in crate::remote) fn namespace(tree: &Tree, disk: &NvmeDisk) -> Namespace {
    let paths: Vec<_> = paths(tree, disk).collect();
    let disks: BTreeSet<&str> = paths.iter().map(|(_, path)| path.disk.as_str()).collect();
    if paths.is_empty() {
        return Namespace::Absent;
    }
    if disks.len() > 1 {
        return Namespace::SeveralDisks(disks.into_iter().map(str::to_owned).collect());
    }
    let usable = paths.iter().filter(|(controller, path)| controller.is_live() && path.is_accessible());
    match usable.filter_map(|(_, path)| path.number).next() {
        Some(number) => Namespace::Usable(number),
        None => {
            let states = paths.iter().map(|(controller, path)| {
                let access = path.ana_state.as_deref().unwrap_or("accessible");
                format!("{} is {}, its path {access}", controller.name, controller.state)
            });
            Namespace::Unusable(states.collect::<Vec<_>>().join("; "))
        }
    }
}

/// The disk of a namespace, usable or not.
pub(in crate::remote) fn number(sys: &Path, disk: &NvmeDisk) -> Result<Option<DeviceNumber>> {
    Ok(paths(&Tree::read(sys)?, disk).find_map(|(_, path)| path.number))
}

/// The portals of the subsystem that have a controller.
pub(in crate::remote) fn connected(sys: &Path, disk: &NvmeDisk) -> Result<Vec<SocketAddr>> {
    Ok(Tree::read(sys)?.of(disk).filter_map(|controller| controller.portal).collect())
}

/// The controllers that an attachment's end disconnects, unless something uses a namespace of one of them.
pub(in crate::remote) fn own_controllers<'t>(
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
pub(in crate::remote) fn is_connection_missing(tree: &Tree, disk: &NvmeDisk, portals: &[Portal]) -> bool {
    let is_connected =
        |portal: &&Portal| tree.of(disk).any(|controller| controller.portal == Some(portal.address));
    !portals.iter().filter(|portal| portal.is_own).all(|portal| is_connected(&portal))
}

/// The controllers that the attachment made, with their disks.
pub(in crate::remote) fn connections(
    sys: &Path,
    disk: &NvmeDisk,
    portals: &[Portal],
) -> Result<Vec<Connection>> {
    let mut tree = Tree::read(sys)?;
    if is_connection_missing(&tree, disk, portals) {
        // A process that was killed can have left a connect that is still running.
        connect::settle()?;
        tree = Tree::read(sys)?;
    }
    let of_controller = |controller: &Controller| Connection {
        name: controller.name.clone(),
        disks: controller.paths.iter().filter_map(|path| path.number).collect(),
    };
    Ok(own_controllers(&tree, disk, portals).into_iter().map(of_controller).collect())
}

/// The sizes of a namespace that must agree: each live path's and its disk's. Returns the common one.
pub(in crate::remote) fn common_size<'p>(
    paths: impl Iterator<Item = &'p NvmePath>,
) -> std::result::Result<u64, String> {
    let sizes: BTreeSet<u64> = paths.flat_map(|path| path.sizes).collect();
    match sizes.iter().collect::<Vec<_>>()[..] {
        [size] => Ok(*size),
        [] => Err("no path is live".to_owned()),
        _ => Err(format!("its paths and the disk have different sizes in bytes: {sizes:?}")),
    }
}

#[cfg(test)]
mod tests;
