//! The steps of an attach: log in at the portals, and wait for the disk.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Instant;

use super::decide::{self, IscsiUnit};
use super::login;
use super::target::IscsiTarget;
use super::tree::Tree;
use crate::remote::RemoteDisks;
use crate::remote::attach::{ATTACH, PAUSES, failed};
use crate::remote::multipath::{Multipath, SinglePath};
use crate::remote::record::{Portal, Record};
use crate::remote::scsi;
use crate::remote::scsi::maps::Finder;
use crate::{BlockDevice, Error, ErrorKind, Result};

pub(in crate::remote) fn validate(sys: &Path, target: &IscsiTarget) -> Result<()> {
    if target.chap.target.is_some() && target.chap.node.is_none() {
        let reason = "mutual CHAP needs the node's own name and secret";
        return Err(Error::new(ErrorKind::InvalidInput, ATTACH, reason).at(&target.iqn));
    }
    if target.has_several_paths() && !Multipath::new(sys).is_daemon_running() {
        let reason = "the kernel makes one disk for each of several portals, and multipathd does not run";
        return Err(Error::new(ErrorKind::Unsupported, ATTACH, reason).at(&target.iqn).hint(
            "start multipathd on the node, or say that a single path is enough; a container needs the node's \
             network to reach it",
        ));
    }
    Ok(())
}

/// Logs in where no session exists, and waits for the disk. It writes the name of the disk's map into the record:
/// without a path it is not known any more.
pub(in crate::remote) fn attach(
    disks: &RemoteDisks,
    name: &str,
    target: &IscsiTarget,
    record: &mut Record,
) -> Result<BlockDevice> {
    match target.has_several_paths() {
        true => log_in_at_all(disks, name, target, &record.portals)?,
        false => log_in_at_one(disks, name, target, record)?,
    }
    let multipath = Multipath::new(&disks.sys);
    let single = match target.has_several_paths() {
        true => SinglePath::Refused,
        false => SinglePath::Allowed,
    };
    let mut finder = Finder::new(&multipath, single);
    let unit = IscsiUnit { disk: &target.disk(), portals: &record.portals };
    let device = scsi::attach::wait_for(&disks.sys, name, &unit, target.wait_limit, &mut finder)?;
    disks.put_wwid(name, &target.iqn, finder.wwid)?;
    Ok(device)
}

/// Logs in at each portal without a session. One session that works is enough: `iscsid` logs in again where one
/// was lost.
fn log_in_at_all(disks: &RemoteDisks, name: &str, target: &IscsiTarget, portals: &[Portal]) -> Result<()> {
    let (tree, disk) = (Tree::read(&disks.sys)?, target.disk());
    let is_lost = |portal: &&Portal| {
        let session = decide::sessions(&tree, &disk, std::slice::from_ref(*portal)).next();
        session.is_some_and(|session| !session.nexus.is_live)
    };
    let (lost, others): (Vec<&Portal>, Vec<&Portal>) = portals.iter().partition(is_lost);
    let (mut errors, mut live) = (Vec::new(), 0);
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

fn all_failed(name: &str, errors: Vec<Error>) -> Error {
    let mut errors = errors.into_iter();
    let first = errors.next().unwrap_or_else(|| failed(ErrorKind::NotFound, name, "no portal"));
    errors.fold(first, Error::add_reason)
}

/// Logs in at the portals in order, until one answers.
fn log_in_at_one(disks: &RemoteDisks, name: &str, target: &IscsiTarget, record: &mut Record) -> Result<()> {
    let mut errors = Vec::new();
    for portal in record.portals.clone() {
        match log_in_at(disks, target, portal.address) {
            Ok(()) => {
                errors.iter().for_each(|error| tracing::warn!(name, "a portal does not answer: {error}"));
                return if record.portals.len() > 1 {
                    keep_portal(disks, name, record, portal)
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
    let (disk, end) = (target.disk(), Instant::now() + target.wait_limit);
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
fn keep_portal(disks: &RemoteDisks, name: &str, record: &mut Record, kept: Portal) -> Result<()> {
    let _lock = disks.records.lock(record.disk.target())?;
    // Another volume can have handed its portals over.
    let mut now = disks.current(name)?.unwrap_or_else(|| record.clone());
    let connected = record.disk.connected(&disks.sys, &[])?;
    now.portals.retain(|portal| {
        portal.address != kept.address && portal.is_own && connected.contains(&portal.address)
    });
    now.portals.insert(0, kept);
    disks.records.put(name, &now)?;
    *record = now;
    Ok(())
}
