//! Where on this node a volume is published, according to the kernel's mount table, so that a restart loses
//! nothing.
//!
//! A mount can be visible at several paths, because what is mounted below a shared mount also appears below
//! its copies. So two targets are the same if they cover the same place of the same filesystem, whatever
//! path leads there.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use csi_mount::{DeviceNumber, Host, MountEntry, Owner};

use crate::error::Result;
use crate::node::{AtTarget, PublishedTargets};

/// A file or directory of a filesystem.
#[derive(Debug, PartialEq, Eq)]
struct Place {
    device: DeviceNumber,
    path: PathBuf,
}

/// A snapshot of the mounts of this mount namespace.
pub(super) struct MountTable(Vec<MountEntry>);

impl MountTable {
    pub(super) fn read(host: &Host) -> Result<Self> {
        Ok(Self(host.mounts().table()?))
    }

    /// The topmost mount at a path.
    pub(super) fn at(&self, path: &Path) -> Option<&MountEntry> {
        let path = resolved(path);
        self.0.iter().rev().find(|entry| entry.mount_point == path)
    }

    /// The targets of the directory `source`.
    pub(super) fn of_directory(&self, source: &Path, target: &Path) -> PublishedTargets {
        let source = source.canonicalize().unwrap_or_else(|_| source.to_owned());
        let Some(volume) = self.place(&source) else { return PublishedTargets::default() };
        let is_volume = |entry: &MountEntry| {
            entry.device == volume.device && entry.root == volume.path && !entry.is_root_deleted()
        };
        self.targets(target, &[&source], is_volume)
    }

    /// Where the directory `source`, or something inside it, is mounted.
    pub(super) fn mounted_from(&self, source: &Path) -> Vec<PathBuf> {
        let source = source.canonicalize().unwrap_or_else(|_| source.to_owned());
        let Some(volume) = self.place(&source) else { return Vec::new() };
        // The mount that contains the directory also matches if the directory is its root.
        let own = self.mount_place(&source);
        let is_from = |entry: &&MountEntry| {
            entry.device == volume.device
                && entry.root.starts_with(&volume.path)
                && self.mount_place(&entry.mount_point) != own
        };
        self.0.iter().filter(is_from).map(|entry| entry.mount_point.clone()).collect()
    }

    /// Where the filesystem on this device is mounted besides this path.
    pub(super) fn mounted_besides(&self, device: DeviceNumber, path: &Path) -> Vec<PathBuf> {
        let own = self.mount_place(&resolved(path));
        let is_besides =
            |entry: &&MountEntry| entry.is_on(device) && self.mount_place(&entry.mount_point) != own;
        self.0.iter().filter(is_besides).map(|entry| entry.mount_point.clone()).collect()
    }

    /// Whether the directory `source`, or something inside it, is mounted at this path.
    pub(super) fn is_mounted_from(&self, source: &Path, target: &Path) -> bool {
        self.mounted_from(source).contains(&resolved(target))
    }

    /// The targets of a filesystem that is mounted for this volume only, recognised by its mount table
    /// entry.
    pub(super) fn of_mounts(
        &self,
        target: &Path,
        is_volume: impl Fn(&MountEntry) -> bool,
    ) -> PublishedTargets {
        self.targets(target, &[], is_volume)
    }

    /// The targets of the filesystem that is mounted at the staging path.
    pub(super) fn of_staged(&self, staging: &Path, target: &Path, fs_type: Option<&str>) -> PublishedTargets {
        if let Some(found) = self.at(target) {
            if is_node(found) {
                return other("a raw device is published there, but a filesystem is requested");
            }
            if let Some(asked) = fs_type.filter(|asked| *asked != found.fs_type) {
                return other(&format!("{} is mounted there, but {asked} is requested", found.fs_type));
            }
        }
        let Some(staged) = self.at(staging) else { return PublishedTargets::default() };
        let is_volume = |entry: &MountEntry| entry.shows_same(staged);
        self.targets(target, &[staging], is_volume)
    }

    /// The targets of a raw device: its device node, or that of a read-only loop device over it, bound to a
    /// file.
    pub(super) fn of_device(&self, host: &Host, device: &Path, target: &Path) -> Result<PublishedTargets> {
        if self.at(target).is_some_and(|found| !is_node(found)) {
            return Ok(other("a filesystem is mounted there, but a raw device is requested"));
        }
        let mut numbers = vec![host.devices().number(device)?];
        numbers.extend(host.devices().loop_devices(device)?.iter().map(|over| over.number));
        let is_volume = |entry: &MountEntry| {
            is_node(entry)
                && host.block().device_of(&entry.mount_point).is_ok_and(|found| numbers.contains(&found))
        };
        Ok(self.targets(target, &[], is_volume))
    }

    /// Where the filesystem on this device is mounted for its owner. What others mount, such as the workload of a raw
    /// device, is not looked for.
    pub(super) fn filesystem_of(&self, host: &Host, device: DeviceNumber, owner: &Owner) -> Option<&Path> {
        let is_on_device = |entry: &&MountEntry| {
            // A btrfs has a number of its own in the table.
            !is_node(entry)
                && (entry.device == device || entry.fs_type == "btrfs")
                && host.block().device_of(&entry.mount_point).is_ok_and(|found| found == device)
        };
        let is_owners = |entry: &&MountEntry| {
            let mark = host.mounts().marked_owner(&entry.mount_point);
            mark.is_ok_and(|mark| mark.is_some_and(|found| owner.has_id(&found)))
        };
        let found = self.0.iter().filter(is_on_device).find(is_owners)?;
        Some(&found.mount_point)
    }

    /// All mounts of the volume, except those at `target` and at `sources`.
    fn targets(
        &self,
        target: &Path,
        sources: &[&Path],
        is_volume: impl Fn(&MountEntry) -> bool,
    ) -> PublishedTargets {
        if self.at(target).is_some() {
            return PublishedTargets { at_target: AtTarget::Same, elsewhere: Vec::new() };
        }
        let own: Vec<Option<Place>> =
            sources.iter().chain([&target]).map(|path| self.mount_place(&resolved(path))).collect();
        let mut elsewhere = Vec::new();
        for entry in self.0.iter().filter(|entry| is_volume(entry)) {
            if !own.contains(&self.mount_place(&entry.mount_point)) {
                elsewhere.push(entry.mount_point.clone());
            }
        }
        PublishedTargets { at_target: AtTarget::Nothing, elsewhere }
    }

    /// The place that a path leads to through the current mounts.
    fn place(&self, path: &Path) -> Option<Place> {
        let on_the_way = self.0.iter().filter(|entry| path.starts_with(&entry.mount_point));
        // Of several mounts at one path, the later one is on top.
        let deepest = on_the_way.max_by_key(|entry| entry.mount_point.components().count())?;
        let below = path.strip_prefix(&deepest.mount_point).ok()?;
        Some(Place { device: deepest.device, path: joined(&deepest.root, below) })
    }

    /// The place that a mount at this path covers.
    fn mount_place(&self, path: &Path) -> Option<Place> {
        let parent = path.parent()?;
        let name = path.file_name()?;
        let Place { device, path } = self.place(parent)?;
        Some(Place { device, path: path.join(name) })
    }
}

fn other(difference: &str) -> PublishedTargets {
    PublishedTargets { at_target: AtTarget::Other(difference.to_owned()), elsewhere: Vec::new() }
}

/// Whether the mount is a bind mount of a device node, one file out of /dev, and not a filesystem.
fn is_node(entry: &MountEntry) -> bool {
    ["devtmpfs", "tmpfs"].contains(&entry.fs_type.as_str()) && entry.root != Path::new("/")
}

/// The path with symbolic links in its parent resolved; the last component is left alone, because it might
/// hang.
fn resolved(path: &Path) -> PathBuf {
    let parent = path.parent().and_then(|parent| parent.canonicalize().ok());
    let name = path.file_name().map(OsStr::to_owned);
    parent.zip(name).map_or_else(|| path.to_owned(), |(parent, name)| parent.join(name))
}

fn joined(root: &Path, below: &Path) -> PathBuf {
    if below.as_os_str().is_empty() { root.to_owned() } else { root.join(below) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(lines: &str) -> MountTable {
        MountTable(csi_mount::internal::parse_mountinfo(lines.as_bytes()).unwrap())
    }

    const HOST: &str = "\
20 1 8:1 / / rw shared:1 - ext4 /dev/sda1 rw
21 20 0:5 / /dev rw shared:2 - devtmpfs udev rw
30 20 8:1 /var/lib/kubelet /host/kubelet rw shared:1 - ext4 /dev/sda1 rw
40 20 8:16 / /var/lib/kubelet/staging rw shared:9 - ext4 /dev/sdb rw
41 30 8:16 / /host/kubelet/staging rw shared:9 - ext4 /dev/sdb rw
";

    #[test]
    fn a_copy_by_propagation_is_the_same_target() {
        let published = format!(
            "{HOST}42 20 8:16 / /var/lib/kubelet/one rw shared:9 - ext4 /dev/sdb rw\n\
             43 30 8:16 / /host/kubelet/one rw shared:9 - ext4 /dev/sdb rw\n"
        );
        let none = table(HOST);
        let one = table(&published);
        let of = |table: &MountTable, target: &str| {
            table.of_staged(Path::new("/var/lib/kubelet/staging"), Path::new(target), None)
        };
        assert_eq!(of(&none, "/var/lib/kubelet/one"), PublishedTargets::default(), "staging is no target");
        assert_eq!(of(&one, "/var/lib/kubelet/one").at_target, AtTarget::Same);
        assert_eq!(of(&one, "/var/lib/kubelet/two").elsewhere.len(), 2, "both paths of the one target");
        let copy_only = table(
            &published.replace("42 20 8:16 / /var/lib/kubelet/one", "42 20 8:16 / /var/lib/kubelet/xne"),
        );
        assert_eq!(
            of(&copy_only, "/var/lib/kubelet/one").elsewhere,
            [Path::new("/var/lib/kubelet/xne")],
            "the copy of the target itself is no other target"
        );
    }

    #[test]
    fn a_directory_is_told_from_its_neighbours_and_its_own_source() {
        let bound = table(
            "20 1 8:1 / / rw - ext4 /dev/sda1 rw\n\
             31 20 8:1 /no-such/a /pods/1 rw - ext4 /dev/sda1 rw\n\
             32 20 8:1 /no-such/a/sub /pods/2 rw - ext4 /dev/sda1 rw\n\
             33 20 8:2 /no-such/a /pods/3 rw - ext4 /dev/sda2 rw\n",
        );
        let found = bound.of_directory(Path::new("/no-such/a"), Path::new("/pods/9"));
        assert_eq!(found.elsewhere, [Path::new("/pods/1")]);
        assert_eq!(
            bound.of_directory(Path::new("/no-such/b"), Path::new("/pods/9")),
            PublishedTargets::default()
        );
        let own_mount = table(
            "20 1 8:1 / / rw - ext4 /dev/sda1 rw\n\
             31 20 8:2 / /no-such rw - ext4 /dev/sda2 rw\n",
        );
        let found = own_mount.of_directory(Path::new("/no-such"), Path::new("/pods/9"));
        assert_eq!(found, PublishedTargets::default(), "the source's own mount is no target");
    }

    #[test]
    fn what_is_mounted_from_a_directory_is_found_and_its_neighbours_are_not() {
        let bound = table(
            "20 1 8:1 / / rw - ext4 /dev/sda1 rw\n\
             31 20 8:1 /no-such/a /pods/1 rw - ext4 /dev/sda1 rw\n\
             32 20 8:1 /no-such/a/sub /pods/2 rw - ext4 /dev/sda1 rw\n\
             33 20 8:1 /no-such/ab /pods/3 rw - ext4 /dev/sda1 rw\n\
             34 20 8:2 /no-such/a /pods/4 rw - ext4 /dev/sda2 rw\n\
             35 20 8:3 / /no-such/own rw - ext4 /dev/sda3 rw\n",
        );
        assert_eq!(bound.mounted_from(Path::new("/no-such/a")), [Path::new("/pods/1"), Path::new("/pods/2")]);
        assert_eq!(bound.mounted_from(Path::new("/no-such/b")), Vec::<PathBuf>::new());
        assert_eq!(bound.mounted_from(Path::new("/no-such/own")), Vec::<PathBuf>::new(), "its own mount");
    }

    #[test]
    fn a_filesystem_of_another_type_differs() {
        let staged = table(&format!("{HOST}42 20 8:16 / /var/lib/kubelet/one rw - ext4 /dev/sdb rw\n"));
        let of = |fs_type| {
            let staging = Path::new("/var/lib/kubelet/staging");
            staged.of_staged(staging, Path::new("/var/lib/kubelet/one"), Some(fs_type)).at_target
        };
        assert_eq!(of("ext4"), AtTarget::Same);
        assert!(matches!(of("xfs"), AtTarget::Other(_)));
    }
}
