//! What a simulated node remembers: its devices, filesystems, mounts, marks and the faults that are due.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use crate::{
    DeviceNumber, Error, ErrorKind, Evidence, Filesystem, MountAttributes, MountEntry, MountHealth, MountId,
    Outcome, OwnerId, Removed, Result, Stats, SuperOptions, Unmounted, Usage, VolumePlace,
};

/// The filesystem of the node itself, and that of its device nodes.
const HOST: DeviceNumber = DeviceNumber::new(0, 1);
const DEVICES: DeviceNumber = DeviceNumber::new(0, 2);
/// The size of filesystems that are on no device.
pub(super) const LARGE: u64 = 1 << 40;
const PAGE: u64 = 4096;

/// Files by their paths in a filesystem.
pub(super) type Files = BTreeMap<PathBuf, Vec<u8>>;

/// What is on a disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Content {
    Blank,
    /// Bytes that are no filesystem.
    Raw(Vec<u8>),
    /// A filesystem of this size, and the index of its files.
    Filesystem(Filesystem, u64, usize),
}

#[derive(Debug)]
pub(super) struct Disk {
    pub(super) size: u64,
    pub(super) content: Content,
}

/// A device node.
#[derive(Debug, Clone)]
pub(super) struct Node {
    pub(super) number: DeviceNumber,
    pub(super) disk: usize,
    /// What a loop device knows of the size.
    pub(super) size: u64,
    pub(super) is_read_only: bool,
    /// The file or device beneath a loop device.
    pub(super) backing: Option<PathBuf>,
    /// The target that a read-only loop device was made for.
    pub(super) made_for: Option<PathBuf>,
}

/// A filesystem that was mounted.
#[derive(Debug)]
pub(super) struct Superblock {
    pub(super) fs_type: String,
    pub(super) source: OsString,
    pub(super) number: DeviceNumber,
    pub(super) capacity: u64,
    pub(super) files: usize,
    pub(super) disk: Option<usize>,
    pub(super) options: String,
    pub(super) health: MountHealth,
    pub(super) is_full: bool,
    /// What its FUSE daemon serves.
    pub(super) identity: Option<OsString>,
}

/// What a mount shows at its root.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Root {
    /// A directory of the node.
    Directory(PathBuf),
    /// The filesystem with this index.
    Filesystem(usize),
    /// A device node.
    Node(PathBuf),
}

#[derive(Debug, Clone)]
pub(super) struct Mount {
    pub(super) id: u64,
    pub(super) path: PathBuf,
    pub(super) root: Root,
    pub(super) attributes: MountAttributes,
}

#[derive(Debug, Default)]
pub(super) struct State {
    /// Directories and empty files of the node that exist in memory only.
    pub(super) directories: BTreeSet<PathBuf>,
    pub(super) places: BTreeSet<PathBuf>,
    pub(super) host_files: Files,
    marks: BTreeMap<PathBuf, (OwnerId, Option<Root>)>,
    pub(super) disks: Vec<Disk>,
    pub(super) images: BTreeMap<(u64, u64, PathBuf), usize>,
    pub(super) nodes: BTreeMap<PathBuf, Node>,
    pub(super) files: Vec<Files>,
    pub(super) superblocks: Vec<Superblock>,
    pub(super) mounts: Vec<Mount>,
    /// Mounts on which a workload has a file open.
    pub(super) open: BTreeSet<u64>,
    pub(super) missing_tools: BTreeSet<String>,
    pub(super) failure: Option<ErrorKind>,
    pub(super) crash_after: Option<u64>,
    pub(super) is_crashed: bool,
    pub(super) steps: u64,
    last: u32,
}

impl State {
    /// The fault that is due when a verb starts.
    pub(super) fn begin(&mut self) -> Result<()> {
        self.refuse_crashed()?;
        match self.failure.take() {
            Some(kind) => Err(Error::new(kind, "simulate", "the test asked for this failure")),
            None => Ok(()),
        }
    }

    fn refuse_crashed(&self) -> Result<()> {
        match self.is_crashed {
            true => Err(Error::new(ErrorKind::Io, "simulate", "the process was killed")),
            false => Ok(()),
        }
    }

    /// Counts one change of the node. The process is killed before it, if that is due.
    pub(super) fn step(&mut self) -> Result<()> {
        self.is_crashed |= self.crash_after == Some(self.steps);
        self.refuse_crashed()?;
        self.steps += 1;
        Ok(())
    }

    pub(super) fn next(&mut self) -> u32 {
        self.last += 1;
        self.last
    }

    /// The topmost mount at a path.
    pub(super) fn top(&self, path: &Path) -> Option<&Mount> {
        let path = resolved(path);
        self.mounts.iter().rev().find(|mount| mount.path == path)
    }

    /// The mount that a path leads through, and the rest of the path in it.
    pub(super) fn through(&self, path: &Path) -> Option<(&Mount, PathBuf)> {
        let path = resolved(path);
        let above = self.mounts.iter().filter(|mount| path.starts_with(&mount.path));
        let mount = above.max_by_key(|mount| (mount.path.components().count(), mount.id))?;
        Some((mount, path.strip_prefix(&mount.path).unwrap_or(Path::new("")).to_owned()))
    }

    pub(super) fn superblock(&self, mount: &Mount) -> Option<&Superblock> {
        match mount.root {
            Root::Filesystem(index) => Some(&self.superblocks[index]),
            _ => None,
        }
    }

    pub(super) fn health(&self, path: &Path) -> MountHealth {
        match self.top(path) {
            None => MountHealth::NotMounted,
            Some(mount) => self.superblock(mount).map_or(MountHealth::Healthy, |found| found.health),
        }
    }

    pub(super) fn exists(&self, path: &Path) -> bool {
        self.top(path).is_some()
            || self.is_directory(path)
            || self.places.contains(path)
            || self.host_files.contains_key(path)
            || fs::symlink_metadata(path).is_ok()
    }

    /// Whether the node itself has this directory.
    pub(super) fn is_directory(&self, path: &Path) -> bool {
        path == Path::new("/")
            || self.directories.contains(path)
            || fs::symlink_metadata(path).is_ok_and(|found| found.is_dir())
    }

    pub(super) fn used(&self, superblock: &Superblock) -> u64 {
        self.files[superblock.files].values().map(|bytes| (bytes.len() as u64).div_ceil(PAGE) * PAGE).sum()
    }

    pub(super) fn stats(&self, path: &Path) -> Result<Stats> {
        const OPERATION: &str = "read the usage of";
        let found = self.through(path).and_then(|(mount, _)| self.superblock(mount));
        let Some(found) = found else {
            return match self.exists(path) {
                true => Ok(Stats::new(Usage::new(LARGE, 0, LARGE), None)),
                false => Err(Error::new(ErrorKind::NotFound, OPERATION, "it does not exist").at(path)),
            };
        };
        match found.health {
            MountHealth::Unresponsive => {
                Err(Error::new(ErrorKind::Unresponsive, OPERATION, "no answer").at(path))
            }
            MountHealth::Dead(number) => {
                Err(Error::os(OPERATION, path, std::io::Error::from_raw_os_error(number)))
            }
            _ => {
                let used = self.used(found);
                let available = if found.is_full { 0 } else { found.capacity.saturating_sub(used) };
                Ok(Stats::new(Usage::new(found.capacity, used, available), None))
            }
        }
    }

    pub(super) fn node(&self, operation: &'static str, path: &Path) -> Result<&Node> {
        let missing = || Error::new(ErrorKind::NotFound, operation, "no such device").at(path);
        self.nodes.get(path).ok_or_else(missing)
    }

    /// The device node at which a volume's content is: of a filesystem, or bound there.
    pub(super) fn node_at(&self, operation: &'static str, path: &Path) -> Result<&Node> {
        let fail = |kind, reason: &str| Error::new(kind, operation, reason).at(path);
        let mount = self.top(path).ok_or_else(|| fail(ErrorKind::NotFound, "nothing is mounted there"))?;
        let number = match &mount.root {
            Root::Node(node) => return self.node(operation, node),
            Root::Filesystem(index) => self.superblocks[*index].number,
            Root::Directory(_) => HOST,
        };
        let found = self.nodes.values().find(|node| node.number == number);
        found.ok_or_else(|| fail(ErrorKind::Unsupported, "the filesystem has no block device"))
    }

    /// The disk of an image file; a file that was made again is another disk.
    pub(super) fn image(&mut self, backing: &Path) -> Result<usize> {
        const OPERATION: &str = "attach a loop device to";
        let found = fs::metadata(backing).map_err(|error| Error::os(OPERATION, backing, error))?;
        let made = found.created().ok().map_or_else(PathBuf::new, |time| format!("{time:?}").into());
        let size = found.len();
        let count = self.disks.len();
        let disk = *self.images.entry((found.dev(), found.ino(), made)).or_insert(count);
        if disk == count {
            self.disks.push(Disk { size, content: Content::Blank });
        }
        self.disks[disk].size = size;
        Ok(disk)
    }

    pub(super) fn add_node(&mut self, name: &str, node: Node) -> (PathBuf, DeviceNumber) {
        let minor = self.next();
        let path = PathBuf::from(format!("/dev/{name}{minor}"));
        let number = DeviceNumber::new(if name == "loop" { 7 } else { 259 }, minor);
        self.nodes.insert(path.clone(), Node { number, ..node });
        (path, number)
    }

    pub(super) fn add_superblock(&mut self, superblock: Superblock) -> usize {
        let minor = self.next();
        let number = match superblock.disk {
            Some(_) => superblock.number,
            None => DeviceNumber::new(0, 100 + minor),
        };
        self.superblocks.push(Superblock { number, ..superblock });
        self.superblocks.len() - 1
    }

    /// Makes the place if it does not exist, as a directory or a file; returns whether it did.
    pub(super) fn make(&mut self, place: &VolumePlace, is_file: bool) -> Result<bool> {
        const OPERATION: &str = "make";
        let path = place.path();
        let fail = |kind, reason: &str| Err(Error::new(kind, OPERATION, reason).at(path));
        if !path.is_absolute() || path.parent().is_none() {
            return fail(ErrorKind::InvalidInput, "it is no absolute path of a place");
        }
        if self.exists(path) {
            let is_node = matches!(self.top(path), Some(Mount { root: Root::Node(_), .. }));
            let is_directory = self.is_directory(path) && !is_node;
            return match is_directory != is_file {
                true => Ok(false),
                false => fail(ErrorKind::InvalidInput, "something else exists there already"),
            };
        }
        if !path.parent().is_some_and(|parent| self.is_directory(parent)) {
            return fail(ErrorKind::NotFound, "its parent directory does not exist");
        }
        self.step()?;
        match is_file {
            true => self.places.insert(path.to_owned()),
            false => self.directories.insert(path.to_owned()),
        };
        self.step()?;
        self.marks.insert(path.to_owned(), (place.owner().id.clone(), None));
        Ok(true)
    }

    /// Mounts at an existing place, or finds that it was done.
    pub(super) fn attach(
        &mut self,
        place: &VolumePlace,
        root: Root,
        attributes: MountAttributes,
    ) -> Result<Outcome> {
        const OPERATION: &str = "mount";
        let refuse =
            |reason: &str| Err(Error::new(ErrorKind::AlreadyMounted, OPERATION, reason).at(place.path()));
        let owner = &place.owner().id;
        if let Some(top) = self.top(place.path()) {
            if top.root != root {
                return refuse("something else is mounted there");
            }
            if top.attributes != attributes {
                return refuse("it is mounted with other attributes");
            }
            self.refuse_unresponsive(OPERATION, place.path())?;
            let mark = self.marks.get(place.path());
            if mark.is_some_and(|(marked, _)| !marked.is_same(owner)) {
                return refuse("another volume is mounted there");
            }
            self.marks.insert(place.path().to_owned(), (owner.clone(), Some(root)));
            return Ok(Outcome::AlreadyMounted);
        }
        self.step()?;
        self.marks.insert(place.path().to_owned(), (owner.clone(), Some(root.clone())));
        self.step()?;
        let id = 100 + u64::from(self.next());
        self.mounts.push(Mount { id, path: resolved(place.path()), root, attributes });
        Ok(Outcome::Mounted)
    }

    pub(super) fn refuse_unresponsive(&self, operation: &'static str, path: &Path) -> Result<()> {
        match self.health(path) {
            health @ (MountHealth::Dead(_) | MountHealth::Unresponsive) => {
                Err(Error::new(ErrorKind::Unresponsive, operation, health.to_string()).at(path))
            }
            _ => Ok(()),
        }
    }

    /// Makes the place and mounts there; a failure removes what was made.
    pub(super) fn make_and_attach(
        &mut self,
        place: &VolumePlace,
        root: Root,
        attributes: MountAttributes,
    ) -> Result<Outcome> {
        let is_new = self.make(place, matches!(root, Root::Node(_)))?;
        self.attach(place, root, attributes).inspect_err(|_| {
            if is_new && self.step().is_ok() {
                self.forget(place.path());
            }
        })
    }

    fn forget(&mut self, path: &Path) {
        self.directories.remove(path);
        self.places.remove(path);
        self.marks.remove(path);
    }

    pub(super) fn marked_owner(&self, path: &Path) -> Option<&OwnerId> {
        self.marks.get(path).map(|(owner, _)| owner)
    }

    pub(super) fn unmark(&mut self, place: &VolumePlace) {
        if self.marked_owner(place.path()).is_some_and(|found| found.is_same(&place.owner().id)) {
            self.marks.remove(place.path());
        }
    }

    /// Refuses a mount that is not known to be the place's owner's.
    pub(super) fn require_own(&self, operation: &'static str, place: &VolumePlace) -> Result<()> {
        let (path, owner) = (place.path(), place.owner());
        let refuse = |why: &str| Err(Error::new(ErrorKind::NotOwned, operation, why).at(path));
        let Some(top) = self.top(path) else { return Ok(()) };
        match self.marks.get(path) {
            Some((marked, _)) if !marked.is_same(&owner.id) => {
                return refuse(&format!("the path belongs to {marked}"));
            }
            Some((_, mounted)) if mounted.as_ref() != Some(&top.root) => {
                return refuse("it is not what was mounted for the volume");
            }
            None if !owner.evidence.iter().any(|evidence| self.proves(evidence, top)) => {
                return refuse("the path has no volume's mark");
            }
            _ => {}
        }
        if owner.is_gone && !owner.roots.iter().any(|root| path.starts_with(root)) {
            return refuse("the volume no longer exists");
        }
        match self.mounts.iter().any(|mount| mount.path == top.path && mount.root != top.root) {
            true => refuse("something else lies beneath the volume's own mount"),
            false => Ok(()),
        }
    }

    fn proves(&self, evidence: &Evidence, top: &Mount) -> bool {
        match (evidence, &top.root) {
            (Evidence::Device(number), Root::Node(node)) => {
                self.nodes.get(node).is_some_and(|node| node.number == *number)
            }
            (Evidence::Device(number), Root::Filesystem(index)) => self.superblocks[*index].number == *number,
            (Evidence::Directory(directory), Root::Directory(root)) => canonical(directory) == *root,
            (Evidence::Source { fs_type, source }, Root::Filesystem(index)) => {
                let found = &self.superblocks[*index];
                (&found.fs_type, &found.source) == (fs_type, &OsString::from(source))
            }
            _ => false,
        }
    }

    /// Unmounts every layer that is the owner's; `by_force` also what a workload uses, if it does not answer.
    pub(super) fn unmount(
        &mut self,
        operation: &'static str,
        place: &VolumePlace,
        by_force: bool,
    ) -> Result<Unmounted> {
        self.require_own(operation, place)?;
        let mut layers = 0;
        while let Some(top) = self.top(place.path()) {
            let id = top.id;
            let is_dead =
                matches!(self.health(place.path()), MountHealth::Dead(_) | MountHealth::Unresponsive);
            if self.open.contains(&id) && !(by_force && is_dead) {
                let reason = "a process has a file of it open";
                return Err(Error::new(ErrorKind::Busy, operation, reason).at(place.path()));
            }
            self.step()?;
            self.mounts.retain(|mount| mount.id != id);
            self.open.remove(&id);
            layers += 1;
        }
        Ok(if layers == 0 { Unmounted::NotMounted } else { Unmounted::Unmounted { layers } })
    }

    /// Removes the place if it was made for the owner's volume.
    pub(super) fn remove(&mut self, place: &VolumePlace, was_unmounted: bool) -> Result<Removed> {
        let (path, owner) = (place.path(), place.owner());
        let fail = |reason: &str| Err(Error::new(ErrorKind::Busy, "remove", reason).at(path));
        if !self.exists(path) {
            self.marks.remove(path);
            return Ok(Removed::WasAbsent);
        }
        if self.top(path).is_some() {
            return fail("something is mounted on it");
        }
        let is_inside = |other: &PathBuf| other != path && other.starts_with(path);
        let mut inside = self.directories.iter().chain(&self.places).chain(self.host_files.keys());
        if inside.any(is_inside) {
            return fail("the directory is not empty");
        }
        let is_own = match self.marks.get(path) {
            Some((marked, _)) => marked.is_same(&owner.id),
            None => was_unmounted || owner.roots.iter().any(|root| path.starts_with(root)),
        };
        // A directory of the real system stays: the node changes nothing outside of itself.
        if !is_own || !(self.directories.contains(path) || self.places.contains(path)) {
            return Ok(Removed::Kept);
        }
        self.step()?;
        self.forget(path);
        Ok(Removed::Removed)
    }

    /// Unmounts what has lost its server or daemon.
    pub(super) fn unmount_if_lost(&mut self, place: &VolumePlace) -> Result<()> {
        use nix::libc::{ECONNREFUSED, ENOTCONN, ESTALE};
        match self.health(place.path()) {
            MountHealth::Dead(ENOTCONN | ESTALE | ECONNREFUSED) => {
                self.unmount("mount", place, true).map(drop)
            }
            _ => Ok(()),
        }
    }

    /// Whether a staged filesystem can be given to a workload.
    pub(super) fn require_staged(&self, staging: &Path, attributes: MountAttributes) -> Result<Mount> {
        const OPERATION: &str = "publish";
        let fail =
            |kind, health: MountHealth| Err(Error::new(kind, OPERATION, health.to_string()).at(staging));
        match self.health(staging) {
            health @ MountHealth::NotMounted => return fail(ErrorKind::NotFound, health),
            MountHealth::ReadOnly if attributes.contains(MountAttributes::RDONLY) => {}
            health @ MountHealth::ReadOnly => return fail(ErrorKind::ReadOnly, health),
            health @ (MountHealth::Unresponsive | MountHealth::Dead(_)) => {
                return fail(ErrorKind::Unresponsive, health);
            }
            _ => {}
        }
        let nothing = || Error::new(ErrorKind::NotFound, OPERATION, "no volume is staged there").at(staging);
        self.top(staging).cloned().ok_or_else(nothing)
    }

    /// The mount table, with the node's own filesystem first.
    pub(super) fn table(&self) -> Vec<MountEntry> {
        let entry = |mount: &Mount| {
            let (device, root, fs_type, source, options) = match &mount.root {
                Root::Directory(path) => (HOST, path.clone(), "simulated".to_owned(), "node".into(), "rw"),
                Root::Node(path) => {
                    let name = Path::new("/").join(path.file_name().unwrap_or_default());
                    (DEVICES, name, "devtmpfs".to_owned(), "udev".into(), "rw")
                }
                Root::Filesystem(index) => {
                    let found = &self.superblocks[*index];
                    let root = PathBuf::from("/");
                    (found.number, root, found.fs_type.clone(), found.source.clone(), &*found.options)
                }
            };
            let above = self.mounts.iter().filter(|other| {
                (other.path.components().count(), other.id) < (mount.path.components().count(), mount.id)
                    && mount.path.starts_with(&other.path)
            });
            let parent = above.max_by_key(|other| (other.path.components().count(), other.id));
            MountEntry {
                id: MountId::new(mount.id),
                parent: MountId::new(parent.map_or(1, |parent| parent.id)),
                device,
                root,
                mount_point: mount.path.clone(),
                attributes: mount.attributes,
                peer_group: None,
                master: None,
                fs_type,
                source,
                super_options: SuperOptions::new(options.as_bytes().to_vec()),
            }
        };
        let node = Mount {
            id: 1,
            path: "/".into(),
            root: Root::Directory("/".into()),
            attributes: MountAttributes::empty(),
        };
        std::iter::once(&node).chain(&self.mounts).map(entry).collect()
    }
}

/// The path with symbolic links in its parent resolved, as in the mount table.
pub(super) fn resolved(path: &Path) -> PathBuf {
    let parent = path.parent().and_then(|parent| parent.canonicalize().ok());
    match (parent, path.file_name()) {
        (Some(parent), Some(name)) => parent.join(name),
        _ => path.to_owned(),
    }
}

/// The path with symbolic links resolved, if it exists on the real system.
pub(super) fn canonical(path: &Path) -> PathBuf {
    path.canonicalize().unwrap_or_else(|_| path.to_owned())
}
