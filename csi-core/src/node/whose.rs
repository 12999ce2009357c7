//! Which volume this process has put at a path, where nothing else on the node tells: a mount of a server's filesystem does not
//! bear the id of the volume that it is.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::VolumeId;

/// What is noted is only ever a reason to refuse: after a restart nothing is, and every path may be the volume's that is asked
/// for.
#[derive(Debug, Default)]
pub(super) struct Whose(Mutex<BTreeMap<PathBuf, VolumeId>>);

impl Whose {
    /// This volume is there.
    pub(super) fn note(&self, path: &Path, id: &VolumeId) {
        self.noted().insert(path.to_owned(), id.clone());
    }

    /// Nothing is there any more.
    pub(super) fn forget(&self, path: &Path) {
        self.noted().remove(path);
    }

    /// Whether another volume was put there.
    pub(super) fn is_anothers(&self, path: &Path, id: &VolumeId) -> bool {
        self.noted().get(path).is_some_and(|noted| noted != id)
    }

    fn noted(&self) -> MutexGuard<'_, BTreeMap<PathBuf, VolumeId>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
