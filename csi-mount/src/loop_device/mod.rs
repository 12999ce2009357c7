//! Loop devices: block devices over a file or over another block device.

mod attach;
mod node;
mod options;

use std::fs::{self, File};
use std::os::fd::AsFd as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use self::node::Node;
pub use self::options::{LoopCache, LoopLifetime, LoopOptions};
use crate::own_descriptors::with_own_descriptors;
use crate::sys::ioctl::{self, LoopInfo};
use crate::{DeviceAccess, DeviceNumber, Error, ErrorKind, Result};

const DETACH: &str = "detach loop device";
/// How long a node may take to appear, a lock to be free, and a detached device to go.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long an exclusive user may take to let go before a device counts as in use.
const FREE_SOON: Duration = Duration::from_millis(500);
const TICK: Duration = Duration::from_millis(5);

/// An attached loop device.
///
/// It stays attached when this is dropped, unless it was attached [`UntilClosed`](LoopLifetime::UntilClosed). Several
/// values of one device may exist; none keeps another from detaching it.
#[derive(Debug)]
pub struct LoopDevice {
    path: PathBuf,
    number: DeviceNumber,
    sequence: Option<u64>,
    /// The device and the inode of the file that it was attached to.
    backing: (u64, u64),
    /// Keeps the device attached where it would go with its last user.
    _user: Option<File>,
}

impl LoopDevice {
    /// Attaches a new loop device to a file or block device, also when another is attached to it already.
    ///
    /// `LOOP_CONFIGURE` does it in one step; before 5.8 the device is visible, for a moment, without its settings.
    ///
    /// # Errors
    ///
    /// [`NotFound`](ErrorKind::NotFound) if there is no such file, [`InvalidInput`](ErrorKind::InvalidInput) if it is
    /// neither a file nor a block device, is empty, or the sector size can't be,
    /// [`ReadOnly`](ErrorKind::ReadOnly), [`PermissionDenied`](ErrorKind::PermissionDenied) without `CAP_SYS_ADMIN`,
    /// [`Unsupported`](ErrorKind::Unsupported) without loop devices.
    pub fn attach(backing: impl AsRef<Path>, options: &LoopOptions) -> Result<Self> {
        let backing = backing.as_ref();
        attach::attach_to(&attach::open_backing(backing, options)?, backing, options)
    }

    /// The loop device that is attached to this file with the same access, or a new one.
    ///
    /// Several processes may ask at once and get the same device: the file's lock (`flock`) is held meanwhile.
    /// Options other than access count only for a new device.
    ///
    /// # Errors
    ///
    /// As [`attach`](Self::attach), and [`Busy`](ErrorKind::Busy) if the file's lock is held by another program.
    pub fn attach_or_find(backing: impl AsRef<Path>, options: &LoopOptions) -> Result<Self> {
        let backing = backing.as_ref();
        let file = attach::open_backing(backing, options)?;
        // Not on `file`: a device keeps the open file that it is attached to, and would keep the lock with it.
        let _lock = attach::lock(backing)?;
        let wanted =
            |info: &LoopInfo| access_of(info) == options.access && info.offset == 0 && info.size_limit == 0;
        if let Some((found, info)) = attached_to(backing)?.into_iter().find(|(_, info)| wanted(info)) {
            return Ok(Self::of(found, &info));
        }
        attach::attach_to(&file, backing, options)
    }

    /// Every loop device that is attached to this file or block device, by the file itself and not by its name.
    ///
    /// A file that was renamed is found under its new name. One that was deleted is found under its old name.
    ///
    /// # Errors
    ///
    /// [`Io`](ErrorKind::Io) if the kernel's list can't be read. Devices that go away meanwhile are left out.
    pub fn find(backing: impl AsRef<Path>) -> Result<Vec<Self>> {
        Ok(attached_to(backing.as_ref())?.into_iter().map(|(node, info)| Self::of(node, &info)).collect())
    }

    /// Every attached loop device that was given this mark, with the number of the block device beneath.
    pub(crate) fn find_marked(mark: &str) -> Result<Vec<(Self, DeviceNumber)>> {
        let marked = node::attached(|info, _| text(&info.file_name) == mark.as_bytes())?.into_iter();
        let found =
            |(node, info): (Node, LoopInfo)| (Self::of(node, &info), DeviceNumber::from_dev_t(info.rdevice));
        Ok(marked.map(found).collect())
    }

    /// Whether these are two loop devices over the same part of one file or device, or one over the other.
    pub(crate) fn are_of_one_backing(one: DeviceNumber, other: DeviceNumber) -> Result<bool> {
        let attached = node::attached(|_, _| true)?;
        let info = |number| attached.iter().find(|(node, _)| node.number == number).map(|(_, info)| info);
        let is_over =
            |info: &LoopInfo, number: DeviceNumber| (info.rdevice, info.offset) == (number.dev_t(), 0);
        Ok(match (info(one), info(other)) {
            (Some(a), Some(b)) => {
                // Two nodes of one block device are one backing.
                let backing = |info: &LoopInfo| match info.rdevice {
                    0 => (info.device, info.inode, info.offset),
                    device => (0, device, info.offset),
                };
                backing(a) == backing(b) || is_over(a, other) || is_over(b, one)
            }
            (Some(info), None) => is_over(info, other),
            (None, Some(info)) => is_over(info, one),
            (None, None) => false,
        })
    }

    /// The device's node.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The device's number.
    pub fn number(&self) -> DeviceNumber {
        self.number
    }

    /// Whether it takes writes.
    ///
    /// # Errors
    ///
    /// [`NotFound`](ErrorKind::NotFound) if it was detached meanwhile.
    pub fn access(&self) -> Result<DeviceAccess> {
        let info = self.node()?.map(|node| node.info()).transpose()?.flatten();
        info.as_ref().map(access_of).ok_or_else(|| self.detached("ask what is attached to loop device"))
    }

    /// Takes the backing file's size anew, after it grew.
    ///
    /// # Errors
    ///
    /// [`NotFound`](ErrorKind::NotFound) if the device was detached meanwhile.
    pub fn refresh_size(&self) -> Result<()> {
        const REFRESH: &str = "refresh the size of loop device";
        let node = self.node()?.ok_or_else(|| self.detached(REFRESH))?;
        ioctl::loop_set_capacity(node.file.as_fd()).map_err(|error| Error::os(REFRESH, &self.path, error))
    }

    /// Detaches the device and waits, for 10 seconds at most, until it is gone. One that is gone is detached.
    ///
    /// # Errors
    ///
    /// [`Busy`](ErrorKind::Busy) if it is mounted, in any namespace, or otherwise held: then nothing was done; or if
    /// another program keeps it open: then it goes when that program closes it.
    pub fn detach(self) -> Result<()> {
        let Some(node) = self.node()? else { return Ok(()) };
        self.refuse_in_use()?;
        match ioctl::loop_clear(node.file.as_fd()) {
            Ok(()) | Err(nix::Error::ENXIO) => {}
            Err(error) => return Err(Error::os(DETACH, &self.path, error)),
        }
        let Self { path, sequence, _user: user, .. } = self;
        // It goes when the last user closes it, and these are two.
        drop((node, user));
        let end = Instant::now() + PATIENCE;
        // It is gone within a fraction of a millisecond, as a rule.
        let mut pause = Duration::from_micros(50);
        while !node::is_gone(&path, sequence) {
            if Instant::now() >= end {
                let reason = "another program has it open; it goes when that program closes it";
                return Err(Error::new(ErrorKind::Busy, DETACH, reason).at(path));
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(TICK);
        }
        Ok(())
    }

    /// Detaches every loop device that is attached to this file or block device, and says how many there were.
    ///
    /// # Errors
    ///
    /// As [`find`](Self::find) and [`detach`](Self::detach); the devices after the one that failed stay.
    pub fn detach_all_of(backing: impl AsRef<Path>) -> Result<usize> {
        let found = Self::find(backing)?;
        let count = found.len();
        found.into_iter().try_for_each(Self::detach)?;
        Ok(count)
    }

    /// The open node; none if the device has gone, or is by now another one's.
    fn node(&self) -> Result<Option<Node>> {
        let node = Node::open(&self.path, DeviceAccess::ReadOnly)?;
        let is_same =
            |node: &Node| node.sequence == self.sequence && !node::is_gone(&self.path, self.sequence);
        let Some(node) = node.filter(is_same) else { return Ok(None) };
        // Before 5.15 nothing else tells that it was detached and attached to another file. Later it is not asked for: the
        // kernel asks the file's server.
        if self.sequence.is_none() && node.info()?.is_none_or(|info| info.backing() != self.backing) {
            return Ok(None);
        }
        Ok(Some(node))
    }

    fn of(node: Node, info: &LoopInfo) -> Self {
        let Node { path, number, sequence, .. } = node;
        Self { path, number, sequence, backing: info.backing(), _user: None }
    }

    fn detached(&self, operation: &'static str) -> Error {
        Error::new(ErrorKind::NotFound, operation, "it was detached").at(&self.path)
    }

    /// Waits a moment for the device to be free: a process that another thread has just forked holds what it inherited
    /// until it executes its program.
    fn refuse_in_use(&self) -> Result<()> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::EXCL;
        let end = Instant::now() + FREE_SOON;
        loop {
            match with_own_descriptors(|| rustix::fs::open(&self.path, flags, Mode::empty()).map(drop)) {
                Ok(()) => return Ok(()),
                Err(Errno::BUSY) if Instant::now() < end => std::thread::sleep(TICK),
                Err(Errno::BUSY) => {
                    let reason = "it is mounted or otherwise in use";
                    return Err(Error::new(ErrorKind::Busy, DETACH, reason).at(&self.path));
                }
                Err(error) => return Err(Error::os(DETACH, &self.path, error)),
            }
        }
    }
}

fn attached_to(backing: &Path) -> Result<Vec<(Node, LoopInfo)>> {
    let file = match fs::metadata(backing) {
        Ok(metadata) => Some(metadata),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
        Err(error) => return Err(Error::os("find the loop devices of", backing, error)),
    };
    let deleted = [backing.as_os_str().as_bytes(), b" (deleted)"].concat();
    node::attached(|info, name| match &file {
        // Two nodes of one block device are one backing.
        Some(file) if file.rdev() != 0 => info.rdevice == file.rdev(),
        Some(file) => info.backing() == (file.dev(), file.ino()),
        None => name.trim_ascii_end() == deleted,
    })
}

fn access_of(info: &LoopInfo) -> DeviceAccess {
    if info.flags & LoopInfo::READ_ONLY != 0 { DeviceAccess::ReadOnly } else { DeviceAccess::ReadWrite }
}

fn text(bytes: &[u8]) -> &[u8] {
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    &bytes[..end]
}
