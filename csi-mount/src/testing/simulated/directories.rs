//! Directories of a simulated node.

use std::path::Path;

use super::SimulatedNode;
use super::state::{Root, canonical, fail};
use crate::error::{ErrorKind, Result};
use crate::mounting::attach::Outcome;
use crate::mounting::id_map::IdMap;
use crate::place::owned_path::OwnedPath;
use crate::place::target::{Removed, Target};
use crate::sys::attributes::MountAttributes;
use crate::tree::group::{GroupChange, GroupOutcome};

pub(crate) fn is_directory(simulated: &SimulatedNode, path: &Path) -> Result<bool> {
    let state = simulated.begin()?;
    Ok(match state.top(path) {
        Some(mount) => !matches!(mount.root, Root::Node(_)),
        None => state.is_directory(path),
    })
}

pub(crate) fn is_same_file(simulated: &SimulatedNode, one: &Path, other: &Path) -> Result<bool> {
    let state = simulated.begin()?;
    let place = |path: &Path| match state.through(path) {
        Some((mount, rest)) if mount.path != Path::new("/") => match &mount.root {
            Root::Directory(root) => Root::Directory(canonical(&root.join(rest))),
            root => root.clone(),
        },
        _ => Root::Directory(canonical(path)),
    };
    Ok(place(one) == place(other))
}

pub(crate) fn set_volume_ownership(
    simulated: &SimulatedNode,
    _root: &Path,
    _group: u32,
    _change: GroupChange,
) -> Result<GroupOutcome> {
    simulated.begin().map(|_| GroupOutcome::AlreadyDone)
}

pub(crate) fn set_permissions(simulated: &SimulatedNode, directory: &Path, mode: u32) -> Result<()> {
    const OPERATION: &str = "set the permissions of";
    let mut state = simulated.begin()?;
    state.refuse_unresponsive(OPERATION, directory)?;
    let Some(root) = state.permissions_key(directory) else {
        return fail(ErrorKind::NotFound, OPERATION, directory, "it does not exist");
    };
    let mount = state.through(directory).map(|(mount, _)| mount.attributes);
    if mount.is_some_and(|attributes| attributes.contains(MountAttributes::RDONLY)) {
        return fail(ErrorKind::ReadOnly, OPERATION, directory, "it is mounted read-only");
    }
    state.step()?;
    state.permissions.insert(root, mode);
    Ok(())
}

pub(crate) fn remove_tree(simulated: &SimulatedNode, path: &Path) -> Result<Removed> {
    let mut state = simulated.begin()?;
    if state.mounts.iter().any(|mount| mount.path.starts_with(path)) {
        return fail(ErrorKind::Busy, "remove", path, "something is mounted in it");
    }
    state.step()?;
    let was_there = state.directories.contains(path);
    state.directories.retain(|found| !found.starts_with(path));
    state.host_files.retain(|found, _| !found.starts_with(path));
    // The driver made the directory of its volume itself.
    match Target::new(path)?.remove_tree()? {
        Removed::WasAbsent if was_there => Ok(Removed::Removed),
        removed => Ok(removed),
    }
}

pub(crate) fn publish(
    simulated: &SimulatedNode,
    source: &Path,
    target: &OwnedPath,
    attributes: MountAttributes,
    _id_map: IdMap,
) -> Result<Outcome> {
    let mut state = simulated.begin()?;
    state.make(target, false)?;
    if !state.exists(source) {
        return fail(ErrorKind::NotFound, "bind", source, "it does not exist");
    }
    let root = match state.top(source) {
        Some(mount) => (mount.root.clone(), mount.attributes),
        None => (Root::Directory(canonical(source)), MountAttributes::empty()),
    };
    state.bind(root, target, attributes)
}

pub(crate) fn unpublish(simulated: &SimulatedNode, target: &OwnedPath) -> Result<Removed> {
    simulated.begin()?.unpublish(target, false)
}
