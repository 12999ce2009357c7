//! The calls that wait for a target or a disk: each is made by a child process, with a limit.

use std::fs::OpenOptions;
use std::os::fd::AsFd as _;
use std::path::Path;
use std::time::Duration;

use nix::libc;

use crate::bounded::in_flight::{self, Subject, Unanswered};
use crate::sys::child::{Answer, Question};
use crate::sys::device_call::DeviceCall;
use crate::{BlockDevice, Error, ErrorKind, Result};

const FLUSH: &str = "flush";
const FLUSH_LIMIT: Duration = Duration::from_secs(30);

/// Makes a call in a child. `what` is the disk, the controller or the portal that must answer.
pub(super) fn ask(
    operation: &'static str,
    what: &Path,
    call: DeviceCall<'_>,
    limit: Duration,
) -> Result<Answer> {
    let subject = Subject::RemoteDisk(Path::new(operation).join(what));
    let unresponsive = |reason: String| Error::new(ErrorKind::Unresponsive, operation, reason).at(what);
    match in_flight::ask(subject, Question::Device(call), limit) {
        Ok((answer, _)) => Ok(answer),
        Err(Unanswered::TimedOut(limit)) => Err(unresponsive(format!("no answer within {limit:?}"))),
        Err(Unanswered::Stuck) => Err(unresponsive("an earlier call is not answered yet".to_owned())),
        Err(Unanswered::QueueTooLong) => Err(unresponsive("too many other calls wait for it".to_owned())),
        Err(Unanswered::Failed(error)) => Err(Error::os(operation, what, error)),
    }
}

pub(super) fn number_of(answer: &Answer) -> i32 {
    i32::try_from(answer.error).unwrap_or(libc::EIO)
}

pub(super) fn checked(operation: &'static str, what: &Path, answer: &Answer) -> Result<()> {
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
