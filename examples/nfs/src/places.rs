//! Places: the directories of a share that belong to volumes, and the owners of each.
//!
//! - A place belongs to one or more volumes. Its directory is removed with the last of them. A directory that
//!   existed before its first volume is kept.
//! - No place is inside another. A user who can write to the outer directory could put a symbolic link on the
//!   path to the inner one, and nodes mount by name. Also, an action on the outer directory would affect the
//!   inner one.
//! - An unfinished copy has its place alone: its content is incomplete and must not be visible to another
//!   volume.
//!
//! Call all functions of this module under the lock of the share's places
//! ([`ShareWorkers::places_of`](crate::share_workers::ShareWorkers::places_of)).

use std::collections::BTreeSet;

use csi_core::mount::Root;
use csi_core::{Error, Result};
use serde::{Deserialize, Serialize};

use crate::records::Part;
use crate::volumes;

/// The record of a place.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Place {
    /// The directory existed before any volume, so it is kept after them.
    was_found: bool,
    /// The keys of the volumes that own the place.
    volumes: BTreeSet<String>,
}

impl Place {
    fn read(root: &Root, sub_dir: &str) -> Result<Option<Self>> {
        Part::Places.read(root, sub_dir)
    }

    /// Whether the directory is or will be created for a single volume, its only owner.
    pub(crate) fn is_own(&self) -> bool {
        !self.was_found && self.volumes.len() == 1
    }
}

/// Whether the directory belongs, or is about to belong, to a volume.
pub(crate) fn is_taken(root: &Root, sub_dir: &str) -> Result<bool> {
    Ok(Place::read(root, sub_dir)?.is_some())
}

/// Adds the volume to the owners of the place, unless it is one already.
pub(crate) fn enter(root: &Root, sub_dir: &str, key: &str, is_copy: bool) -> Result<Place> {
    let found = Place::read(root, sub_dir)?;
    if found.as_ref().is_some_and(|place| place.volumes.contains(key)) {
        return Ok(found.unwrap_or_default());
    }
    let is_there = root.target(sub_dir)?.is_directory()?;
    if is_copy && (is_there || found.is_some()) {
        let text = format!("parameters[subDir]: {sub_dir} already exists, and a copy needs a new directory");
        return Err(Error::Incompatible(text.into()));
    }
    let mut place = match found {
        Some(place) => place,
        None => {
            refuse_nested("parameters[subDir]", root, sub_dir)?;
            Place { was_found: is_there, ..Place::default() }
        }
    };
    if let (Some(first), 1) = (place.volumes.first(), place.volumes.len())
        && volumes::find(root, first)?.is_some_and(|volume| volume.is_unfinished_copy())
    {
        return Err(Error::Pending(format!("parameters[subDir]: a copy to {sub_dir} is running").into()));
    }
    place.volumes.insert(key.to_owned());
    Part::Places.write(root, sub_dir, &place)?;
    Ok(place)
}

/// Refuses a directory that lies within a volume's directory, or holds one.
pub(crate) fn refuse_nested(field: &str, root: &Root, sub_dir: &str) -> Result<()> {
    let is_within =
        |inner: &str, outer: &str| inner.strip_prefix(outer).is_some_and(|rest| rest.starts_with('/'));
    let records = Part::Places.records::<Place>(root)?;
    for other in records.map(|records| records.ids()).transpose()?.unwrap_or_default() {
        let verb = match (is_within(sub_dir, &other), is_within(&other, sub_dir)) {
            (false, false) => continue,
            (true, _) => "lies within",
            (_, true) => "holds",
        };
        let text = format!("{field}: {sub_dir} {verb} {other}, which is another volume's directory");
        return Err(Error::InUse(text.into()));
    }
    Ok(())
}

/// Removes the volume from the owners of the place. After the last owner, `let_go` runs on the directory
/// first, unless the directory existed before its volumes.
pub(crate) fn leave(
    root: &Root,
    sub_dir: &str,
    key: &str,
    let_go: impl FnOnce() -> Result<()>,
) -> Result<()> {
    let Some(mut place) = Place::read(root, sub_dir)? else { return Ok(()) };
    if !place.volumes.remove(key) {
        return Ok(());
    }
    if !place.volumes.is_empty() {
        return Part::Places.write(root, sub_dir, &place);
    }
    if !place.was_found {
        let_go()?;
    }
    Part::Places.remove(root, sub_dir)
}
