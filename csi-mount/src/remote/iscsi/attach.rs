//! The steps of an attach and of a refresh: log in, scan one LUN, wait for the disk.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use super::decide::{self, Lun};
use super::maps::{self, Finder};
use super::target::{IscsiDisk, IscsiTarget};
use super::tree::{Session, Tree};
use super::{detach, login};
use crate::remote::RemoteDisks;
use crate::remote::ask;
use crate::remote::attach::{ATTACH, PAUSES, REFRESH, REFRESH_LIMIT, failed};
use crate::remote::multipath::Multipath;
use crate::remote::record::{Portal, Record};
use crate::{BlockDevice, DeviceNumber, Error, ErrorKind, Result};

const SCAN: &str = "scan for a logical unit with";
const RESCAN: &str = "ask a disk again who it is with";
/// How long a target has to answer a scan.
const SCAN_LIMIT: Duration = Duration::from_secs(20);
const RESCAN_LIMIT: Duration = Duration::from_secs(15);
/// How often a session is scanned, while the unit that is wanted does not come.
const SCAN_INTERVAL: Duration = Duration::from_secs(2);

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
    let mut finder = Finder::new(&multipath);
    let device = wait_for(disks, name, target, &record.portals, &mut finder)?;
    disks.put_wwid(name, &target.iqn, finder.wwid)?;
    Ok(device)
}

/// Logs in at each portal without a session. One session that works is enough: `iscsid` logs in again where one
/// was lost.
fn log_in_at_all(disks: &RemoteDisks, name: &str, target: &IscsiTarget, portals: &[Portal]) -> Result<()> {
    let (tree, disk) = (Tree::read(&disks.sys)?, target.disk());
    let is_lost = |portal: &&Portal| {
        let session = decide::sessions(&tree, &disk, std::slice::from_ref(*portal)).next();
        session.is_some_and(|session| !session.is_live())
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
        if session.is_live() {
            return Ok(());
        }
        if Instant::now() > end {
            let reason = format!("{} is {}", session.name, session.state);
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
    let connected = record.disk.connected(&disks.sys)?;
    now.portals.retain(|portal| {
        portal.address != kept.address && portal.is_own && connected.contains(&portal.address)
    });
    now.portals.insert(0, kept);
    disks.records.put(name, &now)?;
    *record = now;
    Ok(())
}

/// Waits for the disk, and opens it.
fn wait_for(
    disks: &RemoteDisks,
    name: &str,
    target: &IscsiTarget,
    portals: &[Portal],
    finder: &mut Finder<'_>,
) -> Result<BlockDevice> {
    let (disk, sys) = (target.disk(), disks.sys.as_path());
    let (start, mut pause) = (Instant::now(), PAUSES[0]);
    let mut next_scan = start;
    // The sessions whose unit was scanned here, so that it is known who it is.
    let (mut scanned, mut is_asked) = (BTreeSet::new(), false);
    loop {
        let tree = Tree::read(sys)?;
        if !is_asked && !maps::paths(&tree, &disk, portals).usable.is_empty() {
            ask_again(sys, &disk, portals)?;
            is_asked = true;
            continue;
        }
        let (kind, reason) = match finder.lun(&tree, target, portals)? {
            Lun::Usable(number) => match open(sys, number, target, portals, finder)? {
                Some(device) => return Ok(device),
                None => (ErrorKind::NotFound, "its disk has no size yet, or went away".to_owned()),
            },
            Lun::SeveralDisks(several) => {
                let reason = format!("the kernel made several disks of it: {}", several.join(", "));
                return Err(failed(ErrorKind::WrongDevice, name, reason));
            }
            Lun::Unusable(states) => {
                (ErrorKind::Unresponsive, format!("no path to {} can be used: {states}", disk.id))
            }
            // What the kernel remembers of an earlier volume, or what the target has there now.
            Lun::Other(other) => {
                let others: Vec<_> =
                    decide::units(&tree, &disk, portals).filter(|(_, unit)| !unit.has(&disk.id)).collect();
                for (_, unit) in &others {
                    detach::delete(unit)?;
                }
                if others.iter().any(|(session, _)| scanned.contains(&session.name)) {
                    let reason = format!("the LUN {} of {} is {other}, not {}", disk.lun, disk.iqn, disk.id);
                    return Err(failed(ErrorKind::NotFound, name, reason)
                        .hint("check which number the target gives the volume for this initiator"));
                }
                next_scan = Instant::now();
                (ErrorKind::NotFound, format!("the LUN {} was {other}", disk.lun))
            }
            Lun::Absent => {
                (ErrorKind::NotFound, format!("{} has no LUN {} for this node", disk.iqn, disk.lun))
            }
        };
        if start.elapsed() > target.wait_limit {
            return Err(failed(kind, name, format!("{reason}: waited {:?}", target.wait_limit))
                .hint("check whether the target gives this initiator access to the volume"));
        }
        if Instant::now() >= next_scan {
            next_scan = Instant::now() + SCAN_INTERVAL;
            for session in decide::sessions_to_scan(&Tree::read(sys)?, &disk, portals) {
                scan(sys, session, disk.lun)?;
                scanned.insert(session.name.clone());
            }
        } else {
            std::thread::sleep(pause);
            pause = (pause * 2).min(PAUSES[1]);
        }
    }
}

/// Lets the kernel look for this unit, and for no other one.
fn scan(sys: &Path, session: &Session, lun: u64) -> Result<()> {
    let switch = sys.join("class/scsi_host").join(&session.host).join("scan");
    let address = format!("0 {} {lun}", session.target);
    ask::write(SCAN, &switch, address.as_bytes(), SCAN_LIMIT)
}

/// Lets the kernel ask each path that works who it is and how large it is. A path that does not answer is left
/// as it was.
pub(in crate::remote) fn ask_again(sys: &Path, disk: &IscsiDisk, portals: &[Portal]) -> Result<()> {
    let tree = Tree::read(sys)?;
    let works = |(session, unit): &(&Session, &_)| session.is_live() && super::tree::Unit::is_running(unit);
    for (session, unit) in decide::paths(&tree, disk, portals).filter(works) {
        if let Err(error) = ask::write(RESCAN, &unit.place.join("rescan"), b"1", RESCAN_LIMIT) {
            tracing::warn!(session = session.name, "a path of a remote disk does not answer: {error}");
        }
    }
    Ok(())
}

/// Opens a disk, and asks again whether it is the unit. None if it has no size yet, or is another disk now.
fn open(
    sys: &Path,
    number: DeviceNumber,
    target: &IscsiTarget,
    portals: &[Portal],
    finder: &mut Finder<'_>,
) -> Result<Option<BlockDevice>> {
    let device = match BlockDevice::from_number(number) {
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::WrongDevice) => {
            return Ok(None);
        }
        device => device?,
    };
    let now = finder.lun(&Tree::read(sys)?, target, portals)?;
    let is_same = now == Lun::Usable(number) && device.size()? > 0;
    Ok(is_same.then_some(device))
}

/// The size that the target reports through each live path.
pub(in crate::remote) fn refresh(
    sys: &Path,
    name: &str,
    disk: &IscsiDisk,
    portals: &[Portal],
) -> Result<u64> {
    let start = Instant::now();
    loop {
        let before = Tree::read(sys)?;
        let live = decide::paths(&before, disk, portals).filter(|(session, _)| session.is_live());
        for (_, unit) in live {
            ask::write(RESCAN, &unit.place.join("rescan"), b"1", RESCAN_LIMIT)?;
        }
        let tree = Tree::read(sys)?;
        let live = decide::paths(&tree, disk, portals).filter(|(session, _)| session.is_live());
        let problem = match decide::common_size(live.map(|(_, unit)| unit)) {
            Ok(size) => {
                maps::resize(sys, disk, portals, size)?;
                return Ok(size);
            }
            Err(problem) => problem,
        };
        if start.elapsed() > REFRESH_LIMIT {
            return Err(Error::new(ErrorKind::Unresponsive, REFRESH, problem).at(name));
        }
        std::thread::sleep(PAUSES[1]);
    }
}
