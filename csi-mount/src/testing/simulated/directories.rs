//! Directories of a simulated node.

use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::{fs, io};

use super::SimulatedNode;
use super::state::{Inode, Root, State, canonical, fail};
use crate::error::{Error, ErrorKind, Result};
use crate::mounted::stats::{FilesystemUsage, Stats};
use crate::mounting::attach::Outcome;
use crate::mounting::id_map::IdMap;
use crate::place::owned_path::OwnedPath;
use crate::place::target::{Removed, Target};
use crate::quota::DirectoryLimit;
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

pub(crate) fn create(
    simulated: &SimulatedNode,
    path: &Path,
    limit: DirectoryLimit,
) -> Result<DirectoryLimit> {
    const OPERATION: &str = "make the limited directory";
    let mut state = simulated.begin()?;
    if let Some((_, limit)) = state.limit(path) {
        return Ok(limit);
    }
    state.step()?;
    match fs::create_dir(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        made => made.map_err(|error| Error::os(OPERATION, path, error))?,
    }
    state.step()?;
    if used(path).1 > 1 {
        return fail(ErrorKind::Unsupported, OPERATION, path, "it has files that no limit counts");
    }
    let made = inode(path).map_err(|error| Error::os(OPERATION, path, error))?;
    state.limits.insert(made, limit);
    Ok(limit)
}

pub(crate) fn check_limits(simulated: &SimulatedNode, _path: &Path) -> Result<()> {
    simulated.begin().map(drop)
}

pub(crate) fn limit(simulated: &SimulatedNode, path: &Path) -> Result<Option<DirectoryLimit>> {
    Ok(simulated.begin()?.limit(path).map(|(_, limit)| limit))
}

pub(crate) fn set_limit(simulated: &SimulatedNode, path: &Path, limit: DirectoryLimit) -> Result<()> {
    const OPERATION: &str = "change the limit of";
    let mut state = simulated.begin()?;
    let Some((inode, _)) = state.limit(path) else {
        return fail(ErrorKind::Unsupported, OPERATION, path, "it was made without a limit");
    };
    let (bytes, inodes) = used(path);
    if bytes > limit.bytes || inodes > limit.inodes {
        return fail(ErrorKind::OutOfRange, OPERATION, path, "it holds more");
    }
    state.step()?;
    state.limits.insert(inode, limit);
    Ok(())
}

pub(crate) fn usage(simulated: &SimulatedNode, path: &Path) -> Result<Option<Stats>> {
    let Some(limit) = limit(simulated, path)? else { return Ok(None) };
    let of = |total: u64, used: u64| FilesystemUsage::new(total, used, total.saturating_sub(used));
    let (bytes, inodes) = used(path);
    Ok(Some(Stats::new(of(limit.bytes, bytes), Some(of(limit.inodes, inodes)))))
}

impl State {
    fn limit(&self, directory: &Path) -> Option<(Inode, DirectoryLimit)> {
        let inode = inode(directory).ok()?;
        self.limits.get(&inode).map(|limit| (inode, *limit))
    }

    /// Whether a limit leaves no room for a file of this size.
    pub(super) fn exceeds_limit(&self, file: &Path, size: u64) -> bool {
        let found = fs::metadata(file);
        let is_new = u64::from(found.is_err());
        let freed = found.map_or(0, |found| pages(found.len()));
        file.ancestors().skip(1).any(|directory| {
            self.limit(directory).is_some_and(|(_, limit)| {
                let (bytes, inodes) = used(directory);
                bytes - freed + pages(size) > limit.bytes || inodes + is_new > limit.inodes
            })
        })
    }
}

fn inode(directory: &Path) -> io::Result<Inode> {
    let found = fs::metadata(directory)?;
    Ok((found.dev(), found.ino(), found.created().ok()))
}

fn pages(bytes: u64) -> u64 {
    bytes.next_multiple_of(4096)
}

/// The bytes and inodes of a directory of the real system, with itself.
fn used(directory: &Path) -> (u64, u64) {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries.fold((pages(1), 1), |(bytes, inodes), entry| {
        let (more, files) = match entry.metadata() {
            Ok(found) if found.is_dir() => used(&entry.path()),
            found => (found.map_or(0, |found| pages(found.len())), 1),
        };
        (bytes + more, inodes + files)
    })
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
