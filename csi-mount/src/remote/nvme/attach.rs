//! The steps of an attach, of a refresh and of a detach: from a target to an open disk, and back.

use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use super::target::{NvmeDisk, NvmeTarget};
use super::tree::Tree;
use super::{connect, decide, tls};
use crate::device::block_device::BlockDevice;
use crate::error::{Error, ErrorKind, Result};
use crate::remote::RemoteDisks;
use crate::remote::attach::{ATTACH, PAUSES, REFRESH, REFRESH_LIMIT, all_failed, check_portals, failed};
use crate::remote::disk::Disk;
use crate::remote::multipath::{Multipath, SinglePath};
use crate::remote::paths::{self, DiskState, Finder, Paths};
use crate::remote::record::Record;
use crate::remote::transport::{Attached, Connect, Transport, not_written};
use crate::sys::deadline::deadline;
use crate::sys::ids::DeviceNumber;

/// How often controllers are asked for new namespaces, while the one that is wanted does not come.
const SCAN_INTERVAL: Duration = Duration::from_secs(2);

impl Connect for NvmeTarget {
    fn disk(&self) -> Disk {
        Disk::Nvme(self.disk())
    }

    fn portals(&self) -> &[SocketAddr] {
        &self.portals
    }

    fn validate(&self, sys: &Path) -> Result<()> {
        check_portals(&self.portals, &self.nqn)?;
        let Some(multipath) = decide::multipath(sys) else { return Ok(()) };
        if decide::single_path(self) == SinglePath::Refused && !multipath.is_daemon_running() {
            let reason = "the kernel makes one disk for each of several portals, and multipathd does not run";
            return Err(Error::new(ErrorKind::Unsupported, ATTACH, reason).at(&self.nqn).hint(
                "boot with nvme_core.multipath=Y and load nvme-tcp, or start multipathd on the node; a container \
                 needs the node's network to reach it",
            ));
        }
        Ok(())
    }

    fn missing_key(&self) -> Result<Option<String>> {
        tls::missing_key(self)
    }

    fn connect(&self, disks: &RemoteDisks, name: &str, _: &mut Record) -> Result<BlockDevice> {
        connect_all(&disks.sys, name, self)?;
        let multipath = decide::multipath(&disks.sys);
        let mut finder = Finder::new(multipath.as_ref(), decide::single_path(self)).for_several_paths();
        let device = wait_for(&disks.sys, name, self, &mut finder)?;
        disks.put_wwid(name, &self.nqn, finder.wwid)?;
        Ok(device)
    }
}

/// The paths go with their controllers.
impl Transport for Attached<'_, NvmeDisk> {
    fn target(&self) -> String {
        self.disk.nqn.clone()
    }

    fn connected(&self) -> Result<Vec<SocketAddr>> {
        decide::connected(self.sys, self.disk)
    }

    fn paths(&self) -> Result<Paths> {
        Ok(decide::disks(&Tree::read(self.sys)?, self.disk))
    }

    fn multipath(&self) -> Option<Multipath> {
        decide::multipath(self.sys)
    }

    fn remove_paths(&self, not_flushed: Option<&Error>) -> Result<()> {
        match not_flushed {
            Some(error) if !self.paths()?.usable().is_empty() => Err(not_written(&self.target(), error)),
            _ => Ok(()),
        }
    }

    fn connections(&self) -> Result<Vec<String>> {
        let mut tree = Tree::read(self.sys)?;
        if decide::is_connection_missing(&tree, self.disk, self.portals) {
            // A process that was killed can have left a connect that is still running.
            connect::settle()?;
            tree = Tree::read(self.sys)?;
        }
        let own = decide::own_controllers(&tree, self.disk, self.portals).into_iter();
        Ok(own.map(|controller| controller.name.clone()).collect())
    }

    fn disks_of(&self, connections: &[String]) -> Result<Vec<(DeviceNumber, Option<String>)>> {
        let mut controllers = Tree::read(self.sys)?.controllers;
        controllers.retain(|controller| connections.contains(&controller.name));
        let paths = controllers.into_iter().flat_map(|controller| controller.paths);
        Ok(paths.filter_map(|path| Some((path.number?, Some(path.ids.wwid)))).collect())
    }

    fn disconnect(&self, controller: &str) -> Result<()> {
        connect::disconnect(self.sys, controller)
    }

    fn refresh(&self, name: &str) -> Result<u64> {
        refresh(self.sys, name, self.disk)
    }
}

/// Connects the portals that have no controller. One is enough.
fn connect_all(sys: &Path, name: &str, target: &NvmeTarget) -> Result<()> {
    let deadline = deadline(target.wait_limit);
    let mut connected = 0;
    let mut errors = Vec::new();
    for portal in &target.portals {
        match connect_one(sys, target, *portal, deadline) {
            Ok(()) => connected += 1,
            Err(error) => errors.push(error),
        }
    }
    if connected > 0 {
        errors.iter().for_each(|error| tracing::warn!(name, "a path to a remote disk is missing: {error}"));
        return Ok(());
    }
    Err(all_failed(name, errors))
}

fn connect_one(sys: &Path, target: &NvmeTarget, portal: SocketAddr, deadline: Instant) -> Result<()> {
    loop {
        let tree = Tree::read(sys)?;
        match tree.of(&target.disk()).find(|controller| controller.portal == Some(portal)) {
            None => return connect::connect(target, portal),
            Some(controller) if !controller.is_ending() => return Ok(()),
            Some(controller) if Instant::now() > deadline => {
                let reason = format!("the controller {} does not end", controller.name);
                return Err(Error::new(ErrorKind::Unresponsive, ATTACH, reason).at(portal.to_string()));
            }
            Some(_) => std::thread::sleep(PAUSES[1]),
        }
    }
}

fn look(finder: &mut Finder<'_>, tree: &Tree, disk: &NvmeDisk) -> Result<DiskState> {
    let paths = decide::disks(tree, disk);
    finder.look(paths.state(), &paths)
}

/// Waits for the namespace, and opens its disk.
fn wait_for(sys: &Path, name: &str, target: &NvmeTarget, finder: &mut Finder<'_>) -> Result<BlockDevice> {
    let disk = target.disk();
    let start = Instant::now();
    let mut pause = PAUSES[0];
    let mut next_scan = start + SCAN_INTERVAL;
    loop {
        let tree = Tree::read(sys)?;
        let (kind, reason) = match look(finder, &tree, &disk)? {
            DiskState::Usable(number) => match confirm(&tree, &disk) {
                Ok(()) => match paths::open(number, || {
                    Ok(look(finder, &Tree::read(sys)?, &disk)? == DiskState::Usable(number))
                })? {
                    Some(device) => return Ok(device),
                    None => (ErrorKind::NotFound, "its disk has no size yet, or went away".to_owned()),
                },
                // The kernel notices it by the scan that follows.
                Err(error) => (error.kind(), error.to_string()),
            },
            DiskState::SeveralDisks(disks) => {
                let reason = format!("the kernel made several disks of it: {}", disks.join(", "));
                return Err(failed(ErrorKind::WrongDevice, name, reason)
                    .hint("boot with nvme_core.multipath=Y, or connect one portal only"));
            }
            DiskState::Unusable(states) => {
                (ErrorKind::Unresponsive, format!("no path to {} can be used: {states}", target.namespace))
            }
            DiskState::Absent | DiskState::Other(_) => {
                let controllers: Vec<String> = tree
                    .of(&disk)
                    .map(|found| {
                        format!("{} is {} and has {} others", found.name, found.state, found.paths.len())
                    })
                    .collect();
                let reason = format!(
                    "no namespace of {} has the name {}: {}",
                    target.nqn,
                    target.namespace,
                    controllers.join("; ")
                );
                (ErrorKind::NotFound, reason)
            }
        };
        if start.elapsed() > target.wait_limit {
            return Err(failed(kind, name, format!("{reason}: waited {:?}", target.wait_limit))
                .hint("check whether the target gives this host access to the volume"));
        }
        // A target that adds a namespace says so. Not all do.
        if Instant::now() > next_scan {
            next_scan += SCAN_INTERVAL;
            scan(sys, tree.of(&disk).filter(|found| found.is_live()).map(|found| found.name.as_str()));
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(PAUSES[1]);
    }
}

/// Asks the target through each live path whether it leads to this namespace.
fn confirm(tree: &Tree, disk: &NvmeDisk) -> Result<()> {
    let mut live = decide::paths(tree, disk).filter(|(controller, _)| controller.is_live());
    live.try_for_each(|(found, path)| connect::confirm(&found.name, path.namespace, &disk.namespace))
}

/// Lets controllers look for new and changed namespaces; the kernel does this later.
fn scan<'n>(sys: &Path, controllers: impl Iterator<Item = &'n str>) {
    for name in controllers {
        let switch = sys.join("class/nvme").join(name).join("rescan_controller");
        if let Err(error) = std::fs::write(&switch, "1") {
            tracing::info!(switch = %switch.display(), "no rescan: {error}");
        }
    }
}

/// The size that the target reports, once every path and the disk have it.
fn refresh(sys: &Path, name: &str, disk: &NvmeDisk) -> Result<u64> {
    let start = Instant::now();
    loop {
        let tree = Tree::read(sys)?;
        let live: Vec<_> =
            decide::paths(&tree, disk).filter(|(controller, _)| controller.is_live()).collect();
        let mut reported = Vec::new();
        confirm(&tree, disk)?;
        for (controller, path) in &live {
            reported.push(connect::size(&controller.name, path.namespace)?);
        }
        let common = paths::common_size(live.iter().flat_map(|(_, path)| path.sizes));
        let problem = match common {
            Ok(size) if reported.iter().all(|other| *other == size) => {
                if let (Some(multipath), Some((_, path))) = (decide::multipath(sys), live.first()) {
                    multipath.resize(&path.ids.wwid, size)?;
                }
                return Ok(size);
            }
            Ok(size) => format!("the node has {size} bytes, the target reports {reported:?}"),
            Err(reason) => reason,
        };
        if start.elapsed() > REFRESH_LIMIT {
            return Err(Error::new(ErrorKind::Unresponsive, REFRESH, problem).at(name));
        }
        scan(sys, live.iter().map(|(controller, _)| controller.name.as_str()));
        std::thread::sleep(PAUSES[1]);
    }
}
