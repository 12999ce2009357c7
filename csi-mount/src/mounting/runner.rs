//! Who makes a mount: the calling thread, or a child process with a time limit.

use std::ffi::c_int;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::io::Errno;

use crate::bounded::in_flight::{self, Subject};
use crate::error::{Error, Result};
use crate::sys::child::ChildCall;
use crate::sys::new_mount::{MountMethod, NewMount, Refusal};

/// Who makes a mount.
#[derive(Debug)]
pub(crate) enum MountRunner {
    /// The calling thread.
    Caller,
    /// A child process, at most one per queue, which is killed at the limit.
    Child { queue: Subject, limit: Duration },
}

impl MountRunner {
    /// Makes a mount whose options name these descriptors. It is an error if a child has not answered.
    pub(crate) fn make(
        &self,
        method: MountMethod<'_>,
        named: &[c_int],
    ) -> Result<std::result::Result<Option<OwnedFd>, Refusal>> {
        let Self::Child { queue, limit } = self else { return Ok(method.make()) };
        let question = ChildCall::Mount(NewMount { method, named });
        let (answer, mount) = in_flight::ask(queue.clone(), question, *limit).map_err(|unanswered| {
            Error::os("wait for the server of", "", std::io::Error::from(unanswered))
                .hint("check whether the server can be reached")
        })?;
        Ok(match answer.error {
            0 => Ok(mount),
            number => {
                Err(Refusal { error: Errno::from_raw_os_error(number as i32), setting: answer.setting })
            }
        })
    }
}
