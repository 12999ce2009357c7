//! The damage of a volume, or of the disk that holds all volumes. It is checked at each call, so it is
//! reported exactly as long as it lasts.

use std::fs::FileType;
use std::io::{Error as IoError, ErrorKind};
use std::path::Path;

use csi_core::mount::MountHealth;
use csi_core::types::VolumeHealthStatus::{DataLoss, Degraded, Inaccessible};
use csi_core::types::{StorageHealthEntry, StorageHealthStatus, VolumeHealthEntry, VolumeHealthStatus};
use csi_core::{Error, Result};

use crate::host::Host;
use crate::kind::Kind;
use crate::records::{SnapshotRecord, VolumeRecord};

/// With less free space than this, in bytes, writes to thin images are about to fail.
const FULL: u64 = 16 << 20;

/// The state of the disk, which all volumes share.
#[derive(Debug)]
pub(crate) enum Disk {
    Healthy,
    Full,
    Inaccessible(csi_core::Error),
}

impl Disk {
    pub(crate) fn of(host: &Host) -> Self {
        match host.free_bytes() {
            Ok(free) if free < FULL => Self::Full,
            Ok(_) => Self::Healthy,
            Err(error) => Self::Inaccessible(error),
        }
    }
}

/// The damage of a volume's content, and of the disk that holds it.
pub(crate) fn of_volume(host: &Host, id: &str, record: &VolumeRecord, disk: &Disk) -> Vec<VolumeHealthEntry> {
    let of_disk = match disk {
        Disk::Healthy => None,
        Disk::Full => Some(entry(Degraded, "PoolFull", "the disk of its pool is full".to_owned())),
        // Other damage can't be detected in this state.
        Disk::Inaccessible(error) => {
            return vec![entry(Inaccessible, "DataDirectoryGone", format!("the data directory: {error}"))];
        }
    };
    of_content(&host.volumes.place(id), record).into_iter().chain(of_disk).collect()
}

/// The damage of a volume's own image or directory.
pub(crate) fn of_content(place: &Path, record: &VolumeRecord) -> Option<VolumeHealthEntry> {
    of(place, record.kind, record.created.capacity_bytes())
}

/// Refuses to read damaged content of a volume as if it were complete.
///
/// # Errors
/// [`Error::NotPossible`] if data is lost, [`Error::Unavailable`] if the content can't be examined.
pub(crate) fn refuse_volume(host: &Host, id: &str, record: &VolumeRecord) -> Result<()> {
    refuse("volume", id, of_content(&host.volumes.place(id), record))
}

/// Refuses to read damaged content of a snapshot as if it were complete.
///
/// # Errors
/// Those of [`refuse_volume`].
pub(crate) fn refuse_snapshot(host: &Host, id: &str, record: &SnapshotRecord) -> Result<()> {
    refuse("snapshot", id, of(&host.snapshots.place(id), record.kind, record.taken.size_bytes()))
}

fn refuse(what: &str, id: &str, found: Option<VolumeHealthEntry>) -> Result<()> {
    match found {
        None => Ok(()),
        Some(entry) => {
            let text = format!("{what} {id} is damaged: {}", entry.message);
            Err(if entry.status == DataLoss {
                Error::NotPossible(text.into())
            } else {
                Error::Unavailable(text.into())
            })
        }
    }
}

fn of(place: &Path, kind: Kind, due: u64) -> Option<VolumeHealthEntry> {
    let content = kind.content(place);
    let name = kind.name();
    // What a link leads to is not deleted with the volume.
    match content.symlink_metadata() {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            Some(entry(DataLoss, "ContentMissing", format!("its {name} no longer exists")))
        }
        Err(error) => Some(unreadable(name, &error)),
        Ok(found) if !is_of(kind, found.file_type()) => {
            Some(entry(DataLoss, "ContentMissing", format!("its {name} was replaced by something else")))
        }
        Ok(found) if kind == Kind::Image && found.len() < due => Some(entry(
            DataLoss,
            "ImageTruncated",
            format!("its image has {} bytes instead of {due}", found.len()),
        )),
        Ok(_) => None,
    }
}

fn is_of(kind: Kind, found: FileType) -> bool {
    match kind {
        Kind::Image => found.is_file(),
        Kind::Directory => found.is_dir(),
    }
}

/// The damage of the disk.
pub(crate) fn of_storage(host: &Host) -> Result<Vec<StorageHealthEntry>> {
    use StorageHealthStatus::{Degraded, Unreachable};
    let entry = |status, reason: &str, message: String| {
        vec![StorageHealthEntry::new(status, reason.to_owned(), message)]
    };
    if let Err(error) = std::fs::read_dir(&host.data) {
        return Ok(entry(Unreachable, "DataDirectoryGone", format!("the data directory: {error}")));
    }
    Ok(match csi_core::mount::Host::kernel().mounts().health_of_filesystem(&host.data)? {
        MountHealth::Healthy if host.is_read_only()? => {
            entry(Degraded, "FilesystemReadOnly", "the data directory is mounted read-only".to_owned())
        }
        MountHealth::Healthy if host.free_bytes()? < FULL => {
            entry(Degraded, "PoolFull", "the disk of the data directory is full".to_owned())
        }
        MountHealth::Healthy => Vec::new(),
        MountHealth::ReadOnly => entry(Degraded, "FilesystemReadOnly", MountHealth::ReadOnly.to_string()),
        failure => entry(Unreachable, "FilesystemDead", failure.to_string()),
    })
}

fn unreadable(kind: &str, error: &IoError) -> VolumeHealthEntry {
    entry(Inaccessible, "ContentUnreadable", format!("its {kind} can't be read: {error}"))
}

fn entry(status: VolumeHealthStatus, reason: &str, message: String) -> VolumeHealthEntry {
    VolumeHealthEntry::new(status, reason.to_owned(), message)
}
