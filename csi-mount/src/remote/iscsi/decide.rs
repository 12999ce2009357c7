//! The decisions about sessions, as functions of what the kernel and the records say.

use std::net::SocketAddr;
use std::path::Path;

use super::target::IscsiDisk;
use super::tree::{Session, Tree};
use super::{DEFAULT_INTERFACE, login};
use crate::error::Result;
use crate::remote::record::Portal;
use crate::remote::scsi::unit::Nexus;
use crate::remote::scsi::{ForeignUnit, LogicalUnit, LunId};
use crate::remote::transport::Attached;

/// The unit is reached over the sessions at the attachment's portals.
impl LogicalUnit for Attached<'_, IscsiDisk> {
    fn sys(&self) -> &Path {
        self.sys
    }

    fn lun(&self) -> u64 {
        self.disk.lun
    }

    fn id(&self) -> &LunId {
        &self.disk.id
    }

    fn target_name(&self) -> String {
        self.disk.iqn.clone()
    }

    fn nexuses(&self) -> Result<Vec<Nexus>> {
        let tree = Tree::read(self.sys)?;
        Ok(sessions(&tree, self.disk, self.portals).map(|session| session.nexus.clone()).collect())
    }

    /// A session that somebody else made can have units that somebody else uses next.
    fn foreign(&self) -> ForeignUnit {
        if self.portals.iter().all(|portal| portal.is_own) { ForeignUnit::Delete } else { ForeignUnit::Keep }
    }

    fn own_connections(&self) -> Result<Vec<String>> {
        let tree = Tree::read(self.sys)?;
        for portal in self.portals.iter().filter(|portal| portal.is_own) {
            let mut sessions = tree.sessions.iter().filter(|session| session.iqn == self.disk.iqn);
            if !sessions.any(|session| session.portal == Some(portal.address)) {
                login::settle(self.sys, self.disk, portal.address)?;
            }
        }
        let tree = Tree::read(self.sys)?;
        let own = own_sessions(&tree, self.disk, self.portals).into_iter();
        Ok(own.map(|session| session.name().to_owned()).collect())
    }

    fn connected(&self) -> Result<Vec<SocketAddr>> {
        connected(self.sys, self.disk)
    }

    fn end(&self, session: &str) -> Result<()> {
        login::logout(self.sys, self.disk, session)
    }
}

/// The portals of the target that have a session.
pub(super) fn connected(sys: &Path, disk: &IscsiDisk) -> Result<Vec<SocketAddr>> {
    let tree = Tree::read(sys)?;
    let sessions = tree.sessions.iter().filter(|session| is_of(session, disk));
    Ok(sessions.filter_map(|session| session.portal).collect())
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
