//! One pass over the mount tables, which looks for some devices.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, Mode, OFlags};

use super::UseKind;
use super::own_mounts::{self, MountedPart};
use crate::bounded::in_flight::{self, FOREIGN_TIME_LIMIT};
use crate::path::lookup;
use crate::place::on_device::block_device_at;
use crate::table::details;
use crate::{DeviceNumber, Result, parse_mountinfo};

/// Filesystems on a block device whose mounts show an anonymous device number.
pub(super) const ANONYMOUS_DEVICE_TYPES: [&str; 2] = ["btrfs", "bcachefs"];

pub(super) struct Scan<'d> {
    devices: &'d [(DeviceNumber, OsString)],
    /// The device number of each file, by its filesystem and its path there: many namespaces have binds of
    /// the same files.
    files: BTreeMap<(DeviceNumber, PathBuf), Option<DeviceNumber>>,
}

impl<'d> Scan<'d> {
    /// Looks for these devices, given with their kernel names.
    pub(super) fn new(devices: &'d [(DeviceNumber, OsString)]) -> Self {
        Self { devices, files: BTreeMap::new() }
    }

    pub(super) fn in_own_namespace(&mut self) -> Result<Vec<(UseKind, PathBuf)>> {
        let mut found = Vec::new();
        let mut unknown = Vec::new();
        for entry in own_mounts::candidates(|device| self.is_one_of_devices(device))? {
            match self.classify(&entry, |path| lookup::cached_node_state(CWD, path)) {
                Classified::User(what) => found.push((what, entry.mount_point)),
                Classified::NotUser => {}
                Classified::Unknown => unknown.push(entry.mount_point),
            }
        }
        // The paths lead through filesystems that must be asked. All are asked together, so that those that
        // do not answer cost one time limit in total. A place that can't be looked at is not one where this
        // crate has published a device.
        let ask = |path: &PathBuf| lookup::node_within(path, FOREIGN_TIME_LIMIT).unwrap_or_default();
        let nodes = in_flight::ask_all(&unknown, ask);
        for (path, node) in unknown.into_iter().zip(nodes) {
            if let Some(number) = self.one_of_devices(node) {
                found.push((UseKind::Node(number), path));
            }
        }
        Ok(found)
    }

    /// Finds users in another namespace from what the kernel has in memory. It always has the mount points
    /// of local filesystems in memory.
    pub(super) fn in_namespace_of(&mut self, process: u32, table: &[u8]) -> Vec<(UseKind, PathBuf)> {
        let mut root = None;
        let mut found = Vec::new();
        for line in table.split(|byte| *byte == b'\n') {
            if !self.can_be_user(line) {
                continue;
            }
            let Some(entry) = parse_mountinfo(line).ok().and_then(|mut found| found.pop()) else { continue };
            let entry = MountedPart::from(entry);
            let look = |path: &Path| {
                let root: &OwnedFd = root.get_or_insert_with(|| open_root(process)).as_ref()?;
                let path = path.strip_prefix("/").ok().filter(|path| !path.as_os_str().is_empty())?;
                lookup::cached_node_state(root.as_fd(), path)
            };
            if let Classified::User(what) = self.classify(&entry, look) {
                found.push((what, entry.mount_point));
            }
        }
        found
    }

    /// Whether a line of a mount table (`id parent major:minor root …`) must be parsed.
    fn can_be_user(&self, line: &[u8]) -> bool {
        let mut fields = line.split(|byte| *byte == b' ').skip(2);
        let (Some(device), Some(root)) = (fields.next(), fields.next()) else { return false };
        root != b"/"
            || device.starts_with(b"0:")
            || std::str::from_utf8(device)
                .ok()
                .and_then(DeviceNumber::parse)
                .is_some_and(|device| self.is_one_of_devices(device))
    }

    fn classify(
        &mut self,
        entry: &MountedPart,
        look: impl FnOnce(&Path) -> Option<Option<DeviceNumber>>,
    ) -> Classified {
        if self.is_filesystem_on_device(entry) {
            return Classified::User(UseKind::Filesystem);
        }
        if entry.root == Path::new("/") || details::is_remote(&entry.fs_type) {
            return Classified::NotUser;
        }
        // A node in /dev has the kernel's name, unless somebody made another one.
        if entry.fs_type == "devtmpfs"
            && let Some((number, _)) = self
                .devices
                .iter()
                .find(|(_, name)| entry.root.strip_prefix("/").is_ok_and(|root| root == name))
        {
            return Classified::User(UseKind::Node(*number));
        }
        let key = (entry.device, entry.root.clone());
        let node = match self.files.get(&key) {
            Some(node) => *node,
            None => {
                let Some(node) = look(&entry.mount_point) else { return Classified::Unknown };
                self.files.insert(key, node);
                node
            }
        };
        match self.one_of_devices(node) {
            Some(number) => Classified::User(UseKind::Node(number)),
            None => Classified::NotUser,
        }
    }

    fn is_filesystem_on_device(&self, entry: &MountedPart) -> bool {
        let number = match ANONYMOUS_DEVICE_TYPES.contains(&&*entry.fs_type) {
            true => block_device_at(&entry.source),
            false => Some(entry.device),
        };
        self.one_of_devices(number).is_some()
    }

    fn one_of_devices(&self, number: Option<DeviceNumber>) -> Option<DeviceNumber> {
        number.filter(|number| self.is_one_of_devices(*number))
    }

    fn is_one_of_devices(&self, number: DeviceNumber) -> bool {
        self.devices.iter().any(|(device, _)| *device == number)
    }
}

enum Classified {
    User(UseKind),
    NotUser,
    Unknown,
}

fn open_root(process: u32) -> Option<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    rustix::fs::openat(CWD, format!("/proc/{process}/root"), flags, Mode::empty()).ok()
}
