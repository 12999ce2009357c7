//! Devices of a simulated node.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use super::SimulatedNode;
use super::state::{Content, Disk, HOST, Node, Root, State, canonical, fail};
use crate::machine::DeviceSteps;
use crate::{DeviceNumber, DeviceUse, Error, ErrorKind, LoopOptions, LoopPath, Result};

impl State {
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

impl DeviceSteps for SimulatedNode {
    fn number(&self, device: &Path) -> Result<DeviceNumber> {
        Ok(self.begin()?.node("open device", device)?.number)
    }

    fn in_use(&self, device: &Path) -> Result<DeviceUse> {
        let state = self.begin()?;
        let number = state.node("open device", device)?.number;
        Ok(if state.is_mounted(number) { DeviceUse::InUse } else { DeviceUse::Free })
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
}
