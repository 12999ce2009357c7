//! Volumes on the devices of a simulated node.

use std::ops::Range;
use std::path::{Path, PathBuf};

use super::SimulatedNode;
use super::state::{Content, Files, Node, Root, State, Superblock, fail, options_text};
use crate::device::block_device::DeviceAccess;
use crate::device::sysfs::DeviceIdentity;
use crate::error::{ErrorKind, Result};
use crate::filesystem::grow::Grown;
use crate::flow::block::{FilesystemOrigin, MountCopies, StagePlan, Staged, VolumeUsage};
use crate::mounted::health::MountHealth;
use crate::mounting::attach::Outcome;
use crate::mounting::id_map::IdMap;
use crate::mounting::unmount::Unmounted;
use crate::place::owned_path::OwnedPath;
use crate::place::target::Removed;
#[cfg(feature = "remote")]
use crate::reservation::{Fencing, Reservation, ReservationKey, WriteRight};
use crate::sys::attributes::MountAttributes;
use crate::sys::ids::DeviceNumber;

impl State {
    /// Makes sure that the disk holds the plan's filesystem. Returns where it comes from, and its files.
    fn prepare(&mut self, node: &Node, device: &Path, plan: &StagePlan) -> Result<(FilesystemOrigin, usize)> {
        const STAGE: &str = "stage";
        let tool = format!("mkfs.{}", plan.filesystem);
        #[cfg(feature = "remote")]
        if plan.reservation.as_ref().is_some_and(|wanted| wanted.fencing() == Fencing::Required)
            && plan.writes()
        {
            return fail(ErrorKind::Unsupported, STAGE, device, "it has no reservations");
        }
        match self.disks[node.disk].content.clone() {
            _ if plan.writes() && node.is_read_only => {
                fail(ErrorKind::ReadOnly, STAGE, device, "the device refuses writes")
            }
            Content::Filesystem(found, _, files) if found == plan.filesystem => {
                Ok((FilesystemOrigin::Existing, files))
            }
            Content::Filesystem(..) | Content::Raw(_) => {
                fail(ErrorKind::NotBlank, STAGE, device, "the device holds something else")
            }
            Content::Blank if plan.never_format => {
                fail(ErrorKind::Damaged, STAGE, device, "the filesystem is missing")
            }
            Content::Blank if !plan.writes() => {
                fail(ErrorKind::ReadOnly, STAGE, device, "a read-only stage does not format it")
            }
            Content::Blank if node.size < plan.filesystem.min_size() => {
                fail(ErrorKind::OutOfRange, STAGE, device, "the device is too small")
            }
            Content::Blank if self.missing_tools.contains(&tool) => {
                fail(ErrorKind::MissingTool, STAGE, device, &format!("{tool} is not installed"))
            }
            Content::Blank => {
                self.step()?;
                self.files.push(Files::new());
                let files = self.files.len() - 1;
                self.disks[node.disk].content = Content::Filesystem(plan.filesystem, node.size, files);
                Ok((FilesystemOrigin::Formatted, files))
            }
        }
    }

    /// Whether the device, or a loop device over it, is published raw.
    pub(super) fn is_published(&self, device: &Path) -> bool {
        let is_of = |node: &PathBuf| {
            node == device || self.nodes.get(node).is_some_and(|node| node.backing.as_deref() == Some(device))
        };
        self.mounts.iter().any(|mount| matches!(&mount.root, Root::Node(node) if is_of(node)))
    }

    /// Grows the filesystem of a disk to the size that the device has.
    fn grow(&mut self, node: &Node) -> Result<Option<Grown>> {
        let Content::Filesystem(filesystem, from, files) = self.disks[node.disk].content else {
            return Ok(None);
        };
        if from >= node.size {
            return Ok(Some(Grown::Unchanged { size: from }));
        }
        self.step()?;
        self.disks[node.disk].content = Content::Filesystem(filesystem, node.size, files);
        for superblock in self.superblocks.iter_mut().filter(|found| found.number == node.number) {
            superblock.capacity = node.size;
        }
        Ok(Some(Grown::Grown { from, to: node.size }))
    }
}

pub(crate) fn device_of(simulated: &SimulatedNode, path: &Path) -> Result<DeviceNumber> {
    Ok(simulated.begin()?.node_at("find the device at", path)?.number)
}

/// A simulated disk has nothing to free.
pub(crate) fn trim(simulated: &SimulatedNode, path: &Path, _bytes: Range<u64>) -> Result<u64> {
    const TRIM: &str = "free unused space of";
    let state = simulated.begin()?;
    state.node_at(TRIM, path)?;
    match state.top(path).map(|mount| &mount.root) {
        Some(Root::Filesystem(_)) => Ok(0),
        _ => fail(ErrorKind::Unsupported, TRIM, path, "it is a raw device"),
    }
}

/// A simulated disk has no reservations.
#[cfg(feature = "remote")]
pub(crate) fn reserve(_: &SimulatedNode, device: &Path, wanted: &Reservation) -> Result<()> {
    match wanted.fencing() {
        Fencing::Required => fail(ErrorKind::Unsupported, "reserve", device, "it has no reservations"),
        _ => Ok(()),
    }
}

#[cfg(feature = "remote")]
pub(crate) fn write_right(_: &SimulatedNode, _: &Path, _: ReservationKey) -> Result<WriteRight> {
    Ok(WriteRight::Unsupported)
}

pub(crate) fn opened_device(simulated: &SimulatedNode, device: &Path) -> Result<Option<PathBuf>> {
    simulated.begin()?.node("open device", device).map(|_| None)
}

pub(crate) fn stage(
    simulated: &SimulatedNode,
    device: &Path,
    staging: &OwnedPath,
    plan: &StagePlan,
) -> Result<Staged> {
    drop(simulated.begin()?);
    let device = plan.expected.wait_in(simulated, Some(device))?.path;
    let device = device.as_path();
    let mut state = simulated.state();
    #[cfg(feature = "luks")]
    if plan.encryption.is_some() {
        return fail(ErrorKind::Unsupported, "stage", device, "encryption is not simulated");
    }
    let node = state.node("stage", device)?.clone();
    let mut origin = FilesystemOrigin::Existing;
    let root = match state.top(staging.path()).map(|mount| mount.root.clone()) {
        Some(root) => {
            state.require_staged(staging.path(), plan.options.attributes())?;
            match root {
                Root::Filesystem(index) if state.superblocks[index].number == node.number => root,
                _ => Root::Node(device.to_owned()),
            }
        }
        None => {
            let (found, files) = state.prepare(&node, device, plan)?;
            origin = found;
            let mounted =
                state.mounts.iter().find_map(|mount| match (&mount.root, state.superblock(mount)) {
                    (Root::Filesystem(index), Some(found)) if found.number == node.number => Some(*index),
                    _ => None,
                });
            Root::Filesystem(mounted.unwrap_or_else(|| {
                let capacity = match state.disks[node.disk].content {
                    Content::Filesystem(_, size, _) => size,
                    _ => 0,
                };
                state.add_superblock(Superblock {
                    number: node.number,
                    disk: Some(node.disk),
                    options: options_text(&plan.options),
                    ..Superblock::new(&plan.filesystem.to_string(), device, files, capacity)
                })
            }))
        }
    };
    let attributes = plan.options.attributes();
    let outcome = match root {
        // Something else is mounted there.
        Root::Node(_) => state.attach(staging, root, attributes)?,
        root => state.make_and_attach(staging, root, attributes)?,
    };
    let grown = if plan.writes() { state.grow(&node)? } else { None };
    Ok(Staged { device: node.number, outcome, origin, grown })
}

#[cfg(feature = "luks")]
pub(crate) fn stage_device(
    _simulated: &SimulatedNode,
    device: &Path,
    _staging: &OwnedPath,
    _luks: &crate::Luks,
    _key: &crate::LuksKey,
    _access: DeviceAccess,
) -> Result<()> {
    fail(ErrorKind::Unsupported, "stage", device, "encryption is not simulated")
}

pub(crate) fn unstage_lost(
    simulated: &SimulatedNode,
    staging: &OwnedPath,
    copies: MountCopies,
) -> Result<Unmounted> {
    unstage(simulated, staging, None, copies)
}

pub(crate) fn unstage(
    simulated: &SimulatedNode,
    staging: &OwnedPath,
    device: Option<&Path>,
    _copies: MountCopies,
) -> Result<Unmounted> {
    const UNSTAGE: &str = "unstage";
    let mut state = simulated.begin()?;
    state.require_own(UNSTAGE, staging)?;
    let device = device.map(|device| state.device(device).to_owned());
    let known = device.as_deref().and_then(|device| Some((device, state.nodes.get(device)?.number)));
    let mounted = state.node_at(UNSTAGE, staging.path()).ok().map(|node| node.number);
    let path = staging.path();
    if let (Some((_, known)), Some(found)) = (known, mounted)
        && known != found
    {
        return fail(ErrorKind::WrongDevice, UNSTAGE, path, "another device is mounted");
    }
    if let Some((device, _)) = known
        && state.is_published(device)
    {
        return fail(ErrorKind::Busy, UNSTAGE, path, "its device is published");
    }
    if state.health(path) == MountHealth::Frozen {
        return fail(ErrorKind::Busy, UNSTAGE, path, "its filesystem is frozen");
    }
    let unmounted = state.unmount(UNSTAGE, staging, false)?;
    state.unmark(staging);
    match known.map(|(_, number)| number).or(mounted) {
        Some(number) if state.is_mounted(number) => {
            fail(ErrorKind::Busy, UNSTAGE, path, "its device is mounted elsewhere")
        }
        _ => Ok(unmounted),
    }
}

pub(crate) fn publish(
    simulated: &SimulatedNode,
    staging: &Path,
    target: &OwnedPath,
    attributes: MountAttributes,
    _id_map: IdMap,
) -> Result<Outcome> {
    let mut state = simulated.begin()?;
    let staged = state.require_staged(staging, attributes)?;
    state.bind((staged.root, staged.attributes), target, attributes)
}

pub(crate) fn publish_device(
    simulated: &SimulatedNode,
    device: &Path,
    target: &OwnedPath,
    access: DeviceAccess,
) -> Result<Outcome> {
    let mut state = simulated.begin()?;
    let node = state.node("publish", device)?.clone();
    let device = state.device(device).to_owned();
    let device = device.as_path();
    if access == DeviceAccess::ReadWrite && node.is_read_only {
        return fail(ErrorKind::ReadOnly, "publish", device, "it refuses writes");
    }
    let path = target.path();
    state.refuse_content(target)?;
    let is_new = state.make(target, true)?;
    let is_over =
        |found: &Node| found.backing.as_deref() == Some(device) && found.made_for.as_deref() == Some(path);
    let shown = match access {
        DeviceAccess::ReadOnly if !node.is_read_only => {
            match state.nodes.iter().find(|(_, found)| is_over(found)).map(|(over, _)| over.clone()) {
                Some(over) => over,
                None => {
                    state.step()?;
                    let over = Node {
                        is_read_only: true,
                        backing: Some(device.to_owned()),
                        made_for: Some(path.to_owned()),
                        identity: DeviceIdentity::default(),
                        ..node
                    };
                    state.add_node("loop", over).0
                }
            }
        }
        _ => device.to_owned(),
    };
    let is_over = shown != device;
    let published = state.attach(target, Root::Node(shown.clone()), MountAttributes::empty());
    published.inspect_err(|_| {
        if is_over && !state.mounts.iter().any(|mount| mount.root == Root::Node(shown.clone())) {
            state.nodes.remove(&shown);
        }
        if is_new {
            // The error of the publish is the one to report.
            let _ = state.remove(target, false);
        }
    })
}

pub(crate) fn unpublish(simulated: &SimulatedNode, target: &OwnedPath) -> Result<Removed> {
    let mut state = simulated.begin()?;
    let is_others = state.marked_owner(target.path()).is_some_and(|found| !found.is_same(&target.owner().id));
    if state.top(target.path()).is_none() && is_others {
        return Ok(Removed::Kept);
    }
    let unmounted = state.unmount("unpublish", target, false)?;
    if state.nodes.values().any(|node| node.made_for.as_deref() == Some(target.path())) {
        state.step()?;
        state.nodes.retain(|_, node| node.made_for.as_deref() != Some(target.path()));
    }
    state.remove(target, unmounted != Unmounted::NotMounted)
}

pub(crate) fn usage(simulated: &SimulatedNode, path: &Path) -> Result<(VolumeUsage, Option<DeviceNumber>)> {
    let state = simulated.begin()?;
    match state.top(path) {
        None => fail(ErrorKind::NotFound, "read the usage of", path, "nothing is mounted there"),
        Some(mount) if matches!(mount.root, Root::Node(_)) => {
            let node = state.node_at("read the usage of", path)?;
            Ok((VolumeUsage::Device { size: node.size }, Some(node.number)))
        }
        Some(mount) => {
            let number = state.superblock(mount).map(|found| found.number);
            Ok((VolumeUsage::Filesystem(state.stats(path)?), number))
        }
    }
}

pub(crate) fn device_size(simulated: &SimulatedNode, path: &Path) -> Result<u64> {
    Ok(simulated.begin()?.node_at("read the size of the device at", path)?.size)
}

pub(crate) fn expand(simulated: &SimulatedNode, path: &Path) -> Result<Grown> {
    let mut state = simulated.begin()?;
    let node = state.node_at("expand", path)?.clone();
    if let Some(Root::Node(_)) = state.top(path).map(|mount| mount.root.clone()) {
        return Ok(Grown::Unchanged { size: node.size });
    }
    state.refuse_unresponsive("expand", path)?;
    Ok(state.grow(&node)?.unwrap_or(Grown::Unchanged { size: node.size }))
}

#[cfg(feature = "luks")]
pub(crate) fn expand_encrypted(
    simulated: &SimulatedNode,
    path: &Path,
    _key: &crate::LuksKey,
) -> Result<Grown> {
    expand(simulated, path)
}
