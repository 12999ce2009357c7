//! A node in memory: devices, filesystems, mounts and their files, and faults on demand.

pub(crate) mod block;
pub(crate) mod devices;
pub(crate) mod directories;
pub(crate) mod ephemeral;
pub(crate) mod fuse;
pub(crate) mod mounts;
mod places;
pub(crate) mod shared;
mod state;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nix::libc;

use super::disks::FakeDisk;
use crate::error::{ErrorKind, Result};
use crate::mounted::health::MountHealth;
use crate::sys::attributes::MountAttributes;
use crate::sys::ids::DeviceNumber;
use state::{Content, Disk, Node, Root, State};

/// A node that needs neither root nor a kernel: a [`Host`](crate::Host) for the tests of a driver.
///
/// It keeps devices, mounts, owner marks and files in memory, and answers repeats and conflicts with the same
/// kinds of errors as the kernel: the same tests run on both. A clone is the same node, so a
/// test keeps one and gives the other to the plugin. Of the real system it reads paths that exist, such as
/// the driver's own directories and image files. It writes there only below a directory that is published
/// ([`write`](Self::write)), and deletes only what the driver deletes.
///
/// ```
/// use csi_mount::testing::SimulatedNode;
/// use csi_mount::{ErrorKind, Filesystem, IdMap, MountAttributes, Owner, OwnedPath};
/// use csi_mount::flow::block::StagePlan;
///
/// # fn main() -> csi_mount::Result<()> {
/// let node = SimulatedNode::new();
/// let host = node.host();
/// let disk = node.attach_disk("vol-1", 64 << 20);
/// node.create_dir("/staging");
/// let place = |path: &str| OwnedPath::new(path, Owner::new("disks.example.org", "vol-1"));
///
/// node.fail_next(ErrorKind::Unresponsive);
/// let plan = StagePlan::new(Filesystem::Ext4);
/// assert_eq!(host.block().stage(&disk, &place("/staging"), &plan).unwrap_err().kind(), ErrorKind::Unresponsive);
/// host.block().stage(&disk, &place("/staging"), &plan)?;
/// host.block().publish("/staging".as_ref(), &place("/target"), MountAttributes::empty(), IdMap::new())?;
/// node.write("/target/file", "data").unwrap();
/// # Ok(())
/// # }
/// ```
///
/// Not simulated: encrypted devices ([`Unsupported`](ErrorKind::Unsupported)), multipath, owners and groups of
/// files, propagation between mount namespaces, and `ready`-time output of FUSE daemons. The content of a disk image is not in the image file, so a copy of
/// the file is blank.
#[derive(Debug, Clone, Default)]
pub struct SimulatedNode(Arc<Mutex<State>>);

impl SimulatedNode {
    /// A node with nothing mounted.
    pub fn new() -> Self {
        Self::default()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The state, unless the process was killed or the verb is to fail.
    fn begin(&self) -> Result<MutexGuard<'_, State>> {
        let mut state = self.state();
        state.begin()?;
        Ok(state)
    }

    /// Attaches the disk with this serial number, as a cloud does, and returns the path of its device node. A disk that
    /// was attached before has its content; a new one is blank. One that is attached gets this size in bytes.
    pub fn attach_disk(&self, serial: &str, size: u64) -> PathBuf {
        let mut state = self.state();
        if let Some(path) = state.node_with_serial(serial) {
            let node = state.nodes.get_mut(&path).expect("the device exists");
            node.size = size;
            let disk = node.disk;
            state.disks[disk].size = size;
            return path;
        }
        let name = format!("sim{}", state.next());
        drop(state);
        self.attach(&FakeDisk::virtio(&name).serial(serial).size(size))
    }

    /// Attaches a disk with these properties, and returns the path of its device node. A disk that was attached before
    /// has its content: it is known by its world-wide name, NGUID, EUI-64, serial number or, without all of them, its
    /// name.
    ///
    /// # Panics
    /// If a device of this name is attached, and for a multipath device.
    pub fn attach(&self, disk: &FakeDisk) -> PathBuf {
        let path = Path::new("/dev").join(disk.name());
        let identity = disk.identity();
        let mut state = self.state();
        assert!(!state.nodes.contains_key(&path), "{} is attached already", path.display());
        let next = state.disks.len();
        let index = *state.attached.entry(disk.known_as().to_owned()).or_insert(next);
        if index == next {
            state.disks.push(Disk { size: 0, content: Content::Blank });
        }
        state.disks[index].size = disk.bytes();
        let node = Node {
            number: DeviceNumber::new(252, state.next()),
            disk: index,
            size: disk.bytes(),
            is_read_only: false,
            backing: None,
            made_for: None,
            identity,
        };
        state.nodes.insert(path.clone(), node);
        path
    }

    /// Whether nothing was ever written to the device, as storage with thin provisioning knows it.
    ///
    /// # Panics
    /// If there is no such device.
    pub fn is_blank(&self, device: impl AsRef<Path>) -> bool {
        let state = self.state();
        state.disks[state.nodes[device.as_ref()].disk].content == Content::Blank
    }

    /// Makes or changes a link to a device, as udev does: `/dev/disk/by-id/virtio-disk-1` to `/dev/vdb`.
    pub fn link(&self, link: impl Into<PathBuf>, device: impl Into<PathBuf>) {
        self.state().links.insert(link.into(), device.into());
    }

    /// Takes the device away, as when the cloud detaches a disk or a cable is pulled: filesystems that are still
    /// mounted are dead.
    pub fn remove_disk(&self, device: impl AsRef<Path>) {
        let mut state = self.state();
        if let Some(node) = state.nodes.remove(device.as_ref()) {
            let lost = state.superblocks.iter_mut().filter(|found| found.number == node.number);
            lost.for_each(|found| found.health = MountHealth::Dead(libc::EIO));
        }
    }

    /// Makes a directory with the missing ones above it, as the orchestrator does.
    pub fn create_dir(&self, path: impl AsRef<Path>) {
        let above = path.as_ref().ancestors().map(Path::to_owned);
        self.state().directories.extend(above);
    }

    /// Whether something exists at a path: a file, a directory or a mount.
    pub fn exists(&self, path: impl AsRef<Path>) -> bool {
        let state = self.state();
        match state.through(path.as_ref()) {
            Some((mount, rest)) if !rest.as_os_str().is_empty() => match &mount.root {
                Root::Directory(root) => root.join(rest).exists(),
                Root::Filesystem(index) => {
                    state.files[state.superblocks[*index].files].keys().any(|file| file.starts_with(&rest))
                }
                Root::Node(_) => false,
            },
            _ => state.exists(path.as_ref()),
        }
    }

    /// Writes a file as a workload does, with the directories above it. At a raw volume, writes its content.
    ///
    /// # Errors
    /// EROFS where it is mounted read-only, ENOSPC when the filesystem is full, EDQUOT above the limit of a
    /// directory, ETIMEDOUT where a workload would wait without limit, the error of a dead filesystem, and those of the
    /// real system below a directory that is published.
    pub fn write(&self, path: impl AsRef<Path>, bytes: impl Into<Vec<u8>>) -> io::Result<()> {
        let path = path.as_ref();
        let bytes = bytes.into();
        let mut state = self.state();
        let Some((mount, rest)) = state.through(path) else {
            state.host_files.insert(path.to_owned(), bytes);
            return Ok(());
        };
        let root = mount.root.clone();
        let is_read_only = mount.attributes.contains(MountAttributes::RDONLY);
        answers(&state, path)?;
        if is_read_only {
            return Err(os(libc::EROFS));
        }
        match root {
            Root::Directory(root) => {
                let file = root.join(rest);
                if state.exceeds_limit(&file, bytes.len() as u64) {
                    return Err(os(libc::EDQUOT));
                }
                file.parent().map_or(Ok(()), std::fs::create_dir_all)?;
                std::fs::write(file, bytes)
            }
            Root::Filesystem(index) => {
                let found = &state.superblocks[index];
                let files = found.files;
                if found.health == MountHealth::ReadOnly {
                    return Err(os(libc::EROFS));
                }
                let freed = state.files[files].get(&rest).map_or(0, |old| old.len() as u64);
                let needed = state.used(found).saturating_sub(freed) + bytes.len() as u64;
                if found.is_full || needed > found.capacity {
                    return Err(os(libc::ENOSPC));
                }
                state.files[files].insert(rest, bytes);
                Ok(())
            }
            Root::Node(node) => {
                let node = state.nodes.get(&node).ok_or_else(|| os(libc::ENXIO))?.clone();
                if node.is_read_only {
                    return Err(os(libc::EPERM));
                }
                if bytes.len() as u64 > node.size {
                    return Err(os(libc::ENOSPC));
                }
                state.disks[node.disk].content = Content::Raw(bytes);
                Ok(())
            }
        }
    }

    /// Reads a file as a workload does. At a raw volume, reads what was written there.
    ///
    /// # Errors
    /// As for [`write`](Self::write), and ENOENT.
    pub fn read(&self, path: impl AsRef<Path>) -> io::Result<Vec<u8>> {
        let path = path.as_ref();
        let state = self.state();
        let missing = || os(libc::ENOENT);
        let Some((mount, rest)) = state.through(path) else {
            return state.host_files.get(path).cloned().ok_or_else(missing);
        };
        answers(&state, path)?;
        match &mount.root {
            Root::Directory(root) => std::fs::read(root.join(rest)),
            Root::Filesystem(index) => {
                state.files[state.superblocks[*index].files].get(&rest).cloned().ok_or_else(missing)
            }
            Root::Node(node) => match state.nodes.get(node).map(|node| &state.disks[node.disk].content) {
                Some(Content::Raw(bytes)) => Ok(bytes.clone()),
                Some(_) => Ok(Vec::new()),
                None => Err(os(libc::ENXIO)),
            },
        }
    }

    /// The permissions that the plugin has set for a directory; none if it set none.
    pub fn permissions(&self, directory: impl AsRef<Path>) -> Option<u32> {
        let state = self.state();
        state.permissions.get(&state.permissions_key(directory.as_ref())?).copied()
    }

    /// Keeps a file of the mount at this path open, so that an unmount is [`Busy`](ErrorKind::Busy), until
    /// [`close_files`](Self::close_files).
    pub fn open_file(&self, path: impl AsRef<Path>) {
        let mut state = self.state();
        if let Some(id) = state.top(path.as_ref()).map(|mount| mount.id) {
            state.open.insert(id);
        }
    }

    /// Closes every file.
    pub fn close_files(&self) {
        self.state().open.clear();
    }

    /// Makes the next verb fail with this kind, before it changes anything.
    pub fn fail_next(&self, kind: ErrorKind) {
        self.state().failure = Some(kind);
    }

    /// Kills the plugin's process after this many more changes of the node: from then on each verb fails,
    /// until [`restart`](Self::restart).
    pub fn crash_after(&self, steps: u64) {
        let mut state = self.state();
        state.crash_after = Some(state.steps + steps);
    }

    /// How many changes were made: the number of places at which [`crash_after`](Self::crash_after) can
    /// kill the process.
    pub fn steps(&self) -> u64 {
        self.state().steps
    }

    /// Starts the plugin's process again: what was mounted stays.
    pub fn restart(&self) {
        let mut state = self.state();
        (state.is_crashed, state.crash_after) = (false, None);
    }

    /// Reboots the node: mounts and loop devices are gone, directories, marks and disks stay.
    pub fn reboot(&self) {
        self.restart();
        let mut state = self.state();
        state.mounts.clear();
        state.open.clear();
        state.nodes.retain(|_, node| node.backing.is_none());
    }

    /// Sets the health of the filesystem at a path: [`MountHealth::Unresponsive`] is one that hangs,
    /// `MountHealth::Dead(ENOTCONN)` one whose FUSE daemon is gone, `MountHealth::Dead(EIO)` one that lost its
    /// device.
    ///
    /// # Panics
    /// If no filesystem is mounted there.
    pub fn set_health(&self, path: impl AsRef<Path>, health: MountHealth) {
        let mut state = self.state();
        let index = mounted(&state, path.as_ref());
        state.superblocks[index].health = health;
    }

    /// Fills the filesystem at a path, or gives it its room back.
    ///
    /// # Panics
    /// If no filesystem is mounted there.
    pub fn set_full(&self, path: impl AsRef<Path>, is_full: bool) {
        let mut state = self.state();
        let index = mounted(&state, path.as_ref());
        state.superblocks[index].is_full = is_full;
    }

    /// Uninstalls a program: `mkfs.ext4`, or that of a FUSE daemon.
    pub fn remove_tool(&self, program: impl Into<String>) {
        self.state().missing_tools.insert(program.into());
    }

    /// Installs a program again.
    pub fn install_tool(&self, program: &str) {
        self.state().missing_tools.remove(program);
    }
}

fn os(number: i32) -> io::Error {
    io::Error::from_raw_os_error(number)
}

fn mounted(state: &State, path: &Path) -> usize {
    match state.top(path).map(|mount| &mount.root) {
        Some(Root::Filesystem(index)) => *index,
        _ => panic!("no filesystem is mounted at {}", path.display()),
    }
}

/// Whether the filesystem that a path leads to answers a workload.
fn answers(state: &State, path: &Path) -> io::Result<()> {
    match state.through(path).and_then(|(mount, _)| state.superblock(mount)).map(|found| found.health) {
        Some(MountHealth::Dead(number)) => Err(os(number)),
        Some(MountHealth::Unresponsive) => Err(os(libc::ETIMEDOUT)),
        _ => Ok(()),
    }
}
