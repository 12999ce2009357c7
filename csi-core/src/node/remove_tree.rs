//! Deleting a volume that is a directory.

use std::path::PathBuf;

use csi_mount::Target;

use crate::{Result, blocking};

/// Deletes a directory with everything in it; one that is not there is `Ok`.
///
/// Unlike [`std::fs::remove_dir_all`] it never leaves the directory's own mount: while anything is mounted in it, a
/// volume that is still published or a bind of the node's own files, nothing is deleted.
///
/// # Errors
/// [`Error::InUse`](crate::Error::InUse) (FAILED_PRECONDITION) naming the mounts in it; see
/// [`Target::remove_tree`](csi_mount::Target::remove_tree).
pub async fn remove_tree(directory: impl Into<PathBuf>) -> Result<()> {
    let directory = directory.into();
    blocking(move || {
        Target::new(&directory)?.remove_tree()?;
        Ok(())
    })
    .await
}
