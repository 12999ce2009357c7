//! Progress of long formats, and a limit on how many run at the same time.

use std::fmt;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// A step of a format in progress, for a progress display or a log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum FormatStep {
    /// The format waits because as many formats run as the [`FormatLimit`] allows.
    Waiting,
    /// The device is checked for write access.
    Preparing,
    /// `mkfs` runs, in memory. Reported about once a second.
    Making {
        /// Time since its start.
        elapsed: Duration,
    },
    /// The device is checked a second time, and the output of `mkfs` is copied to it.
    Writing,
    /// Everything is written, and the device is probed.
    Verifying,
}

/// The function that is called at each step. It runs on the formatting thread and should return soon.
#[derive(Clone)]
pub(crate) struct Watcher(pub(crate) Arc<dyn Fn(FormatStep) + Send + Sync>);

impl fmt::Debug for Watcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Watcher")
    }
}

/// Limits how many formats run at the same time, shared by all that have a clone of it.
///
/// `mkfs` of a large volume writes gigabytes; the formats of twenty pods that start together would slow
/// each other down.
#[derive(Debug, Clone)]
pub struct FormatLimit(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    free: Mutex<usize>,
    freed: Condvar,
}

impl FormatLimit {
    /// Allows this many at the same time; 0 counts as 1.
    pub fn new(at_once: usize) -> Self {
        Self(Arc::new(Shared { free: Mutex::new(at_once.max(1)), freed: Condvar::new() }))
    }

    /// Waits for a place until `end`; none if no place was free in time.
    pub(crate) fn enter(&self, end: Instant, mut waiting: impl FnMut()) -> Option<FormatPermit> {
        let mut free = self.0.free.lock().unwrap_or_else(PoisonError::into_inner);
        if *free == 0 {
            waiting();
        }
        while *free == 0 {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return None;
            }
            free = self.0.freed.wait_timeout(free, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        *free -= 1;
        Some(FormatPermit(Arc::clone(&self.0)))
    }
}

/// One of the places, given back when dropped.
#[derive(Debug)]
pub(crate) struct FormatPermit(Arc<Shared>);

impl Drop for FormatPermit {
    fn drop(&mut self) {
        *self.0.free.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        self.0.freed.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn at_most_the_limit_run_at_the_same_time() {
        let limit = FormatLimit::new(2);
        let soon = || Instant::now() + Duration::from_millis(20);
        let first = limit.enter(soon(), || panic!("there is room")).unwrap();
        let _second = limit.clone().enter(soon(), || panic!("there is room")).unwrap();
        let mut waited = false;
        assert!(limit.enter(soon(), || waited = true).is_none());
        assert!(waited);
        std::thread::scope(|scope| {
            let third =
                scope.spawn(|| limit.enter(Instant::now() + Duration::from_secs(60), || ()).is_some());
            drop(first);
            assert!(third.join().unwrap());
        });
    }
}
