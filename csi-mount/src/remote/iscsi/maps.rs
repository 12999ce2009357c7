//! The paths to a logical unit, and the one disk over them: the kernel makes a disk for each session, and
//! dm-multipath makes one of several.

use std::path::Path;
use std::time::{Duration, Instant};

use super::decide::{self, Lun};
use super::target::{IscsiDisk, IscsiTarget};
use super::tree::{Tree, Unit};
use super::{attach, detach};
use crate::remote::ask;
use crate::remote::multipath::{Found, Multipath, Search, SinglePath};
use crate::remote::record::Portal;
use crate::{BlockDevice, DeviceNumber, Error, Result};

/// How long a live session has to show a unit that another one shows already.
const LATE_PATH: Duration = Duration::from_secs(5);

/// The paths to a logical unit that are disks of their own.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Paths {
    /// The kernel's name for the unit; none if it has no path, or its target gives it no such name.
    pub(super) wwid: Option<String>,
    pub(super) all: Vec<DeviceNumber>,
    /// Those that can be used now.
    pub(super) usable: Vec<DeviceNumber>,
    /// The live sessions that have no disk of the unit.
    pub(super) without: Vec<String>,
}

pub(super) fn paths(tree: &Tree, disk: &IscsiDisk, portals: &[Portal]) -> Paths {
    let mut found = Paths::default();
    for (session, unit) in decide::paths(tree, disk, portals) {
        found.wwid = found.wwid.or_else(|| unit.wwid.clone());
        found.all.extend(unit.number);
        let is_usable = session.is_live() && unit.is_running() && unit.size > 0;
        found.usable.extend(unit.number.filter(|_| is_usable));
    }
    let has_disk = |unit: &Unit| unit.lun == disk.lun && unit.number.is_some() && unit.size > 0;
    let late = decide::sessions(tree, disk, portals)
        .filter(|session| session.is_live() && !session.units.iter().any(has_disk));
    found.without = late.map(|session| session.name.clone()).collect();
    found
}

/// Finds the disk of a unit, over one session or several.
pub(super) struct Finder<'m> {
    multipath: &'m Multipath,
    search: Option<Search<'m>>,
    /// The kernel's name for the unit.
    pub(super) wwid: Option<String>,
    start: Instant,
}

impl<'m> Finder<'m> {
    pub(super) fn new(multipath: &'m Multipath) -> Self {
        Self { multipath, search: None, wwid: None, start: Instant::now() }
    }

    /// Whether and how the unit can be used.
    ///
    /// # Errors
    ///
    /// Those of [`Search::look`].
    pub(super) fn lun(&mut self, tree: &Tree, target: &IscsiTarget, portals: &[Portal]) -> Result<Lun> {
        let disk = target.disk();
        let found = decide::state(tree, &disk, portals);
        match &found {
            Lun::Usable(_) => {}
            Lun::SeveralDisks(_) if target.has_several_paths() => {}
            _ => return Ok(found),
        }
        let paths = paths(tree, &disk, portals);
        let is_late = !paths.without.is_empty() && self.start.elapsed() < LATE_PATH;
        if target.has_several_paths() && is_late {
            return Ok(Lun::Unusable(format!("{} does not show it yet", paths.without.join(", "))));
        }
        // Without a name no map can be found.
        let Some(wwid) = paths.wwid else { return Ok(found) };
        let single = match target.has_several_paths() {
            true => SinglePath::Refused,
            false => SinglePath::Allowed,
        };
        let search = self.search.get_or_insert_with(|| self.multipath.search(&wwid, single));
        let looked = search.look(&paths.usable)?;
        self.wwid = Some(wwid);
        Ok(match looked {
            Found::Disk(number) => Lun::Usable(number),
            Found::NotYet(reason) => Lun::Unusable(reason.to_string()),
        })
    }
}

/// The disk of a unit, usable or not. `recorded` is its name, which is not known without a path.
pub(in crate::remote) fn number(
    sys: &Path,
    disk: &IscsiDisk,
    portals: &[Portal],
    recorded: Option<&str>,
) -> Result<Option<DeviceNumber>> {
    let paths = paths(&Tree::read(sys)?, disk, portals);
    match paths.wwid.as_deref().or(recorded) {
        Some(wwid) => Multipath::new(sys).disk(wwid, &paths.all),
        None => Ok(paths.all.first().copied()),
    }
}

/// Makes the map of a unit, if it has one, as large as its paths.
pub(super) fn resize(sys: &Path, disk: &IscsiDisk, portals: &[Portal], bytes: u64) -> Result<()> {
    match paths(&Tree::read(sys)?, disk, portals).wwid {
        Some(wwid) => Multipath::new(sys).resize(&wwid, bytes),
        None => Ok(()),
    }
}

/// Takes away the map of a unit, if it has one, before its paths are deleted. Returns why the last writes are
/// possibly lost.
///
/// # Errors
///
/// Those of [`Multipath::take_away`]; [`Unresponsive`](crate::ErrorKind::Unresponsive) if a path works and
/// the map does not take its last writes: it stays.
pub(in crate::remote) fn take_away(
    sys: &Path,
    disk: &IscsiDisk,
    portals: &[Portal],
    recorded: Option<&str>,
) -> Result<Option<Error>> {
    attach::ask_again(sys, disk, portals)?;
    let paths = paths(&Tree::read(sys)?, disk, portals);
    let Some(wwid) = paths.wwid.as_deref().or(recorded) else { return Ok(None) };
    let multipath = Multipath::new(sys);
    // A map with a path that leads to another disk is not written to.
    if !paths.usable.is_empty()
        && let Ok(Some(map)) = multipath.disk(wwid, &[])
        && let Ok(device) = BlockDevice::from_number(map)
    {
        ask::flush(&device).map_err(|error| detach::not_written(disk, &error))?;
    }
    let not_flushed = multipath.take_away(wwid)?;
    multipath.forget(&paths.all);
    Ok(not_flushed)
}

/// Takes away the unused maps over units of these sessions, which are logged out next.
pub(in crate::remote) fn take_away_others(sys: &Path, sessions: &[&str]) -> Result<()> {
    let tree = Tree::read(sys)?;
    let ending = tree.sessions.iter().filter(|session| sessions.contains(&&*session.name));
    let units = ending.flat_map(|session| &session.units);
    let named = units.filter_map(|unit| Some((unit.number?, unit.wwid.as_deref()?)));
    Multipath::new(sys).take_away_unused(&named.collect::<Vec<_>>())
}
