//! Which volumes and snapshots are worked on, also by work that nobody waits for any more.
//!
//! While a call is answered the framework keeps others from what it is about. This is for afterwards: work that was given
//! up, as its server is silent, runs on until the kernel lets go of it.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex};

use csi_core::{Error, Result};

use crate::desk::locked;

/// Ids that are held, and how.
#[derive(Debug, Clone, Default)]
pub(crate) struct Holds(Arc<Mutex<HashMap<String, Holder>>>);

#[derive(Debug)]
enum Holder {
    /// What is made, changed or deleted.
    Alone,
    /// So many copies are made of it.
    Copies(usize),
}

/// Work on one id, which may be a copy of another; ends when it is dropped.
#[derive(Debug)]
pub(crate) struct Held {
    holds: Holds,
    id: String,
    source: Option<String>,
}

impl Holds {
    /// Holds the id alone, and with others the one that is copied.
    ///
    /// # Errors
    /// [`Error::Pending`] while other work is in the way.
    pub(crate) fn take(&self, id: &str, source: Option<&str>) -> Result<Held> {
        // Who copies a volume onto itself is told elsewhere that it differs.
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
