//! `PTRACE_LISTEN`, for tests that kill a step at any call.

use std::io;

use nix::errno::Errno;
use nix::libc;

/// Leaves a seized process that a signal stopped in that state, until another signal continues it.
pub(crate) fn listen(process: i32) -> io::Result<()> {
    let none = std::ptr::null_mut::<nix::libc::c_void>();
    // SAFETY: the call takes no address, and a process that this thread does not trace gives an error.
    Ok(Errno::result(unsafe { libc::ptrace(libc::PTRACE_LISTEN, process, none, none) }).map(drop)?)
}
