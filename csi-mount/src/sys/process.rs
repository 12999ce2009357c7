//! What a program that this process starts gets and keeps, and `PTRACE_LISTEN` for tests.

use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use nix::libc;
use rustix::io::{Errno, write};
use rustix::process::{
    Resource, Rlimit, Signal, getpid, getppid, set_parent_process_death_signal, setrlimit,
};

/// Starts the program in the control group whose `cgroup.procs` this is, so that none of its memory belongs to
/// the group of this process.
pub(crate) fn enter_control_group(command: &mut Command, processes: OwnedFd) {
    let enter = move || {
        write(&processes, b"0")?;
        Ok(())
    };
    // SAFETY: `enter` makes one system call and allocates nothing, which is allowed between fork and exec.
    unsafe { command.pre_exec(enter) };
}

/// Limits the private writable memory of the program, and of each process that it starts.
pub(crate) fn limit_data(command: &mut Command, bytes: u64) {
    let limit = Rlimit { current: Some(bytes), maximum: Some(bytes) };
    let set = move || Ok(setrlimit(Resource::Data, limit)?);
    // SAFETY: `set` makes one system call and allocates nothing, which is allowed between fork and exec.
    unsafe { command.pre_exec(set) };
}

/// Has the kernel kill the child when the thread that starts it ends, and so when our process dies.
///
/// The thread must therefore wait for the child. See `PR_SET_PDEATHSIG` in `prctl(2)`.
pub(crate) fn die_with_parent(command: &mut Command) {
    let parent = Some(getpid());
    let set = move || {
        set_parent_process_death_signal(Some(Signal::KILL))?;
        // The parent can have died before the signal was requested.
        if getppid() == parent { Ok(()) } else { Err(Errno::SRCH.into()) }
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

/// `PTRACE_LISTEN`, for tests that kill a step at any call: leaves a process that the calling thread has seized, and a
/// signal has stopped, in that state, until another signal continues it. Its parent sees the stop.
#[cfg(any(test, feature = "testing"))]
pub fn ptrace_listen(process: i32) -> io::Result<()> {
    let none = std::ptr::null_mut::<libc::c_void>();
    // SAFETY: the call takes no address, and a process that this thread does not trace gives an error.
    Ok(nix::errno::Errno::result(unsafe { libc::ptrace(libc::PTRACE_LISTEN, process, none, none) })
        .map(drop)?)
}
