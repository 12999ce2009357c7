//! The steps of an attach: the ports exist or come, one LUN is scanned.

use std::path::Path;

use super::decide;
use super::target::FcTarget;
use super::tree::Tree;
use crate::device::block_device::BlockDevice;
use crate::error::{Error, ErrorKind, Result};
use crate::remote::attach::ATTACH;
use crate::remote::disk::Disk;
use crate::remote::multipath::{Multipath, SinglePath};
use crate::remote::paths::Finder;
use crate::remote::record::Record;
use crate::remote::transport::{Attached, Connect};
use crate::remote::{RemoteDisks, scsi};

impl Connect for FcTarget {
    fn disk(&self) -> Disk {
        Disk::Fc(self.disk.clone())
    }

    fn validate(&self, sys: &Path) -> Result<()> {
        let ports = super::target::list(&self.disk.ports);
        let refuse = |kind, reason: &str| Error::new(kind, ATTACH, reason).at(&ports);
        if self.disk.ports.is_empty() {
            return Err(
                refuse(ErrorKind::InvalidInput, "the target has no port").at(self.disk.id.to_string())
            );
        }
        if Tree::read(sys)?.hosts.is_empty() {
            return Err(refuse(ErrorKind::Unsupported, "this node has no Fibre Channel port")
                .hint("load the driver of the node's adapter; a container needs the host's /sys"));
        }
        if !self.is_single_path_allowed && !Multipath::new(sys).is_daemon_running() {
            let reason = "the kernel makes one disk for each path, and multipathd does not run";
            return Err(refuse(ErrorKind::Unsupported, reason).hint(
                "start multipathd on the node, or allow a single path; a container needs the node's network to \
                 reach it",
            ));
        }
        Ok(())
    }

    fn connect(&self, disks: &RemoteDisks, name: &str, record: &mut Record) -> Result<BlockDevice> {
        let disk = &self.disk;
        let multipath = Multipath::new(&disks.sys);
        let single = if self.is_single_path_allowed { SinglePath::Allowed } else { SinglePath::Refused };
        let mut finder = Finder::new(Some(&multipath), single).for_several_paths();
        let unit = Attached { sys: &disks.sys, disk, portals: &record.portals };
        let found = scsi::attach::wait_for(name, &unit, self.wait_limit, &mut finder);
        let tree = Tree::read(&disks.sys)?;
        let missing = decide::missing(&tree, disk);
        let device = found.map_err(|error| {
            let is_unreachable = missing.len() == disk.ports.len() && error.kind() == ErrorKind::NotFound;
            let error = missing.iter().fold(error, Error::add_reason);
            if !is_unreachable {
                return error;
            }
            let hosts =
                tree.hosts.iter().map(|host| format!("{} ({}) is {}", host.name, host.wwpn, host.state));
            let hint = "check the links, the zones of the fabric, and the names of the target's ports";
            hosts.fold(error, Error::add_reason).with_kind(ErrorKind::Unresponsive).hint(hint)
        })?;
        for error in missing {
            tracing::warn!(name, "a path to a remote disk is missing: {error}");
        }
        disks.put_wwid(name, disk.id.name(), finder.wwid)?;
        Ok(device)
    }
}
