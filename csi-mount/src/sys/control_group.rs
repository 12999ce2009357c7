//! Starts a program in a control group.

use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use nix::libc;

/// Starts the program in the control group whose `cgroup.procs` this is, so that none of its memory belongs to
/// the group of this process.
pub(crate) fn enter(command: &mut Command, processes: OwnedFd) {
    let enter = move || {
        // SAFETY: the buffer is static and has one byte.
        match unsafe { libc::write(processes.as_raw_fd(), c"0".as_ptr().cast(), 1) } {
            1 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    };
    // SAFETY: `enter` makes one system call and allocates nothing, which is allowed between fork and exec.
    unsafe { command.pre_exec(enter) };
}
