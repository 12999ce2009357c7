//! What a unit itself is asked, through one path: its names, and whether it takes commands.

use std::fs::{self, File};
use std::os::fd::AsFd as _;
use std::time::Duration;

use super::decide::View;
use super::unit::{NODES, Unit};
use crate::error::{Error, ErrorKind, Result};
use crate::remote::ask::{ask, checked, write};
use crate::sys::device_call::DeviceCall;
use crate::sys::scsi_command::Readiness;

const CONFIRM: &str = "ask a disk for its names with";
const RESCAN: &str = "re-read the identity of a disk through";
const READY: &str = "ask whether a disk takes commands with";
const LIMIT: Duration = Duration::from_secs(15);

/// Asks each path that works for the page that has the disk's name: the kernel keeps the names that it read earlier if
/// the unit does not answer a rescan.
///
/// # Errors
///
/// [`WrongDevice`](ErrorKind::WrongDevice) if the page is another one than the kernel has;
/// [`Unresponsive`](ErrorKind::Unresponsive) or [`Io`](ErrorKind::Io) if a path does not answer;
/// [`Unsupported`](ErrorKind::Unsupported) without `/dev/bsg`.
pub(super) fn confirm(view: &View) -> Result<()> {
    let mut working = view.paths().filter(|(nexus, unit)| nexus.is_live && unit.is_running());
    working.try_for_each(|(_, unit)| confirm_one(unit, view.page()))
}

fn confirm_one(unit: &Unit, page: &str) -> Result<()> {
    let page = unit.place.join(page);
    let known = fs::read(&page).map_err(|error| Error::os("read the names of a disk from", &page, error))?;
    let node = unit.node();
    let file = File::open(&node).map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound if !fs::exists(NODES).unwrap_or(true) => {
            Error::os(CONFIRM, &node, error)
                .with_kind(ErrorKind::Unsupported)
                .hint("the kernel needs CONFIG_BLK_DEV_BSG, and a container the host's /dev")
        }
        _ => Error::os(CONFIRM, &node, error),
    })?;
    let answer = ask(CONFIRM, &node, DeviceCall::ScsiPage(file.as_fd(), &known), LIMIT)?;
    checked(CONFIRM, &node, &answer)?;
    match answer.setting {
        1 => Ok(()),
        _ => Err(Error::new(ErrorKind::WrongDevice, CONFIRM, "it has other names than before").at(node)),
    }
}

/// Lets the kernel ask a path who it is and how large it is. Returns false, and leaves the path as it is, if it takes
/// no commands now, as in standby (ALUA): the kernel would give its disk the size 0, and keep that when the path is
/// used again.
///
/// # Errors
///
/// [`Unresponsive`](crate::ErrorKind::Unresponsive) or [`Io`](crate::ErrorKind::Io) if the path does not answer.
pub(super) fn rescan(unit: &Unit) -> Result<bool> {
    if is(unit, Readiness::NotReady)? {
        return Ok(false);
    }
    write(RESCAN, &unit.place.join("rescan"), b"1", LIMIT)?;
    Ok(true)
}

/// Whether the target has taken the unit from this node, on each path that works: its access list changed, or the unit was
/// deleted.
///
/// # Errors
///
/// Those of [`rescan`].
pub(super) fn is_taken_away(view: &View) -> Result<bool> {
    for (_, unit) in view.paths().filter(|(nexus, unit)| nexus.is_live && unit.is_running()) {
        if !is(unit, Readiness::Gone)? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Without a node for commands the path counts as ready.
fn is(unit: &Unit, readiness: Readiness) -> Result<bool> {
    let node = unit.node();
    let Ok(file) = File::open(&node) else { return Ok(readiness == Readiness::Ready) };
    let answer = ask(READY, &node, DeviceCall::ScsiReady(file.as_fd()), LIMIT)?;
    checked(READY, &node, &answer)?;
    Ok(answer.setting == readiness as u64)
}
