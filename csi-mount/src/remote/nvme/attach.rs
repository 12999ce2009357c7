//! The steps of an attach and of a refresh: from a target to an open disk.

use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use super::connect;
use super::decide::{self, Namespace};
use super::target::{NvmeDisk, NvmeTarget};
use super::tree::{Tree, has_native_multipath};
use crate::remote::attach::{ATTACH, PAUSES, REFRESH, REFRESH_LIMIT, failed};
use crate::{BlockDevice, DeviceNumber, Error, ErrorKind, Result};

/// How often controllers are asked for new namespaces, while the one that is wanted does not come.
const SCAN_INTERVAL: Duration = Duration::from_secs(2);

pub(in crate::remote) fn validate(sys: &Path, target: &NvmeTarget) -> Result<()> {
    if target.portals.len() > 1 && !has_native_multipath(sys) {
        let reason = "the kernel would make one disk for each of several portals";
        return Err(Error::new(ErrorKind::Unsupported, ATTACH, reason)
            .at(&target.nqn)
            .hint("boot with nvme_core.multipath=Y, load nvme-tcp, or give one portal only"));
    }
    Ok(())
}

/// Connects the portals, and waits for the disk.
pub(in crate::remote) fn attach(sys: &Path, name: &str, target: &NvmeTarget) -> Result<BlockDevice> {
    connect_all(sys, name, target)?;
    wait_for(sys, name, target)
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
fn wait_for(sys: &Path, name: &str, target: &NvmeTarget) -> Result<BlockDevice> {
    let (start, mut pause, disk) = (Instant::now(), PAUSES[0], target.disk());
    let mut next_scan = start + SCAN_INTERVAL;
    loop {
        let tree = Tree::read(sys)?;
        let found = decide::namespace(&tree, &disk);
        let reason = match found {
            Namespace::Usable(number) => match open(sys, number, &disk)? {
                Some(device) => return Ok(device),
                None => (ErrorKind::NotFound, "its disk has no size yet, or went away".to_owned()),
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
fn open(sys: &Path, number: DeviceNumber, disk: &NvmeDisk) -> Result<Option<BlockDevice>> {
    let device = match BlockDevice::from_number(number) {
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::WrongDevice) => {
            return Ok(None);
        }
        device => device?,
    };
    let now = decide::namespace(&Tree::read(sys)?, disk);
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
        for (controller, path) in &live {
            reported.push(connect::size(&controller.name, path.namespace)?);
        }
        let common = decide::common_size(live.iter().map(|(_, path)| *path));
        let problem = match common {
            Ok(size) if reported.iter().all(|other| *other == size) => return Ok(size),
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
