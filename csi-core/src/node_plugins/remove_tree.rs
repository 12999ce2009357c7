//! Deleting a volume that is a directory.

use std::path::{Path, PathBuf};

use csi_mount::Target;

use super::targets::MountTable;
use crate::{Error, Result, blocking};

/// Deletes a directory with everything in it; one that is not there is `Ok`.
///
/// Unlike [`std::fs::remove_dir_all`] it never leaves the directory's own mount: while anything is mounted in it, a
/// bind of the node's own files say, nothing is deleted. Nor is anything while the directory, or something in it, is
/// mounted elsewhere on this node: then the volume is still published ([`mounted_from`]).
///
/// - spec: `delete-volume.in-use`
///
/// # Errors
/// [`Error::InUse`](crate::Error::InUse) (FAILED_PRECONDITION) naming the mounts; see
/// [`Target::remove_tree`](csi_mount::Target::remove_tree).
pub async fn remove_tree(directory: impl Into<PathBuf>) -> Result<()> {
    let directory = directory.into();
    blocking(move || {
        let users = mounted_from(&directory)?;
        if let Some(first) = users.first() {
            return Err(Error::InUse(format!(
                "{} is published at {} ({} mounts in all)",
                directory.display(),
                first.display(),
                users.len()
            )));
        }
        Target::new(&directory)?.remove_tree()?;
        Ok(())
    })
    .await
}

/// Where a directory, or something in it, is mounted on this node: what a volume that is a directory is published at.
/// The mount that the directory itself lies in is none of these. Blocks; see [`blocking`].
///
/// # Errors
/// When the mount table can't be read.
pub fn mounted_from(directory: &Path) -> Result<Vec<PathBuf>> {
    Ok(MountTable::read()?.mounted_from(directory))
}
