//! The decisions about ports, as functions of what the kernel and the records say.

use std::path::Path;

use super::target::{FcDisk, Wwpn, list};
use super::tree::{RemotePort, Tree};
use crate::Result;
use crate::remote::scsi::unit::Nexus;
use crate::remote::scsi::{Foreign, LogicalUnit, LunId};

impl LogicalUnit for FcDisk {
    fn lun(&self) -> u64 {
        self.lun
    }

    fn id(&self) -> &LunId {
        &self.id
    }

    fn target(&self) -> String {
        list(&self.ports)
    }

    /// The ports that the driver named are asked for the unit. At all others it is known by its name only.
    fn connections(&self, sys: &Path) -> Result<Vec<Nexus>> {
        let ports = Tree::read(sys)?.ports.into_iter();
        let mut all: Vec<Nexus> =
            ports.map(|port| Nexus { is_asked: is_asked(self, &port), ..port.nexus }).collect();
        all.sort_by_key(|nexus| !nexus.is_asked);
        Ok(all)
    }

    fn foreign(&self) -> Foreign {
        Foreign::Stay
    }
}

fn is_asked(disk: &FcDisk, port: &RemotePort) -> bool {
    let is_initiator = |wwpn: Wwpn| disk.initiators.contains(&wwpn);
    disk.ports.contains(&port.wwpn)
        && (disk.initiators.is_empty() || port.initiator.is_some_and(is_initiator))
}

/// The ports of the target that this node does not reach, each with the reason.
pub(super) fn missing(tree: &Tree, disk: &FcDisk) -> Vec<String> {
    let reason = |wwpn: &Wwpn| {
        let found: Vec<&RemotePort> =
            tree.ports.iter().filter(|port| port.wwpn == *wwpn && is_asked(disk, port)).collect();
        if found.iter().any(|port| port.nexus.is_live) {
            return None;
        }
        let states = found.iter().map(|port| format!("{} is {}", port.nexus.name, port.nexus.state));
        let states: Vec<_> = states.collect();
        Some(match states.is_empty() {
            true => format!("no port of this node sees {wwpn}"),
            false => format!("{wwpn} is not reached: {}", states.join(", ")),
        })
    };
    disk.ports.iter().filter_map(reason).collect()
}

#[cfg(test)]
mod tests;
