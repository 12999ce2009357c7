//! The paths to a logical unit, and the one disk over them: the kernel makes a disk for each connection, and
//! dm-multipath makes one of several.

use std::path::Path;
use std::time::{Duration, Instant};

use super::decide::{Lun, View};
use super::{LogicalUnit, attach};
use crate::remote::detach::not_written;
use crate::remote::multipath::{Found, Multipath, Search, SinglePath};
use crate::{DeviceNumber, Error, ErrorKind, Result};

/// How long a live connection has to show a unit that another one shows already.
const LATE_PATH: Duration = Duration::from_secs(5);

/// The paths to a logical unit that are disks of their own.
#[derive(Debug, Default, PartialEq, Eq)]
pub(in crate::remote) struct Paths {
    /// The kernel's name for the unit; none if it has no path, or its target gives it no such name.
    pub(in crate::remote) wwid: Option<String>,
    pub(in crate::remote) all: Vec<DeviceNumber>,
    /// Those that can be used now.
    pub(in crate::remote) usable: Vec<DeviceNumber>,
    /// The live connections that have no disk of the unit.
    pub(in crate::remote) without: Vec<String>,
}

impl View {
    pub(in crate::remote) fn disks(&self) -> Paths {
        let mut found = Paths::default();
        for (nexus, unit) in self.paths() {
            found.wwid = found.wwid.or_else(|| unit.wwid.clone());
            found.all.extend(unit.number);
            let is_usable = nexus.is_live && unit.is_running() && unit.size > 0;
            found.usable.extend(unit.number.filter(|_| is_usable));
        }
        found.without = self.without_disk().map(|nexus| nexus.name.clone()).collect();
        found
    }
}

/// Finds the disk of a unit, over one connection or several.
pub(in crate::remote) struct Finder<'m> {
    multipath: &'m Multipath,
    single: SinglePath,
    wants_several: bool,
    search: Option<Search<'m>>,
    /// The kernel's name for the unit.
    pub(in crate::remote) wwid: Option<String>,
    start: Instant,
}

impl<'m> Finder<'m> {
    pub(in crate::remote) fn new(multipath: &'m Multipath, single: SinglePath) -> Self {
        let wants_several = single == SinglePath::Refused;
        Self { multipath, single, wants_several, search: None, wwid: None, start: Instant::now() }
    }

    /// Waits for further paths also where one is enough: the kernel brings them by itself.
    pub(in crate::remote) fn for_several_paths(self) -> Self {
        Self { wants_several: true, ..self }
    }

    /// Whether and how the unit can be used.
    ///
    /// # Errors
    ///
    /// Those of [`Search::look`].
    pub(super) fn lun(&mut self, view: &View) -> Result<Lun> {
        let found = view.state();
        match &found {
            Lun::Usable(_) => {}
            Lun::SeveralDisks(_) if self.wants_several => {}
            _ => return Ok(found),
        }
        let paths = view.disks();
        let is_late = !paths.without.is_empty() && self.start.elapsed() < LATE_PATH;
        if self.wants_several && is_late {
            return Ok(Lun::Unusable(format!("{} does not show it yet", paths.without.join(", "))));
        }
        // Without a name no map can be found.
        let Some(wwid) = paths.wwid else { return Ok(found) };
        let search = self.search.get_or_insert_with(|| self.multipath.search(&wwid, self.single));
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
    unit: &dyn LogicalUnit,
    recorded: Option<&str>,
) -> Result<Option<DeviceNumber>> {
    let paths = View::read(sys, unit)?.disks();
    match paths.wwid.as_deref().or(recorded) {
        Some(wwid) => Multipath::new(sys).disk(wwid, &paths.all),
        None => Ok(paths.all.first().copied()),
    }
}

/// Whether anything of a disk exists: a path, or its map.
pub(in crate::remote) fn exists(sys: &Path, unit: &dyn LogicalUnit, wwid: &str) -> Result<bool> {
    let is_mapped = || match Multipath::new(sys).disk(wwid, &[]) {
        Err(error) if error.kind() == ErrorKind::WrongDevice => Ok(true),
        map => map.map(|map| map.is_some()),
    };
    Ok(!View::read(sys, unit)?.disks().all.is_empty() || is_mapped()?)
}

/// Makes the map of a unit, if it has one, as large as its paths.
pub(super) fn resize(sys: &Path, unit: &dyn LogicalUnit, bytes: u64) -> Result<()> {
    match View::read(sys, unit)?.disks().wwid {
        Some(wwid) => Multipath::new(sys).resize(&wwid, bytes),
        None => Ok(()),
    }
}

/// Takes away the map of a unit, if it has one, before its paths are deleted. Returns why the last writes are
/// possibly lost.
///
/// # Errors
///
/// Those of [`Multipath::take_away`]; [`Unresponsive`](ErrorKind::Unresponsive) if a path works and
/// the map does not take its last writes: it stays.
pub(in crate::remote) fn take_away(
    sys: &Path,
    unit: &dyn LogicalUnit,
    recorded: Option<&str>,
) -> Result<Option<Error>> {
    attach::ask_again(sys, unit)?;
    let paths = View::read(sys, unit)?.disks();
    let Some(wwid) = paths.wwid.as_deref().or(recorded) else { return Ok(None) };
    let multipath = Multipath::new(sys);
    if !paths.usable.is_empty() {
        multipath.flush(wwid).map_err(|error| not_written(&unit.target(), &error))?;
    }
    let not_flushed = multipath.take_away(wwid)?;
    multipath.forget(&paths.all);
    Ok(not_flushed)
}
