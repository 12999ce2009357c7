//! The steps of an attach: the ports are there or come, one LUN is scanned.

use std::path::Path;

use super::decide;
use super::target::FcTarget;
use super::tree::Tree;
use crate::remote::RemoteDisks;
use crate::remote::attach::ATTACH;
use crate::remote::multipath::{Multipath, SinglePath};
use crate::remote::scsi;
use crate::remote::scsi::LogicalUnit as _;
use crate::remote::scsi::maps::Finder;
use crate::{BlockDevice, Error, ErrorKind, Result};

pub(in crate::remote) fn validate(sys: &Path, target: &FcTarget) -> Result<()> {
    let refuse = |kind, reason: &str| Error::new(kind, ATTACH, reason).at(target.disk.target());
    if target.disk.ports.is_empty() {
        return Err(refuse(ErrorKind::InvalidInput, "the target has no port").at(target.disk.id.to_string()));
    }
    if Tree::read(sys)?.hosts.is_empty() {
        return Err(refuse(ErrorKind::Unsupported, "this node has no Fibre Channel port")
            .hint("load the driver of the node's adapter; a container needs the host's /sys"));
    }
    if !target.is_single_path_allowed && !Multipath::new(sys).is_daemon_running() {
        let reason = "the kernel makes one disk for each path, and multipathd does not run";
        return Err(refuse(ErrorKind::Unsupported, reason).hint(
            "start multipathd on the node, or allow a single path; a container needs the node's network to \
             reach it",
        ));
    }
    Ok(())
}

/// Waits for the disk. It writes the name of the disk's map into the record: without a path it is not known any
/// more.
pub(in crate::remote) fn attach(disks: &RemoteDisks, name: &str, target: &FcTarget) -> Result<BlockDevice> {
    let multipath = Multipath::new(&disks.sys);
    let single = match target.is_single_path_allowed {
        true => SinglePath::Allowed,
        false => SinglePath::Refused,
    };
    let (disk, mut finder) = (&target.disk, Finder::new(&multipath, single).for_several_paths());
    let found = scsi::attach::wait_for(&disks.sys, name, disk, target.wait_limit, &mut finder);
    let tree = Tree::read(&disks.sys)?;
    let missing = decide::missing(&tree, disk);
    let device = found.map_err(|error| {
        let is_unreachable = missing.len() == disk.ports.len() && error.kind() == ErrorKind::NotFound;
        let error = missing.iter().fold(error, Error::add_reason);
        if !is_unreachable {
            return error;
        }
        let hosts = tree.hosts.iter().map(|host| format!("{} ({}) is {}", host.name, host.wwpn, host.state));
        let hint = "check the links, the zones of the fabric, and the names of the target's ports";
        hosts.fold(error, Error::add_reason).with_kind(ErrorKind::Unresponsive).hint(hint)
    })?;
    for error in missing {
        tracing::warn!(name, "a path to a remote disk is missing: {error}");
    }
    disks.put_wwid(name, disk.id.name(), finder.wwid)?;
    Ok(device)
}
