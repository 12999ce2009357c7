//! The steps of a detach: which sessions end, and what lies over their disks.

use std::path::Path;

use super::target::IscsiDisk;
use super::tree::{Session, Tree};
use super::{decide, login};
use crate::Result;
use crate::remote::detach::Connection;
use crate::remote::multipath::Multipath;
use crate::remote::record::Portal;

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
    let of_session = |session: &Session| Connection {
        name: session.name().to_owned(),
        disks: session.nexus.units.iter().filter_map(|unit| unit.number).collect(),
    };
    Ok(decide::own_sessions(&tree, disk, portals).into_iter().map(of_session).collect())
}

/// Takes away the unused maps over units of these sessions, which are logged out next.
pub(in crate::remote) fn take_away_others(sys: &Path, sessions: &[&str]) -> Result<()> {
    let tree = Tree::read(sys)?;
    let ending = tree.sessions.iter().filter(|session| sessions.contains(&session.name()));
    let units = ending.flat_map(|session| &session.nexus.units);
    let named = units.filter_map(|unit| Some((unit.number?, unit.wwid.as_deref()?)));
    Multipath::new(sys).take_away_unused(&named.collect::<Vec<_>>())
}
