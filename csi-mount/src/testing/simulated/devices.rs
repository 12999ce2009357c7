//! Devices of a simulated node.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use super::SimulatedNode;
use super::state::{Content, Disk, HOST, Node, Root, State, canonical, fail};
use crate::device::block_device::DeviceUse;
use crate::device::expected::ExpectedDevice;
use crate::device::loop_device::LoopOptions;
use crate::device::loop_device::node::LoopPath;
use crate::device::sysfs::{DeviceIdentity, Rescan};
use crate::device::users::DeviceUser;
use crate::device::wait::DiskSource;
use crate::error::{Error, ErrorKind, Result};
use crate::sys::ids::DeviceNumber;
use crate::testing::disks::FoundDisk;

impl State {
    pub(super) fn node(&self, operation: &'static str, path: &Path) -> Result<&Node> {
        let path = self.device(path);
        self.nodes.get(path).ok_or_else(|| {
            // A device of the real system is none of this node.
            let (kind, reason) = if !path.starts_with("/dev") && self.exists(path) {
                (ErrorKind::InvalidInput, "not a block device")
            } else {
                (ErrorKind::NotFound, "no such device")
            };
            Error::new(kind, operation, reason).at(path)
        })
    }

    /// The device node that a link leads to, or the path itself.
    pub(super) fn device<'p>(&'p self, path: &'p Path) -> &'p Path {
        self.links.get(path).map_or(path, PathBuf::as_path)
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

    /// Adds a node with the next free number, which is also the end of its name.
    pub(super) fn add_node(&mut self, name: &str, node: Node) -> (PathBuf, DeviceNumber) {
        let minor = self.next();
        let path = PathBuf::from(format!("/dev/{name}{minor}"));
        let number = DeviceNumber::new(if name == "loop" { 7 } else { 259 }, minor);
        self.nodes.insert(path.clone(), Node { number, ..node });
        (path, number)
    }

    /// The device node of the attached disk with this serial number.
    pub(super) fn node_with_serial(&self, serial: &str) -> Option<PathBuf> {
        let mut nodes = self.nodes.iter();
        nodes.find(|(_, node)| node.identity.has_serial(serial)).map(|(path, _)| path.clone())
    }

    /// Whether a filesystem of this device is mounted somewhere.
    pub(super) fn is_mounted(&self, number: DeviceNumber) -> bool {
        self.mounts.iter().any(|mount| self.superblock(mount).is_some_and(|found| found.number == number))
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

impl DiskSource for SimulatedNode {
    type Disk = FoundDisk;

    fn disks(&self) -> Result<Vec<(DeviceNumber, DeviceIdentity)>> {
        let state = self.state();
        state.refuse_crashed()?;
        Ok(state.nodes.values().map(|node| (node.number, node.identity.clone())).collect())
    }

    fn identity(&self, number: DeviceNumber) -> Result<DeviceIdentity> {
        let found = self.disks()?.into_iter().find(|(other, _)| *other == number);
        let gone = || Error::new(ErrorKind::NotFound, "find", format!("there is no device {number}"));
        found.map(|(_, identity)| identity).ok_or_else(gone)
    }

    fn open(&self, path: &Path) -> Result<Self::Disk> {
        let state = self.state();
        state.refuse_crashed()?;
        let node = state.node("open block device", path)?;
        Ok(FoundDisk::new(state.device(path).to_owned(), node.number, node.size))
    }

    fn open_number(&self, number: DeviceNumber) -> Result<Self::Disk> {
        let path =
            self.state().nodes.iter().find(|(_, node)| node.number == number).map(|(path, _)| path.clone());
        let gone = || Error::new(ErrorKind::NotFound, "find", format!("there is no device {number}"));
        self.open(&path.ok_or_else(gone)?)
    }

    fn is_link(&self, path: &Path) -> bool {
        self.state().links.contains_key(path)
    }
}

pub(crate) fn wait(simulated: &SimulatedNode, expected: &ExpectedDevice) -> Result<PathBuf> {
    drop(simulated.begin()?);
    Ok(expected.wait_in(simulated, None)?.path)
}

pub(crate) fn wait_at(simulated: &SimulatedNode, expected: &ExpectedDevice, path: &Path) -> Result<PathBuf> {
    drop(simulated.begin()?);
    Ok(expected.wait_in(simulated, Some(path))?.path)
}

pub(crate) fn find(simulated: &SimulatedNode, expected: &ExpectedDevice) -> Result<Option<PathBuf>> {
    drop(simulated.begin()?);
    Ok(expected.find_in(simulated)?.map(|device| device.path))
}

pub(crate) fn size(simulated: &SimulatedNode, device: &Path) -> Result<u64> {
    Ok(simulated.begin()?.node("open block device", device)?.size)
}

/// A simulated disk reports a new size by itself, as virtio does.
pub(crate) fn rescan(simulated: &SimulatedNode, device: &Path) -> Result<Rescan> {
    simulated.begin()?.node("open block device", device).map(|_| Rescan::NotNeeded)
}

pub(crate) fn number(simulated: &SimulatedNode, device: &Path) -> Result<DeviceNumber> {
    Ok(simulated.begin()?.node("open device", device)?.number)
}

pub(crate) fn in_use(simulated: &SimulatedNode, device: &Path) -> Result<DeviceUse> {
    let state = simulated.begin()?;
    let number = state.node("open device", device)?.number;
    Ok(if state.is_mounted(number) { DeviceUse::InUse } else { DeviceUse::Free })
}

pub(crate) fn users(simulated: &SimulatedNode, device: &Path) -> Result<Vec<String>> {
    let in_use = in_use(simulated, device)? == DeviceUse::InUse;
    Ok(in_use.then(|| DeviceUser::Unknown.to_string()).into_iter().collect())
}

pub(crate) fn disk_sequence(simulated: &SimulatedNode, device: &Path) -> Result<Option<u64>> {
    simulated.begin()?.node("open device", device).map(|_| None)
}

pub(crate) fn loop_attach(
    simulated: &SimulatedNode,
    backing: &Path,
    options: &LoopOptions,
) -> Result<LoopPath> {
    let mut state = simulated.begin()?;
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
        identity: DeviceIdentity::default(),
    };
    let (path, number) = state.add_node("loop", node);
    Ok(LoopPath::new(path, number))
}

pub(crate) fn loop_devices(simulated: &SimulatedNode, backing: &Path) -> Result<Vec<LoopPath>> {
    let state = simulated.begin()?;
    let backing = canonical(backing);
    let found = state.nodes.iter().filter(|(_, node)| node.backing.as_ref() == Some(&backing));
    Ok(found.map(|(path, node)| LoopPath::new(path, node.number)).collect())
}

pub(crate) fn loop_refresh(simulated: &SimulatedNode, backing: &Path) -> Result<()> {
    simulated.begin()?.size_again(&canonical(backing))
}

pub(crate) fn loop_detach(simulated: &SimulatedNode, backing: &Path) -> Result<usize> {
    let mut state = simulated.begin()?;
    let backing = canonical(backing);
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
