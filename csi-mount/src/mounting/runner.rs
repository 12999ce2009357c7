//! Who makes a mount: the calling thread, or a child process with a time limit.

use std::time::Duration;

use crate::bounded::in_flight::{Subject, Unanswered};
use crate::error::Error;

/// Who makes a mount.
#[derive(Debug)]
pub(crate) enum MountRunner {
    /// The calling thread.
    Caller,
    /// A child process, at most one per queue, which is killed at the limit.
    Child { queue: Subject, limit: Duration },
}

/// The error for a mount that its child process did not make.
pub(crate) fn unanswered_error(unanswered: Unanswered) -> Error {
    Error::os("wait for the server of", "", std::io::Error::from(unanswered))
        .hint("check whether the server can be reached")
}
