//! The reservation of a volume's device.

use std::io;
use std::os::fd::AsFd as _;
use std::path::Path;

use super::STAGE;
use super::encrypted::mapping_of;
use super::plan::StagePlan;
use crate::bounded::in_flight::{self, Subject};
use crate::device::block_device::BlockDevice;
use crate::error::{Error, ErrorKind, Result};
use crate::mounting::unmount::UNMOUNT_TIME_LIMIT;
use crate::place::target::Target;
use crate::reservation::{self, Fencing, NotHeld, Reservation, ReservationKey, WriteRight};
use crate::sys::child::ChildCall;
use crate::sys::ioctl::Unwritten;

/// Reserves the device of a plan that asks for it, or checks that what is mounted is reserved still.
pub(super) fn for_stage(device: &BlockDevice, staging: &Target, plan: &StagePlan) -> Result<()> {
    let Some(wanted) = plan.reservation.as_ref().filter(|_| plan.writes()) else { return Ok(()) };
    if !staging.is_mounted()? {
        return require(wanted, device, || reservation::take(device, wanted))
            .map_err(|not_held| not_held.error);
    }
    if !is_on(device, staging)? {
        let reason = format!("what is mounted there is not on {}", device.path().display());
        return Err(Error::new(ErrorKind::AlreadyMounted, STAGE, reason).at(staging.path()));
    }
    require(wanted, device, || reservation::verify(device, wanted)).map_err(
        |NotHeld { error, is_taken_over }| {
            if !is_taken_over {
                return error;
            }
            match shut_down(staging) {
                Ok(()) => error.add_reason("its filesystem is shut down"),
                Err(left) => error.add_reason(format!("its filesystem could not be shut down: {left}")),
            }
        },
    )
}

/// Whether what is mounted there is on this device, or inside it. Anything else is another volume's: this device has no
/// key of this node then, and that filesystem must not be shut down for it.
fn is_on(device: &BlockDevice, staging: &Target) -> Result<bool> {
    let Some((_, details)) = staging.open_mounted(STAGE)? else { return Ok(false) };
    if details.block_device() == Some(device.number()) {
        return Ok(true);
    }
    let mapping = mapping_of(staging)?;
    Ok(mapping.is_some_and(|mapping| mapping.beneath() == Some(device.number())))
}

fn require(
    wanted: &Reservation,
    device: &BlockDevice,
    reserve: impl Fn() -> Result<(), NotHeld>,
) -> Result<(), NotHeld> {
    let fencing = wanted.fencing();
    if fencing == Fencing::Off {
        return Ok(());
    }
    match reserve() {
        Err(NotHeld { error, .. })
            if error.kind() == ErrorKind::Unsupported && fencing == Fencing::IfSupported =>
        {
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
pub(crate) fn reserve(device: &Path, wanted: &Reservation) -> Result<()> {
    let device = BlockDevice::open(device)?;
    require(wanted, &device, || reservation::take(&device, wanted)).map_err(|not_held| not_held.error)
}

/// See [`BlockVolumes::write_right`](crate::BlockVolumes::write_right).
pub(crate) fn write_right(device: &Path, key: ReservationKey) -> Result<WriteRight> {
    reservation::write_right(&BlockDevice::open(device)?, key)
}
