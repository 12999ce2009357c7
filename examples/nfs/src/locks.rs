//! The volumes and snapshots that are in use, also by work that was given up.
//!
//! While a call runs, csi-core keeps other calls off the same volume. This module covers the time after: work
//! that was given up, because its server is silent, runs on until the kernel returns.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex};

use csi_core::{Error, Result};

use crate::desk::locked;

/// The held ids, and how each is held.
#[derive(Debug, Clone, Default)]
pub(crate) struct Holds(Arc<Mutex<HashMap<String, Holder>>>);

#[derive(Debug)]
enum Holder {
    /// The object is being created, changed or deleted.
    Alone,
    /// This number of copies are being made of the object.
    Copies(usize),
}

/// Work on one id, possibly as a copy of another. Dropping it ends the work.
#[derive(Debug)]
pub(crate) struct Held {
    holds: Holds,
    id: String,
    source: Option<String>,
}

impl Holds {
    /// Holds `id` exclusively, and `source` shared with other copies.
    ///
    /// # Errors
    /// [`Error::Pending`] while other work on one of them runs.
    pub(crate) fn take(&self, id: &str, source: Option<&str>) -> Result<Held> {
        // A copy of a volume onto itself is refused elsewhere, as incompatible.
        let source = source.filter(|source| *source != id);
        let mut holders = locked(&self.0);
        let is_copied_alone = source.is_some_and(|source| matches!(holders.get(source), Some(Holder::Alone)));
        let taken = if holders.contains_key(id) { Some(id) } else { source.filter(|_| is_copied_alone) };
        if let Some(taken) = taken {
            let text = format!("{taken}: an earlier operation on it still waits for the server of its share");
            return Err(Error::Pending(text));
        }
        holders.insert(id.to_owned(), Holder::Alone);
        if let Some(source) = source
            && let Holder::Copies(copies) = holders.entry(source.to_owned()).or_insert(Holder::Copies(0))
        {
            *copies += 1;
        }
        Ok(Held { holds: self.clone(), id: id.to_owned(), source: source.map(str::to_owned) })
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let mut holders = locked(&self.holds.0);
        holders.remove(&self.id);
        let Some(source) = self.source.take() else { return };
        if let Entry::Occupied(mut holder) = holders.entry(source) {
            match holder.get_mut() {
                Holder::Copies(copies) if *copies > 1 => *copies -= 1,
                _ => drop(holder.remove()),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_is_copied_by_many_and_meanwhile_nobody_deletes_it() {
        let holds = Holds::default();
        let is_free = |id: &str, source: Option<&str>| holds.take(id, source).is_ok();
        let first = holds.take("snapshot-1", Some("volume")).unwrap();
        let second = holds.take("snapshot-2", Some("volume")).unwrap();
        assert!(!is_free("volume", None) && !is_free("snapshot-1", None) && is_free("other", Some("volume")));
        drop(first);
        assert!(!is_free("volume", None) && is_free("snapshot-1", None));
        drop(second);
        let deleting = holds.take("volume", None).unwrap();
        let error = holds.take("snapshot-3", Some("volume")).unwrap_err();
        assert!(matches!(&error, Error::Pending(text) if text.starts_with("volume:")), "{error}");
        drop(deleting);
        assert!(is_free("volume", Some("volume")));
        assert!(locked(&holds.0).is_empty());
    }
}
