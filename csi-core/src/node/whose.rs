//! Which volume this process has put at a path, where nothing else on the node tells: a mount of a server's filesystem does not
//! bear the id of the volume that it is.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use csi_mount::Outcome;

use crate::{Error, Result, VolumeId};

/// What is noted is only ever a reason to refuse: after a restart nothing is, and every path may be the volume's that is asked
/// for.
#[derive(Debug, Default)]
pub(super) struct Whose(Mutex<BTreeMap<PathBuf, VolumeId>>);

impl Whose {
    /// This volume is there.
    pub(super) fn note(&self, path: &Path, id: &VolumeId) {
        self.noted().insert(path.to_owned(), id.clone());
    }

    /// For a stage: this volume is there, unless what was found there is noted as another one's (ALREADY_EXISTS).
    pub(super) fn note_staged(&self, staging: &Path, id: &VolumeId, outcome: Outcome) -> Result<()> {
        if outcome == Outcome::AlreadyMounted && self.is_anothers(staging, id) {
            let place = staging.display();
            return Err(Error::Incompatible(format!("another volume than {id} is staged at {place}")));
        }
        self.note(staging, id);
        Ok(())
    }

    /// Whether any volume was put there.
    pub(super) fn is_known(&self, path: &Path) -> bool {
        self.noted().contains_key(path)
    }

    /// Nothing is there any more.
    pub(super) fn forget(&self, path: &Path) {
        self.noted().remove(path);
    }

    /// Whether another volume was put there.
    pub(super) fn is_anothers(&self, path: &Path, id: &VolumeId) -> bool {
        self.noted().get(path).is_some_and(|noted| noted != id)
    }

    /// For a publish: FAILED_PRECONDITION if another volume was put at the staging path.
    pub(super) fn refuse_to_publish(&self, staging: &Path, id: &VolumeId) -> Result<()> {
        if self.is_anothers(staging, id) { Err(another_is_staged(staging, id)) } else { Ok(()) }
    }

    /// For questions: NOT_FOUND if another volume was put at one of these paths.
    pub(super) fn refuse_to_tell(
        &self,
        paths: impl IntoIterator<Item = impl AsRef<Path>>,
        id: &VolumeId,
    ) -> Result<()> {
        if paths.into_iter().any(|path| self.is_anothers(path.as_ref(), id)) {
            return Err(Error::VolumeNotFound(id.clone()));
        }
        Ok(())
    }

    fn noted(&self) -> MutexGuard<'_, BTreeMap<PathBuf, VolumeId>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The refusal to publish one volume from where another is staged.
pub(super) fn another_is_staged(staging: &Path, id: &VolumeId) -> Error {
    let place = staging.display();
    Error::NotStaged(format!("what is staged at {place} is another volume than {id}"))
}
