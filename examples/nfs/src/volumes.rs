//! Volumes on a share: for each a directory, and a record of its state.
//!
//! A step can end at any point: the process is killed, or the server's reply is lost after the operation was
//! done. One rule makes that harmless: **the lifetimes of a volume's parts are nested**.
//!
//! ```text
//! record   |------------------------------------------|
//! place        |----------------------------------|
//! directory        |--------------------------|
//! ```
//!
//! - The record is written first and removed last. It says whether the volume is being created or deleted
//!   ([`State`]).
//! - The place names the volume (`places`) from before the directory is created until after it is removed. So
//!   a place always shows its owners, and a directory without a place has none.
//! - An interrupted creation repeats each step and finds what it did before. A deletion is never reversed: a
//!   new volume of the same name is created only after the old one is gone completely.
//! - A directory is moved into its place, and out of it, by one rename. Whether the rename happened is
//!   decided by the directory's location, not by the server's reply.
//!
//! If the server does not answer, everything stays as it is for the retry that UNAVAILABLE asks for. If a
//! volume definitely can't be created, its parts are removed, because the caller might not come again.

use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex};

use csi_core::controller::CreateRecord;
use csi_core::mount::{Created, ErrorKind, Root, Target};
use csi_core::types::ContentSource;
use csi_core::{CreateVolumeRequest, Error, Reason, Result, Volume, VolumeId};
use serde::{Deserialize, Serialize};

use crate::parameters::{OnDelete, Wanted, sub_dir_of};
use crate::records::{self, Part};
use crate::share_workers::{OpenShare, locked};
use crate::{places, snapshots};

/// The default permissions of directories.
const MODE: u32 = 0o755;

/// The largest number of archives of one directory.
const ARCHIVES: u32 = 1000;

/// A volume's record.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct VolumeRecord {
    name: String,
    created: CreateRecord,
    pub(crate) capacity_bytes: u64,
    pub(crate) sub_dir: String,
    on_delete: OnDelete,
    is_copy: bool,
    state: State,
}

/// The state of a volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum State {
    /// The volume is being created. For a copy, a directory at its place is not its own yet.
    Making,
    /// The copy is complete. It is still among the unfinished ones, or already at its place.
    Copied,
    /// The volume can be used.
    Ready,
    /// The volume is being deleted. Its directory is treated as its StorageClass said.
    Going,
    /// The volume could not be created and is being removed. No caller has received it.
    Undone,
}

impl VolumeRecord {
    /// Whether the volume is a copy that is not ready yet.
    pub(crate) fn is_unfinished_copy(&self) -> bool {
        self.is_copy && matches!(self.state, State::Making | State::Copied)
    }
}

/// The source of a new volume's content.
pub(crate) struct Content {
    pub(crate) root: Arc<OpenShare>,
    pub(crate) source: ContentSource,
    /// The source's key on its share.
    pub(crate) key: String,
}

impl Content {
    fn directory(&self) -> Result<Target> {
        let root = self.root.root()?;
        let path = match &self.source {
            ContentSource::Volume(_) => ready(root, &self.key)?.map(|record| record.sub_dir),
            ContentSource::Snapshot(_) => snapshots::content(root, &self.key)?,
            _ => None,
        };
        let directory = path.map(|path| root.target(path)).transpose()?;
        match directory {
            Some(directory) if directory.is_directory()? => Ok(directory),
            _ => Err(Error::SourceNotFound(self.source.to_string().into())),
        }
    }
}

/// Returns the record of a volume in any state.
pub(crate) fn find(root: &Root, key: &str) -> Result<Option<VolumeRecord>> {
    let found: Option<VolumeRecord> = Part::Volumes.read(root, key)?;
    let Some(record) = found else { return Ok(None) };
    // A user who can write to the whole share could have written the record.
    let sub_dir = sub_dir_of("the record's sub_dir", &record.sub_dir);
    let sub_dir = sub_dir.map_err(|error| Error::Internal(Reason::from_error(error)))?;
    Ok(Some(VolumeRecord { sub_dir, ..record }))
}

/// Returns the record of a volume that can be used.
pub(crate) fn ready(root: &Root, key: &str) -> Result<Option<VolumeRecord>> {
    Ok(find(root, key)?.filter(|record| record.state == State::Ready))
}

/// Creates the volume, or continues an interrupted creation.
pub(crate) fn create(
    root: &Root,
    places: &Mutex<()>,
    key: &str,
    wanted: &Wanted,
    request: &CreateVolumeRequest,
    content: Option<&Content>,
) -> Result<VolumeRecord> {
    let mut record = begin(root, places, key, wanted, request)?;
    if record.state == State::Ready {
        return Ok(record);
    }
    let made = make(root, places, key, &mut record, wanted.mode, content);
    match made.and_then(|()| step(root, key, &mut record, State::Ready)) {
        Ok(()) => Ok(record),
        // Part of it can exist, and the server does not answer. UNAVAILABLE makes the caller retry.
        Err(Error::Unavailable(text)) => Err(Error::OutcomeUnknown(text)),
        Err(error) => {
            if let Err(left) = undo_creation(root, places, key, record) {
                tracing::warn!(%left, key, "a failed volume can't be removed completely");
            }
            Err(error)
        }
    }
}

/// Returns the volume's record: the existing one, or a new one.
fn begin(
    root: &Root,
    places: &Mutex<()>,
    key: &str,
    wanted: &Wanted,
    request: &CreateVolumeRequest,
) -> Result<VolumeRecord> {
    if let Some(record) = find(root, key)? {
        if record.name != request.name.as_str() {
            return Err(Error::Incompatible(
                format!("name: {:?} has the same key {key}", record.name).into(),
            ));
        }
        if !matches!(record.state, State::Going | State::Undone) {
            record.created.check(request)?;
            return Ok(record);
        }
        end(root, places, key, &record)?;
    }
    let capacity_bytes = request.capacity_range.choose(0, 1)?;
    let volume = Volume::new(VolumeId::new(key)?, capacity_bytes);
    let record = VolumeRecord {
        name: request.name.as_str().to_owned(),
        created: CreateRecord::new(request, &volume),
        capacity_bytes,
        sub_dir: wanted.sub_dir.clone(),
        on_delete: wanted.on_delete,
        is_copy: request.volume_content_source.is_some(),
        state: State::Making,
    };
    Part::Volumes.write(root, key, &record)?;
    Ok(record)
}

/// Writes the new state first, and then changes it in memory.
fn step(root: &Root, key: &str, record: &mut VolumeRecord, state: State) -> Result<()> {
    Part::Volumes.write(root, key, &VolumeRecord { state, ..record.clone() })?;
    record.state = state;
    Ok(())
}

fn make(
    root: &Root,
    places: &Mutex<()>,
    key: &str,
    record: &mut VolumeRecord,
    mode: Option<u32>,
    content: Option<&Content>,
) -> Result<()> {
    {
        let _places = locked(places);
        let place = places::enter(root, &record.sub_dir, key, content.is_some())?;
        let parent = Path::new(&record.sub_dir).parent().filter(|parent| !parent.as_os_str().is_empty());
        if let Some(parent) = parent {
            root.create_dirs(parent, MODE)?;
        }
        if content.is_none() {
            let directory = root.target(&record.sub_dir)?;
            // A directory created by an earlier attempt might not have its permissions yet.
            if directory.create_dir()? == Created::Created || place.is_own() {
                directory.set_directory_mode(mode.unwrap_or(MODE))?;
            }
            return Ok(());
        }
    }
    let copy = Part::Unfinished.place(root, key)?;
    if let (State::Making, Some(content)) = (record.state, content) {
        copy.remove_tree()?;
        content.directory()?.copy_tree(&copy)?;
        if let Some(mode) = mode {
            copy.set_directory_mode(mode)?;
        }
        step(root, key, record, State::Copied)?;
    }
    if !is_put(root, key, record)? {
        copy.rename_to(&root.target(&record.sub_dir)?)?;
    }
    Ok(())
}

/// Whether a complete copy is at its place: then it is no longer among the unfinished ones.
fn is_put(root: &Root, key: &str, record: &VolumeRecord) -> Result<bool> {
    Ok(record.state == State::Copied && !Part::Unfinished.at(root, key)?.is_directory()?)
}

/// Removes the parts of a volume that can't be created. A complete copy at its place is left for a retry.
fn undo_creation(root: &Root, places: &Mutex<()>, key: &str, mut record: VolumeRecord) -> Result<()> {
    if is_put(root, key, &record)? {
        return Ok(());
    }
    step(root, key, &mut record, State::Undone)?;
    end(root, places, key, &record)
}

/// Deletes the volume, and treats its directory as its StorageClass said.
pub(crate) fn delete(root: &Root, places: &Mutex<()>, key: &str) -> Result<()> {
    let mut record = find(root, key)?.ok_or(Error::VolumeNotFound(VolumeId::new(key)?))?;
    match record.state {
        State::Ready => step(root, key, &mut record, State::Going)?,
        State::Making | State::Copied => {
            let state = if is_put(root, key, &record)? { State::Going } else { State::Undone };
            step(root, key, &mut record, state)?;
        }
        State::Going | State::Undone => {}
    }
    end(root, places, key, &record)
}

/// Deletes a volume of csi-driver-nfs, which has no record: its directory is treated as its id says. A directory that
/// is, or contains, the directory of a recorded volume stays.
pub(crate) fn delete_unrecorded(
    root: &Root,
    places: &Mutex<()>,
    sub_dir: &str,
    on_delete: OnDelete,
) -> Result<()> {
    let _places = locked(places);
    if places::is_taken(root, sub_dir)? {
        return Err(Error::InUse(format!("volume_id: {sub_dir} is another volume's directory").into()));
    }
    places::refuse_nested("volume_id", root, sub_dir)?;
    let key = records::key(sub_dir);
    Part::Trash.at(root, &key)?.remove_tree()?;
    let directory = root.target(sub_dir)?;
    if directory.is_directory()? {
        dispose(root, sub_dir, &key, &directory, on_delete)?;
    }
    Part::Trash.at(root, &key)?.remove_tree()?;
    Ok(())
}

/// Completes the deletion of a volume that is going or undone.
fn end(root: &Root, places: &Mutex<()>, key: &str, record: &VolumeRecord) -> Result<()> {
    Part::Trash.at(root, key)?.remove_tree()?;
    {
        let _places = locked(places);
        places::leave(root, &record.sub_dir, key, || let_go(root, record, key))?;
    }
    Part::Unfinished.at(root, key)?.remove_tree()?;
    Part::Trash.at(root, key)?.remove_tree()?;
    Part::Volumes.remove(root, key)
}

/// Retains, archives or deletes a directory that belonged to this volume alone.
fn let_go(root: &Root, record: &VolumeRecord, key: &str) -> Result<()> {
    let directory = root.target(&record.sub_dir)?;
    if !directory.is_directory()? {
        return Ok(());
    }
    if record.state == State::Undone {
        return if record.is_copy { Ok(()) } else { remove_empty(&directory) };
    }
    dispose(root, &record.sub_dir, key, &directory, record.on_delete)
}

fn dispose(root: &Root, sub_dir: &str, key: &str, directory: &Target, on_delete: OnDelete) -> Result<()> {
    match on_delete {
        OnDelete::Retain => Ok(()),
        OnDelete::Archive => archive(root, sub_dir, directory),
        OnDelete::Delete => {
            let moved = Part::Trash.place(root, key).and_then(|trash| directory.rename_to(&trash));
            match moved {
                Err(error) if has_no_trash(&error) => Ok(directory.remove_tree().map(drop)?),
                moved => Ok(moved?),
            }
        }
    }
}

/// Removes the directory if it is empty. One with content was not created for this volume alone, and stays.
fn remove_empty(directory: &Target) -> Result<()> {
    match directory.remove() {
        Err(error) if error.kind() != ErrorKind::Busy => Err(error.into()),
        _ => Ok(()),
    }
}

/// EXDEV: the trash is on another filesystem of the server, or in another project quota. On a full share its directory
/// can't be made, or gets no entry.
fn has_no_trash(error: &csi_core::mount::Error) -> bool {
    use io::ErrorKind::{CrossesDevices, QuotaExceeded, StorageFull};
    let number = error.raw_os_error();
    number
        .map(|number| io::Error::from_raw_os_error(number).kind())
        .is_some_and(|kind| matches!(kind, CrossesDevices | StorageFull | QuotaExceeded))
}

fn archive(root: &Root, sub_dir: &str, directory: &Target) -> Result<()> {
    let (parent, name) = sub_dir.rsplit_once('/').map_or(("", sub_dir), |(parent, name)| (parent, name));
    for number in 1..=ARCHIVES {
        let suffix = if number == 1 { String::new() } else { format!("-{number}") };
        let archived = Path::new(parent).join(format!("archived-{name}{suffix}"));
        // The place of another volume, whose directory does not exist yet.
        if places::is_taken(root, &archived.to_string_lossy())? {
            continue;
        }
        match directory.rename_to(&root.target(archived)?) {
            Err(error) if error.kind() == ErrorKind::Busy => {}
            renamed => return Ok(renamed?),
        }
    }
    Err(Error::LimitReached(format!("{ARCHIVES} directories archived-{name} exist; remove some").into()))
}

/// Records the volume's larger size. The server is not asked: it alone limits a directory.
pub(crate) fn expand(root: &Root, key: &str, capacity_bytes: u64) -> Result<u64> {
    let mut record = ready(root, key)?.ok_or(Error::VolumeNotFound(VolumeId::new(key)?))?;
    if capacity_bytes > record.capacity_bytes {
        record.capacity_bytes = capacity_bytes;
        record.created.expanded(capacity_bytes);
        Part::Volumes.write(root, key, &record)?;
    }
    Ok(record.capacity_bytes)
}
