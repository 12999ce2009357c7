//! Detaching: from a disk that nobody uses to connections that nobody needs.

use std::collections::BTreeSet;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use nix::libc;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use super::record::{Record, Recorded};
use super::{Detached, RemoteDisks, ask, nvme};
use crate::device::block_device::BlockDevice;
use crate::device::users::{self, Tolerated};
use crate::error::{Error, ErrorKind, Result, found};
use crate::sys::ids::DeviceNumber;

pub(super) const DETACH: &str = "detach";
/// How long another program can have a disk open: udev looks at it when it comes, and after each write.
pub(super) const OPENERS_LIMIT: Duration = Duration::from_secs(3);
pub(super) const POLL_INTERVAL: Duration = Duration::from_millis(20);

impl RemoteDisks {
    /// Takes away what was attached under this name: flushes the disk, deletes its paths (iSCSI), and
    /// disconnects the target if nothing else on this node needs it. Nothing attached is a success.
    ///
    /// A disk that another node has taken over, or that the target has taken from this node, is detached in the same way.
    ///
    /// A controller or session is disconnected only if an attachment of this directory connected it, no other
    /// one of the same target is recorded, and no disk of it is mounted, published raw, held or open. A disk
    /// whose paths are dead is detached too: the flush ends after 30 seconds, and
    /// [`not_flushed`](Detached::not_flushed) says so, also if an earlier call failed after that flush.
    ///
    /// An attachment of an earlier boot is only forgotten. While the disk with the records is full, that a flush
    /// failed is in the log, and a repeated call does not know it.
    ///
    /// # Errors
    ///
    /// - [`Busy`](ErrorKind::Busy): the disk is in use. The message names up to three users.
    /// - [`Unresponsive`](ErrorKind::Unresponsive): a controller or session does not end within 60 seconds, or
    ///   a disk with a path that works does not take its last writes. A repeated call continues.
    /// - [`Damaged`](ErrorKind::Damaged): the record can't be read.
    pub fn detach(&self, name: &str) -> Result<Detached> {
        let Some(record) = self.current(name)? else {
            // One of an earlier boot, or one that was not written to its end.
            self.records.remove(name)?;
            return Ok(Detached::default());
        };
        let _lock = self.records.lock(record.disk.lock_name())?;
        // Another process can have detached it, or changed it, before the lock was taken.
        let Some(mut record) = self.current(name)? else { return Ok(Detached::default()) };
        let Recorded { all, unreadable } = self.records.list()?;
        let mut others: Vec<(String, Record)> = all.into_iter().filter(|(other, _)| other != name).collect();
        others.retain(|(_, found)| found.disk.shares_connections(&record.disk));
        // The same disk can be attached under two names.
        let is_last = !others.iter().any(|(_, other)| other.disk.is_same(&record.disk));
        let not_flushed = self.flush(&record, is_last)?;
        if let Some(error) = &not_flushed {
            // What follows can fail, and the kernel does not report it again.
            record.not_flushed = Some(error.to_string());
            self.note(name, &record)?;
        } else if is_last && record.wwid.is_some() {
            // Nothing is lost if the disk is not found from here on: see `gone`.
            record.wwid = None;
            self.note(name, &record)?;
        }
        if is_last {
            // What the storage refuses because another node has the volume is lost.
            let has_conflict = |error: &&Error| error.raw_os_error() == Some(libc::EBADE);
            let not_flushed = not_flushed.as_ref().filter(|error| !has_conflict(error));
            record.attached(&self.sys).remove_paths(not_flushed)?;
        }
        let before = || {
            let reason = format!("an earlier detach: {}", record.not_flushed.as_ref()?);
            Some(Error::new(ErrorKind::Io, DETACH, reason))
        };
        let mut done = Detached { not_flushed: not_flushed.or_else(before), ..Detached::default() };
        if let Some((other, found)) = others.first() {
            self.hand_over(&record, other, found)?;
            done.kept = Some(format!("{} other volumes of the target are attached", others.len()));
        } else if let Some(error) = unreadable.first() {
            done.kept = Some(error.to_string());
        } else {
            self.disconnect(&record, &mut done)?;
            // Whoever is still connected needs it for the next connection.
            if !record.tls_keys.is_empty() && record.attached(&self.sys).connected()?.is_empty() {
                record.tls_keys.iter().try_for_each(|key| nvme::tls::remove(key))?;
            }
        }
        self.records.remove(name)?;
        if let Some(error) = &done.not_flushed {
            tracing::warn!(name, "the last writes to a remote disk are possibly lost: {error}");
        }
        Ok(done)
    }

    /// Writes what a repeated call must know. On a full disk the detachment goes on without: it gives space back.
    fn note(&self, name: &str, record: &Record) -> Result<()> {
        match self.records.put(name, record) {
            Err(error) if error.kind() == ErrorKind::NoSpace => {
                let lost = record.not_flushed.as_deref();
                tracing::warn!(name, %error, lost, "a repeated detachment can report the last writes wrongly");
                Ok(())
            }
            put => put,
        }
    }

    /// Refuses a disk with users, flushes it, and removes its map if this attachment is its last. Returns why
    /// its last writes are possibly lost.
    fn flush(&self, record: &Record, is_last: bool) -> Result<Option<Error>> {
        let wwid = record.wwid.as_deref();
        let gone = || if is_last { self.gone(record) } else { Ok(None) };
        if let Some(error) = gone()? {
            return Ok(Some(error));
        }
        if is_last && let Some(error) = record.attached(&self.sys).release_map(wwid)? {
            return Ok(Some(error));
        }
        if let Some(device) = self.disk_of(record)? {
            users::refuse(&device, DETACH, Tolerated::None)?;
            return Ok(ask::flush(&device).err());
        }
        // It can have gone since then: multipathd removes a map without paths as soon as nobody has it open.
        let Some(number) = record.number(&self.sys)? else { return gone() };
        // A disk that the kernel has given up does not open, and can still be mounted.
        match &users::identified_users(&[number])?[..] {
            [] => {
                let error = Error::new(ErrorKind::Io, DETACH, "the kernel has given the disk up");
                Ok(Some(error.at(number.to_string())))
            }
            found => Err(users::in_use_error(DETACH, &format!("the device ({number})"), found)),
        }
    }

    /// Why the last writes are possibly lost if the disk was attached, and nothing of it exists any more: the kernel
    /// removes a disk of Fibre Channel whose ports are lost for `dev_loss_tmo`, one of NVMe whose paths are lost
    /// for `ctrl_loss_tmo`, and one of iSCSI when somebody else ends the session, with what was not written.
    fn gone(&self, record: &Record) -> Result<Option<Error>> {
        let Some(wwid) = record.wwid.as_deref() else { return Ok(None) };
        let exists = record.attached(&self.sys).exists(wwid)?;
        let reason = "the kernel removed the disk before it was flushed";
        Ok((!exists).then(|| Error::new(ErrorKind::Io, DETACH, reason)))
    }

    fn disconnect(&self, record: &Record, done: &mut Detached) -> Result<()> {
        let attached = record.attached(&self.sys);
        let connections = attached.connections()?;
        let own = attached.paths()?.all();
        let disks: BTreeSet<DeviceNumber> =
            attached.disks_of(&connections)?.into_iter().map(|(number, _)| number).collect();
        let mut refused = None;
        let claims = while_busy(|| {
            refused = None;
            // In each round: multipathd makes a map of each disk that it hears of, also now.
            if let Some(multipath) = attached.multipath() {
                multipath.remove_unused_maps(&attached.disks_of(&connections)?)?;
            }
            let claims = disks.iter().map(|number| claim(*number).inspect_err(|_| refused = Some(*number)));
            claims.collect::<Result<Vec<_>>>()
        });
        // Held until the end, so that nothing mounts one of them meanwhile.
        let _claims = match (claims, refused) {
            (Ok(claims), _) => claims,
            (Err(error), Some(number)) if !own.contains(&number) => {
                done.kept = Some(error.to_string());
                return Ok(());
            }
            (Err(error), _) => return Err(error),
        };
        let mut result = Ok(());
        for connection in &connections {
            match attached.disconnect(connection) {
                Ok(()) => done.disconnected.push(connection.clone()),
                Err(error) => result = result.and(Err(error)),
            }
        }
        if connections.is_empty() && !attached.connected()?.is_empty() {
            done.kept = Some("no attachment connected them".to_owned());
        }
        result
    }
}

/// Repeats a step while another program has a disk open, for a short time.
pub(super) fn while_busy<T>(mut step: impl FnMut() -> Result<T>) -> Result<T> {
    let mut first_busy = None;
    loop {
        match step() {
            Err(error)
                if error.kind() == ErrorKind::Busy
                    && first_busy.get_or_insert_with(Instant::now).elapsed() < OPENERS_LIMIT =>
            {
                std::thread::sleep(POLL_INTERVAL);
            }
            done => return done,
        }
    }
}

/// Holds a disk exclusively, if nothing uses it. None if it went away.
pub(super) fn claim(number: DeviceNumber) -> Result<Option<OwnedFd>> {
    // Asked before it is opened here.
    let openers = users::open_in(number);
    let Some(device) = found(BlockDevice::from_number(number))? else { return Ok(None) };
    users::refuse(&device, DETACH, Tolerated::None)?;
    if !openers.is_empty() {
        return Err(users::in_use_error(DETACH, "the device", &openers).at(device.path()));
    }
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::EXCL;
    match rustix::fs::open(device.path(), flags, Mode::empty()) {
        Ok(file) => Ok(Some(file)),
        Err(Errno::NXIO | Errno::NODEV | Errno::NOENT) => Ok(None),
        Err(error) => Err(Error::os(DETACH, device.path(), error)),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;
    use crate::remote::disk::Disk;
    use crate::remote::iscsi::target::IscsiDisk;
    use crate::remote::nvme::target::{NvmeDisk, Transport};
    use crate::remote::record::boot;
    use crate::remote::{FcTarget, LunId, NamespaceId, RemoteDisks};
    use crate::testing::private_mount_namespace;
    use crate::{Mount, MountOptions, Target, unmount};

    #[test]
    fn a_disk_that_the_kernel_removed_is_reported_once_it_was_attached() {
        let directory = tempfile::tempdir().unwrap();
        let disks = RemoteDisks { sys: directory.path().join("sys"), ..RemoteDisks::new(directory.path()) };
        std::fs::create_dir_all(directory.path().join("sys/block")).unwrap();
        let port = "500601603b20419a".parse().unwrap();
        let fc = Disk::Fc(FcTarget::new(3, "naa.6001405").unwrap().port(port).disk);
        let nqn = "nqn.s".to_owned();
        let host_nqn = "nqn.h".to_owned();
        let namespace = NamespaceId::eui64("0011223344556677").unwrap();
        let nvme = Disk::Nvme(NvmeDisk { transport: Transport::Tcp, nqn, host_nqn, namespace });
        let id = LunId::wwid("naa.6001405").unwrap();
        let iscsi = Disk::Iscsi(IscsiDisk { iqn: "iqn.s".to_owned(), interface: None, lun: 3, id });
        let wwids = [None, Some("naa.6001405".to_owned())];
        for (disk, wwid) in
            [&fc, &nvme, &iscsi].into_iter().flat_map(|disk| wwids.iter().map(move |wwid| (disk, wwid)))
        {
            let record =
                Record { wwid: wwid.clone(), ..Record::new(boot().unwrap(), disk.clone(), Vec::new()) };
            disks.records.put("pvc", &record).unwrap();
            let detached = disks.detach("pvc").unwrap();
            assert_eq!(detached.not_flushed.is_some(), record.wwid.is_some(), "{detached}");
            assert!(disks.records.get("pvc").unwrap().is_none());
        }
    }

    /// Needs root.
    #[test]
    fn on_a_full_disk_a_disk_is_detached() {
        private_mount_namespace(|| {
            let directory = tempfile::tempdir().unwrap();
            let place = Target::new(directory.path()).unwrap();
            let options = MountOptions::parse(["size=64k"]).unwrap();
            Mount::new("tmpfs", "disk").options(&options).at(&place).unwrap();
            let sys = directory.path().join("sys");
            std::fs::create_dir_all(sys.join("block")).unwrap();
            let disks = RemoteDisks { sys, ..RemoteDisks::new(directory.path()) };
            let disk = Disk::Fc(FcTarget::new(3, "naa.6001405").unwrap().disk);
            let wwid = Some("naa.6001405".to_owned());
            let record = Record { wwid, ..Record::new(boot().unwrap(), disk, Vec::new()) };
            disks.records.put("pvc", &record).unwrap();
            drop(disks.records.lock(record.disk.lock_name()).unwrap());
            let mut filler = std::fs::File::create(directory.path().join("filler")).unwrap();
            while filler.write_all(&[1; 4096]).is_ok() {}
            drop(filler);
            assert_eq!(disks.records.put("pvc", &record).unwrap_err().kind(), ErrorKind::NoSpace);
            assert!(disks.detach("pvc").unwrap().not_flushed.is_some());
            assert!(disks.records.get("pvc").unwrap().is_none());
            unmount(&place).unwrap();
        });
    }

    #[test]
    fn a_record_that_was_not_written_to_its_end_goes_with_the_detach() {
        let directory = tempfile::tempdir().unwrap();
        let disks = RemoteDisks::new(directory.path().join("remote"));
        disks.detach("pvc").unwrap();
        std::fs::create_dir(directory.path().join("remote")).unwrap();
        let left = directory.path().join("remote/.new-pvc");
        std::fs::write(&left, "csi-mount").unwrap();
        disks.detach("pvc").unwrap();
        assert!(!left.exists());
    }

    #[test]
    fn a_failed_flush_is_reported_by_the_detach_that_succeeds() {
        let directory = tempfile::tempdir().unwrap();
        let disks = RemoteDisks { sys: directory.path().join("sys"), ..RemoteDisks::new(directory.path()) };
        let id = LunId::serial("1").unwrap();
        let disk = Disk::Iscsi(IscsiDisk { iqn: "iqn.s".to_owned(), interface: None, lun: 3, id });
        let not_flushed = Some("flush /dev/sda: Input/output error".to_owned());
        for not_flushed in [None, not_flushed] {
            let record = Record { not_flushed, ..Record::new(boot().unwrap(), disk.clone(), Vec::new()) };
            disks.records.put("pvc", &record).unwrap();
            let detached = disks.detach("pvc").unwrap();
            assert_eq!(detached.not_flushed.is_some(), record.not_flushed.is_some(), "{detached}");
            assert!(disks.records.get("pvc").unwrap().is_none());
        }
    }
}
