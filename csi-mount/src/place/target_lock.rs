//! A lock per target: one thread of this process at a time.
//!
//! An open descriptor of a mount's root makes the mount busy, and each look at a target opens one for a
//! moment. With many threads at one target, some thread always has it open, and no unmount succeeds. Safety
//! does not depend on this lock: other processes do not take it.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher as _;
use std::sync::{Condvar, LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::place::target::Target;

/// The held keys are spread over this many lists. Threads at different targets rarely share a list, and they
/// wait for one only while it is searched.
const LISTS: usize = 64;

struct List {
    held: Mutex<Vec<u64>>,
    released: Condvar,
}

static LISTS_OF_KEYS: [List; LISTS] =
    [const { List { held: Mutex::new(Vec::new()), released: Condvar::new() } }; LISTS];

/// What a thread does at the target. Locks for different purposes do not exclude each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Purpose {
    /// Held for one look, mount or unmount. This includes the time in which a local filesystem writes back
    /// its pending data, and the wait for another process at the same target.
    Mount,
    /// Held until the daemon of a FUSE filesystem has mounted it. Its holder takes the lock for
    /// [`Mount`](Self::Mount) meanwhile.
    StartDaemon,
}

/// The lock of a target, held until it is dropped.
///
/// Invariant: a thread that holds a lock for a purpose takes no second lock for the same purpose.
#[must_use]
pub(crate) struct TargetLock {
    /// A hash of the directory, the name and the purpose, because one target has many paths. Two targets with
    /// the same hash wait for each other; that happens by chance once in many millions of years.
    key: u64,
}

impl TargetLock {
    /// Waits without a limit.
    pub(crate) fn take(target: &Target, purpose: Purpose) -> Self {
        Self::take_until(target, purpose, None).unwrap_or_else(|| unreachable!("it waits without limit"))
    }

    /// None if another thread holds the lock for the whole limit.
    pub(crate) fn take_within(target: &Target, purpose: Purpose, limit: Duration) -> Option<Self> {
        Self::take_until(target, purpose, Instant::now().checked_add(limit))
    }

    fn take_until(target: &Target, purpose: Purpose, deadline: Option<Instant>) -> Option<Self> {
        static HASHER: LazyLock<RandomState> = LazyLock::new(RandomState::new);
        let key = HASHER.hash_one((target.place(), purpose));
        let list = List::for_key(key);
        let mut held = list.held();
        while held.contains(&key) {
            held = match deadline {
                None => list.released.wait(held).unwrap_or_else(PoisonError::into_inner),
                Some(deadline) => {
                    let left = deadline.checked_duration_since(Instant::now())?;
                    list.released.wait_timeout(held, left).unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
        held.push(key);
        Some(Self { key })
    }
}

impl Drop for TargetLock {
    fn drop(&mut self) {
        let list = List::for_key(self.key);
        list.held().retain(|key| *key != self.key);
        list.released.notify_all();
    }
}

impl List {
    fn for_key(key: u64) -> &'static Self {
        &LISTS_OF_KEYS[key as usize % LISTS]
    }

    fn held(&self) -> MutexGuard<'_, Vec<u64>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    fn target(directory: &tempfile::TempDir, name: &str) -> Target {
        Target::new(directory.path().join(name)).unwrap()
    }

    #[test]
    fn a_lock_is_waited_for_only_at_its_target() {
        let directory = &tempfile::tempdir().unwrap();
        let lock = |name: &str| TargetLock::take(&target(directory, name), Purpose::Mount);
        let held = lock("held");
        let (sender, done) = channel();
        std::thread::scope(|scope| {
            let same = sender.clone();
            scope.spawn(move || {
                drop(lock("held"));
                same.send("the same").unwrap();
            });
            scope.spawn(move || {
                (0..1000).for_each(|index| drop(lock(&format!("other{index}"))));
                sender.send("the others").unwrap();
            });
            // If nothing is sent, the test still ends: the lock is released, and both threads continue.
            let first = done.recv_timeout(Duration::from_secs(30));
            let second = done.recv_timeout(Duration::from_millis(50));
            drop(held);
            assert_eq!(first, Ok("the others"));
            assert!(second.is_err(), "the lock is held");
            assert_eq!(done.recv(), Ok("the same"));
        });
    }

    #[test]
    fn a_lock_for_another_purpose_is_free_and_a_limit_ends() {
        let directory = tempfile::tempdir().unwrap();
        let target = target(&directory, "target");
        let held = TargetLock::take(&target, Purpose::StartDaemon);
        drop(TargetLock::take(&target, Purpose::Mount));
        let limit = Duration::from_millis(20);
        assert!(TargetLock::take_within(&target, Purpose::StartDaemon, limit).is_none());
        drop(held);
        assert!(TargetLock::take_within(&target, Purpose::StartDaemon, limit).is_some());
    }
}
