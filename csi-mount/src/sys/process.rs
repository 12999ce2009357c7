//! What a program that this process starts gets and keeps, and `PTRACE_LISTEN` for tests.

use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::process::Command;

#[cfg(any(test, feature = "testing"))]
use nix::errno::Errno;
use nix::libc;

/// Starts the program in the control group whose `cgroup.procs` this is, so that none of its memory belongs to
/// the group of this process.
pub(crate) fn enter_control_group(command: &mut Command, processes: OwnedFd) {
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

/// `PTRACE_LISTEN`, for tests that kill a step at any call: leaves a seized process that a signal stopped in that state, until another signal continues it.
#[cfg(any(test, feature = "testing"))]
pub(crate) fn ptrace_listen(process: i32) -> io::Result<()> {
    let none = std::ptr::null_mut::<libc::c_void>();
    // SAFETY: the call takes no address, and a process that this thread does not trace gives an error.
    Ok(Errno::result(unsafe { libc::ptrace(libc::PTRACE_LISTEN, process, none, none) }).map(drop)?)
}
