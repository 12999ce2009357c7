//! One thread at a time at a target.
//!
//! An open descriptor of a mount's root makes it busy, and each look at a target opens one for a moment. Of many
//! threads at one target some would always be looking, and none could unmount. Nothing rests on this for its
//! safety: other processes have no part in it.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::Target;

/// More than a node has threads at work; targets that share a lock wait microseconds for each other.
const LOCKS: usize = 64;

/// The turn at a target, until it is dropped.
///
/// Invariant: nobody who holds one takes a second one, or waits for a filesystem.
pub(crate) fn at(target: &Target) -> MutexGuard<'static, ()> {
    static TABLE: [Mutex<()>; LOCKS] = [const { Mutex::new(()) }; LOCKS];
    let mut hasher = DefaultHasher::new();
    // By the directory, since one target has many paths.
    let directory = target.directory().ok();
    directory.map(|facts| (facts.device.major, facts.device.minor, facts.inode)).hash(&mut hasher);
    target.name().hash(&mut hasher);
    TABLE[hasher.finish() as usize % LOCKS].lock().unwrap_or_else(PoisonError::into_inner)
}
