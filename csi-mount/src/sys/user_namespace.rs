//! A user namespace without processes, for the owners that a mount shows.

use std::fs::{self, File};
use std::io::{self, Read as _};
use std::os::fd::{AsRawFd as _, OwnedFd};

use nix::errno::Errno;
use nix::libc;
use nix::sys::signal::{SigSet, SigmaskHow, Signal, kill, pthread_sigmask};
use nix::sys::wait::waitpid;
use nix::unistd::Pid;

use super::descriptor_copies::Copies;

/// Makes one with these maps (`user_namespaces(7)`). It lives as long as its descriptor or a mount that uses
/// it.
pub(crate) fn with_maps(users: &str, groups: &str) -> io::Result<OwnedFd> {
    let (mut reader, writer) = io::pipe()?;
    let parent = nix::unistd::getpid();
    // A signal handler of the parent must not run in the child.
    let mut before = SigSet::empty();
    pthread_sigmask(SigmaskHow::SIG_SETMASK, Some(&SigSet::all()), Some(&mut before))?;
    // The child never closes its copies, and has ended when this function returns.
    let _copies = Copies::begin();
    // SAFETY: the child runs only `in_child`, which makes raw system calls on memory that existed before the
    // fork, takes no lock, allocates nothing, and never returns.
    let forked = match unsafe { libc::fork() } {
        0 => in_child(writer.as_raw_fd(), parent.as_raw()),
        pid => Errno::result(pid),
    };
    pthread_sigmask(SigmaskHow::SIG_SETMASK, Some(&before), None)?;
    let child = Pid::from_raw(forked?);
    drop(writer);
    let made = take(child, &mut reader, users, groups);
    // The child waits only for this signal.
    let _ = kill(child, Signal::SIGKILL);
    while waitpid(child, None) == Err(Errno::EINTR) {}
    made
}

fn take(child: Pid, reader: &mut io::PipeReader, users: &str, groups: &str) -> io::Result<OwnedFd> {
    let mut number = [0; 4];
    reader.read_exact(&mut number)?;
    match i32::from_ne_bytes(number) {
        0 => {}
        number => return Err(io::Error::from_raw_os_error(number)),
    }
    fs::write(format!("/proc/{child}/uid_map"), users)?;
    fs::write(format!("/proc/{child}/gid_map"), groups)?;
    Ok(File::open(format!("/proc/{child}/ns/user"))?.into())
}

/// Makes only raw system calls: another thread can have held any lock at the time of the fork.
fn in_child(pipe: i32, parent: libc::pid_t) -> ! {
    // SAFETY: plain system calls on integers; `number` is live and four bytes long. `_exit` runs nothing of
    // the parent's.
    unsafe {
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
        if libc::getppid() != parent {
            libc::_exit(1);
        }
        let number = if libc::unshare(libc::CLONE_NEWUSER) == 0 { 0 } else { Errno::last_raw() };
        // The change of the namespace has cleared the signal.
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
        if libc::getppid() != parent {
            libc::_exit(1);
        }
        libc::write(pipe, (&raw const number).cast(), 4);
        loop {
            libc::pause();
        }
    }
}
