//! Volumes as they lie on a share: a directory each, and a record that tells how far it is with it.
//!
//! A step may end anywhere: the process is killed, or an answer of the server is lost after what it was about was done.
//! One rule makes that harmless: **what a volume has lies one in the other in time**.
//!
//! ```text
//! record   |------------------------------------------|
//! place        |----------------------------------|
//! directory        |--------------------------|
//! ```
//!
//! - Its record comes first and goes last, and says which way it goes ([`State`]).
//! - Its place names it (`places`) from before its directory is made until after that was let go of. So whoever looks at a
//!   place knows whose it is, and a directory that is no place is nobody's.
//! - On the way up each step is gone through again, and finds what it did before. On the way down there is no turning back:
//!   a volume of the same name is made when all of the one before it is gone.
//! - A directory comes to its place, and goes from it, by one rename. Whether that took place is seen by where it is, and
//!   not by the answer.
//!
//! Where the server gave no answer, all stays as it is for the retry that UNAVAILABLE asks for. Where it is certain that a
//! volume can't be made, what was made of it is taken back, for nobody may come again.

use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex};

use csi_core::mount::{Created, ErrorKind, Root, Target};
use csi_core::{ContentSource, CreateRecord, CreateVolumeRequest, Error, Result, Volume, VolumeId};
use serde::{Deserialize, Serialize};

use crate::desk::{Opened, locked};
use crate::parameters::{OnDelete, Wanted, sub_dir_of};
use crate::records::Part;
use crate::{places, snapshots};

/// Permissions of directories where nobody says any.
const MODE: u32 = 0o755;

/// How many archives of one directory there may be.
const ARCHIVES: u32 = 1000;

/// A volume's record.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Kept {
    name: String,
    created: CreateRecord,
    pub(crate) capacity_bytes: u64,
    pub(crate) sub_dir: String,
    on_delete: OnDelete,
    is_copy: bool,
    state: State,
}

/// Where a volume is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum State {
    /// It is being made. Where it is to be a copy, what is at its place is not its own.
    Making,
    /// Its copy is whole: it is among the unfinished ones still, or at its place already.
    Copied,
    /// It can be used.
    Ready,
    /// It is being deleted, and its directory as its StorageClass said.
    Going,
    /// It could not be made, and is being taken back. Nobody has had it.
    Undone,
}

impl Kept {
    /// Whether a copy is to come to its place yet.
    pub(crate) fn is_unfinished_copy(&self) -> bool {
        self.is_copy && matches!(self.state, State::Making | State::Copied)
    }
}

/// What a new volume is to hold.
pub(crate) struct Content {
    pub(crate) root: Arc<Opened>,
    pub(crate) source: ContentSource,
    /// The source's key on that share.
    pub(crate) key: String,
}

impl Content {
    fn directory(&self) -> Result<Target> {
        let root = self.root.root()?;
        let (path, missing) = match &self.source {
            ContentSource::Volume(id) => {
                (ready(root, &self.key)?.map(|kept| kept.sub_dir), format!("volume {id}"))
            }
            ContentSource::Snapshot(id) => (snapshots::content(root, &self.key)?, format!("snapshot {id}")),
        };
        let directory = path.map(|path| root.target(path)).transpose()?;
        match directory {
            Some(directory) if directory.is_directory()? => Ok(directory),
            _ => Err(Error::SourceNotFound(missing)),
        }
    }
}

/// The record of a volume, wherever it is in its life, if there is one.
pub(crate) fn find(root: &Root, key: &str) -> Result<Option<Kept>> {
    let found: Option<Kept> = Part::Volumes.read(root, key)?;
    let Some(kept) = found else { return Ok(None) };
    // Who can write to the whole share could have written it.
    let sub_dir = sub_dir_of("the record's sub_dir", &kept.sub_dir);
    let sub_dir = sub_dir.map_err(|error| Error::internal_message(error.to_string()))?;
    Ok(Some(Kept { sub_dir, ..kept }))
}

/// The record of a volume that can be used.
pub(crate) fn ready(root: &Root, key: &str) -> Result<Option<Kept>> {
    Ok(find(root, key)?.filter(|kept| kept.state == State::Ready))
}

/// Makes the volume, or goes on where an earlier attempt ended.
pub(crate) fn create(
    root: &Root,
    places: &Mutex<()>,
    key: &str,
    wanted: &Wanted,
    request: &CreateVolumeRequest,
    content: Option<&Content>,
) -> Result<Kept> {
    let mut kept = begin(root, places, key, wanted, request)?;
    if kept.state == State::Ready {
        return Ok(kept);
    }
    let made = make(root, places, key, &mut kept, wanted.mode, content);
    match made.and_then(|()| step(root, key, &mut kept, State::Ready)) {
        Ok(()) => Ok(kept),
        // Part of it may exist, and the server does not let us look: the caller asks again.
        Err(Error::Unavailable(text)) => Err(Error::MayGoOn(text)),
        Err(error) => {
            if let Err(left) = take_back(root, places, key, kept) {
                tracing::warn!(%left, key, "a volume that could not be made leaves something behind");
            }
            Err(error)
        }
    }
}

/// The volume's record: the one that is there, or a new one.
fn begin(
    root: &Root,
    places: &Mutex<()>,
    key: &str,
    wanted: &Wanted,
    request: &CreateVolumeRequest,
) -> Result<Kept> {
    if let Some(kept) = find(root, key)? {
        if kept.name != request.name.as_str() {
            return Err(Error::Incompatible(format!("name: {:?} has the same key {key}", kept.name)));
        }
        if !matches!(kept.state, State::Going | State::Undone) {
            kept.created.check(request)?;
            return Ok(kept);
        }
        end(root, places, key, &kept)?;
    }
    let capacity_bytes = request.capacity_range.choose(0, 1)?;
    let volume = Volume::new(VolumeId::new(key)?, capacity_bytes);
    let kept = Kept {
        name: request.name.as_str().to_owned(),
        created: CreateRecord::new(request, &volume),
        capacity_bytes,
        sub_dir: wanted.sub_dir.clone(),
        on_delete: wanted.on_delete,
        is_copy: request.volume_content_source.is_some(),
        state: State::Making,
    };
    Part::Volumes.write(root, key, &kept)?;
    Ok(kept)
}

/// Its new state counts when it is written.
fn step(root: &Root, key: &str, kept: &mut Kept, state: State) -> Result<()> {
    Part::Volumes.write(root, key, &Kept { state, ..kept.clone() })?;
    kept.state = state;
    Ok(())
}

fn make(
    root: &Root,
    places: &Mutex<()>,
    key: &str,
    kept: &mut Kept,
    mode: Option<u32>,
    content: Option<&Content>,
) -> Result<()> {
    {
        let _places = locked(places);
        let place = places::enter(root, &kept.sub_dir, key, content.is_some())?;
        let parent = Path::new(&kept.sub_dir).parent().filter(|parent| !parent.as_os_str().is_empty());
        if let Some(parent) = parent {
            root.create_dirs(parent, MODE)?;
        }
        if content.is_none() {
            let directory = root.target(&kept.sub_dir)?;
            // One that an attempt before this one has made may not have its permissions yet.
            if directory.create_dir()? == Created::Created || place.is_own() {
                directory.set_directory_mode(mode.unwrap_or(MODE))?;
            }
            return Ok(());
        }
    }
    let copy = Part::Unfinished.place(root, key)?;
    if let (State::Making, Some(content)) = (kept.state, content) {
        copy.remove_tree()?;
        content.directory()?.copy_tree(&copy)?;
        if let Some(mode) = mode {
            copy.set_directory_mode(mode)?;
        }
        step(root, key, kept, State::Copied)?;
    }
    if !is_put(root, key, kept)? {
        copy.rename_to(&root.target(&kept.sub_dir)?)?;
    }
    Ok(())
}

/// Whether a whole copy has come to its place: it is no longer among the unfinished ones.
fn is_put(root: &Root, key: &str, kept: &Kept) -> Result<bool> {
    Ok(kept.state == State::Copied && !Part::Unfinished.at(root, key)?.is_directory()?)
}

/// Takes back what there is of a volume that can't be made. One whose directory is whole is left for a retry to find.
fn take_back(root: &Root, places: &Mutex<()>, key: &str, mut kept: Kept) -> Result<()> {
    if is_put(root, key, &kept)? {
        return Ok(());
    }
    step(root, key, &mut kept, State::Undone)?;
    end(root, places, key, &kept)
}

/// Deletes the volume, and does with its directory as its StorageClass said.
pub(crate) fn delete(root: &Root, places: &Mutex<()>, key: &str) -> Result<()> {
    let mut kept = find(root, key)?.ok_or(Error::VolumeNotFound(VolumeId::new(key)?))?;
    match kept.state {
        State::Ready => step(root, key, &mut kept, State::Going)?,
        State::Making | State::Copied => {
            let state = if is_put(root, key, &kept)? { State::Going } else { State::Undone };
            step(root, key, &mut kept, state)?;
        }
        State::Going | State::Undone => {}
    }
    end(root, places, key, &kept)
}

/// Brings to its end a volume that is on its way down.
fn end(root: &Root, places: &Mutex<()>, key: &str, kept: &Kept) -> Result<()> {
    let trash = Part::Trash.place(root, key)?;
    trash.remove_tree()?;
    {
        let _places = locked(places);
        places::leave(root, &kept.sub_dir, key, || let_go(root, kept, &trash))?;
    }
    Part::Unfinished.at(root, key)?.remove_tree()?;
    trash.remove_tree()?;
    Part::Volumes.remove(root, key)
}

/// Does with a directory that was this volume's alone what is due.
fn let_go(root: &Root, kept: &Kept, trash: &Target) -> Result<()> {
    let directory = root.target(&kept.sub_dir)?;
    if !directory.is_directory()? {
        return Ok(());
    }
    if kept.state == State::Undone {
        return if kept.is_copy { Ok(()) } else { remove_empty(&directory) };
    }
    match kept.on_delete {
        OnDelete::Retain => Ok(()),
        OnDelete::Archive => archive(root, &kept.sub_dir, &directory),
        OnDelete::Delete => match directory.rename_to(trash) {
            // Another filesystem of the server's, or another project of its quotas.
            Err(error) if crosses(&error) => Ok(directory.remove_tree().map(drop)?),
            renamed => Ok(renamed?),
        },
    }
}

/// One that holds something was not made for this volume alone, and stays.
fn remove_empty(directory: &Target) -> Result<()> {
    match directory.remove() {
        Err(error) if error.kind() != ErrorKind::Busy => Err(error.into()),
        _ => Ok(()),
    }
}

fn crosses(error: &csi_core::mount::Error) -> bool {
    let number = error.raw_os_error();
    number.is_some_and(|number| io::Error::from_raw_os_error(number).kind() == io::ErrorKind::CrossesDevices)
}

fn archive(root: &Root, sub_dir: &str, directory: &Target) -> Result<()> {
    let (parent, name) = sub_dir.rsplit_once('/').map_or(("", sub_dir), |(parent, name)| (parent, name));
    for number in 1..=ARCHIVES {
        let suffix = if number == 1 { String::new() } else { format!("-{number}") };
        let archived = Path::new(parent).join(format!("archived-{name}{suffix}"));
        // A volume's, whose directory is yet to come.
        if places::is_taken(root, &archived.to_string_lossy())? {
            continue;
        }
        match directory.rename_to(&root.target(archived)?) {
            Err(error) if error.kind() == ErrorKind::Busy => {}
            renamed => return Ok(renamed?),
        }
    }
    Err(Error::LimitReached(format!("{ARCHIVES} directories archived-{name} are there; remove some")))
}

/// Notes that the volume is larger now. The server is asked for nothing: how much a directory may hold is its own affair.
pub(crate) fn expand(root: &Root, key: &str, capacity_bytes: u64) -> Result<u64> {
    let mut kept = ready(root, key)?.ok_or(Error::VolumeNotFound(VolumeId::new(key)?))?;
    if capacity_bytes > kept.capacity_bytes {
        kept.capacity_bytes = capacity_bytes;
        kept.created.expanded(capacity_bytes);
        Part::Volumes.write(root, key, &kept)?;
    }
    Ok(kept.capacity_bytes)
}
