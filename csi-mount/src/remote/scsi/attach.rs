//! The steps of an attach and of a refresh: scan one LUN, wait for the disk.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::{Duration, Instant};

use super::commands::{confirm, rescan};
use super::decide::View;
use super::unit::{self, Nexus, Unit};
use super::{ForeignUnit, LogicalUnit};
use crate::device::block_device::BlockDevice;
use crate::error::{Error, ErrorKind, Result};
use crate::remote::ask;
use crate::remote::attach::{PAUSES, REFRESH, REFRESH_LIMIT, failed};
use crate::remote::multipath::Multipath;
use crate::remote::paths::{self, DiskState, Finder};

const SCAN: &str = "scan for a logical unit with";
/// How long a target has to answer a scan.
const SCAN_LIMIT: Duration = Duration::from_secs(20);
/// How often a connection is scanned, while the unit that is wanted does not come.
const SCAN_INTERVAL: Duration = Duration::from_secs(2);

/// Waits for the disk, and opens it.
pub(in crate::remote) fn wait_for(
    name: &str,
    unit: &dyn LogicalUnit,
    limit: Duration,
    finder: &mut Finder<'_>,
) -> Result<BlockDevice> {
    let lun = unit.lun();
    let id = unit.id();
    let target = unit.target_name();
    let start = Instant::now();
    let mut pause = PAUSES[0];
    let mut next_scan = start;
    // The connections whose unit was scanned here, so that it is known who it is.
    let mut scanned = BTreeSet::new();
    let mut is_asked = false;
    loop {
        let view = View::read(unit)?;
        if !is_asked && !view.disks().usable().is_empty() {
            ask_again(unit)?;
            is_asked = true;
            continue;
        }
        let (kind, reason) = match look(finder, &view)? {
            DiskState::Usable(number) => match confirm(&View::read(unit)?) {
                Ok(()) => match paths::open(number, || {
                    Ok(look(finder, &View::read(unit)?)? == DiskState::Usable(number))
                })? {
                    Some(device) => return Ok(device),
                    None => (ErrorKind::NotFound, "its disk has no size yet, or went away".to_owned()),
                },
                Err(error) if error.kind() == ErrorKind::Unsupported => return Err(error),
                Err(error) => {
                    // The kernel reads the names again.
                    is_asked = false;
                    (error.kind(), error.to_string())
                }
            },
            DiskState::SeveralDisks(several) => {
                let reason = format!("the kernel made several disks of it: {}", several.join(", "));
                return Err(failed(ErrorKind::WrongDevice, name, reason));
            }
            DiskState::Unusable(states) => {
                (ErrorKind::Unresponsive, format!("no path to {id} can be used: {states}"))
            }
            DiskState::Other(other) => {
                let is_another_volume = match unit.foreign() {
                    ForeignUnit::Keep => !replace_stale(unit, &view)?,
                    // What the kernel remembers of an earlier volume, or what the target has there now.
                    ForeignUnit::Delete => {
                        view.others().try_for_each(|(_, unit)| unit::delete(unit))?;
                        view.others().any(|(nexus, _)| scanned.contains(&nexus.name))
                    }
                };
                if is_another_volume {
                    let reason = format!("the LUN {lun} of {target} is {other}, not {id}");
                    return Err(failed(ErrorKind::NotFound, name, reason)
                        .hint("check which number the target gives the volume for this initiator"));
                }
                next_scan = Instant::now();
                (ErrorKind::NotFound, format!("the LUN {lun} was {other}"))
            }
            DiskState::Absent => (ErrorKind::NotFound, format!("{target} has no LUN {lun} for this node")),
        };
        if start.elapsed() > limit {
            return Err(failed(kind, name, format!("{reason}: waited {limit:?}"))
                .hint("check whether the target gives this initiator access to the volume"));
        }
        if Instant::now() >= next_scan {
            next_scan = Instant::now() + SCAN_INTERVAL;
            let view = View::read(unit)?;
            for nexus in view.to_scan() {
                scan(unit.sys(), nexus, lun)?;
                scanned.insert(nexus.name.clone());
            }
            // Those that took no commands when they were scanned.
            let without_size = view.paths().filter(|(nexus, path)| nexus.is_live && path.size == 0);
            without_size.for_each(|(nexus, path)| ask_one(nexus, path));
        } else {
            std::thread::sleep(pause);
            pause = (pause * 2).min(PAUSES[1]);
        }
    }
}

/// Asks units with other names again who they are, and deletes those that are this unit now: the kernel remembers
/// an earlier volume. Maps over them go first, if nothing uses them. Returns whether none is another volume's.
fn replace_stale(unit: &dyn LogicalUnit, before: &View) -> Result<bool> {
    before.others().filter(|(nexus, _)| nexus.is_live).for_each(|(nexus, other)| ask_one(nexus, other));
    let now = View::read(unit)?;
    if now.others().next().is_some() {
        return Ok(false);
    }
    let stale: Vec<_> = before.others().map(|(_, other)| other).collect();
    let numbered = stale.iter().filter_map(|other| Some((other.number?, other.wwid.clone())));
    Multipath::new(unit.sys()).remove_unused_maps(&numbered.collect::<Vec<_>>())?;
    stale.into_iter().try_for_each(unit::delete)?;
    Ok(true)
}

fn look(finder: &mut Finder<'_>, view: &View) -> Result<DiskState> {
    finder.look(view.state(), &view.disks())
}

/// Lets the kernel look for this unit, and for no other one.
fn scan(sys: &Path, nexus: &Nexus, lun: u64) -> Result<()> {
    let switch = sys.join("class/scsi_host").join(&nexus.host).join("scan");
    let address = format!("{} {} {lun}", nexus.channel, nexus.target);
    ask::write(SCAN, &switch, address.as_bytes(), SCAN_LIMIT)
}

/// Rescans each path that works: the kernel re-reads its identity and size. A path that does not answer is left as it
/// was.
pub(in crate::remote) fn ask_again(unit: &dyn LogicalUnit) -> Result<()> {
    let view = View::read(unit)?;
    let working = view.paths().filter(|(nexus, path)| nexus.is_live && path.is_running());
    working.for_each(|(nexus, path)| ask_one(nexus, path));
    Ok(())
}

/// Lets the kernel ask a path who it is and how large it is. One that does not answer, or takes no commands now, is
/// left as it was.
fn ask_one(nexus: &Nexus, path: &Unit) {
    match rescan(path) {
        Ok(true) => {}
        Ok(false) => tracing::debug!(connection = nexus.name, "a path of a remote disk takes no commands"),
        Err(error) => {
            tracing::warn!(connection = nexus.name, "a path of a remote disk does not answer: {error}");
        }
    }
}

/// The size that the target reports through each live path.
pub(super) fn refresh(unit: &dyn LogicalUnit, name: &str) -> Result<u64> {
    let start = Instant::now();
    loop {
        let mut not_ready = None;
        for (nexus, path) in View::read(unit)?.paths().filter(|(nexus, _)| nexus.is_live) {
            if !rescan(path)? {
                not_ready = Some(format!("the path through {} takes no commands now", nexus.name));
            }
        }
        let view = View::read(unit)?;
        confirm(&view)?;
        let live = view.paths().filter(|(nexus, _)| nexus.is_live);
        let problem = match (not_ready, paths::common_size(live.map(|(_, path)| path.size))) {
            (Some(problem), _) | (None, Err(problem)) => problem,
            (None, Ok(size)) => {
                if let Some(wwid) = view.disks().wwid() {
                    Multipath::new(unit.sys()).resize(wwid, size)?;
                }
                return Ok(size);
            }
        };
        if start.elapsed() > REFRESH_LIMIT {
            return Err(Error::new(ErrorKind::Unresponsive, REFRESH, problem).at(name));
        }
        std::thread::sleep(PAUSES[1]);
    }
}
