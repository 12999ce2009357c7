//! The permissions of a volume's root directory.

use std::io;
use std::os::fd::AsFd as _;
use std::path::Path;
use std::time::Duration;

use rustix::fs::OFlags;

use crate::bounded::in_flight::{self, Subject, c_string};
use crate::path::{lookup, paths};
use crate::sys::child::Question;
use crate::sys::fd_path::path_of;
use crate::table::facts;
use crate::{Error, Result};

const SET: &str = "set the permissions of";
/// How long a filesystem's server or daemon can take.
const TIME_LIMIT: Duration = Duration::from_secs(30);

/// Sets the permissions of a directory, with setuid, setgid and sticky (`0o2770`), if it has others. What is
/// in it stays as it is.
///
/// A child process asks the filesystem, and is killed at a time limit of 30 seconds: the server or daemon of
/// a filesystem might not answer. See `chmod(2)`.
///
/// # Errors
/// - [`PermissionDenied`](crate::ErrorKind::PermissionDenied),
///   [`Unsupported`](crate::ErrorKind::Unsupported): the server or daemon does not let this process change
///   them, or nobody.
/// - [`ReadOnly`](crate::ErrorKind::ReadOnly): the mount is read-only.
/// - [`Unresponsive`](crate::ErrorKind::Unresponsive): no answer in time.
/// - [`NotFound`](crate::ErrorKind::NotFound): the directory does not exist.
#[doc(alias = "chmod")]
pub fn set_permissions(directory: impl AsRef<Path>, mode: u32) -> Result<()> {
    let path = paths::absolute(SET, directory.as_ref())?;
    let failed = |error: io::Error| Error::os(SET, &path, error);
    let place = lookup::open_path(&path, OFlags::DIRECTORY).map_err(failed)?;
    let link = c_string(&path_of(&place)).map_err(failed)?;
    let mount = facts::from_fd(&place).map_err(failed)?.mount;
    let question = Question::SetPermissions(place.as_fd(), &link, mode);
    let (answer, _) = in_flight::ask(Subject::Usage(mount), question, TIME_LIMIT).map_err(|unanswered| {
        Error::os(SET, &path, unanswered).hint("check whether its daemon or server works")
    })?;
    match answer.error {
        0 => Ok(()),
        number => Err(failed(io::Error::from_raw_os_error(number as i32))),
    }
}
