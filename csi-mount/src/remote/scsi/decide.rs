//! The decisions about units and paths, as functions of what the kernel says.

use super::unit::{Nexus, Unit};
use super::{LogicalUnit, LunId};
use crate::error::Result;
use crate::remote::paths::{DiskPath, DiskState, Paths};

/// The connections of an attachment, read at one time.
#[derive(Debug)]
pub(in crate::remote) struct View {
    connections: Vec<Nexus>,
    lun: u64,
    id: LunId,
}

impl View {
    pub(in crate::remote) fn read(unit: &dyn LogicalUnit) -> Result<Self> {
        Ok(Self { connections: unit.nexuses()?, lun: unit.lun(), id: unit.id().clone() })
    }

    /// The page that has the unit's name, in the unit's directory.
    pub(super) fn page(&self) -> &'static str {
        self.id.page()
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

    /// Whether and how the unit can be used, without a map.
    pub(in crate::remote) fn state(&self) -> DiskState {
        if let Some((_, other)) = self.others().next() {
            return DiskState::Other(other.description());
        }
        // A path that was only found does not show that the number is right.
        if !self.paths().any(|(nexus, _)| nexus.is_asked) {
            return DiskState::Absent;
        }
        self.disks().state()
    }

    /// The paths, as disks of their own.
    pub(in crate::remote) fn disks(&self) -> Paths {
        let path = |(nexus, unit): (&Nexus, &Unit)| {
            let disk = unit.disk.as_deref().unwrap_or("without a disk");
            DiskPath {
                disk: unit.disk.clone(),
                number: unit.number,
                wwid: unit.wwid.clone(),
                is_usable: nexus.is_live && unit.is_running() && unit.size > 0,
                state: format!("{} is {}, its unit {} ({disk})", nexus.name, nexus.state, unit.state),
            }
        };
        let list: Vec<DiskPath> = self.paths().map(path).collect();
        let is_disk = |unit: &Unit| unit.lun == self.lun && unit.number.is_some() && unit.size > 0;
        let without = self.asked().filter(|nexus| nexus.is_live && !nexus.units.iter().any(is_disk));
        Paths {
            exist: list.iter().any(|path| path.number.is_some()),
            without: without.map(|nexus| nexus.name.clone()).collect(),
            list,
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
