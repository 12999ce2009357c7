//! The volumes and snapshots that are in use, also by work that was given up.
//!
//! While a call runs, csi-core keeps other calls off the same volume. This module covers the time after: work
//! that was given up, because its server is silent, runs on until the kernel returns.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex};

use csi_core::{Error, Result};

use crate::share_workers::locked;

/// The locked ids, and the lock of each.
#[derive(Debug, Clone, Default)]
pub(crate) struct VolumeLocks(Arc<Mutex<HashMap<String, Lock>>>);

#[derive(Debug)]
enum Lock {
    /// The object is being created, changed or deleted.
    Exclusive,
    /// This number of copies are being made of the object.
    Shared(usize),
}

/// Work on one id, possibly as a copy of another. Dropping it ends the work.
#[derive(Debug)]
pub(crate) struct LockGuard {
    locks: VolumeLocks,
    id: String,
    source: Option<String>,
}

impl VolumeLocks {
    /// Locks `id` exclusively, and `source` shared with other copies.
    ///
    /// # Errors
    /// [`Error::Pending`] while other work on one of them runs.
    pub(crate) fn lock(&self, id: &str, source: Option<&str>) -> Result<LockGuard> {
        // A copy of a volume onto itself is refused elsewhere, as incompatible.
        let source = source.filter(|source| *source != id);
        let mut locks = locked(&self.0);
        let is_copied_alone = source.is_some_and(|source| matches!(locks.get(source), Some(Lock::Exclusive)));
        let locked_id = if locks.contains_key(id) { Some(id) } else { source.filter(|_| is_copied_alone) };
        if let Some(locked_id) = locked_id {
            let text =
                format!("{locked_id}: an earlier operation on it still waits for the server of its share");
            return Err(Error::Pending(text.into()));
        }
        locks.insert(id.to_owned(), Lock::Exclusive);
        if let Some(source) = source
            && let Lock::Shared(copies) = locks.entry(source.to_owned()).or_insert(Lock::Shared(0))
        {
            *copies += 1;
        }
        Ok(LockGuard { locks: self.clone(), id: id.to_owned(), source: source.map(str::to_owned) })
    }
}

impl Drop for LockGuard {
    fn drop(&mut self) {
        let mut locks = locked(&self.locks.0);
        locks.remove(&self.id);
        let Some(source) = self.source.take() else { return };
        if let Entry::Occupied(mut lock) = locks.entry(source) {
            match lock.get_mut() {
                Lock::Shared(copies) if *copies > 1 => *copies -= 1,
                _ => drop(lock.remove()),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_is_copied_by_many_and_meanwhile_nobody_deletes_it() {
        let locks = VolumeLocks::default();
        let is_free = |id: &str, source: Option<&str>| locks.lock(id, source).is_ok();
        let first = locks.lock("snapshot-1", Some("volume")).unwrap();
        let second = locks.lock("snapshot-2", Some("volume")).unwrap();
        assert!(!is_free("volume", None) && !is_free("snapshot-1", None) && is_free("other", Some("volume")));
        drop(first);
        assert!(!is_free("volume", None) && is_free("snapshot-1", None));
        drop(second);
        let deleting = locks.lock("volume", None).unwrap();
        let error = locks.lock("snapshot-3", Some("volume")).unwrap_err();
        assert!(matches!(&error, Error::Pending(text) if text.as_str().starts_with("volume:")), "{error}");
        drop(deleting);
        assert!(is_free("volume", Some("volume")));
        assert!(locked(&locks.0).is_empty());
    }
}
