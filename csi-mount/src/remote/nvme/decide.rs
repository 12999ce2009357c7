//! The decisions about controllers and paths, as functions of what the kernel and the records say.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use super::target::NamespaceId;
use super::tree::{Controller, NvmePath, Tree};
use crate::DeviceNumber;
use crate::remote::record::{Portal, Record};

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
    nqn: &'t str,
    host_nqn: &'t str,
    id: &'t NamespaceId,
) -> impl Iterator<Item = (&'t Controller, &'t NvmePath)> {
    tree.of_subsystem(nqn, host_nqn)
        .flat_map(|controller| controller.paths.iter().map(move |path| (controller, path)))
        .filter(|(_, path)| path.ids.has(id))
}

/// Whether and how a namespace can be used.
pub(in crate::remote) fn namespace(tree: &Tree, nqn: &str, host_nqn: &str, id: &NamespaceId) -> Namespace {
    let paths: Vec<_> = paths(tree, nqn, host_nqn, id).collect();
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
pub(in crate::remote) fn disk(tree: &Tree, record: &Record) -> Option<DeviceNumber> {
    paths(tree, &record.nqn, &record.host_nqn, &record.namespace).find_map(|(_, path)| path.number)
}

/// Which of these portals this node's attachments connect, so that they also disconnect them: those without a
/// controller now, and those that an attachment connected before. What somebody else connected stays.
pub(in crate::remote) fn own_portals(
    portals: &[SocketAddr],
    tree: &Tree,
    (nqn, host_nqn): (&str, &str),
    records: &[&Record],
) -> Vec<Portal> {
    let is_own = |address: &SocketAddr| {
        let is_connected =
            tree.of_subsystem(nqn, host_nqn).any(|controller| controller.portal == Some(*address));
        let is_recorded = records
            .iter()
            .filter(|record| record.is_of_subsystem(nqn, host_nqn))
            .any(|record| record.portals.contains(&Portal { address: *address, is_own: true }));
        is_recorded || !is_connected
    };
    portals.iter().map(|address| Portal { address: *address, is_own: is_own(address) }).collect()
}

/// The controllers that an attachment's end disconnects, unless something uses a namespace of one of them.
pub(in crate::remote) fn own_controllers<'t>(tree: &'t Tree, record: &'t Record) -> Vec<&'t Controller> {
    let is_own = |controller: &&Controller| {
        record.portals.iter().any(|portal| portal.is_own && Some(portal.address) == controller.portal)
    };
    tree.of_subsystem(&record.nqn, &record.host_nqn).filter(is_own).collect()
}

/// Whether a portal that the attachment connects has no controller.
pub(in crate::remote) fn is_connection_missing(tree: &Tree, record: &Record) -> bool {
    let is_connected = |portal: &&Portal| {
        tree.of_subsystem(&record.nqn, &record.host_nqn)
            .any(|controller| controller.portal == Some(portal.address))
    };
    !record.portals.iter().filter(|portal| portal.is_own).all(|portal| is_connected(&portal))
}

/// The sizes of a namespace that must agree: each live path's and its disk's. Returns the common one.
pub(in crate::remote) fn common_size<'p>(paths: impl Iterator<Item = &'p NvmePath>) -> Result<u64, String> {
    let sizes: BTreeSet<u64> = paths.flat_map(|path| path.sizes).collect();
    match sizes.iter().collect::<Vec<_>>()[..] {
        [size] => Ok(*size),
        [] => Err("no path is live".to_owned()),
        _ => Err(format!("its paths and the disk have different sizes in bytes: {sizes:?}")),
    }
}

#[cfg(test)]
mod tests;
