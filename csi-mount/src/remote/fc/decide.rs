//! The decisions about ports, as functions of what the kernel and the records say.

use std::path::Path;

use super::target::{FcDisk, Wwpn, list};
use super::tree::{RemotePort, Tree};
use crate::error::Result;
use crate::remote::scsi::unit::Nexus;
use crate::remote::scsi::{ForeignUnit, LogicalUnit, LunId};
use crate::remote::transport::Attached;

impl LogicalUnit for Attached<'_, FcDisk> {
    fn sys(&self) -> &Path {
        self.sys
    }

    fn lun(&self) -> u64 {
        self.disk.lun
    }

    fn id(&self) -> &LunId {
        &self.disk.id
    }

    fn target_name(&self) -> String {
        list(&self.disk.ports)
    }

    /// The unit is scanned for at the named ports. At other ports it is recognized by its name only.
    fn nexuses(&self) -> Result<Vec<Nexus>> {
        let ports = Tree::read(self.sys)?.ports.into_iter();
        let mut all: Vec<Nexus> =
            ports.map(|port| Nexus { is_asked: is_asked(self.disk, &port), ..port.nexus }).collect();
        all.sort_by_key(|nexus| !nexus.is_asked);
        Ok(all)
    }

    fn foreign(&self) -> ForeignUnit {
        ForeignUnit::Keep
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
        if states.is_empty() {
            return Some(format!("no port of this node sees {wwpn}"));
        }
        Some(format!("{wwpn} is not reached: {}", states.join(", ")))
    };
    disk.ports.iter().filter_map(reason).collect()
}

#[cfg(test)]
mod tests;
