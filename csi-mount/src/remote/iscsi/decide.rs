//! The decisions about sessions, as functions of what the kernel and the records say.

use std::net::SocketAddr;
use std::path::Path;

use super::target::IscsiDisk;
use super::tree::{Session, Tree};
use crate::Result;
use crate::remote::record::Portal;
use crate::remote::scsi::unit::Nexus;
use crate::remote::scsi::{Foreign, LogicalUnit, LunId};

/// The interface record of open-iscsi for a login that names none.
pub(super) const DEFAULT_INTERFACE: &str = "default";

/// The unit of an attachment, over the sessions at its portals.
#[derive(Debug, Clone, Copy)]
pub(in crate::remote) struct IscsiUnit<'r> {
    pub(in crate::remote) disk: &'r IscsiDisk,
    pub(in crate::remote) portals: &'r [Portal],
}

impl LogicalUnit for IscsiUnit<'_> {
    fn lun(&self) -> u64 {
        self.disk.lun
    }

    fn id(&self) -> &LunId {
        &self.disk.id
    }

    fn target(&self) -> String {
        self.disk.iqn.clone()
    }

    fn connections(&self, sys: &Path) -> Result<Vec<Nexus>> {
        let tree = Tree::read(sys)?;
        Ok(sessions(&tree, self.disk, self.portals).map(|session| session.nexus.clone()).collect())
    }

    /// A session that somebody else made can have units that somebody else uses next.
    fn foreign(&self) -> Foreign {
        match self.portals.iter().all(|portal| portal.is_own) {
            true => Foreign::Go,
            false => Foreign::Stay,
        }
    }
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

#[cfg(test)]
mod tests;
