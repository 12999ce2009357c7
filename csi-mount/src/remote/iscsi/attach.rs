//! The steps of an attach: log in at the portals, and wait for the disk.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Instant;

use super::target::{IscsiDisk, IscsiTarget};
use super::tree::Tree;
use super::{decide, login};
use crate::device::block_device::BlockDevice;
use crate::error::{Error, ErrorKind, Result};
use crate::remote::attach::{ATTACH, PAUSES, all_failed, check_portals};
use crate::remote::disk::Disk;
use crate::remote::multipath::{Multipath, SinglePath};
use crate::remote::paths::Finder;
use crate::remote::record::{Portal, Record};
use crate::remote::transport::{Attached, Connect};
use crate::remote::{RemoteDisks, scsi};
use crate::sys::deadline::deadline;

impl Connect for IscsiTarget {
    fn disk(&self) -> Disk {
        Disk::Iscsi(self.disk())
    }

    fn portals(&self) -> &[SocketAddr] {
        &self.portals
    }

    fn is_single_path(&self) -> bool {
        self.is_single_path
    }

    fn validate(&self, sys: &Path) -> Result<()> {
        check_portals(&self.portals, &self.iqn)?;
        if self.chap.target.is_some() && self.chap.node.is_none() {
            let reason = "mutual CHAP needs the node's own name and secret";
            return Err(Error::new(ErrorKind::InvalidInput, ATTACH, reason).at(&self.iqn));
        }
        if self.has_several_paths() && !Multipath::new(sys).is_daemon_running() {
            let reason = "the kernel makes one disk for each of several portals, and multipathd does not run";
            return Err(Error::new(ErrorKind::Unsupported, ATTACH, reason).at(&self.iqn).hint(
                "start multipathd on the node, or say that a single path is enough; a container needs the node's \
                 network to reach it",
            ));
        }
        Ok(())
    }

    /// Logs in where no session exists.
    fn connect(&self, disks: &RemoteDisks, name: &str, record: &mut Record) -> Result<BlockDevice> {
        let single = if self.has_several_paths() {
            log_in_at_all(disks, name, self, &record.portals)?;
            SinglePath::Refused
        } else {
            log_in_at_one(disks, name, self, record)?;
            SinglePath::Allowed
        };
        let multipath = Multipath::new(&disks.sys);
        let mut finder = Finder::new(Some(&multipath), single);
        let unit = Attached { sys: &disks.sys, disk: &self.disk(), portals: &record.portals };
        let device = scsi::attach::wait_for(name, &unit, self.wait_limit, &mut finder)?;
        disks.put_wwid(name, &self.iqn, finder.wwid)?;
        Ok(device)
    }
}

/// Logs in at each portal without a session. One session that works is enough: `iscsid` logs in again where one
/// was lost.
fn log_in_at_all(disks: &RemoteDisks, name: &str, target: &IscsiTarget, portals: &[Portal]) -> Result<()> {
    let tree = Tree::read(&disks.sys)?;
    let disk = target.disk();
    let is_lost = |portal: &&Portal| {
        let session = decide::sessions(&tree, &disk, std::slice::from_ref(*portal)).next();
        session.is_some_and(|session| !session.nexus.is_live)
    };
    let (lost, others): (Vec<&Portal>, Vec<&Portal>) = portals.iter().partition(is_lost);
    let mut errors = Vec::new();
    let mut live = 0;
    for portal in others.iter().chain(&lost) {
        // These are waited for only if nothing else works.
        if live > 0 && lost.contains(portal) {
            tracing::warn!(name, portal = %portal.address, "a session of a remote disk is lost");
            continue;
        }
        match log_in_at(disks, target, portal.address) {
            Ok(()) => live += 1,
            Err(error) => errors.push(error),
        }
    }
    if live > 0 {
        errors.iter().for_each(|error| tracing::warn!(name, "a path to a remote disk is missing: {error}"));
        return Ok(());
    }
    Err(all_failed(name, errors))
}

/// Logs in at the portals in order, until one answers.
fn log_in_at_one(disks: &RemoteDisks, name: &str, target: &IscsiTarget, record: &mut Record) -> Result<()> {
    let mut errors = Vec::new();
    for portal in record.portals.clone() {
        match log_in_at(disks, target, portal.address) {
            Ok(()) => {
                errors.iter().for_each(|error| tracing::warn!(name, "a portal does not answer: {error}"));
                return if record.portals.len() > 1 {
                    keep_portal(disks, name, &target.disk(), record, portal)
                } else {
                    Ok(())
                };
            }
            Err(error) => errors.push(error),
        }
    }
    Err(all_failed(name, errors))
}

fn log_in_at(disks: &RemoteDisks, target: &IscsiTarget, portal: SocketAddr) -> Result<()> {
    // Two logins at one time make two sessions, or the second one fails.
    let _lock = disks.records.lock(&format!("login {}", target.iqn))?;
    let disk = target.disk();
    let end = deadline(target.wait_limit);
    let portals = [Portal { address: portal, is_own: true }];
    loop {
        let tree = Tree::read(&disks.sys)?;
        let Some(session) = decide::sessions(&tree, &disk, &portals).next() else {
            return login::login(target, portal);
        };
        if session.nexus.is_live {
            return Ok(());
        }
        if Instant::now() > end {
            let reason = format!("{} is {}", session.name(), session.nexus.state);
            return Err(Error::new(ErrorKind::Unresponsive, ATTACH, reason).at(portal.to_string()));
        }
        std::thread::sleep(PAUSES[1]);
    }
}

/// Records that this portal is the volume's. Others stay only if they are connected, to be logged out.
fn keep_portal(
    disks: &RemoteDisks,
    name: &str,
    disk: &IscsiDisk,
    record: &mut Record,
    kept: Portal,
) -> Result<()> {
    let _lock = disks.records.lock(record.disk.lock_name())?;
    // Another volume can have handed its portals over.
    let mut now = disks.current(name)?.unwrap_or_else(|| record.clone());
    let connected = decide::connected(&disks.sys, disk)?;
    now.portals.retain(|portal| {
        portal.address != kept.address && portal.is_own && connected.contains(&portal.address)
    });
    now.portals.insert(0, kept);
    disks.records.put(name, &now)?;
    *record = now;
    Ok(())
}
