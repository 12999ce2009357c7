//! Whether the paths of a disk still lead to it. The unit itself is asked: the kernel keeps the names that it read
//! earlier if the unit does not answer a rescan.

use std::fs;
use std::os::fd::AsFd as _;
use std::time::Duration;

use super::decide::View;
use super::unit::{NODES, Unit};
use crate::remote::ask::{ask, checked};
use crate::sys::device_call::DeviceCall;
use crate::{Error, ErrorKind, Result};

const CONFIRM: &str = "ask a disk for its names with";
const LIMIT: Duration = Duration::from_secs(15);

/// Asks each path that works for the page that has the disk's name.
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
    let file = fs::File::open(&node).map_err(|error| match error.kind() {
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
