//! The reservation of a volume's device.

use std::io;
use std::os::fd::AsFd as _;
use std::path::Path;

use super::STAGE;
use super::plan::StagePlan;
use crate::bounded::in_flight::{self, Subject};
use crate::device::block_device::BlockDevice;
use crate::error::{Error, ErrorKind, Result};
use crate::mounting::unmount::UNMOUNT_TIME_LIMIT;
use crate::place::target::Target;
use crate::reservation::{self, Fencing, ReservationKey, WriteRight};
use crate::sys::child::ChildCall;
use crate::sys::ioctl::Unwritten;

/// Reserves the device of a plan that asks for it, or checks that what is mounted is reserved still.
pub(super) fn for_stage(device: &BlockDevice, staging: &Target, plan: &StagePlan) -> Result<()> {
    let Some((key, fencing)) = plan.reservation.filter(|_| plan.writes()) else { return Ok(()) };
    if !staging.is_mounted()? {
        return require(fencing, device, || reservation::take(device, key));
    }
    require(fencing, device, || reservation::verify(device, key)).map_err(|error| {
        if error.kind() != ErrorKind::Reserved {
            return error;
        }
        match shut_down(staging) {
            Ok(()) => error.add_reason("its filesystem is shut down"),
            Err(left) => error.add_reason(format!("its filesystem could not be shut down: {left}")),
        }
    })
}

fn require(fencing: Fencing, device: &BlockDevice, reserve: impl Fn() -> Result<()>) -> Result<()> {
    if fencing == Fencing::Off {
        return Ok(());
    }
    match reserve() {
        Err(error) if error.kind() == ErrorKind::Unsupported && fencing == Fencing::IfSupported => {
            let device = device.path().display();
            tracing::info!(%device, "used without a reservation, so a node that is cut off can still write: {error}");
            Ok(())
        }
        reserved => reserved,
    }
}

/// What the filesystem has not written is given up: the device would refuse it.
fn shut_down(staging: &Target) -> Result<()> {
    let Some((opened, _)) = staging.open_mounted(STAGE)? else { return Ok(()) };
    let call = ChildCall::ShutDown(opened.fd.as_fd(), Unwritten::Dropped);
    let failed = |error| Error::os("shut down the filesystem at", staging.path(), error);
    let asked = in_flight::ask(Subject::Unmount(opened.facts.mount), call, UNMOUNT_TIME_LIMIT);
    match asked.map_err(|error| failed(io::Error::from(error)))?.0.error as i32 {
        0 => Ok(()),
        number => Err(failed(io::Error::from_raw_os_error(number))),
    }
}

/// See [`BlockVolumes::reserve`](crate::BlockVolumes::reserve).
pub(crate) fn reserve(device: &Path, key: ReservationKey, fencing: Fencing) -> Result<()> {
    let device = BlockDevice::open(device)?;
    require(fencing, &device, || reservation::take(&device, key))
}

/// See [`BlockVolumes::release`](crate::BlockVolumes::release).
pub(crate) fn release(device: &Path) -> Result<()> {
    reservation::release(&BlockDevice::open(device)?)
}

/// See [`BlockVolumes::write_right`](crate::BlockVolumes::write_right).
pub(crate) fn write_right(device: &Path, key: ReservationKey) -> Result<WriteRight> {
    reservation::write_right(&BlockDevice::open(device)?, key)
}
