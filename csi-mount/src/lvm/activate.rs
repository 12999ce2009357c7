//! Logical volumes as block devices of this node.

use std::time::{Duration, Instant};

use crate::device::block_device::BlockDevice;
use crate::device::sysfs::{Mapped, Sysfs};
use crate::error::{ErrorKind, Result};
use crate::lvm::command::Turn;
use crate::lvm::group::{Group, Ours, VolumeGroup};
use crate::lvm::report::Found;
use crate::lvm::tags::{LvmName, LvmState};
use crate::sys::ids::DeviceNumber;

const ACTIVATE: &str = "activate a logical volume of";
const DEACTIVATE: &str = "deactivate a logical volume of";
/// How long udev can take to make the node of a new device.
const NODE_TIME_LIMIT: Duration = Duration::from_secs(10);
const POLL_INTERVAL: Duration = Duration::from_millis(10);

impl VolumeGroup {
    /// Makes a volume a block device of this node, for its stage. It can be active already.
    ///
    /// The device is compared with the volume by its device-mapper UUID and its size, so that a stale node in `/dev` is
    /// not taken for it.
    ///
    /// # Errors
    /// - [`ErrorKind::NotFound`]: there is no such volume, or its node does not come within 10 seconds.
    /// - [`ErrorKind::Pending`]: it is being created or erased.
    /// - [`ErrorKind::WrongDevice`]: the device is not the volume.
    /// - Those of [`create`](Self::create) for lvm itself.
    pub fn activate(&self, volume: &str) -> Result<BlockDevice> {
        let name = LvmName::Volume(volume.into());
        let group = &*self.0;
        let (turn, report) = group.begin(ACTIVATE)?;
        let ours = report.find(group, &name).ok_or_else(|| group.missing(ACTIVATE, &name))?;
        group.require_ready(ACTIVATE, &ours)?;
        group.activate(&turn, &ours)
    }

    /// The block device of a volume on this node; none while it is not [active](Self::activate).
    ///
    /// # Errors
    /// Those of [`activate`](Self::activate) for the volume group and the device.
    pub fn device(&self, volume: &str) -> Result<Option<BlockDevice>> {
        let group = &*self.0;
        let report = group.read()?;
        let Some(ours) = report.find(group, &LvmName::Volume(volume.into())) else { return Ok(None) };
        // A device without a table is active for lvm too.
        group.mapped(&ours)?.map(|number| group.node(&ours, number)).transpose()
    }

    /// Removes the block device of a volume, after its unstage. Succeeds if it is not active or does not exist.
    ///
    /// # Errors
    /// [`ErrorKind::Busy`] if it is in use; otherwise those of [`activate`](Self::activate).
    pub fn deactivate(&self, volume: &str) -> Result<()> {
        let name = LvmName::Volume(volume.into());
        let group = &*self.0;
        let (turn, report) = group.begin(DEACTIVATE)?;
        let Some(ours) = report.find(group, &name).filter(|ours| ours.found.is_active) else { return Ok(()) };
        group.require_closed(DEACTIVATE, &ours)?;
        group.deactivate(&turn, &ours.found.uuid)
    }
}

impl Group {
    pub(super) fn activate(&self, turn: &Turn, ours: &Ours<'_>) -> Result<BlockDevice> {
        // An active one too: a device that lost its node gets it back.
        let command = ["lvchange", "--activate", "y", "--ignoreactivationskip"];
        self.change(turn, &command, 0, &ours.found.uuid, |found| found.is_some_and(|found| found.is_active))?;
        self.device(ours)
    }

    /// The device mapper's UUID of a logical volume.
    pub(super) fn mapper_uuid(&self, uuid: &str) -> String {
        format!("LVM-{}", [&*self.uuid, uuid].concat().replace('-', ""))
    }

    /// The device of an active logical volume, which the kernel has under its UUID.
    fn mapped(&self, ours: &Ours<'_>) -> Result<Option<DeviceNumber>> {
        let uuid = self.mapper_uuid(&ours.found.uuid);
        // Without a table it has no size, or no name in sysfs: lvm was killed before it mapped anything.
        let is_it = |mapped: &Mapped| mapped.uuid == uuid && mapped.size > 0;
        let mapped = Sysfs::system().all_mapped()?.into_iter().find(is_it);
        Ok(mapped.map(|mapped| mapped.number))
    }

    fn device(&self, ours: &Ours<'_>) -> Result<BlockDevice> {
        let number = self.mapped(ours)?.ok_or_else(|| {
            let reason = format!("{} is activated, and the kernel has no device for it", ours.record.name);
            self.error(ErrorKind::NotFound, ACTIVATE, reason)
        })?;
        self.node(ours, number)
    }

    /// The node in `/dev`, when it is there.
    fn node(&self, ours: &Ours<'_>, number: DeviceNumber) -> Result<BlockDevice> {
        let end = Instant::now() + NODE_TIME_LIMIT;
        let device = loop {
            match BlockDevice::from_number(number) {
                Err(error) if error.kind() == ErrorKind::NotFound && Instant::now() < end => {
                    std::thread::sleep(POLL_INTERVAL);
                }
                opened => break opened?,
            }
        };
        let size = device.size()?;
        if size != ours.found.bytes {
            let reason = format!("{} has {size} bytes and not {}", device.path().display(), ours.found.bytes);
            return Err(self.error(ErrorKind::WrongDevice, ACTIVATE, reason));
        }
        Ok(device)
    }

    pub(super) fn deactivate(&self, turn: &Turn, uuid: &str) -> Result<()> {
        let is_done = |found: Option<&Found>| found.is_none_or(|found| !found.is_active);
        self.change(turn, &["lvchange", "--activate", "n"], 0, uuid, is_done)
    }

    /// Refuses a volume that is not ready.
    pub(super) fn require_ready(&self, operation: &'static str, ours: &Ours<'_>) -> Result<()> {
        let what = match ours.record.state {
            LvmState::Ready => return Ok(()),
            LvmState::Creating => "created",
            LvmState::Erasing => "erased",
        };
        let reason = format!("{} is still being {what}", ours.record.name);
        Err(self.error(ErrorKind::Pending, operation, reason))
    }

    /// Refuses a volume whose device is in use.
    pub(super) fn require_closed(&self, operation: &'static str, ours: &Ours<'_>) -> Result<()> {
        // Whether a device without a table is open, lvm does not say. Nobody can open it.
        if ours.found.is_open == Some(false) || !ours.found.is_active || self.mapped(ours)?.is_none() {
            return Ok(());
        }
        let reason = format!("{} is in use on this node", ours.record.name);
        Err(self
            .error(ErrorKind::Busy, operation, reason)
            .hint("unmount it, and stop what has its device open"))
    }
}
