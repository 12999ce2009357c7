//! One system call that may never return, made by a child process that can be given up.

use std::ffi::{CStr, c_int};
use std::io::{self, Read};
use std::mem::{MaybeUninit, size_of};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::libc;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, SigmaskHow, Signal, kill, pthread_sigmask};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

/// How long a killed child may take to go. One whose request a dead daemon holds goes only with the daemon.
const REAPING: Duration = Duration::from_millis(100);

/// Children that were killed and did not go yet; the next call collects those that have.
static LEFT: Mutex<Vec<Pid>> = Mutex::new(Vec::new());

/// What the child asks of a path.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Question<'a> {
    /// `statfs(2)`.
    Statfs(&'a CStr),
    /// `umount2(2)` with these flags; the answer's numbers mean nothing.
    Unmount(&'a CStr, c_int),
}

/// The numbers of `struct statfs` that count; zeros for other questions.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Answer {
    /// The error number, or 0.
    pub(crate) error: u64,
    /// Bytes in a block of the counts below.
    pub(crate) block_size: u64,
    pub(crate) blocks: u64,
    pub(crate) blocks_free: u64,
    pub(crate) blocks_available: u64,
    pub(crate) inodes: u64,
    pub(crate) inodes_free: u64,
}

const ANSWER: usize = size_of::<Answer>();

/// Asks in a child process. `TimedOut` when it does not answer in time; the child is then killed.
pub(crate) fn ask(question: Question<'_>, limit: Duration) -> io::Result<Answer> {
    collect_left();
    let (read, write) = nix::unistd::pipe2(nix::fcntl::OFlag::O_CLOEXEC)?;
    let child = spawn(question, &write)?;
    drop(write);
    let answer = wait_for_answer(read, limit);
    if answer.is_err() {
        // Gone already if it ended without an answer.
        let _ = kill(child, Signal::SIGKILL);
    }
    reap(child);
    answer
}

fn spawn(question: Question<'_>, write: &OwnedFd) -> io::Result<Pid> {
    // A handler of the parent must not run in the child, where it would act on the parent's behalf.
    let mut before = SigSet::empty();
    pthread_sigmask(SigmaskHow::SIG_SETMASK, Some(&SigSet::all()), Some(&mut before))?;
    // SAFETY: the child runs only `in_child`, which makes raw system calls on memory that existed before the
    // fork, takes no lock, allocates nothing, and never returns.
    let forked = match unsafe { libc::fork() } {
        0 => in_child(question, write.as_raw_fd()),
        pid => Errno::result(pid),
    };
    pthread_sigmask(SigmaskHow::SIG_SETMASK, Some(&before), None)?;
    Ok(Pid::from_raw(forked?))
}

/// Only raw system calls: another thread may have held any lock when the process was forked.
fn in_child(question: Question<'_>, write: c_int) -> ! {
    // SAFETY: plain integers. The parent's descriptors must not live on in a child that may be stuck.
    unsafe {
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
        close_all_but(write);
    }
    let answer = match question {
        Question::Statfs(path) => statfs(path),
        Question::Unmount(path, flags) => {
            // SAFETY: the path is a C string that the parent keeps.
            let result = unsafe { libc::umount2(path.as_ptr(), flags) };
            Answer { error: error_of(result), ..Answer::default() }
        }
    };
    // SAFETY: `answer` is live and ANSWER bytes long, without padding; _exit runs nothing of the parent's.
    unsafe {
        libc::write(write, (&raw const answer).cast(), ANSWER);
        libc::_exit(0)
    }
}

/// # Safety
/// For a process that uses no descriptor but this one afterwards.
unsafe fn close_all_but(keep: c_int) {
    const CLOSE_RANGE: libc::c_long = 436;
    // SAFETY: as the caller promises; the arguments are integers.
    unsafe {
        let below = if keep == 0 { 0 } else { libc::syscall(CLOSE_RANGE, 0, keep - 1, 0) };
        if below != 0 || libc::syscall(CLOSE_RANGE, keep + 1, libc::c_uint::MAX, 0) != 0 {
            // Before Linux 5.9: as many as a process usually has.
            for fd in (0..1024).filter(|fd| *fd != keep) {
                libc::close(fd);
            }
        }
    }
}

fn statfs(path: &CStr) -> Answer {
    let mut found = MaybeUninit::<libc::statfs64>::zeroed();
    // SAFETY: the path is a C string that the parent keeps, and the buffer is live and of the call's type.
    let error = error_of(unsafe { libc::statfs64(path.as_ptr(), found.as_mut_ptr()) });
    // SAFETY: all zeros is a value of this struct of integers, and the kernel wrote another over it.
    let found = unsafe { found.assume_init() };
    // The counts are in fragments where the filesystem has such.
    let block_size = if found.f_frsize > 0 { found.f_frsize } else { found.f_bsize };
    Answer {
        error,
        block_size: block_size as u64,
        blocks: found.f_blocks,
        blocks_free: found.f_bfree,
        blocks_available: found.f_bavail,
        inodes: found.f_files,
        inodes_free: found.f_ffree,
    }
}

fn error_of(result: c_int) -> u64 {
    if result == 0 { 0 } else { Errno::last_raw() as u64 }
}

fn wait_for_answer(read: OwnedFd, limit: Duration) -> io::Result<Answer> {
    let deadline = Instant::now() + limit;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        // Rounded up, so that the last round does not spin.
        let timeout = PollTimeout::try_from(left + Duration::from_millis(1)).unwrap_or(PollTimeout::MAX);
        let mut fds = [PollFd::new(read.as_fd(), PollFlags::POLLIN)];
        match poll(&mut fds, timeout) {
            Ok(0) if left.is_zero() => return Err(io::ErrorKind::TimedOut.into()),
            Ok(0) | Err(Errno::EINTR) => {}
            Ok(_) => break,
            Err(error) => return Err(error.into()),
        }
    }
    let mut bytes = [0; ANSWER];
    // A pipe's short writes are whole: the answer is there, or the child died without one.
    std::fs::File::from(read).read_exact(&mut bytes)?;
    let mut numbers = bytes.chunks_exact(8).map(|chunk| {
        let mut number = [0; 8];
        number.copy_from_slice(chunk);
        u64::from_ne_bytes(number)
    });
    let mut next = || numbers.next().unwrap_or_default();
    Ok(Answer {
        error: next(),
        block_size: next(),
        blocks: next(),
        blocks_free: next(),
        blocks_available: next(),
        inodes: next(),
        inodes_free: next(),
    })
}

/// Waits a little for a child that is ending, and leaves it to the next call if it can't.
fn reap(child: Pid) {
    let deadline = Instant::now() + REAPING;
    let mut pause = Duration::from_micros(20);
    while !is_gone(child) {
        if Instant::now() > deadline {
            tracing::warn!(%child, "a killed child is stuck in the kernel");
            LEFT.lock().unwrap_or_else(PoisonError::into_inner).push(child);
            return;
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(5));
    }
}

fn collect_left() {
    LEFT.lock().unwrap_or_else(PoisonError::into_inner).retain(|child| !is_gone(*child));
}

fn is_gone(child: Pid) -> bool {
    // ECHILD: the program reaps all its children itself.
    !matches!(waitpid(child, Some(WaitPidFlag::WNOHANG)), Ok(WaitStatus::StillAlive) | Err(Errno::EINTR))
}
