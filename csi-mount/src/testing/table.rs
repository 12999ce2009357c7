//! The model's filesystems and mount tables: trees of mounts, in namespaces that receive mounts from each
//! other.

use std::collections::{BTreeSet, HashSet};
use std::path::{Path, PathBuf};

use crate::{DeviceNumber, MountAttributes, MountEntry, MountId, SuperOptions};

/// The condition of a filesystem of the model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Condition {
    Healthy,
    TurnedReadOnly,
    Unresponsive,
    Dead,
}

#[derive(Debug)]
pub(super) struct Filesystem {
    pub(super) fs_type: String,
    pub(super) source: PathBuf,
    pub(super) is_read_only: bool,
    pub(super) condition: Condition,
    /// Relative to its root, which always exists.
    pub(super) directories: BTreeSet<PathBuf>,
}

#[derive(Debug, Clone)]
pub(super) struct Mounted {
    pub(super) id: u64,
    pub(super) parent: u64,
    pub(super) namespace: usize,
    pub(super) mount_point: PathBuf,
    /// The filesystem, and the directory in it that is visible.
    pub(super) filesystem: usize,
    pub(super) root: PathBuf,
    pub(super) attributes: MountAttributes,
    pub(super) peer_group: Option<u64>,
    pub(super) master: Option<u64>,
}

/// Where a path leads: a directory of a filesystem, seen through a mount.
#[derive(Debug, Clone)]
pub(super) struct Location {
    pub(super) mount: Mounted,
    pub(super) inner: PathBuf,
    pub(super) is_mount_root: bool,
}

#[derive(Debug, Default)]
pub(super) struct Table {
    pub(super) filesystems: Vec<Filesystem>,
    pub(super) mounts: Vec<Mounted>,
    /// Mounts on which a file is open.
    pub(super) held: HashSet<u64>,
    pub(super) namespaces: usize,
    last_number: u64,
}

impl Table {
    /// One namespace, with a shared root mount.
    pub(super) fn new() -> Self {
        let mut table = Self { namespaces: 1, ..Self::default() };
        let filesystem = table.add_filesystem("rootfs", Path::new("none"), false);
        let (id, group) = (table.number(), table.number());
        table.mounts.push(Mounted {
            id,
            parent: 0,
            namespace: 0,
            mount_point: "/".into(),
            filesystem,
            root: PathBuf::new(),
            attributes: MountAttributes::empty(),
            peer_group: Some(group),
            master: None,
        });
        table
    }

    pub(super) fn add_filesystem(&mut self, fs_type: &str, source: &Path, is_read_only: bool) -> usize {
        self.filesystems.push(Filesystem {
            fs_type: fs_type.into(),
            source: source.into(),
            is_read_only,
            condition: Condition::Healthy,
            directories: BTreeSet::new(),
        });
        self.filesystems.len() - 1
    }

    fn number(&mut self) -> u64 {
        self.last_number += 1;
        self.last_number
    }

    /// A copy of a namespace that receives from it what is mounted on shared mounts.
    pub(super) fn copy_namespace(&mut self, namespace: usize) -> usize {
        let copy = self.namespaces;
        self.namespaces += 1;
        let originals: Vec<_> =
            self.mounts.iter().filter(|mount| mount.namespace == namespace).cloned().collect();
        let ids: Vec<(u64, u64)> = originals.iter().map(|mount| (mount.id, self.number())).collect();
        let new_id = |old| ids.iter().find(|(id, _)| *id == old).map_or(0, |(_, new)| *new);
        for original in originals {
            let (id, parent) = (new_id(original.id), new_id(original.parent));
            let master = original.peer_group.or(original.master);
            self.mounts.push(Mounted { id, parent, namespace: copy, peer_group: None, master, ..original });
        }
        copy
    }

    /// Where an absolute path leads, through all mounts on it.
    pub(super) fn place(&self, namespace: usize, path: &Path) -> Location {
        let in_namespace = || self.mounts.iter().filter(|mount| mount.namespace == namespace);
        let mut mount = in_namespace().next().expect("every namespace has a root");
        // Of the mounts on this one, the path crosses the one with the shortest mount point first.
        while let Some(next) = in_namespace()
            .filter(|next| next.parent == mount.id && path.starts_with(&next.mount_point))
            .min_by_key(|next| next.mount_point.components().count())
        {
            mount = next;
        }
        let below = path.strip_prefix(&mount.mount_point).unwrap_or(Path::new(""));
        let inner = if below.as_os_str().is_empty() { mount.root.clone() } else { mount.root.join(below) };
        Location { inner, is_mount_root: mount.mount_point == path, mount: mount.clone() }
    }

    pub(super) fn exists(&self, place: &Location) -> bool {
        place.is_mount_root
            || place.inner.as_os_str().is_empty()
            || self.filesystems[place.mount.filesystem].directories.contains(&place.inner)
    }

    /// Mounts the filesystem here, and at every place to which the mount below propagates it.
    pub(super) fn attach(
        &mut self,
        place: &Location,
        path: &Path,
        filesystem: usize,
        root: &Path,
        attributes: MountAttributes,
    ) {
        let shared = place.mount.peer_group.map(|_| self.number());
        let mut onto = vec![(place.mount.clone(), path.to_owned(), shared, None)];
        for (other, path) in self.receivers(place) {
            let is_peer = other.peer_group == place.mount.peer_group;
            let (group, master) = if is_peer { (shared, None) } else { (None, shared) };
            onto.push((other, path, group, master));
        }
        for (below, mount_point, peer_group, master) in onto {
            let (id, root) = (self.number(), root.to_owned());
            let (parent, namespace) = (below.id, below.namespace);
            let new = Mounted {
                id,
                parent,
                namespace,
                mount_point,
                filesystem,
                root,
                attributes,
                peer_group,
                master,
            };
            self.mounts.push(new);
        }
    }

    /// The other mounts that receive what is mounted at the place, each with its path for it.
    fn receivers(&self, place: &Location) -> Vec<(Mounted, PathBuf)> {
        let Some(group) = place.mount.peer_group else { return Vec::new() };
        let receives = |mount: &&Mounted| {
            mount.id != place.mount.id && [mount.peer_group, mount.master].contains(&Some(group))
        };
        let path =
            |mount: &Mounted| Some(mount.mount_point.join(place.inner.strip_prefix(&mount.root).ok()?));
        let mounts = self.mounts.iter().filter(receives);
        mounts.filter_map(|mount| Some((mount.clone(), path(mount)?))).collect()
    }

    /// The propagated copies of this mount, this one included.
    pub(super) fn copies(&self, mount: &Mounted) -> Vec<u64> {
        let mut copies = vec![mount.id];
        if let Some(below) = self.mounts.iter().find(|below| below.id == mount.parent) {
            let inner = mount.mount_point.strip_prefix(&below.mount_point).unwrap_or(Path::new(""));
            let inner =
                if inner.as_os_str().is_empty() { below.root.clone() } else { below.root.join(inner) };
            let place = Location { mount: below.clone(), inner, is_mount_root: false };
            for (other, path) in self.receivers(&place) {
                let at = |copy: &&Mounted| copy.parent == other.id && copy.mount_point == path;
                copies.extend(self.mounts.iter().find(at).map(|copy| copy.id));
            }
        }
        copies
    }

    /// Whether its filesystem has another mount in the same namespace, apart from these copies.
    pub(super) fn is_mounted_elsewhere(&self, mount: &Mounted, copies: &[u64]) -> bool {
        let is_other = |other: &Mounted| {
            (other.namespace, other.filesystem) == (mount.namespace, mount.filesystem)
                && !copies.contains(&other.id)
        };
        self.mounts.iter().any(is_other)
    }

    pub(super) fn below(&self, id: u64) -> Option<&Mounted> {
        self.mounts.iter().find(|mount| mount.parent == id)
    }

    pub(super) fn entry(&self, mount: &Mounted) -> MountEntry {
        let filesystem = &self.filesystems[mount.filesystem];
        let is_read_only = filesystem.is_read_only || filesystem.condition == Condition::TurnedReadOnly;
        MountEntry {
            id: MountId(mount.id),
            parent: MountId(mount.parent),
            device: device(mount.filesystem),
            root: Path::new("/").join(&mount.root),
            mount_point: mount.mount_point.clone(),
            attributes: mount.attributes,
            peer_group: mount.peer_group,
            master: mount.master,
            fs_type: filesystem.fs_type.clone(),
            source: filesystem.source.clone().into_os_string(),
            super_options: SuperOptions::new(if is_read_only { b"ro".to_vec() } else { b"rw".to_vec() }),
        }
    }
}

/// A number for each filesystem, as for those without a block device.
pub(super) fn device(filesystem: usize) -> DeviceNumber {
    DeviceNumber { major: 0, minor: filesystem as u32 + 1 }
}
