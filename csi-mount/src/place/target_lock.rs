//! One thread at a time at a target.
//!
//! An open descriptor of a mount's root makes it busy, and each look at a target opens one for a moment. Of many
//! threads at one target some would always be looking, and none could unmount. Nothing rests on this for its
//! safety: other processes have no part in it.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher as _;
use std::sync::{Condvar, LazyLock, Mutex, MutexGuard, PoisonError};

use crate::Target;

/// The turns that are taken are in one of so many lists, so that threads at different targets seldom wait for a list, and
/// for no longer than it takes to look through it.
const LISTS: usize = 64;

struct List {
    taken: Mutex<Vec<u64>>,
    given_back: Condvar,
}

static LISTS_OF_TURNS: [List; LISTS] =
    [const { List { taken: Mutex::new(Vec::new()), given_back: Condvar::new() } }; LISTS];

/// The turn at a target, until it is dropped.
///
/// Who holds it may wait for the unmount of a local filesystem, which writes all that was not written yet, and for another
/// process at the same target: only threads at that target wait with him.
///
/// Invariant: nobody who holds one takes a second one.
#[must_use]
pub(crate) struct Turn {
    /// Of the directory and the name, since one target has many paths. That two targets come to the same number once in
    /// many millions of years costs them a wait.
    key: u64,
}

pub(crate) fn at(target: &Target) -> Turn {
    static HASHER: LazyLock<RandomState> = LazyLock::new(RandomState::new);
    let key = HASHER.hash_one(target.place());
    let list = List::of(key);
    let mut taken = list.taken();
    while taken.contains(&key) {
        taken = list.given_back.wait(taken).unwrap_or_else(PoisonError::into_inner);
    }
    taken.push(key);
    Turn { key }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let list = List::of(self.key);
        list.taken().retain(|key| *key != self.key);
        list.given_back.notify_all();
    }
}

impl List {
    fn of(key: u64) -> &'static Self {
        &LISTS_OF_TURNS[key as usize % LISTS]
    }

    fn taken(&self) -> MutexGuard<'_, Vec<u64>> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_turn_is_waited_for_at_its_target_and_at_no_other() {
        let directory = tempfile::tempdir().unwrap();
        let target = &|name: String| Target::new(directory.path().join(name)).unwrap();
        let held = at(&target("held".to_owned()));
        let (sender, told) = channel();
        std::thread::scope(|scope| {
            let same = sender.clone();
            scope.spawn(move || {
                drop(at(&target("held".to_owned())));
                same.send("the same").unwrap();
            });
            scope.spawn(move || {
                (0..1000).for_each(|index| drop(at(&target(format!("other{index}")))));
                sender.send("the others").unwrap();
            });
            // The end of the test if nobody comes by: what is held is given back, and all go on.
            let first = told.recv_timeout(Duration::from_secs(30));
            let second = told.recv_timeout(Duration::from_millis(50));
            drop(held);
            assert_eq!(first, Ok("the others"));
            assert!(second.is_err(), "it is held");
            assert_eq!(told.recv(), Ok("the same"));
        });
    }
}
