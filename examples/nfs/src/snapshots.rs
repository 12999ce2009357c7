//! Snapshots on a share: for each a copy of the volume's directory, and a record.
//!
//! The record is written before the copy and removed after it. It says "finished" while the copy is complete.

use std::time::SystemTime;

use csi_core::controller::SnapshotRecord;
use csi_core::mount::Root;
use csi_core::types::{Snapshot, SnapshotId};
use csi_core::{Error, Result, VolumeId};
use serde::{Deserialize, Serialize};

use crate::records::Part;
use crate::volumes;

/// A snapshot's record.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Cut {
    name: String,
    /// The time of the snapshot is the start of the copy.
    pub(crate) taken: SnapshotRecord,
    is_finished: bool,
}

fn find(root: &Root, key: &str) -> Result<Option<Cut>> {
    Part::Snapshots.read(root, key)
}

/// Creates the snapshot, or finds the one that was created with this name.
///
/// The content is copied file by file. It shows a single moment only if workloads do not write.
pub(crate) fn create(root: &Root, key: &str, name: &str, source: &VolumeId, source_key: &str) -> Result<Cut> {
    if let Some(found) = find(root, key)? {
        if found.name != name {
            return Err(Error::Incompatible(format!("name: {:?} has the same key {key}", found.name).into()));
        }
        if found.is_finished || found.taken.source_volume_id() != source {
            return Ok(found);
        }
    }
    let volume = volumes::ready(root, source_key)?.ok_or_else(|| Error::VolumeNotFound(source.clone()))?;
    let mut snapshot = Snapshot::new(SnapshotId::new(key)?, source.clone(), SystemTime::now());
    let taken = SnapshotRecord::new(&snapshot);
    let cut = Cut { name: name.to_owned(), taken, is_finished: false };
    Part::Snapshots.write(root, key, &cut)?;
    let made = Part::Contents.place(root, key).and_then(|content| {
        content.remove_tree()?;
        root.target(&volume.sub_dir)?.copy_tree(&content)
    });
    match made.map_err(Error::from) {
        Ok(copied) => snapshot.size_bytes = copied.bytes,
        // Part of it can exist, and the server does not answer. UNAVAILABLE makes the caller retry.
        Err(Error::Unavailable(text)) => return Err(Error::OutcomeUnknown(text)),
        Err(error) => {
            if let Err(left) = delete(root, key) {
                tracing::warn!(%left, key, "a failed snapshot can't be removed completely");
            }
            return Err(error);
        }
    }
    let cut = Cut { taken: SnapshotRecord::new(&snapshot), is_finished: true, ..cut };
    Part::Snapshots.write(root, key, &cut)?;
    Ok(cut)
}

/// Deletes the snapshot. A missing snapshot counts as deleted.
pub(crate) fn delete(root: &Root, key: &str) -> Result<()> {
    if let Some(cut) = find(root, key)?.filter(|cut| cut.is_finished) {
        Part::Snapshots.write(root, key, &Cut { is_finished: false, ..cut })?;
    }
    Part::Contents.at(root, key)?.remove_tree()?;
    Part::Snapshots.remove(root, key)
}

/// The path of the content of a finished snapshot.
pub(crate) fn content(root: &Root, key: &str) -> Result<Option<String>> {
    Ok(find(root, key)?.filter(|cut| cut.is_finished).map(|_| Part::Contents.path(key)))
}
