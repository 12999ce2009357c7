//! Volumes as they lie on a share: a directory each, which the driver's records name.
//!
//! Each step leaves what a retry can go on from. A volume's record comes first and goes last; its directory appears in
//! one step, with all that is in it, and goes in one step, into the trash.

use std::collections::BTreeSet;
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex};

use csi_core::mount::{ErrorKind, Root, Target};
use csi_core::{CreateRecord, CreateVolumeRequest, Error, Result, Volume, VolumeId};
use serde::{Deserialize, Serialize};

use crate::desk::{Opened, locked};
use crate::parameters::{OnDelete, Wanted, sub_dir_of};
use crate::records::Part;

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
    /// The directory is there, with what it was to hold.
    is_finished: bool,
}

/// Whose a directory is.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Place {
    /// It was there before any volume, so it outlives them.
    was_found: bool,
    /// The keys of the volumes that it is.
    volumes: BTreeSet<String>,
}

/// What a new volume is to hold.
pub(crate) struct Content {
    pub(crate) root: Arc<Opened>,
    /// Below that root.
    pub(crate) path: String,
}

/// A path as one file name.
pub(crate) fn escaped(sub_dir: &str) -> String {
    let name = sub_dir.replace('%', "%25").replace('/', "%2F");
    name.strip_prefix('.').map_or(name.clone(), |rest| format!("%2E{rest}"))
}

/// The record of a volume, if there is one.
pub(crate) fn find(root: &Root, key: &str) -> Result<Option<Kept>> {
    let found: Option<Kept> = Part::Volumes.read(root, key)?;
    let Some(kept) = found else { return Ok(None) };
    // Who can write to the whole share could have written it.
    let sub_dir = sub_dir_of("the record's sub_dir", &kept.sub_dir);
    let sub_dir = sub_dir.map_err(|error| Error::internal_message(error.to_string()))?;
    Ok(Some(Kept { sub_dir, ..kept }))
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
    let mut kept = {
        let _places = locked(places);
        match find(root, key)? {
            Some(kept) if kept.name != request.name.as_str() => {
                return Err(Error::Incompatible(format!("name: {:?} has the same key {key}", kept.name)));
            }
            Some(kept) => {
                kept.created.check(request)?;
                kept
            }
            None => claim(root, key, wanted, request, content.is_some())?,
        }
    };
    if kept.is_finished {
        return Ok(kept);
    }
    let was_there = root.target(&kept.sub_dir)?.is_directory()?;
    if let Err(error) = make(root, key, &kept.sub_dir, wanted.mode, content) {
        // Nobody may come again for it. What is at its place now is empty, or not its own.
        let removed = if was_there { Ok(()) } else { root.target(&kept.sub_dir)?.remove().map(drop) };
        if let Err(left) = delete(root, places, key, Some(OnDelete::Retain)).and(removed.map_err(Into::into))
        {
            tracing::warn!(%left, key, "a volume that could not be made leaves something behind");
        }
        return Err(error);
    }
    kept.is_finished = true;
    Part::Volumes.write(root, key, &kept)?;
    Ok(kept)
}

/// Takes the directory for the volume, and writes that down.
fn claim(
    root: &Root,
    key: &str,
    wanted: &Wanted,
    request: &CreateVolumeRequest,
    has_content: bool,
) -> Result<Kept> {
    let (sub_dir, place_key) = (&wanted.sub_dir, escaped(&wanted.sub_dir));
    let is_there = root.target(sub_dir)?.is_directory()?;
    let mut place: Place = Part::Places
        .read(root, &place_key)?
        .unwrap_or_else(|| Place { was_found: is_there, ..Place::default() });
    if has_content && is_there {
        let text = format!(
            "parameters[subDir]: {sub_dir} is there already, and a copy needs a directory of its own"
        );
        return Err(Error::Incompatible(text));
    }
    let capacity_bytes = request.capacity_range.choose(0, 1)?;
    let volume = Volume::new(VolumeId::new(key)?, capacity_bytes);
    let kept = Kept {
        name: request.name.as_str().to_owned(),
        created: CreateRecord::new(request, &volume),
        capacity_bytes,
        sub_dir: sub_dir.clone(),
        on_delete: wanted.on_delete,
        is_finished: false,
    };
    // The place first: a record without it would be a volume whose directory others may delete.
    place.volumes.insert(key.to_owned());
    Part::Places.write(root, &place_key, &place)?;
    Part::Volumes.write(root, key, &kept)?;
    Ok(kept)
}

fn make(root: &Root, key: &str, sub_dir: &str, mode: Option<u32>, content: Option<&Content>) -> Result<()> {
    let parent = Path::new(sub_dir).parent().filter(|parent| !parent.as_os_str().is_empty());
    if let Some(parent) = parent {
        root.create_dirs(parent, MODE)?;
    }
    let directory = root.target(sub_dir)?;
    match content {
        // With content it comes at once: an attempt before this one got that far.
        Some(_) if directory.is_directory()? => {}
        Some(content) => {
            let unfinished = Part::Unfinished.place(root, key)?;
            unfinished.remove_tree()?;
            content.root.root()?.target(&content.path)?.copy_tree(&unfinished)?;
            if let Some(mode) = mode {
                unfinished.set_directory_mode(mode)?;
            }
            unfinished.rename_to(&directory)?;
        }
        None => {
            directory.create_dir_with_mode(mode.unwrap_or(MODE))?;
            if let Some(mode) = mode {
                directory.set_directory_mode(mode)?;
            }
        }
    }
    Ok(())
}

/// Deletes the volume, and does with its directory as its StorageClass said, or as is said here.
pub(crate) fn delete(root: &Root, places: &Mutex<()>, key: &str, instead: Option<OnDelete>) -> Result<()> {
    let kept = find(root, key)?.ok_or(Error::VolumeNotFound(VolumeId::new(key)?))?;
    Part::Unfinished.at(root, key)?.remove_tree()?;
    let trash = Part::Trash.place(root, key)?;
    trash.remove_tree()?;
    {
        let _places = locked(places);
        let place_key = escaped(&kept.sub_dir);
        let mut place: Place = Part::Places.read(root, &place_key)?.unwrap_or_default();
        let was_ours = place.volumes.remove(key);
        if was_ours && place.volumes.is_empty() {
            if !place.was_found {
                let_go(root, &kept.sub_dir, instead.unwrap_or(kept.on_delete), &trash)?;
            }
            Part::Places.remove(root, &place_key)?;
        } else if was_ours {
            Part::Places.write(root, &place_key, &place)?;
        }
    }
    trash.remove_tree()?;
    Part::Volumes.remove(root, key)
}

/// Does with a directory that is no volume's any more what is due.
fn let_go(root: &Root, sub_dir: &str, on_delete: OnDelete, trash: &Target) -> Result<()> {
    let directory = root.target(sub_dir)?;
    if !directory.is_directory()? {
        return Ok(());
    }
    match on_delete {
        OnDelete::Retain => Ok(()),
        OnDelete::Archive => archive(root, sub_dir, &directory),
        OnDelete::Delete => {
            refuse_volumes_below(root, sub_dir)?;
            match directory.rename_to(trash) {
                // Another filesystem of the server's, or another project of its quotas.
                Err(error) if crosses(&error) => {
                    directory.remove_tree()?;
                }
                renamed => renamed?,
            }
            Ok(())
        }
    }
}

fn crosses(error: &csi_core::mount::Error) -> bool {
    let number = error.raw_os_error();
    number.is_some_and(|number| io::Error::from_raw_os_error(number).kind() == io::ErrorKind::CrossesDevices)
}

fn refuse_volumes_below(root: &Root, sub_dir: &str) -> Result<()> {
    let below = escaped(&format!("{sub_dir}/"));
    let others: Vec<String> =
        Part::Places.keys(root)?.into_iter().filter(|key| key.starts_with(&below)).collect();
    if others.is_empty() {
        return Ok(());
    }
    let others = others.join(", ").replace("%2F", "/").replace("%25", "%");
    Err(Error::InUse(format!(
        "its directory {sub_dir} holds those of other volumes: {others}; delete these first"
    )))
}

fn archive(root: &Root, sub_dir: &str, directory: &Target) -> Result<()> {
    let (parent, name) = sub_dir.rsplit_once('/').map_or(("", sub_dir), |(parent, name)| (parent, name));
    for number in 1..=ARCHIVES {
        let suffix = if number == 1 { String::new() } else { format!("-{number}") };
        let archived = root.target(Path::new(parent).join(format!("archived-{name}{suffix}")))?;
        match directory.rename_to(&archived) {
            Err(error) if error.kind() == ErrorKind::Busy => {}
            renamed => return Ok(renamed?),
        }
    }
    Err(Error::LimitReached(format!("{ARCHIVES} directories archived-{name} are there; remove some")))
}

/// Notes that the volume is larger now. The server is asked for nothing: how much a directory may hold is its own affair.
pub(crate) fn expand(root: &Root, key: &str, capacity_bytes: u64) -> Result<u64> {
    let mut kept = find(root, key)?.ok_or(Error::VolumeNotFound(VolumeId::new(key)?))?;
    if capacity_bytes > kept.capacity_bytes {
        kept.capacity_bytes = capacity_bytes;
        kept.created.expanded(capacity_bytes);
        Part::Volumes.write(root, key, &kept)?;
    }
    Ok(kept.capacity_bytes)
}
