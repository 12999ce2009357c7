//! Detaching: from a disk that nobody uses to connections that nobody needs.

use std::collections::BTreeSet;
use std::os::fd::OwnedFd;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use super::nvme::connect;
use super::nvme::decide;
use super::nvme::tree::Tree;
use super::record::{Record, Recorded};
use super::{Detached, RemoteDisks, ask};
use crate::device::users::{self, Tolerated};
use crate::{BlockDevice, DeviceNumber, ErrorKind, Result};

const DETACH: &str = "detach";

impl RemoteDisks {
    /// Takes away what was attached under this name: flushes the disk, and disconnects the subsystem if
    /// nothing else on this node needs it. Nothing attached is a success.
    ///
    /// A controller is disconnected only if an attachment of this directory connected it, no other one of the
    /// same subsystem is recorded, and no namespace of it is mounted, published raw, held or open. A disk whose
    /// paths are dead is detached too: the flush ends after 30 seconds, and
    /// [`not_flushed`](Detached::not_flushed) says so.
    ///
    /// An attachment of an earlier boot is only forgotten.
    ///
    /// # Errors
    ///
    /// - [`Busy`](ErrorKind::Busy): the disk is in use. The message names up to three users.
    /// - [`Unresponsive`](ErrorKind::Unresponsive): a controller does not end within 60 seconds. A repeated
    ///   call continues.
    /// - [`Damaged`](ErrorKind::Damaged): the record can't be read.
    pub fn detach(&self, name: &str) -> Result<Detached> {
        let Some(record) = self.current(name)? else {
            if self.records.get(name)?.is_some() {
                self.records.remove(name)?;
            }
            return Ok(Detached::default());
        };
        let _lock = self.records.lock(&record.nqn)?;
        // Another process can have detached it, or changed it, before the lock was taken.
        let Some(record) = self.current(name)? else { return Ok(Detached::default()) };
        let mut done = Detached::default();
        if let Some(device) = self.disk_of(&record)? {
            users::refuse(&device, DETACH, Tolerated::None)?;
            done.not_flushed = ask::flush(&device).err();
        }
        let mut others = Vec::new();
        let Recorded { all, unreadable } = self.records.list()?;
        for (other, found) in all {
            if other != name && found.is_of_subsystem(&record.nqn, &record.host_nqn) {
                others.push((other, found));
            }
        }
        if let Some((other, found)) = others.first() {
            self.hand_over(&record.portals, other, found)?;
            done.kept = Some(format!("{} other volumes of the subsystem are attached", others.len()));
        } else if let Some(error) = unreadable.first() {
            done.kept = Some(error.to_string());
        } else {
            self.disconnect(&record, &mut done)?;
        }
        self.records.remove(name)?;
        if let Some(error) = &done.not_flushed {
            tracing::warn!(name, "the last writes to a remote disk are possibly lost: {error}");
        }
        Ok(done)
    }

    fn disconnect(&self, record: &Record, done: &mut Detached) -> Result<()> {
        let mut tree = Tree::read(&self.sys)?;
        if decide::is_connection_missing(&tree, record) {
            // A process that was killed can have left a connect that is still running.
            connect::settle()?;
            tree = Tree::read(&self.sys)?;
        }
        let controllers = decide::own_controllers(&tree, record);
        let is_own_disk = decide::disk(&tree, record);
        let disks: BTreeSet<DeviceNumber> = controllers
            .iter()
            .flat_map(|controller| &controller.paths)
            .filter_map(|path| path.number)
            .collect();
        // Held until the end, so that nothing mounts one of them meanwhile.
        let mut claims = Vec::new();
        for number in disks {
            match claim(number) {
                Ok(claimed) => claims.extend(claimed),
                Err(error) if is_own_disk == Some(number) => return Err(error),
                Err(error) => {
                    done.kept = Some(error.to_string());
                    return Ok(());
                }
            }
        }
        let mut result = Ok(());
        for controller in &controllers {
            match connect::disconnect(&self.sys, &controller.name) {
                Ok(()) => done.disconnected.push(controller.name.clone()),
                Err(error) => result = result.and(Err(error)),
            }
        }
        if controllers.is_empty() && tree.of_subsystem(&record.nqn, &record.host_nqn).next().is_some() {
            done.kept = Some("no attachment connected them".to_owned());
        }
        result
    }
}

/// Holds a disk exclusively, if nothing uses it. None if it went away.
fn claim(number: DeviceNumber) -> Result<Option<OwnedFd>> {
    // Asked before it is opened here.
    let openers = users::open_in(number);
    let device = match BlockDevice::from_number(number) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        device => device?,
    };
    users::refuse(&device, DETACH, Tolerated::None)?;
    if !openers.is_empty() {
        return Err(users::in_use_error(DETACH, "the device", &openers).at(device.path()));
    }
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::EXCL;
    match rustix::fs::open(device.path(), flags, Mode::empty()) {
        Ok(file) => Ok(Some(file)),
        Err(Errno::NXIO | Errno::NODEV | Errno::NOENT) => Ok(None),
        Err(error) => Err(crate::Error::os(DETACH, device.path(), error)),
    }
}
