//! Deleting a volume that is a directory.

use std::path::{Path, PathBuf};

use csi_mount::{DeviceNumber, Host};

use super::targets::MountTable;
use crate::blocking::blocking;
use crate::error::{Error, Result};

/// Deletes a directory of the request's [`host`](crate::TypedRequest::host) with everything in it; a directory
/// that does not exist is `Ok`.
///
/// Unlike [`std::fs::remove_dir_all`] it never leaves the directory's own mount: while anything is mounted
/// inside it, for example a bind mount of the node's own files, nothing is deleted. Nothing is deleted
/// either while the directory, or something inside it, is mounted elsewhere on this node, because the
/// volume is then still published ([`mounted_from`]).
///
/// - spec: `delete-volume.in-use`
///
/// # Errors
/// [`Error::InUse`](crate::Error::InUse) (FAILED_PRECONDITION), naming the mounts; see
/// [`Target::remove_tree`](csi_mount::Target::remove_tree).
pub async fn remove_tree(host: &Host, directory: impl Into<PathBuf>) -> Result<()> {
    let host = host.clone();
    let directory = directory.into();
    blocking(move || {
        let users = mounted_from(&host, &directory)?;
        if let Some(first) = users.first() {
            return Err(Error::InUse(
                format!(
                    "{} is published at {} ({} mounts in all)",
                    directory.display(),
                    first.display(),
                    users.len()
                )
                .into(),
            ));
        }
        host.directories().remove_tree(&directory)?;
        Ok(())
    })
    .await
}

/// Returns where a directory, or something inside it, is mounted on this node: the targets at which a
/// volume that is a directory is published. The mount that contains the directory itself is not among them.
/// Blocks; see [`blocking`].
///
/// # Errors
/// Any failure to read the mount table.
pub fn mounted_from(host: &Host, directory: &Path) -> Result<Vec<PathBuf>> {
    Ok(MountTable::read(host)?.mounted_from(directory))
}

/// Whether a directory, or something inside it, is mounted at this path, by whatever way the path leads there. Blocks; see
/// [`blocking`].
///
/// # Errors
/// Any failure to read the mount table.
pub fn is_mounted_from(host: &Host, directory: &Path, path: &Path) -> Result<bool> {
    Ok(MountTable::read(host)?.is_mounted_from(directory, path))
}

/// Returns where the filesystem on a device is mounted on this node besides its staging path: the targets at which a
/// volume that is a device is published. Copies that mount propagation makes of the staging mount are not among them:
/// they end with it. Blocks; see [`blocking`].
///
/// # Errors
/// Any failure to read the mount table.
pub fn mounted_besides(host: &Host, device: DeviceNumber, staging: &Path) -> Result<Vec<PathBuf>> {
    Ok(MountTable::read(host)?.mounted_besides(device, staging))
}
