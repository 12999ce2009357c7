//! One pass over the mount tables, which looks for some devices.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, Mode, OFlags};

use super::UseKind;
use super::own_mounts;
use crate::bounded::in_flight::{self, Repeat, Unanswered};
use crate::error::Result;
use crate::path::lookup::{self, ShownNode};
use crate::place::on_device::{ANONYMOUS_DEVICE_TYPES, block_device_at};
use crate::sys::ids::DeviceNumber;
use crate::sys::mount_api::MountedPart;
use crate::table::details;
use crate::table::mountinfo::{is_deleted, parse_mountinfo};

pub(super) struct Scan<'d> {
    devices: &'d [(DeviceNumber, OsString)],
    /// The device number of each file, by its filesystem and its path there: many namespaces have binds of
    /// the same files. Deleted files are not in it: several can have had one path.
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
            match self.classify(&entry, |path| lookup::cached_node_state(CWD, path, entry.id)) {
                Classified::User(what) => found.push((what, entry.mount_point)),
                Classified::NotUser => {}
                Classified::Unknown => unknown.push(entry),
            }
        }
        // The paths lead through filesystems that must be asked. All are asked together, so that those that
        // do not answer cost one time limit in total. A place that can't be looked at is not one where this
        // crate has published a device.
        let nodes = in_flight::ask_all(&unknown, |entry| ask(entry, Repeat::UnlessSilent));
        let mut silent = Vec::new();
        for (entry, node) in unknown.into_iter().zip(nodes) {
            match node {
                Err(Unanswered::Silent) => silent.push(entry),
                node => {
                    if let Ok(ShownNode::Node(node)) = node
                        && let Some(number) = self.one_of_devices(node)
                    {
                        found.push((UseKind::Node(number), entry.mount_point));
                    }
                }
            }
        }
        ask_again(silent);
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
            let mount = entry.id;
            let look = |path: &Path| {
                let root: Option<&OwnedFd> = root.get_or_insert_with(|| open_root(process)).as_ref();
                let path = path.strip_prefix("/").ok().filter(|path| !path.as_os_str().is_empty());
                let (Some(root), Some(path)) = (root, path) else { return ShownNode::Unknown };
                lookup::cached_node_state(root.as_fd(), path, mount)
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

    fn classify(&mut self, entry: &MountedPart, look: impl FnOnce(&Path) -> ShownNode) -> Classified {
        if self.is_filesystem_on_device(entry) {
            return Classified::User(UseKind::Filesystem);
        }
        if entry.root == Path::new("/") || details::is_remote(&entry.fs_type) {
            return Classified::NotUser;
        }
        let is_deleted = is_deleted(&entry.root);
        let key = (entry.device, entry.root.clone());
        let known = self.files.get(&key).copied().filter(|_| !is_deleted);
        let node = known.map_or_else(|| look(&entry.mount_point), ShownNode::Node);
        let number = match node {
            ShownNode::Node(number) => {
                if !is_deleted {
                    self.files.insert(key, number);
                }
                self.one_of_devices(number)
            }
            // A node in /dev has the kernel's name, unless somebody made another one.
            ShownNode::Covered | ShownNode::Unknown => self.named_like(entry),
        };
        match number {
            Some(number) => Classified::User(UseKind::Node(number)),
            None if node == ShownNode::Unknown => Classified::Unknown,
            None => Classified::NotUser,
        }
    }

    /// The device whose kernel name the mounted file of a devtmpfs has.
    fn named_like(&self, entry: &MountedPart) -> Option<DeviceNumber> {
        let is_its_name = |name: &OsString| entry.root.strip_prefix("/").is_ok_and(|root| root == name);
        let mut devices = self.devices.iter().filter(|_| entry.fs_type == "devtmpfs");
        devices.find_map(|(number, name)| is_its_name(name).then_some(*number))
    }

    fn is_filesystem_on_device(&self, entry: &MountedPart) -> bool {
        let number = if ANONYMOUS_DEVICE_TYPES.contains(&&*entry.fs_type) {
            block_device_at(&entry.source)
        } else {
            Some(entry.device)
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

fn ask(entry: &MountedPart, repeat: Repeat) -> Result<ShownNode, Unanswered> {
    lookup::node_of_foreign(&entry.mount_point, entry.id, repeat)
}

/// Asks the filesystems again whose turn it is, in a thread: no caller waits for them. If they answer, the next
/// search asks them.
fn ask_again(mut silent: Vec<MountedPart>) {
    silent.retain(|entry| lookup::takes_next_turn(&entry.mount_point));
    if silent.is_empty() {
        return;
    }
    let ask_all = move || drop(in_flight::ask_all(&silent, |entry| ask(entry, Repeat::Always)));
    if let Err(error) = std::thread::Builder::new().name("bound-nodes".to_owned()).spawn(ask_all) {
        tracing::debug!(%error, "silent filesystems are not asked again now");
    }
}

fn open_root(process: u32) -> Option<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    rustix::fs::openat(CWD, format!("/proc/{process}/root"), flags, Mode::empty()).ok()
}
