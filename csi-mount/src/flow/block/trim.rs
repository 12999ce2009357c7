//! Frees space on the device of a mounted filesystem.

use std::io;
use std::ops::Range;
use std::os::fd::AsFd as _;
use std::path::Path;
use std::time::Duration;

use super::usage::VolumePath;
use crate::bounded::in_flight::{self, Subject};
use crate::error::{Error, ErrorKind, Result};
use crate::sys::child::ChildCall;

const TRIM: &str = "free unused space of";
/// How long the kernel can take for one range, before it is told to stop.
const TRIM_TIME_LIMIT: Duration = Duration::from_secs(30);

/// See [`BlockVolumes::trim`](crate::BlockVolumes::trim).
pub(crate) fn trim(at: &Path, bytes: Range<u64>) -> Result<u64> {
    let place = VolumePath::at(at, TRIM)?;
    if place.is_block_device() {
        return Err(Error::new(ErrorKind::Unsupported, TRIM, "it is a raw device").at(at));
    }
    let length = bytes.end.saturating_sub(bytes.start);
    let question = ChildCall::Trim(place.root.as_fd(), bytes.start, length);
    let asked = in_flight::ask(Subject::Trim(place.facts.mount), question, TRIM_TIME_LIMIT);
    let (answer, _) = asked.map_err(|error| Error::os(TRIM, at, io::Error::from(error)))?;
    match answer.error as i32 {
        0 => Ok(answer.blocks),
        number => Err(Error::os(TRIM, at, io::Error::from_raw_os_error(number))),
    }
}
