//! Children that have copies of this process's descriptors for a moment.
//!
//! A fork copies every descriptor, close-on-exec or not. Until the child closes its copies, or runs a program,
//! each of them keeps a mount busy, although this process has closed its own. A thread that finds a mount busy
//! waits here until the children that could have such a copy have none. A child that is forked after the
//! descriptor was closed has no copy of it, so each fork is waited for at most once.

use std::collections::BTreeSet;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, RawFd};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::fs::{CWD, Mode, OFlags, RawDir, fcntl_getfl, openat};
use rustix::io::{FdFlags, close, fcntl_getfd};

/// The forks whose children can have copies, numbered in their order.
struct Forks {
    next: u64,
    open: BTreeSet<u64>,
}

static FORKS: Mutex<Forks> = Mutex::new(Forks { next: 0, open: BTreeSet::new() });
static CLOSED: Condvar = Condvar::new();

fn forks() -> MutexGuard<'static, Forks> {
    FORKS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Held from before a fork until the child has closed its copies.
#[must_use]
pub(crate) struct Copies(u64);

impl Copies {
    pub(crate) fn begin() -> Self {
        let mut forks = forks();
        let number = forks.next;
        forks.next += 1;
        forks.open.insert(number);
        Self(number)
    }
}

impl Drop for Copies {
    fn drop(&mut self) {
        forks().open.remove(&self.0);
        CLOSED.notify_all();
    }
}

/// Waits until no child of this process has a copy of a descriptor that is closed already; at most this long.
pub(crate) fn wait_until_closed(limit: Duration) {
    let forks = forks();
    let later = forks.next;
    let is_open = |forks: &mut Forks| forks.open.first().is_some_and(|number| *number < later);
    drop(CLOSED.wait_timeout_while(forks, limit, is_open));
}

/// Starts a program. When this returns, its process has no `O_PATH` descriptor of this process.
pub(crate) fn spawn(command: &mut Command) -> io::Result<Child> {
    // Without it `spawn` returns before the program's process has closed anything: it uses vfork then, whose parent
    // continues in the middle of the exec.
    // SAFETY: `close_paths` makes system calls only and allocates nothing, which is allowed between fork and exec.
    unsafe { command.pre_exec(close_paths) };
    let _copies = Copies::begin();
    command.spawn()
}

/// Closes the `O_PATH` descriptors that the program does not get. In a child between fork and exec: the exec closes
/// them too, but the last of them after the parent was told.
fn close_paths() -> io::Result<()> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let Ok(directory) = openat(CWD, c"/proc/self/fd", flags, Mode::empty()) else { return Ok(()) };
    let mut buffer = [MaybeUninit::uninit(); 2048];
    let mut entries = RawDir::new(directory, &mut buffer);
    while let Some(Ok(entry)) = entries.next() {
        if let Some(number) = entry.file_name().to_str().ok().and_then(|name| name.parse().ok()) {
            close_path(number);
        }
    }
    Ok(())
}

/// Closes this descriptor if it is a close-on-exec `O_PATH` one.
fn close_path(number: RawFd) {
    // SAFETY: plain system calls on the child's own table.
    unsafe {
        let fd = BorrowedFd::borrow_raw(number);
        let is_path = fcntl_getfl(fd).is_ok_and(|flags| flags.contains(OFlags::PATH));
        if is_path && fcntl_getfd(fd).is_ok_and(|flags| flags.contains(FdFlags::CLOEXEC)) {
            close(number);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    #[test]
    fn forks_that_began_before_are_waited_for_and_later_ones_are_not() {
        let copies = Copies::begin();
        let start = Instant::now();
        wait_until_closed(Duration::from_millis(20));
        assert!(start.elapsed() >= Duration::from_millis(20), "it is still open");
        let long = Duration::from_secs(300);
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| wait_until_closed(long));
            // The thread has begun to wait when it has let go of the lock: a later fork then gets the next number.
            while !waiting.is_finished() && start.elapsed() < Duration::from_millis(200) {
                std::thread::yield_now();
            }
            let later = Copies::begin();
            drop(copies);
            waiting.join().unwrap();
            drop(later);
        });
        assert!(start.elapsed() < long);
    }
}
