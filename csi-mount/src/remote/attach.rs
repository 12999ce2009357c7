//! Attaching: from a target to an open disk. Also the disk of an attachment, and its size.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use super::RemoteDisks;
use super::nvme::connect;
use super::nvme::decide::{self, Namespace};
use super::nvme::target::NvmeTarget;
use super::nvme::tree::{Tree, has_native_multipath};
use super::record::{Portal, Record, Recorded, boot};
use crate::{BlockDevice, DeviceNumber, Error, ErrorKind, Result};

const ATTACH: &str = "attach";
const REFRESH: &str = "read the new size of";
/// The first pause between two looks, and the longest: the pause doubles each time.
const PAUSES: [Duration; 2] = [Duration::from_millis(5), Duration::from_millis(200)];
/// How often controllers are asked for new namespaces, while the one that is wanted does not come.
const SCAN_INTERVAL: Duration = Duration::from_secs(2);
/// How long all paths have to show a new size.
const REFRESH_LIMIT: Duration = Duration::from_secs(30);

impl RemoteDisks {
    /// Attaches a target under this name, and returns its open disk. If it is attached already, adds the
    /// portals that have no connection, and returns its disk.
    ///
    /// Connections that exist are used. One portal that answers is enough; another one is logged as a
    /// warning, and connected by the next call. If the call fails, everything that it did is undone, unless
    /// the disk is in use.
    ///
    /// # Errors
    ///
    /// - [`InvalidInput`](ErrorKind::InvalidInput): the target has no portal, or one with a scope (`fe80::1%2`).
    /// - [`WrongDevice`](ErrorKind::WrongDevice): another namespace is attached under this name, or the
    ///   kernel made several disks of this one.
    /// - [`Unsupported`](ErrorKind::Unsupported): the kernel lacks NVMe over TCP, DH-HMAC-CHAP, or native
    ///   multipath for several portals.
    /// - [`PermissionDenied`](ErrorKind::PermissionDenied) or [`Io`](ErrorKind::Io): the target refuses this
    ///   host or its keys. Not every kernel says which.
    /// - [`NotFound`](ErrorKind::NotFound): the subsystem did not show the namespace within the limit.
    /// - [`Unresponsive`](ErrorKind::Unresponsive): no portal answers, or the namespace has no path that can
    ///   be used.
    pub fn attach(&self, name: &str, target: &NvmeTarget) -> Result<BlockDevice> {
        self.validate(target)?;
        let lock = self.records.lock(&target.nqn)?;
        let Recorded { all, unreadable } = self.records.list()?;
        unreadable
            .iter()
            .for_each(|error| tracing::warn!("the record of a remote disk can't be read: {error}"));
        let before = all.iter().find(|(other, _)| other == name).map(|(_, record)| record);
        if let Some(before) = before.filter(|before| !before.is_of(target)) {
            let reason = format!("{} of {} is attached under this name", before.namespace, before.nqn);
            return Err(self.failed(ErrorKind::WrongDevice, name, reason).hint("detach it first"));
        }
        let subsystem = (target.nqn.as_str(), target.host.nqn.as_str());
        // Portals that the volume had before stay its own.
        let mut addresses = target.portals.clone();
        let earlier = before.iter().flat_map(|before| &before.portals).filter(|portal| portal.is_own);
        addresses.extend(earlier.map(|portal| portal.address).filter(|a| !target.portals.contains(a)));
        let records: Vec<&Record> = all.iter().map(|(_, record)| record).collect();
        let record = Record {
            boot: boot()?,
            nqn: target.nqn.clone(),
            host_nqn: target.host.nqn.clone(),
            namespace: target.namespace.clone(),
            portals: decide::own_portals(&addresses, &Tree::read(&self.sys)?, subsystem, &records),
        };
        if before != Some(&record) {
            self.records.put(name, &record)?;
        }
        // From here on the record keeps other processes from disconnecting.
        drop(lock);
        let attached = self.connect_all(name, target).and_then(|()| self.wait_for(name, target));
        if attached.is_err() {
            match self.detach(name) {
                Ok(undone) => tracing::info!(name, "a failed attachment was undone: {undone}"),
                Err(left) => tracing::warn!(
                    name,
                    "a remote disk that could not be attached is left half attached: {left}"
                ),
            }
        }
        attached
    }

    fn validate(&self, target: &NvmeTarget) -> Result<()> {
        let refuse = |kind, reason: &str| Err(Error::new(kind, ATTACH, reason).at(&target.nqn));
        let has_scope = |portal: &SocketAddr| match portal {
            SocketAddr::V6(portal) => portal.scope_id() != 0 || portal.ip().is_unicast_link_local(),
            SocketAddr::V4(_) => false,
        };
        if target.portals.is_empty() {
            return refuse(ErrorKind::InvalidInput, "the target has no portal");
        }
        if target.portals.iter().any(has_scope) {
            return refuse(ErrorKind::InvalidInput, "a portal has a link-local address");
        }
        if target.portals.len() > 1 && !has_native_multipath(&self.sys) {
            let reason = "the kernel would make one disk for each of several portals";
            return refuse(ErrorKind::Unsupported, reason).map_err(|error| {
                error.hint("boot with nvme_core.multipath=Y, load nvme-tcp, or give one portal only")
            });
        }
        Ok(())
    }

    fn failed(&self, kind: ErrorKind, name: &str, reason: impl Into<String>) -> Error {
        Error::new(kind, ATTACH, reason).at(name)
    }

    /// Connects the portals that have no controller. One is enough.
    fn connect_all(&self, name: &str, target: &NvmeTarget) -> Result<()> {
        let deadline = Instant::now() + target.wait_limit;
        let (mut connected, mut errors) = (0, Vec::new());
        for portal in &target.portals {
            match self.connect_one(target, *portal, deadline) {
                Ok(()) => connected += 1,
                Err(error) => errors.push(error),
            }
        }
        if connected > 0 {
            errors
                .iter()
                .for_each(|error| tracing::warn!(name, "a path to a remote disk is missing: {error}"));
            return Ok(());
        }
        let mut errors = errors.into_iter();
        let first = errors.next().unwrap_or_else(|| self.failed(ErrorKind::NotFound, name, "no portal"));
        Err(errors.fold(first, Error::add_reason))
    }

    fn connect_one(&self, target: &NvmeTarget, portal: SocketAddr, deadline: Instant) -> Result<()> {
        loop {
            let tree = Tree::read(&self.sys)?;
            match tree.of(target).find(|controller| controller.portal == Some(portal)) {
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
    fn wait_for(&self, name: &str, target: &NvmeTarget) -> Result<BlockDevice> {
        let (start, mut pause) = (Instant::now(), PAUSES[0]);
        let mut next_scan = start + SCAN_INTERVAL;
        loop {
            let tree = Tree::read(&self.sys)?;
            let subsystem = (target.nqn.as_str(), target.host.nqn.as_str());
            let found = decide::namespace(&tree, subsystem.0, subsystem.1, &target.namespace);
            let reason = match found {
                Namespace::Usable(number) => match self.open(number, target)? {
                    Some(device) => return Ok(device),
                    None => (ErrorKind::NotFound, "its disk has no size yet, or went away".to_owned()),
                },
                Namespace::SeveralDisks(disks) => {
                    let reason = format!("the kernel made several disks of it: {}", disks.join(", "));
                    return Err(self
                        .failed(ErrorKind::WrongDevice, name, reason)
                        .hint("boot with nvme_core.multipath=Y, or connect one portal only"));
                }
                Namespace::Unusable(states) => (
                    ErrorKind::Unresponsive,
                    format!("no path to {} can be used: {states}", target.namespace),
                ),
                Namespace::Absent => {
                    let controllers: Vec<String> = tree
                        .of(target)
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
                return Err(self
                    .failed(kind, name, format!("{reason}: waited {:?}", target.wait_limit))
                    .hint("check whether the target gives this host access to the volume"));
            }
            // A target that adds a namespace says so. Not all do.
            if Instant::now() > next_scan {
                next_scan += SCAN_INTERVAL;
                self.scan(tree.of(target).filter(|found| found.is_live()).map(|found| found.name.as_str()));
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(PAUSES[1]);
        }
    }

    /// Lets controllers look for new and changed namespaces; the kernel does this later.
    fn scan<'n>(&self, controllers: impl Iterator<Item = &'n str>) {
        for name in controllers {
            let switch = self.sys.join("class/nvme").join(name).join("rescan_controller");
            if let Err(error) = std::fs::write(&switch, "1") {
                tracing::info!(switch = %switch.display(), "no rescan: {error}");
            }
        }
    }

    /// Opens a disk, and asks again whether it is the namespace. None if it has no size yet, or is another
    /// disk now.
    fn open(&self, number: DeviceNumber, target: &NvmeTarget) -> Result<Option<BlockDevice>> {
        let device = match BlockDevice::from_number(number) {
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::WrongDevice) => {
                return Ok(None);
            }
            device => device?,
        };
        let tree = Tree::read(&self.sys)?;
        let now = decide::namespace(&tree, &target.nqn, &target.host.nqn, &target.namespace);
        let is_same = now == Namespace::Usable(number) && device.size()? > 0;
        Ok(is_same.then_some(device))
    }

    /// Returns the disk that is attached under this name; none if nothing is, or the disk went away.
    ///
    /// The disk is found by the name of its namespace. It can be without a path that works.
    ///
    /// # Errors
    ///
    /// [`Damaged`](ErrorKind::Damaged) if the record can't be read; errors of [`BlockDevice::from_number`].
    pub fn device(&self, name: &str) -> Result<Option<BlockDevice>> {
        match self.current(name)? {
            Some(record) => self.disk_of(&record),
            None => Ok(None),
        }
    }

    /// The record with this name, unless it is of an earlier boot.
    pub(super) fn current(&self, name: &str) -> Result<Option<Record>> {
        let boot = boot()?;
        Ok(self.records.get(name)?.filter(|record| record.boot == boot))
    }

    pub(super) fn disk_of(&self, record: &Record) -> Result<Option<BlockDevice>> {
        let Some(number) = decide::disk(&Tree::read(&self.sys)?, record) else { return Ok(None) };
        let device = match BlockDevice::from_number(number) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            device => device?,
        };
        // It was given to another namespace in the meantime.
        Ok((decide::disk(&Tree::read(&self.sys)?, record) == Some(number)).then_some(device))
    }

    /// Makes every path of the attachment show the size that the target reports, and returns this size in
    /// bytes. Use it before a filesystem grows.
    ///
    /// The target is asked through each live controller; all must report the same size. Then it waits until
    /// each path and the disk have it.
    ///
    /// # Errors
    ///
    /// [`NotFound`](ErrorKind::NotFound) if nothing is attached under this name;
    /// [`Unresponsive`](ErrorKind::Unresponsive) if no path is live, a target does not answer, or the sizes do
    /// not agree within 30 seconds.
    pub fn refresh(&self, name: &str) -> Result<u64> {
        let failed = |kind, reason: String| Error::new(kind, REFRESH, reason).at(name);
        let Some(record) = self.current(name)? else {
            return Err(failed(ErrorKind::NotFound, "nothing is attached under this name".to_owned()));
        };
        let start = Instant::now();
        loop {
            let tree = Tree::read(&self.sys)?;
            let live: Vec<_> = decide::paths(&tree, &record.nqn, &record.host_nqn, &record.namespace)
                .filter(|(controller, _)| controller.is_live())
                .collect();
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
                return Err(failed(ErrorKind::Unresponsive, problem));
            }
            self.scan(live.iter().map(|(controller, _)| controller.name.as_str()));
            std::thread::sleep(PAUSES[1]);
        }
    }

    /// The portals of an attachment that only a removed record had: another one takes them over.
    pub(super) fn hand_over(&self, portals: &[Portal], name: &str, record: &Record) -> Result<()> {
        let is_missing = |portal: &&Portal| portal.is_own && !record.portals.contains(portal);
        let missing: Vec<Portal> = portals.iter().filter(is_missing).copied().collect();
        if missing.is_empty() {
            return Ok(());
        }
        let mut record = record.clone();
        record.portals.retain(|portal| !missing.iter().any(|other| other.address == portal.address));
        record.portals.extend(missing);
        self.records.put(name, &record)
    }
}
