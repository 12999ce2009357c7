//! The steps of an attach and of a refresh: from a target to an open disk.

use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use super::connect;
use super::decide::{self, Namespace};
use super::maps::{self, Finder};
use super::target::{NvmeDisk, NvmeTarget};
use super::tree::Tree;
use crate::remote::RemoteDisks;
use crate::remote::attach::{ATTACH, PAUSES, REFRESH, REFRESH_LIMIT, failed};
use crate::remote::multipath::SinglePath;
use crate::{BlockDevice, DeviceNumber, Error, ErrorKind, Result};

/// How often controllers are asked for new namespaces, while the one that is wanted does not come.
const SCAN_INTERVAL: Duration = Duration::from_secs(2);

pub(in crate::remote) fn validate(sys: &Path, target: &NvmeTarget) -> Result<()> {
    let Some(multipath) = maps::multipath(sys) else { return Ok(()) };
    if maps::single_path(target) == SinglePath::Refused && !multipath.is_daemon_running() {
        let reason = "the kernel makes one disk for each of several portals, and multipathd does not run";
        return Err(Error::new(ErrorKind::Unsupported, ATTACH, reason).at(&target.nqn).hint(
            "boot with nvme_core.multipath=Y and load nvme-tcp, or start multipathd on the node; a container \
             needs the node's network to reach it",
        ));
    }
    Ok(())
}

/// Connects the portals, and waits for the disk. It writes the name of the disk's map into the record: without
/// a path it is not known any more.
pub(in crate::remote) fn attach(disks: &RemoteDisks, name: &str, target: &NvmeTarget) -> Result<BlockDevice> {
    connect_all(&disks.sys, name, target)?;
    let multipath = maps::multipath(&disks.sys);
    let mut finder = Finder::new(multipath.as_ref());
    let device = wait_for(&disks.sys, name, target, &mut finder)?;
    disks.put_wwid(name, &target.nqn, finder.wwid)?;
    Ok(device)
}

/// Connects the portals that have no controller. One is enough.
fn connect_all(sys: &Path, name: &str, target: &NvmeTarget) -> Result<()> {
    let deadline = Instant::now() + target.wait_limit;
    let (mut connected, mut errors) = (0, Vec::new());
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
    let mut errors = errors.into_iter();
    let first = errors.next().unwrap_or_else(|| failed(ErrorKind::NotFound, name, "no portal"));
    Err(errors.fold(first, Error::add_reason))
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

/// Waits for the namespace, and opens its disk.
fn wait_for(sys: &Path, name: &str, target: &NvmeTarget, finder: &mut Finder<'_>) -> Result<BlockDevice> {
    let (start, mut pause, disk) = (Instant::now(), PAUSES[0], target.disk());
    let mut next_scan = start + SCAN_INTERVAL;
    loop {
        let tree = Tree::read(sys)?;
        let found = finder.namespace(&tree, target)?;
        let reason = match found {
            Namespace::Usable(number) => match confirm(&tree, &disk) {
                Ok(()) => match open(sys, number, target, finder)? {
                    Some(device) => return Ok(device),
                    None => (ErrorKind::NotFound, "its disk has no size yet, or went away".to_owned()),
                },
                // The kernel notices it by the scan that follows.
                Err(error) => (error.kind(), error.to_string()),
            },
            Namespace::SeveralDisks(disks) => {
                let reason = format!("the kernel made several disks of it: {}", disks.join(", "));
                return Err(failed(ErrorKind::WrongDevice, name, reason)
                    .hint("boot with nvme_core.multipath=Y, or connect one portal only"));
            }
            Namespace::Unusable(states) => {
                (ErrorKind::Unresponsive, format!("no path to {} can be used: {states}", target.namespace))
            }
            Namespace::Absent => {
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
            let (kind, reason) = reason;
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

/// Opens a disk, and asks again whether it is the namespace. None if it has no size yet, or is another
/// disk now.
fn open(
    sys: &Path,
    number: DeviceNumber,
    target: &NvmeTarget,
    finder: &mut Finder<'_>,
) -> Result<Option<BlockDevice>> {
    let device = match BlockDevice::from_number(number) {
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::WrongDevice) => {
            return Ok(None);
        }
        device => device?,
    };
    let now = finder.namespace(&Tree::read(sys)?, target)?;
    let is_same = now == Namespace::Usable(number) && device.size()? > 0;
    Ok(is_same.then_some(device))
}

/// The size that the target reports, once every path and the disk have it.
pub(in crate::remote) fn refresh(sys: &Path, name: &str, disk: &NvmeDisk) -> Result<u64> {
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
        let common = decide::common_size(live.iter().map(|(_, path)| *path));
        let problem = match common {
            Ok(size) if reported.iter().all(|other| *other == size) => {
                if let (Some(multipath), Some((_, path))) = (maps::multipath(sys), live.first()) {
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
