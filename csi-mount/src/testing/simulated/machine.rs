//! The steps of the flows on a simulated node.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::libc;

use super::SimulatedNode;
use super::state::{Content, Files, LARGE, Node, Root, State, Superblock, canonical};
use crate::flow::block::{FilesystemOrigin, MountCopies, StagePlan, Staged, VolumeUsage};
use crate::flow::ephemeral::{self, Change, EphemeralPlan};
use crate::flow::fuse::FuseDaemon;
use crate::flow::shared::SharedSource;
use crate::{
    DeviceAccess, DeviceNumber, DeviceUse, Error, ErrorKind, Finding, GroupChange, GroupOutcome, Grown,
    IdMap, LoopOptions, LoopPath, Machine, MountAttributes, MountEntry, MountHealth, MountId, MountOptions,
    MountPoint, MountState, NodeNeed, Outcome, OwnerId, ProtectedPaths, Removed, Result, SelfCheck, Stats,
    Target, Unmounted, Verdict, VolumePlace,
};

fn fail<T>(kind: ErrorKind, operation: &'static str, path: &Path, reason: &str) -> Result<T> {
    Err(Error::new(kind, operation, reason).at(path))
}

/// A filesystem with these files, on no device.
fn superblock(fs_type: &str, source: impl Into<OsString>, files: usize, capacity: u64) -> Superblock {
    Superblock {
        fs_type: fs_type.to_owned(),
        source: source.into(),
        number: DeviceNumber::new(0, 0),
        capacity,
        files,
        disk: None,
        options: "rw".to_owned(),
        health: MountHealth::Healthy,
        is_full: false,
        identity: None,
    }
}

/// The options of a filesystem as the mount table shows them.
fn text(options: &MountOptions) -> String {
    let option = |option: &crate::FsOption| match option.value() {
        Some(value) => format!("{}={value}", option.key()),
        None => option.key().to_owned(),
    };
    std::iter::once("rw".to_owned())
        .chain(options.filesystem().iter().map(option))
        .collect::<Vec<_>>()
        .join(",")
}

impl State {
    /// Makes sure that the disk holds the plan's filesystem. Returns where it comes from, and its files.
    fn prepare(&mut self, node: &Node, device: &Path, plan: &StagePlan) -> Result<(FilesystemOrigin, usize)> {
        const STAGE: &str = "stage";
        let tool = format!("mkfs.{}", plan.filesystem);
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

    /// Whether a filesystem of this device is mounted somewhere.
    fn is_mounted(&self, number: DeviceNumber) -> bool {
        self.mounts.iter().any(|mount| self.superblock(mount).is_some_and(|found| found.number == number))
    }

    /// Whether the device, or a loop device over it, is published raw.
    fn is_published(&self, device: &Path) -> bool {
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

    /// Publishes a staged filesystem or a directory at a target.
    fn bind(
        &mut self,
        staged: (Root, MountAttributes),
        target: &VolumePlace,
        added: MountAttributes,
    ) -> Result<Outcome> {
        let (root, attributes) = staged;
        self.make_and_attach(target, root, attributes.combined_with(added))
    }

    fn unpublish(&mut self, target: &VolumePlace, by_force: bool) -> Result<Removed> {
        let unmounted = self.unmount("unpublish", target, by_force)?;
        self.remove(target, unmounted != Unmounted::NotMounted)
    }

    fn unstage(&mut self, staging: &VolumePlace) -> Result<Unmounted> {
        let unmounted = self.unmount("unstage", staging, true)?;
        self.unmark(staging);
        Ok(unmounted)
    }

    fn publish_staged(
        &mut self,
        staging: &Path,
        target: &VolumePlace,
        attributes: MountAttributes,
    ) -> Result<Outcome> {
        let staged = self.require_staged(staging, attributes)?;
        self.unmount_if_lost(target)?;
        self.bind((staged.root, staged.attributes), target, attributes)
    }

    /// The files of a server or daemon, which outlive each mount of it.
    fn served(&mut self, source: &std::ffi::OsStr) -> usize {
        match self.superblocks.iter().find(|found| found.disk.is_none() && found.source == source) {
            Some(found) => found.files,
            None => {
                self.files.push(Files::new());
                self.files.len() - 1
            }
        }
    }

    fn size_again(&mut self, backing: &Path) -> Result<()> {
        if self.nodes.values().any(|node| node.backing.as_deref() == Some(backing)) {
            let size = match self.nodes.get(backing) {
                Some(beneath) => beneath.size,
                None => {
                    let disk = self.image(backing)?;
                    self.disks[disk].size
                }
            };
            let over = self.nodes.values_mut().filter(|node| node.backing.as_deref() == Some(backing));
            over.for_each(|node| node.size = size);
        }
        Ok(())
    }
}

impl Machine for SimulatedNode {
    fn mounts(&self) -> Result<Vec<MountEntry>> {
        Ok(self.begin()?.table())
    }

    fn mount_state(&self, path: &Path) -> Result<MountState> {
        let state = self.begin()?;
        let Some(mount) = state.top(path) else {
            return Ok(if state.exists(path) { MountState::NotMounted } else { MountState::Absent });
        };
        let id = MountId::new(mount.id);
        let device = state.table().iter().find(|entry| entry.id == id).map(|entry| entry.device);
        Ok(MountState::Mounted(MountPoint::new(id, device.unwrap_or(DeviceNumber::new(0, 0)))))
    }

    fn health(&self, path: &Path) -> Result<MountHealth> {
        Ok(self.begin()?.health(path))
    }

    fn health_of_filesystem(&self, path: &Path) -> Result<MountHealth> {
        let state = self.begin()?;
        match state.through(path).and_then(|(mount, _)| state.superblock(mount)) {
            Some(found) => Ok(found.health),
            None if state.exists(path) => Ok(MountHealth::Healthy),
            None => fail(ErrorKind::NotFound, "check the health of", path, "it does not exist"),
        }
    }

    fn stats(&self, path: &Path) -> Result<Stats> {
        self.begin()?.stats(path)
    }

    fn marked_owner(&self, path: &Path) -> Result<Option<OwnerId>> {
        Ok(self.begin()?.marked_owner(path).cloned())
    }

    fn refuse_foreign(&self, place: &VolumePlace) -> Result<()> {
        self.begin()?.require_own("use", place)
    }

    fn check_protected(&self, protected: &ProtectedPaths, path: &Path) -> Result<()> {
        protected.check_text(path)
    }

    fn self_check(&self, _roots: &[PathBuf], needs: &[NodeNeed]) -> SelfCheck {
        let state = self.state();
        let filesystems = needs.iter().filter_map(|need| match need {
            NodeNeed::Filesystem(filesystem) => Some(*filesystem),
            _ => None,
        });
        let finding = |tool: &&str| {
            let (verdict, detail) = match state.missing_tools.contains(*tool) {
                true => (Verdict::Broken, "it is not installed"),
                false => (Verdict::Fine, ""),
            };
            Finding { subject: (*tool).to_owned(), verdict, detail: detail.to_owned() }
        };
        let tools = filesystems.flat_map(|filesystem| filesystem.tools().iter());
        SelfCheck::from_findings(tools.map(finding).collect())
    }

    fn is_directory(&self, path: &Path) -> Result<bool> {
        let state = self.begin()?;
        Ok(match state.top(path) {
            Some(mount) => !matches!(mount.root, Root::Node(_)),
            None => state.is_directory(path),
        })
    }

    fn is_same_file(&self, one: &Path, other: &Path) -> Result<bool> {
        let state = self.begin()?;
        let place = |path: &Path| match state.through(path) {
            Some((mount, rest)) if mount.path != Path::new("/") => match &mount.root {
                Root::Directory(root) => Root::Directory(canonical(&root.join(rest))),
                root => root.clone(),
            },
            _ => Root::Directory(canonical(path)),
        };
        Ok(place(one) == place(other))
    }

    fn give_to_group(&self, _root: &Path, _group: u32, _change: GroupChange) -> Result<GroupOutcome> {
        self.begin().map(|_| GroupOutcome::AlreadyDone)
    }

    fn remove_tree(&self, path: &Path) -> Result<Removed> {
        let mut state = self.begin()?;
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

    fn directory_publish(
        &self,
        source: &Path,
        target: &VolumePlace,
        attributes: MountAttributes,
        _id_map: IdMap,
    ) -> Result<Outcome> {
        let mut state = self.begin()?;
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

    fn directory_unpublish(&self, target: &VolumePlace) -> Result<Removed> {
        self.begin()?.unpublish(target, false)
    }

    fn device_number(&self, device: &Path) -> Result<DeviceNumber> {
        Ok(self.begin()?.node("open device", device)?.number)
    }

    fn device_use(&self, device: &Path) -> Result<DeviceUse> {
        let state = self.begin()?;
        let number = state.node("open device", device)?.number;
        Ok(if state.is_mounted(number) { DeviceUse::InUse } else { DeviceUse::Free })
    }

    fn device_of(&self, path: &Path) -> Result<DeviceNumber> {
        Ok(self.begin()?.node_at("find the device at", path)?.number)
    }

    fn opened_device(&self, device: &Path) -> Result<Option<PathBuf>> {
        self.begin()?.node("open device", device).map(|_| None)
    }

    fn loop_attach(&self, backing: &Path, options: &LoopOptions) -> Result<LoopPath> {
        let mut state = self.begin()?;
        let backing = canonical(backing);
        let is_found = |node: &Node| node.backing.as_ref() == Some(&backing) && node.made_for.is_none();
        if let Some((path, node)) = state.nodes.iter().find(|(_, node)| is_found(node)) {
            return Ok(LoopPath::new(path, node.number));
        }
        let disk = state.image(&backing)?;
        state.step()?;
        let node = Node {
            number: DeviceNumber::new(7, 0),
            disk,
            size: state.disks[disk].size,
            is_read_only: options.is_read_only(),
            backing: Some(backing),
            made_for: None,
        };
        let (path, number) = state.add_node("loop", node);
        Ok(LoopPath::new(path, number))
    }

    fn loop_devices(&self, backing: &Path) -> Result<Vec<LoopPath>> {
        let (state, backing) = (self.begin()?, canonical(backing));
        let found = state.nodes.iter().filter(|(_, node)| node.backing.as_ref() == Some(&backing));
        Ok(found.map(|(path, node)| LoopPath::new(path, node.number)).collect())
    }

    fn loop_refresh(&self, backing: &Path) -> Result<()> {
        self.begin()?.size_again(&canonical(backing))
    }

    fn loop_detach(&self, backing: &Path) -> Result<usize> {
        let (mut state, backing) = (self.begin()?, canonical(backing));
        let found: Vec<PathBuf> = (state.nodes.iter())
            .filter(|(_, node)| node.backing.as_ref() == Some(&backing))
            .map(|(path, _)| path.clone())
            .collect();
        for path in &found {
            let number = state.node("detach", path)?.number;
            if state.is_mounted(number) || state.is_published(path) {
                return fail(ErrorKind::Busy, "detach", path, "it is in use");
            }
            state.step()?;
            state.nodes.remove(path);
        }
        Ok(found.len())
    }

    fn block_stage(&self, device: &Path, staging: &VolumePlace, plan: &StagePlan) -> Result<Staged> {
        let mut state = self.begin()?;
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
                        options: text(&plan.options),
                        ..superblock(&plan.filesystem.to_string(), device, files, capacity)
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
    fn block_stage_device(
        &self,
        device: &Path,
        _staging: &VolumePlace,
        _luks: &crate::Luks,
        _key: &crate::LuksKey,
        _access: DeviceAccess,
    ) -> Result<()> {
        fail(ErrorKind::Unsupported, "stage", device, "encryption is not simulated")
    }

    fn block_unstage(
        &self,
        staging: &VolumePlace,
        device: Option<&Path>,
        _copies: MountCopies,
    ) -> Result<Unmounted> {
        const UNSTAGE: &str = "unstage";
        let mut state = self.begin()?;
        state.require_own(UNSTAGE, staging)?;
        let known = device.and_then(|device| Some((device, state.nodes.get(device)?.number)));
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

    fn block_publish(
        &self,
        staging: &Path,
        target: &VolumePlace,
        attributes: MountAttributes,
        _id_map: IdMap,
    ) -> Result<Outcome> {
        let mut state = self.begin()?;
        let staged = state.require_staged(staging, attributes)?;
        state.bind((staged.root, staged.attributes), target, attributes)
    }

    fn block_publish_device(
        &self,
        device: &Path,
        target: &VolumePlace,
        access: DeviceAccess,
    ) -> Result<Outcome> {
        let mut state = self.begin()?;
        let node = state.node("publish", device)?.clone();
        if access == DeviceAccess::ReadWrite && node.is_read_only {
            return fail(ErrorKind::ReadOnly, "publish", device, "it refuses writes");
        }
        let path = target.path();
        let is_new = state.make(target, true)?;
        let is_over = |found: &Node| {
            found.backing.as_deref() == Some(device) && found.made_for.as_deref() == Some(path)
        };
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

    fn block_unpublish(&self, target: &VolumePlace) -> Result<Removed> {
        let mut state = self.begin()?;
        let is_others =
            state.marked_owner(target.path()).is_some_and(|found| !found.is_same(&target.owner().id));
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

    fn block_usage(&self, path: &Path) -> Result<(VolumeUsage, Option<DeviceNumber>)> {
        let state = self.begin()?;
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

    fn block_expand(&self, path: &Path) -> Result<Grown> {
        let mut state = self.begin()?;
        let node = state.node_at("expand", path)?.clone();
        if let Some(Root::Node(_)) = state.top(path).map(|mount| mount.root.clone()) {
            return Ok(Grown::Unchanged { size: node.size });
        }
        state.refuse_unresponsive("expand", path)?;
        Ok(state.grow(&node)?.unwrap_or(Grown::Unchanged { size: node.size }))
    }

    #[cfg(feature = "luks")]
    fn block_expand_encrypted(&self, path: &Path, _key: &crate::LuksKey) -> Result<Grown> {
        self.block_expand(path)
    }

    fn shared_mount(
        &self,
        place: &VolumePlace,
        source: &SharedSource,
        attributes: MountAttributes,
    ) -> Result<Outcome> {
        let mut state = self.begin()?;
        let source = source.clone().with_attributes(attributes);
        let is_new = state.make(place, false)?;
        state.unmount_if_lost(place)?;
        let name = OsString::from(&source.source);
        let mounted = match state.top(place.path()).map(|mount| mount.root.clone()) {
            Some(Root::Filesystem(index)) if state.superblocks[index].source == name => {
                state.refuse_unresponsive("mount", place.path())?;
                Some(index)
            }
            Some(_) => {
                return fail(ErrorKind::AlreadyMounted, "mount", place.path(), "something else is mounted");
            }
            None => None,
        };
        let index = mounted.unwrap_or_else(|| {
            let files = state.served(&name);
            let found = superblock(&source.fs_type, name, files, LARGE);
            state.add_superblock(Superblock { options: text(&source.options), ..found })
        });
        state.attach(place, Root::Filesystem(index), source.options.attributes()).inspect_err(|_| {
            if is_new {
                // The error of the mount is the one to report.
                let _ = state.remove(place, false);
            }
        })
    }

    fn shared_publish(
        &self,
        staging: &Path,
        target: &VolumePlace,
        attributes: MountAttributes,
    ) -> Result<Outcome> {
        self.begin()?.publish_staged(staging, target, attributes)
    }

    fn shared_unpublish(&self, target: &VolumePlace, _limit: Duration) -> Result<Removed> {
        self.begin()?.unpublish(target, true)
    }

    fn shared_unstage(&self, staging: &VolumePlace, _limit: Duration) -> Result<Unmounted> {
        self.begin()?.unstage(staging)
    }

    fn fuse_stage(&self, staging: &VolumePlace, daemon: &FuseDaemon) -> Result<Outcome> {
        const START: &str = "start the daemon";
        let mut state = self.begin()?;
        state.make(staging, false)?;
        state.unmount_if_lost(staging)?;
        if let Some(mount) = state.top(staging.path()) {
            let (root, attributes) = (mount.root.clone(), mount.attributes);
            let is_same = state.superblock(mount).is_some_and(|found| found.identity == daemon.identity);
            state.refuse_unresponsive(START, staging.path())?;
            return match is_same {
                true => state.attach(staging, root, attributes),
                false => fail(ErrorKind::AlreadyMounted, START, staging.path(), "another daemon serves it"),
            };
        }
        let program = daemon.program().to_string_lossy().into_owned();
        if state.missing_tools.contains(&program) {
            return fail(
                ErrorKind::MissingTool,
                START,
                staging.path(),
                &format!("{program} is not installed"),
            );
        }
        // The backend of a daemon has its files, whichever daemon serves them.
        let source = daemon.identity.clone().unwrap_or_else(|| staging.path().into());
        let files = state.served(&source);
        let found = superblock("fuse", source, files, LARGE);
        let index = state.add_superblock(Superblock { identity: daemon.identity.clone(), ..found });
        state.attach(staging, Root::Filesystem(index), MountAttributes::NOSUID | MountAttributes::NODEV)
    }

    fn fuse_is_lost(&self, path: &Path) -> Result<bool> {
        let lost = [MountHealth::Dead(libc::ENOTCONN), MountHealth::Dead(libc::ECONNREFUSED)];
        Ok(lost.contains(&self.begin()?.health(path)))
    }

    fn fuse_identity(&self, path: &Path) -> Option<OsString> {
        let state = self.state();
        state.superblock(state.top(path)?)?.identity.clone()
    }

    fn fuse_publish(
        &self,
        staging: &Path,
        target: &VolumePlace,
        attributes: MountAttributes,
    ) -> Result<Outcome> {
        self.begin()?.publish_staged(staging, target, attributes)
    }

    fn fuse_unpublish(&self, target: &VolumePlace) -> Result<Removed> {
        self.begin()?.unpublish(target, true)
    }

    fn fuse_unstage(&self, staging: &VolumePlace, _limit: Duration) -> Result<Unmounted> {
        const UNSTAGE: &str = "unstage";
        let mut state = self.begin()?;
        state.require_own(UNSTAGE, staging)?;
        let root = state.top(staging.path()).map(|mount| mount.root.clone());
        let mounts = state.mounts.iter().filter(|mount| Some(&mount.root) == root.as_ref()).count();
        if root.is_some() && mounts > 1 {
            return fail(
                ErrorKind::Busy,
                UNSTAGE,
                staging.path(),
                "its filesystem is still mounted elsewhere",
            );
        }
        state.unstage(staging)
    }

    fn ephemeral_publish(
        &self,
        target: &VolumePlace,
        content: &ephemeral::Content,
        plan: &EphemeralPlan,
    ) -> Result<Change> {
        plan.check(content).map_err(|error| error.at(target.path()))?;
        let mut state = self.begin()?;
        let wanted: Files =
            content.files().map(|(path, file)| (path.to_owned(), file.bytes.clone())).collect();
        if let Some(mount) = state.top(target.path()) {
            let (root, attributes) = (mount.root.clone(), mount.attributes);
            let found = state.superblock(mount).map(|found| (found.source.clone(), found.files));
            let Some((_, files)) = found.filter(|(source, _)| source == plan.source()) else {
                return fail(
                    ErrorKind::AlreadyMounted,
                    "publish",
                    target.path(),
                    "something else is mounted",
                );
            };
            if attributes != plan.attributes {
                return fail(ErrorKind::AlreadyMounted, "publish", target.path(), "it has other attributes");
            }
            state.attach(target, root, attributes)?;
            if state.files[files] == wanted {
                return Ok(Change::Unchanged);
            }
            state.step()?;
            state.files[files] = wanted;
            return Ok(Change::Written);
        }
        state.files.push(wanted);
        let files = state.files.len() - 1;
        let index = state.add_superblock(superblock("tmpfs", plan.source(), files, plan.size));
        state.make_and_attach(target, Root::Filesystem(index), plan.attributes)?;
        Ok(Change::Written)
    }
}
