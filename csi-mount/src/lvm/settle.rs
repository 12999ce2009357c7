//! What a command of lvm leaves that was killed: it suspends devices, changes the metadata and sends messages to a thin pool, one
//! after another. The next call completes it or takes it back, before it answers anything.

use std::sync::PoisonError;

use crate::device::sysfs::Sysfs;
use crate::error::{ErrorKind, Result};
use crate::lvm::command::Turn;
use crate::lvm::create::words;
use crate::lvm::group::{Group, Ours};
use crate::lvm::report::{Found, Kind, Report};

const SETTLE: &str = "bring the devices in line with the metadata of";

impl Group {
    /// The turn, and the group as it is then.
    ///
    /// # Errors
    /// [`ErrorKind::Unresponsive`] if devices stay suspended.
    pub(super) fn begin(&self, work: &'static str) -> Result<(Turn, Report)> {
        let turn = self.lvm.turn(work)?;
        let mut report = self.read()?;
        let unfinished = self.unfinished(&turn, &report)?;
        for (ours, pool) in &unfinished {
            tracing::warn!(volume = %ours.record.name, "lvm was killed while it made this; it is taken back");
            // lvm would repeat its message to make it, and refuse to go on if the pool has it already. Nobody had it yet.
            let Kind::Thin { id, .. } = ours.found.kind else { continue };
            self.lvm.ask("dmsetup", &["message", "--uuid", pool, "0", &format!("delete {id}")]).or_else(
                |error| {
                    if error.to_string().contains(NO_DEVICE) { Ok(String::new()) } else { Err(error) }
                },
            )?;
        }
        let suspended = self.suspended()?;
        if !suspended.is_empty() {
            tracing::warn!(group = self.name, ?suspended, "lvm was killed; its devices are resumed");
            self.lvm.change(&turn, &words(&["vgchange", "--refresh", &self.name]))?;
            let left = self.suspended()?;
            if !left.is_empty() {
                let reason = format!("what uses these devices waits: {}", left.join(", "));
                let error = self.error(ErrorKind::Unresponsive, SETTLE, reason);
                return Err(error.hint("look at dmsetup info, and resume them with dmsetup resume"));
            }
        }
        for (ours, _) in &unfinished {
            self.change(&turn, &["lvremove"], 0, &ours.found.uuid, |found| found.is_none())?;
        }
        if !suspended.is_empty() || !unfinished.is_empty() {
            report = self.read()?;
        }
        self.know(|zeros| zeros.follow(&report, 0));
        Ok((turn, report))
    }

    /// The names of the group's devices that are suspended.
    pub(super) fn suspended(&self) -> Result<Vec<String>> {
        let own = self.mapper_uuid("");
        let all = Sysfs::system().all_mapped()?.into_iter();
        let suspended = all.filter(|mapped| mapped.is_suspended && mapped.uuid.starts_with(&own));
        Ok(suspended.map(|mapped| mapped.name).collect())
    }

    /// The thin volumes of this driver that are in the metadata, and of which the pool in the kernel, whose UUID is returned, has
    /// not confirmed that it made them. A snapshot must not be made later than its filesystem was frozen.
    fn unfinished<'r>(&'r self, turn: &Turn, report: &'r Report) -> Result<Vec<(Ours<'r>, String)>> {
        let mut unfinished = Vec::new();
        for found in &report.volumes {
            let Kind::Pool(facts) = &found.kind else { continue };
            let is_last = |ours: &Ours<'_>| {
                !ours.found.is_active
                    && matches!(&ours.found.kind, Kind::Thin { pool, transaction, .. }
                        if *pool == found.name && *transaction + 1 == facts.transaction)
            };
            let Some(last) = report.ours(self).find(is_last) else { continue };
            let pool = format!("{}-tpool", self.mapper_uuid(&found.uuid));
            self.activate_once(turn, found, &pool)?;
            if self.transaction(found, &pool)?.is_some_and(|kernel| kernel + 1 == facts.transaction) {
                unfinished.push((last, pool));
            }
        }
        Ok(unfinished)
    }

    /// After a reboot the kernel does not have the pool, and lvm brings it there and sends what it had not sent. That fails where
    /// the pool has it, which is there then. Anything else that fails is found when a volume of it is used.
    fn activate_once(&self, turn: &Turn, pool: &Found, uuid: &str) -> Result<()> {
        let mut seen = self.seen_pools.lock().unwrap_or_else(PoisonError::into_inner);
        if seen.insert(pool.uuid.clone())
            && !Sysfs::system().all_mapped()?.iter().any(|mapped| mapped.uuid == uuid)
        {
            let volume = format!("{}/{}", self.name, pool.name);
            if let Err(error) = self.lvm.change(turn, &words(&["lvchange", "--activate", "y", &volume])) {
                tracing::warn!(%error, pool = pool.name, "activate a thin pool");
            }
        }
        Ok(())
    }

    /// The transaction of a thin pool in the kernel, by Documentation/admin-guide/device-mapper/thin-provisioning.rst. None if it
    /// is not active.
    fn transaction(&self, pool: &Found, uuid: &str) -> Result<Option<u64>> {
        if !Sysfs::system().all_mapped()?.iter().any(|mapped| mapped.uuid == uuid) {
            return Ok(None);
        }
        let status = self.lvm.ask("dmsetup", &["status", "--noflush", "--uuid", uuid])?;
        let mut words = status.split_whitespace().skip_while(|word| *word != "thin-pool").skip(1);
        match words.next().map(str::parse) {
            Some(Ok(transaction)) => Ok(Some(transaction)),
            _ => {
                let reason = format!("the status of the pool {} is {status:?}", pool.name);
                Err(self.error(ErrorKind::Unreadable, SETTLE, reason))
            }
        }
    }
}

/// What dmsetup says about a message to delete what is not there.
const NO_DEVICE: &str = "No data available";
