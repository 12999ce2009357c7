//! Passes a descriptor to a program that we start, under the same number.
#![allow(unsafe_code, reason = "pre_exec runs between fork and exec")]

use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd};
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use nix::libc;

/// Leaves this descriptor open in the program, so that `/proc/self/fd/N` means the same there as here.
///
/// The descriptor must stay open until the program has been started. No other thread's child gets it.
pub(crate) fn inherit(command: &mut Command, fd: BorrowedFd<'_>) {
    let number = fd.as_raw_fd();
    let keep = move || {
        // SAFETY: fcntl is a plain system call and safe after fork; the child's table is its own.
        match unsafe { libc::fcntl(number, libc::F_SETFD, 0) } {
            -1 => Err(io::Error::last_os_error()),
            _ => Ok(()),
        }
    };
    // SAFETY: `keep` makes one system call and allocates nothing, which is allowed between fork and exec.
    unsafe { command.pre_exec(keep) };
}
