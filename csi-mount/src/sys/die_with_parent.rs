//! A child process that does not outlive us.
#![allow(unsafe_code, reason = "pre_exec runs between fork and exec")]

use std::io;
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use nix::libc;

/// Has the kernel kill the child when the thread that starts it ends, and so when our process dies.
///
/// The thread must therefore wait for the child. See `PR_SET_PDEATHSIG` in `prctl(2)`.
pub(crate) fn die_with_parent(command: &mut Command) {
    let parent = std::process::id();
    let set = move || {
        // SAFETY: prctl and getppid are plain system calls and safe after fork.
        unsafe {
            if libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) != 0 {
                return Err(io::Error::last_os_error());
            }
            // The parent can have died before the signal was requested.
            if libc::getppid().cast_unsigned() != parent {
                return Err(io::Error::from_raw_os_error(libc::ESRCH));
            }
        }
        Ok(())
    };
    // SAFETY: `set` makes two system calls and allocates nothing, which is allowed between fork and exec.
    unsafe { command.pre_exec(set) };
}
