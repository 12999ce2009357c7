//! Attaching: the record of an attachment, and its undo. Also the disk of an attachment, and its size.

use std::net::SocketAddr;
use std::time::Duration;

use super::disk::Disk;
use super::record::{Portal, Record, Recorded, boot};
use super::{RemoteDisks, RemoteTarget};
use crate::device::block_device::BlockDevice;
use crate::error::{Error, ErrorKind, Result, found};

pub(super) const ATTACH: &str = "attach";
pub(super) const REFRESH: &str = "read the new size of";
/// The first pause between two looks, and the longest: the pause doubles each time.
pub(super) const PAUSES: [Duration; 2] = [Duration::from_millis(5), Duration::from_millis(200)];
/// How long all paths have to show a new size.
pub(super) const REFRESH_LIMIT: Duration = Duration::from_secs(30);

pub(super) fn failed(kind: ErrorKind, name: &str, reason: impl Into<String>) -> Error {
    Error::new(kind, ATTACH, reason).at(name)
}

/// The error for a target none of whose portals answers.
pub(super) fn all_failed(name: &str, errors: Vec<Error>) -> Error {
    let mut errors = errors.into_iter();
    let first = errors.next().unwrap_or_else(|| failed(ErrorKind::NotFound, name, "no portal"));
    errors.fold(first, Error::add_reason)
}

/// Refuses a target without portals, or with one that this node can't reach by its address alone.
pub(super) fn check_portals(portals: &[SocketAddr], target: &str) -> Result<()> {
    let refuse = |reason: &str| Err(Error::new(ErrorKind::InvalidInput, ATTACH, reason).at(target));
    let has_scope = |portal: &SocketAddr| match portal {
        SocketAddr::V6(portal) => portal.scope_id() != 0 || portal.ip().is_unicast_link_local(),
        SocketAddr::V4(_) => false,
    };
    if portals.is_empty() {
        return refuse("the target has no portal");
    }
    if portals.iter().any(has_scope) {
        return refuse("a portal has a link-local address");
    }
    Ok(())
}

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
    /// - [`WrongDevice`](ErrorKind::WrongDevice): another disk is attached under this name, another volume is
    ///   attached with this LUN, this namespace is attached over another transport, the kernel made several disks of
    ///   this one, or a path leads to another disk and the kernel does not notice it.
    /// - [`Unsupported`](ErrorKind::Unsupported): the kernel lacks the transport of NVMe, DH-HMAC-CHAP, TLS or
    ///   `/dev/bsg` (SCSI); `tlshd` does not run (TLS); several portals of NVMe without native multipath, or of iSCSI
    ///   without [`single_path`](super::IscsiTarget::single_path), and multipathd does not run.
    /// - [`PermissionDenied`](ErrorKind::PermissionDenied) or [`Io`](ErrorKind::Io): the target refuses this
    ///   host or its keys. Not every kernel says which.
    /// - [`NotFound`](ErrorKind::NotFound): the target did not show the disk within the limit, or shows
    ///   another one in its place.
    /// - [`Unresponsive`](ErrorKind::Unresponsive): no portal answers, or the disk has no path that can be
    ///   used.
    /// - [`MissingTool`](ErrorKind::MissingTool): iSCSI without open-iscsi.
    pub fn attach(&self, name: &str, target: impl Into<RemoteTarget>) -> Result<BlockDevice> {
        let target = target.into();
        let target = target.connect();
        target.validate(&self.sys)?;
        let mut disk = target.disk();
        let lock = self.records.lock(disk.lock_name())?;
        let Recorded { all, unreadable } = self.records.list()?;
        unreadable
            .iter()
            .for_each(|error| tracing::warn!("the record of a remote disk can't be read: {error}"));
        let before = all.iter().find(|(other, _)| other == name).map(|(_, record)| record);
        if let Some(before) = before.filter(|before| !before.disk.is_same(&disk)) {
            let reason = format!("{} is attached under this name", before.disk);
            return Err(failed(ErrorKind::WrongDevice, name, reason).hint("detach it first"));
        }
        if let Some((other, record)) = all.iter().find(|(_, record)| record.disk.excludes(&disk)) {
            let reason = format!("{} is attached, as {other}", record.disk);
            return Err(failed(ErrorKind::WrongDevice, name, reason).hint("detach it first"));
        }
        before.iter().for_each(|before| disk.add_earlier(&before.disk));
        // Portals that the volume had before stay its own.
        let earlier: Vec<SocketAddr> = before
            .iter()
            .flat_map(|before| &before.portals)
            .filter_map(|portal| portal.is_own.then_some(portal.address))
            .collect();
        let addresses = match (target.is_single_path(), before) {
            (true, Some(before)) => before.portals.iter().map(|portal| portal.address).collect(),
            _ => with_others(target.portals(), &earlier),
        };
        let records: Vec<&Record> = all.iter().map(|(_, record)| record).collect();
        let wwid = before.and_then(|before| before.wwid.clone());
        let not_flushed = before.and_then(|before| before.not_flushed.clone());
        let mut tls_keys: Vec<String> = records
            .iter()
            .filter(|record| record.disk.shares_connections(&disk))
            .flat_map(|record| record.tls_keys.clone())
            .collect();
        tls_keys.extend(target.missing_key()?);
        tls_keys.sort();
        tls_keys.dedup();
        let unknown = |address: &SocketAddr| Portal { address: *address, is_own: false };
        let portals = addresses.iter().map(unknown).collect();
        let mut record = Record { boot: boot()?, disk, portals, wwid, not_flushed, tls_keys };
        let connected = record.attached(&self.sys).connected()?;
        record.portals = own_portals(&addresses, &connected, &record.disk, &records);
        if before != Some(&record) {
            self.records.put(name, &record)?;
        }
        // From here on the record keeps other processes from disconnecting.
        drop(lock);
        let attached = target.connect(self, name, &mut record);
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

    /// Returns the disk that is attached under this name; none if nothing is, or the disk went away.
    ///
    /// The disk is found by its name that does not change. It can be without a path that works.
    ///
    /// # Errors
    ///
    /// [`Damaged`](ErrorKind::Damaged) if the record can't be read; errors of [`BlockDevice::open`].
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

    /// Writes the kernel's name for a disk into its record, if it is known.
    pub(super) fn put_wwid(&self, name: &str, target: &str, wwid: Option<String>) -> Result<()> {
        if wwid.is_none() {
            return Ok(());
        }
        let _lock = self.records.lock(target)?;
        // Another volume can have handed its portals over.
        match self.current(name)? {
            Some(record) if record.wwid != wwid => self.records.put(name, &Record { wwid, ..record }),
            _ => Ok(()),
        }
    }

    pub(super) fn disk_of(&self, record: &Record) -> Result<Option<BlockDevice>> {
        record.attached(&self.sys).ask_again()?;
        let Some(number) = record.number(&self.sys)? else { return Ok(None) };
        let Some(device) = found(BlockDevice::from_number(number))? else { return Ok(None) };
        // It was given to another disk in the meantime.
        Ok((record.number(&self.sys)? == Some(number)).then_some(device))
    }

    /// Makes every path of the attachment show the size that the target reports, and returns this size in
    /// bytes. Use it before a filesystem grows.
    ///
    /// The target is asked through each live path; all must report the same size. Then it waits until each
    /// path and the disk have it.
    ///
    /// # Errors
    ///
    /// [`NotFound`](ErrorKind::NotFound) if nothing is attached under this name;
    /// [`WrongDevice`](ErrorKind::WrongDevice) if a path leads to another disk now;
    /// [`Unresponsive`](ErrorKind::Unresponsive) if no path is live, a target does not answer, or the sizes do
    /// not agree within 30 seconds.
    pub fn refresh(&self, name: &str) -> Result<u64> {
        let Some(record) = self.current(name)? else {
            let reason = "nothing is attached under this name";
            return Err(Error::new(ErrorKind::NotFound, REFRESH, reason).at(name));
        };
        record.attached(&self.sys).refresh(name)
    }

    /// The portals and keys that only the record of an ending attachment has: another one takes them over.
    pub(super) fn hand_over(&self, ending: &Record, name: &str, record: &Record) -> Result<()> {
        let is_missing = |portal: &&Portal| portal.is_own && !record.portals.contains(portal);
        let missing: Vec<Portal> = ending.portals.iter().filter(is_missing).copied().collect();
        let keys = ending.tls_keys.iter().filter(|key| !record.tls_keys.contains(key));
        let keys: Vec<String> = keys.cloned().collect();
        if missing.is_empty() && keys.is_empty() {
            return Ok(());
        }
        let mut record = record.clone();
        record.tls_keys.extend(keys);
        record.portals.retain(|portal| !missing.iter().any(|other| other.address == portal.address));
        record.portals.extend(missing);
        self.records.put(name, &record)
    }
}

fn with_others(portals: &[SocketAddr], others: &[SocketAddr]) -> Vec<SocketAddr> {
    let mut all = portals.to_vec();
    all.extend(others.iter().filter(|other| !portals.contains(other)));
    all
}

/// Which of these portals this node's attachments connect, so that they also disconnect them: those without a
/// connection now, and those that an attachment connected before. What somebody else connected stays.
pub(super) fn own_portals(
    portals: &[SocketAddr],
    connected: &[SocketAddr],
    disk: &Disk,
    records: &[&Record],
) -> Vec<Portal> {
    let is_own = |address: &SocketAddr| {
        let own = Portal { address: *address, is_own: true };
        let mut sharing = records.iter().filter(|record| record.disk.shares_connections(disk));
        sharing.any(|record| record.portals.contains(&own)) || !connected.contains(address)
    };
    portals.iter().map(|address| Portal { address: *address, is_own: is_own(address) }).collect()
}
