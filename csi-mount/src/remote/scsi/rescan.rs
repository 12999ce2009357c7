//! Rescans: the kernel asks a path who it is and how large it is.

use std::fs::File;
use std::os::fd::AsFd as _;
use std::time::Duration;

use super::unit::Unit;
use crate::Result;
use crate::remote::ask::{ask, checked, write};
use crate::sys::device_call::DeviceCall;

const RESCAN: &str = "ask a disk again who it is with";
const READY: &str = "ask whether a disk takes commands with";
const LIMIT: Duration = Duration::from_secs(15);

/// Lets the kernel ask a path who it is and how large it is. Returns false, and leaves the path as it is, if it takes
/// no commands now, as in standby (ALUA): the kernel would give its disk the size 0, and keep that when the path is
/// used again.
///
/// # Errors
///
/// [`Unresponsive`](crate::ErrorKind::Unresponsive) or [`Io`](crate::ErrorKind::Io) if the path does not answer.
pub(super) fn rescan(unit: &Unit) -> Result<bool> {
    if !is_ready(unit)? {
        return Ok(false);
    }
    write(RESCAN, &unit.place.join("rescan"), b"1", LIMIT)?;
    Ok(true)
}

/// Without a node for commands the path counts as ready.
fn is_ready(unit: &Unit) -> Result<bool> {
    let node = unit.node();
    let Ok(file) = File::open(&node) else { return Ok(true) };
    let answer = ask(READY, &node, DeviceCall::ScsiReady(file.as_fd()), LIMIT)?;
    checked(READY, &node, &answer)?;
    Ok(answer.setting == 1)
}
