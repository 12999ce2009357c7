//! The calls that wait for a target or a disk, each made by a child process with a limit; and reads of sysfs that
//! the kernel answers from memory.

use std::fs::{self, OpenOptions};
use std::io;
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::libc;

use crate::bounded::in_flight::{self, Subject, Unanswered};
use crate::device::block_device::BlockDevice;
use crate::error::{Error, ErrorKind, Result};
use crate::sys::child::{ChildCall, ChildReply};
use crate::sys::device_call::DeviceCall;

const FLUSH: &str = "flush";
const FLUSH_LIMIT: Duration = Duration::from_secs(30);

/// Makes a call in a child. `what` is the disk, the controller or the portal that must answer.
pub(crate) fn ask(
    operation: &'static str,
    what: &Path,
    call: DeviceCall<'_>,
    limit: Duration,
) -> Result<ChildReply> {
    let subject = Subject::RemoteDisk(Path::new(operation).join(what));
    let unresponsive = |reason: String| Error::new(ErrorKind::Unresponsive, operation, reason).at(what);
    match in_flight::ask(subject, ChildCall::Device(call), limit) {
        Ok((answer, _)) => Ok(answer),
        Err(Unanswered::TimedOut(limit)) => Err(unresponsive(format!("no answer within {limit:?}"))),
        Err(Unanswered::Stuck | Unanswered::Silent) => {
            Err(unresponsive("an earlier call is not answered yet".to_owned()))
        }
        Err(Unanswered::QueueTooLong) => Err(unresponsive("too many other calls wait for it".to_owned())),
        Err(Unanswered::Failed(error)) => Err(Error::os(operation, what, error)),
    }
}

pub(crate) fn number_of(answer: &ChildReply) -> i32 {
    i32::try_from(answer.error).unwrap_or(libc::EIO)
}

pub(crate) fn checked(operation: &'static str, what: &Path, answer: &ChildReply) -> Result<()> {
    match number_of(answer) {
        0 => Ok(()),
        number => Err(Error::os(operation, what, std::io::Error::from_raw_os_error(number))),
    }
}

/// Writes to an attribute in sysfs. One that does not exist, or whose device goes away, is a success: what it
/// belongs to is gone.
pub(super) fn write(operation: &'static str, switch: &Path, bytes: &[u8], limit: Duration) -> Result<()> {
    let file = match OpenOptions::new().write(true).open(switch) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        file => file.map_err(|error| Error::os(operation, switch, error))?,
    };
    let answer = ask(operation, switch, DeviceCall::Write(file.as_fd(), bytes), limit)?;
    match number_of(&answer) {
        libc::ENODEV | libc::ENOENT => Ok(()),
        _ => checked(operation, switch, &answer),
    }
}

/// Writes out what the node holds for a disk, and what the disk holds in its cache.
pub(super) fn flush(device: &BlockDevice) -> Result<()> {
    let answer = ask(FLUSH, device.path(), DeviceCall::Sync(device.as_fd()), FLUSH_LIMIT)?;
    checked(FLUSH, device.path(), &answer)
}

/// An attribute without the white space around it. Returns `None` if it can't be read: its device is gone.
pub(super) fn text(path: &Path) -> Option<String> {
    fs::read_to_string(path).ok().map(|text| text.trim().to_owned())
}

/// The entries of a class or bus, in the order of their names. It has none if its module is not loaded.
pub(super) fn entries(operation: &'static str, class: &Path) -> Result<Vec<PathBuf>> {
    let failed = |error| Error::os(operation, class, error);
    let entries = match fs::read_dir(class) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(failed)?,
    };
    let mut paths = entries.map(|entry| Ok(entry.map_err(failed)?.path())).collect::<Result<Vec<_>>>()?;
    paths.sort();
    Ok(paths)
}
