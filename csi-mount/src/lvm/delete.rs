//! Volumes that are deleted: marked, erased, and only then removed.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crate::device::block_device::BlockDevice;
use crate::erase::{EraseMode, EraseOptions, erase};
use crate::error::{Error, ErrorKind, Result};
use crate::lvm::command::Turn;
use crate::lvm::group::{Group, Ours, VolumeGroup};
use crate::lvm::report::{Found, Kind, Report};
use crate::lvm::tags::{LvmName, LvmState, Record};

const DELETE: &str = "delete a logical volume of";
/// How much is erased between two changes of the record.
const STORED_STEP: u64 = 1 << 30;
/// How long a [`LvmEraser`] waits until it tries again what failed.
const RETRY_INTERVAL: Duration = Duration::from_secs(60);

/// What a delete has done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum LvmDeletion {
    /// Nothing with this name exists, and its space is free.
    Removed,
    /// It is marked durably, and can't be used any more. [`VolumeGroup::erase`] or an [`LvmEraser`] erases and removes
    /// it; its space is not free before.
    Erasing,
}

impl VolumeGroup {
    /// Deletes a volume or snapshot. Succeeds if it does not exist.
    ///
    /// A thin one is removed at once: its pool returns zeros for blocks that it gives to another. A thick one is
    /// removed at once if it was [created](super::LvmRequest::erase) with [`EraseMode::None`], and otherwise marked.
    ///
    /// # Errors
    /// [`ErrorKind::Busy`] if it is in use on this node, or an administrator's snapshot is of it;
    /// [`ErrorKind::Pending`] if it is still being created; otherwise those of [`open`](Self::open), and [`ErrorKind::ToolFailed`].
    pub fn delete(&self, name: &LvmName) -> Result<LvmDeletion> {
        let group = &*self.0;
        let (turn, report) = group.begin(DELETE)?;
        let Some(ours) = report.find(group, name) else { return Ok(LvmDeletion::Removed) };
        if ours.record.state == LvmState::Erasing {
            self.wake_eraser();
            return Ok(LvmDeletion::Erasing);
        }
        // A call that creates it works on it.
        let _at_erase = group.begin_erase(&ours.found.uuid)?;
        group.require_closed(DELETE, &ours)?;
        group.require_no_snapshots(&report, &ours)?;
        self.remove_growth(&turn, &report, name)?;
        // Nobody had a volume that was not finished.
        let has_no_data = ours.record.state == LvmState::Creating;
        if ours.is_thin() || ours.record.erase == EraseMode::None || has_no_data {
            self.remove(&turn, &ours)?;
            return Ok(LvmDeletion::Removed);
        }
        let mut record = ours.record.clone();
        record.state = LvmState::Erasing;
        record.erased = Some(0);
        group.set_record(&turn, &ours, &record)?;
        self.wake_eraser();
        Ok(LvmDeletion::Erasing)
    }

    /// Erases and removes a volume that is marked; an erase that was interrupted goes on where it was. It can take
    /// hours.
    ///
    /// # Errors
    /// - [`ErrorKind::NotBlank`]: it does not read as zeros afterwards. It stays marked, and its space stays taken.
    /// - [`ErrorKind::Pending`]: another call erases it.
    /// - [`ErrorKind::InvalidInput`]: it is not marked.
    /// - Those of [`erase`](crate::erase::erase()), and of lvm itself.
    pub fn erase(&self, name: &LvmName) -> Result<()> {
        self.erase_while(name, &|| true)
    }

    fn erase_while(&self, name: &LvmName, goes_on: &dyn Fn() -> bool) -> Result<()> {
        let group = &*self.0;
        let (turn, report) = group.begin(DELETE)?;
        let Some(ours) = report.find(group, name) else { return Ok(()) };
        if ours.record.state != LvmState::Erasing {
            return Err(group.error(ErrorKind::InvalidInput, DELETE, format!("{name} is not marked for it")));
        }
        let _at_erase = group.begin_erase(&ours.found.uuid)?;
        let device = group.activate(&turn, &ours)?;
        // The volume group is free for others meanwhile.
        drop(turn);
        self.erase_contents(&device, &ours, ours.record.erase, goes_on)?;
        drop(device);
        // It can have been moved meanwhile, and what it has now reads as zeros.
        let (turn, report) = group.begin(DELETE)?;
        if ours.record.erase == EraseMode::Zero
            && let Some(now) = report.find(group, name)
            && now.found.uuid == ours.found.uuid
        {
            group.know(|zeros| zeros.add(&report, now.found));
        }
        self.remove(&turn, &ours)
    }

    /// Erases a volume, and records the progress. Returns the record as it is afterwards.
    pub(super) fn erase_contents(
        &self,
        device: &BlockDevice,
        ours: &Ours<'_>,
        mode: EraseMode,
        goes_on: &dyn Fn() -> bool,
    ) -> Result<Record> {
        let group = &*self.0;
        let from = ours.record.erased.unwrap_or(0);
        let mut options = EraseOptions::new().start_at(from.min(ours.found.bytes));
        if let Some(rate) = group.options.erase_rate {
            options = options.bytes_per_second(rate);
        }
        let mut stored = ours.record.clone();
        let store = |offset: u64, stored: &mut Record| {
            let turn = group.lvm.turn(DELETE)?;
            let new = Record { erased: Some(offset), ..stored.clone() };
            group.set_record(&turn, &Ours { found: ours.found, record: stored.clone() }, &new)?;
            *stored = new;
            Ok(())
        };
        if stored.erased.is_none() {
            // Once a part is erased, a sample of the rest could miss what was found before.
            store(0, &mut stored)?;
        }
        let erased = erase(device, mode, options, |offset| {
            if !goes_on() {
                let reason = "the erase is stopped, and goes on later";
                return Err(group.error(ErrorKind::Pending, DELETE, reason));
            }
            if offset < stored.erased.unwrap_or(0) + STORED_STEP {
                return Ok(());
            }
            store(offset, &mut stored)
        });
        if let Err(error) = &erased
            && error.kind() == ErrorKind::NotBlank
        {
            // The next attempt writes again.
            store(0, &mut stored)?;
        }
        erased.map(|()| stored)
    }

    /// Removes a logical volume, and its device. lvm refuses it while the device is open.
    ///
    /// # Errors
    /// [`ErrorKind::Busy`] if others have made a snapshot of it, which lvm would remove with it.
    pub(super) fn remove(&self, turn: &Turn, ours: &Ours<'_>) -> Result<()> {
        self.0.require_no_snapshots(&self.0.read()?, ours)?;
        // Of a pool, before and after the message to the kernel.
        let commits = if ours.is_thin() { 2 } else { 1 };
        self.0.change(turn, &["lvremove"], commits, &ours.found.uuid, |found| found.is_none())
    }

    /// Starts a thread that erases and removes all volumes that are marked, one after another: those that an earlier
    /// process left, and each that is marked later. A driver starts one when it starts.
    ///
    /// What fails is logged, and tried again after a minute.
    ///
    /// # Errors
    /// [`ErrorKind::Io`] if no thread can be started.
    pub fn start_eraser(&self) -> Result<LvmEraser> {
        let stop = Arc::new(AtomicBool::new(false));
        let work = {
            let group = self.clone();
            let stop = Arc::clone(&stop);
            move || group.erase_until(&stop)
        };
        let thread = thread::Builder::new().name("lvm-eraser".to_owned()).spawn(work);
        let thread = thread.map_err(|error| Error::os("start a thread for", &self.0.name, error))?;
        Ok(LvmEraser { group: self.clone(), stop, thread: Some(thread) })
    }

    fn erase_until(&self, stop: &AtomicBool) {
        let goes_on = || !stop.load(Ordering::Relaxed);
        while goes_on() {
            let seen = *self.0.marked.0.lock().unwrap_or_else(PoisonError::into_inner);
            let has_failed = self.erase_marked(&goes_on).is_err();
            let limit = if has_failed { RETRY_INTERVAL } else { Duration::MAX };
            let (marked, changed) = &self.0.marked;
            let marked = marked.lock().unwrap_or_else(PoisonError::into_inner);
            drop(changed.wait_timeout_while(marked, limit, |marked| *marked == seen && goes_on()));
        }
    }

    /// Erases all volumes that are marked. Returns the last error.
    fn erase_marked(&self, goes_on: &dyn Fn() -> bool) -> Result<()> {
        let mut result = Ok(());
        let all = self.list().inspect_err(|error| tracing::warn!(%error, "list the volumes to erase"))?;
        for volume in all.iter().filter(|volume| volume.state == LvmState::Erasing && goes_on()) {
            if let Err(error) = self.erase_while(&volume.name, goes_on) {
                tracing::warn!(%error, volume = %volume.name, "erase");
                result = Err(error);
            }
        }
        result
    }

    fn wake_eraser(&self) {
        let (marked, changed) = &self.0.marked;
        *marked.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        changed.notify_all();
    }
}

impl Group {
    /// Refuses a volume of which an administrator has made a thick snapshot: it has a part of the data, and lvm removes it
    /// with the volume. A thin one stays.
    fn require_no_snapshots(&self, report: &Report, ours: &Ours<'_>) -> Result<()> {
        let is_on_it =
            |found: &&Found| found.origin == ours.found.name && !matches!(found.kind, Kind::Thin { .. });
        let Some(snapshot) = report.volumes.iter().find(is_on_it) else { return Ok(()) };
        let reason =
            format!("{} has the snapshot {}, which is not of this driver", ours.record.name, snapshot.name);
        Err(self
            .error(ErrorKind::Busy, DELETE, reason)
            .hint("remove the snapshot, with lvremove, if nobody needs it"))
    }
}

/// The thread of [`VolumeGroup::start_eraser`]. When this is dropped, it ends after its current step, at most 1 GiB; the
/// next one goes on there.
#[derive(Debug)]
#[must_use]
pub struct LvmEraser {
    group: VolumeGroup,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for LvmEraser {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.group.wake_eraser();
        if let Some(thread) = self.thread.take() {
            drop(thread.join());
        }
    }
}
