//! Volumes that are directories, made and grown with a size that the filesystem enforces where it can.

use std::fs;
use std::path::PathBuf;
use std::sync::Once;

use csi_mount::{DirectoryLimit, ErrorKind, Host};

use crate::blocking::blocking;
use crate::error::{IoContext as _, Result};

/// Makes the directory of a volume, with those above it, and returns its size in bytes for
/// [`Volume::new`](crate::types::Volume::new): the size that the filesystem enforces, or 0, an unknown size, where it
/// can't. The first time that it can't, the log says why and how to change that (WARN).
///
/// A directory that exists keeps its size, which is returned: CreateVolume is repeated, and the framework compares the
/// answer with the request. The size is a number of bytes, or a [`DirectoryLimit`], which also has a number of inodes.
/// It is a limit and no reservation.
///
/// ```
/// use csi_core::{Result, prelude::*};
///
/// async fn create(request: CreateVolumeRequest) -> Result<Volume> {
///     let id = VolumeId::from_name(&request.name)?;
///     let size = request.capacity_range.choose(1 << 30, 1 << 20)?;
///     let path = std::path::Path::new("/srv/volumes").join(id.as_file_name()?);
///     Ok(Volume::new(id, create_directory(request.host(), path, size).await?))
/// }
/// ```
///
/// A driver that refuses such a filesystem calls
/// [`Directories::create`](csi_mount::Directories::create) of the request's host, or
/// [`check_limits`](csi_mount::Directories::check_limits) when it starts.
///
/// # Errors
/// [`Error::OutOfRange`](crate::Error::OutOfRange) (OUT_OF_RANGE) for a size above that of any quota; see
/// [`Directories::create`](csi_mount::Directories::create).
pub async fn create_directory(
    host: &Host,
    directory: impl Into<PathBuf>,
    limit: impl Into<DirectoryLimit>,
) -> Result<u64> {
    static SAID: Once = Once::new();
    let host = host.clone();
    let directory = directory.into();
    let limit = limit.into();
    blocking(move || {
        if let Some(parent) = directory.parent() {
            fs::create_dir_all(parent).at("create", parent)?;
        }
        match host.directories().create(&directory, limit) {
            Err(error) if error.kind() == ErrorKind::Unsupported => {
                SAID.call_once(|| tracing::warn!("the sizes of volumes are not enforced: {error}"));
                fs::create_dir_all(&directory).at("create", &directory).map(|()| 0)
            }
            made => Ok(made?.bytes),
        }
    })
    .await
}

/// Grows a directory that [`create_directory`] made to at least this size, and returns its size in bytes. It never
/// shrinks. A directory without a limit has any size.
///
/// For ControllerExpandVolume, where the controller has the directories; on the node,
/// [`DirectoryNode`](super::DirectoryNode) does it.
///
/// ```
/// use csi_core::node_plugins::grow_directory;
/// use csi_core::{Result, prelude::*};
///
/// async fn expand(request: ControllerExpandVolumeRequest, path: std::path::PathBuf) -> Result<Expanded> {
///     let size = request.capacity_range.choose(0, 1 << 20)?;
///     grow_directory(request.host(), path, size).await.map(Expanded::complete)
/// }
/// ```
///
/// # Errors
/// Those of [`Directories::set_limit`](csi_mount::Directories::set_limit).
pub async fn grow_directory(
    host: &Host,
    directory: impl Into<PathBuf>,
    limit: impl Into<DirectoryLimit>,
) -> Result<u64> {
    let host = host.clone();
    let directory = directory.into();
    let limit = limit.into();
    blocking(move || {
        let directories = host.directories();
        match directories.limit(&directory)? {
            Some(now) if now.bytes < limit.bytes => {
                directories.set_limit(&directory, limit.inodes(limit.inodes.max(now.inodes)))?;
                Ok(limit.bytes)
            }
            Some(now) => Ok(now.bytes),
            None => Ok(limit.bytes),
        }
    })
    .await
}
