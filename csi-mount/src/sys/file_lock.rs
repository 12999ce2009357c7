//! Locks of open files (`flock(2)`), with a time limit.

use std::os::fd::AsFd;
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

/// Locks an open file; `WOULDBLOCK` if another process holds the lock for the whole limit.
///
/// It polls, because the kernel's own wait has no limit, and a signal to end that wait would affect the whole
/// program.
pub(crate) fn take_within(file: impl AsFd, limit: Duration) -> rustix::io::Result<()> {
    let deadline = Instant::now() + limit;
    let mut pause = Duration::from_millis(1);
    loop {
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK | Errno::INTR) if Instant::now() < deadline => sleep(pause),
            result => return result,
        }
        pause = (pause * 2).min(Duration::from_millis(5));
    }
}
