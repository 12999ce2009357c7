//! The decisions about units and paths, as functions of what the kernel says.

use std::collections::BTreeSet;
use std::path::Path;

use super::unit::{Nexus, Unit};
use super::{LogicalUnit, LunId};
use crate::{DeviceNumber, Result};

/// The state of a logical unit on this node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::remote) enum Lun {
    /// No connection shows a unit with its number.
    Absent,
    /// A unit with its number has other names; this is its description.
    Other(String),
    /// It has no path that can be used now, with the reason.
    Unusable(String),
    /// A path can be used.
    Usable(DeviceNumber),
    /// Several connections make several disks of it.
    SeveralDisks(Vec<String>),
}

/// The connections of an attachment, read at one time.
#[derive(Debug)]
pub(in crate::remote) struct View {
    connections: Vec<Nexus>,
    lun: u64,
    id: LunId,
}

impl View {
    pub(in crate::remote) fn read(sys: &Path, unit: &dyn LogicalUnit) -> Result<Self> {
        Ok(Self { connections: unit.connections(sys)?, lun: unit.lun(), id: unit.id().clone() })
    }

    /// The page that has the unit's name, in the unit's directory.
    pub(super) fn page(&self) -> &'static str {
        self.id.page()
    }

    /// The connections that show no disk of the unit, though they are live.
    pub(super) fn without_disk(&self) -> impl Iterator<Item = &Nexus> {
        let is_disk = |unit: &Unit| unit.lun == self.lun && unit.number.is_some() && unit.size > 0;
        self.asked().filter(move |nexus| nexus.is_live && !nexus.units.iter().any(is_disk))
    }

    /// The connections where the number is the attachment's.
    fn asked(&self) -> impl Iterator<Item = &Nexus> {
        self.connections.iter().filter(|nexus| nexus.is_asked)
    }

    /// The paths to the disk: the units that have its name, and its number where that is known.
    pub(in crate::remote) fn paths(&self) -> impl Iterator<Item = (&Nexus, &Unit)> {
        let units = self.connections.iter().flat_map(Nexus::with_units);
        units.filter(|(nexus, unit)| (unit.lun == self.lun || !nexus.is_asked) && unit.has(&self.id))
    }

    /// The units that have its number and another name.
    pub(super) fn others(&self) -> impl Iterator<Item = (&Nexus, &Unit)> {
        let units = self.asked().flat_map(Nexus::with_units);
        units.filter(|(_, unit)| unit.lun == self.lun && !unit.has(&self.id))
    }

    /// Whether and how the unit can be used.
    pub(in crate::remote) fn state(&self) -> Lun {
        if let Some((_, other)) = self.others().next() {
            return Lun::Other(other.description());
        }
        let paths: Vec<_> = self.paths().collect();
        let disks: BTreeSet<&str> = paths.iter().filter_map(|(_, unit)| unit.disk.as_deref()).collect();
        // A path that was only found does not show that the number is right.
        if !paths.iter().any(|(nexus, _)| nexus.is_asked) {
            return Lun::Absent;
        }
        if disks.len() > 1 {
            return Lun::SeveralDisks(disks.into_iter().map(str::to_owned).collect());
        }
        let usable = paths.iter().filter(|(nexus, unit)| nexus.is_live && unit.is_running());
        match usable.filter_map(|(_, unit)| unit.number.filter(|_| unit.size > 0)).next() {
            Some(number) => Lun::Usable(number),
            None => {
                let states = paths.iter().map(|(nexus, unit)| {
                    let disk = unit.disk.as_deref().unwrap_or("without a disk");
                    format!("{} is {}, its unit {} ({disk})", nexus.name, nexus.state, unit.state)
                });
                Lun::Unusable(states.collect::<Vec<_>>().join("; "))
            }
        }
    }

    /// The live connections that do not show a unit with the attachment's number: these are scanned for it.
    pub(in crate::remote) fn to_scan(&self) -> impl Iterator<Item = &Nexus> {
        let lacks = |nexus: &&Nexus| nexus.units.iter().all(|unit| unit.lun != self.lun);
        self.asked().filter(|nexus| nexus.is_live).filter(lacks)
    }

    /// Whether a disk whose flush failed can be deleted: only if no path to it works, so that its unwritten
    /// data is lost anyway.
    pub(in crate::remote) fn are_paths_dead(&self) -> bool {
        !self.paths().any(|(nexus, unit)| nexus.is_live && unit.is_running())
    }
}

/// The sizes of the paths must agree. Returns the common one.
pub(in crate::remote) fn common_size<'t>(
    units: impl Iterator<Item = &'t Unit>,
) -> std::result::Result<u64, String> {
    let sizes: BTreeSet<u64> = units.map(|unit| unit.size).collect();
    match sizes.iter().collect::<Vec<_>>()[..] {
        [size] if *size > 0 => Ok(*size),
        [] => Err("no path is live".to_owned()),
        _ => Err(format!("its paths have different sizes in bytes, or none: {sizes:?}")),
    }
}
