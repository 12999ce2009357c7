//! The nodes of loop devices. Each is open only for the length of one query.

use std::fs::{self, File};
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use crate::device::block_device::DeviceAccess;
use crate::error::{Error, Result};
use crate::sys::ids::DeviceNumber;
use crate::sys::ioctl::{self, LoopInfo};

const OPEN: &str = "open loop device";

/// A loop device, as [`Devices::loop_devices`](crate::Devices::loop_devices) returns it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct LoopPath {
    /// The path of its device node.
    pub path: PathBuf,
    /// Its device number.
    pub number: DeviceNumber,
}

impl LoopPath {
    /// The loop device with this node and number.
    pub(crate) fn new(path: impl Into<PathBuf>, number: DeviceNumber) -> Self {
        Self { path: path.into(), number }
    }
}

/// An open node. While it is open, a detached device does not go away.
#[derive(Debug)]
pub(super) struct Node {
    pub(super) file: File,
    pub(super) path: PathBuf,
    pub(super) number: DeviceNumber,
    pub(super) sequence: Option<u64>,
}

impl Node {
    /// Opens a node; none if there is no device behind it any more.
    pub(super) fn open(path: &Path, access: DeviceAccess) -> Result<Option<Self>> {
        let mode = match access {
            DeviceAccess::ReadOnly => OFlags::RDONLY,
            DeviceAccess::ReadWrite => OFlags::RDWR,
        };
        let flags = mode | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOFOLLOW;
        let file = match rustix::fs::open(path, flags, Mode::empty()) {
            Ok(file) => File::from(file),
            Err(Errno::NXIO | Errno::NODEV | Errno::NOENT) => return Ok(None),
            Err(error) => return Err(Error::os(OPEN, path, error)),
        };
        let stat = rustix::fs::fstat(&file).map_err(|error| Error::os(OPEN, path, error))?;
        let number = DeviceNumber::from_dev_t(stat.st_rdev);
        let sequence = ioctl::disk_sequence(file.as_fd()).ok();
        Ok(Some(Self { file, path: path.to_owned(), number, sequence }))
    }

    /// What is attached; none if nothing is. The kernel asks the filesystem of the backing file, so use it
    /// only if that file is the caller's own.
    pub(super) fn info(&self) -> Result<Option<LoopInfo>> {
        match ioctl::loop_status(self.file.as_fd()) {
            Ok(info) => Ok(Some(info)),
            Err(Errno::NXIO) => Ok(None),
            Err(error) => Err(Error::os("read the status of loop device", &self.path, error)),
        }
    }
}

/// Whether anything is attached, as sysfs shows it, which asks no filesystem.
pub(super) fn is_attached(path: &Path) -> bool {
    sysfs(path).is_some_and(|sys| sys.join("loop/backing_file").exists())
}

fn sysfs(path: &Path) -> Option<PathBuf> {
    Some(Path::new("/sys/block").join(path.file_name()?))
}

/// Whether what was attached is gone: nothing is attached, or already something else.
pub(super) fn is_gone(path: &Path, sequence: Option<u64>) -> bool {
    let Some(sys) = sysfs(path).filter(|_| is_attached(path)) else { return true };
    let now = fs::read_to_string(sys.join("diskseq")).ok().and_then(|text| text.trim().parse().ok());
    sequence.is_some() && now.is_some() && now != sequence
}

/// Whether the device goes away with its last user: the kernel sets this if it is detached while somebody
/// has it open. A device that is already gone counts too.
pub(super) fn is_autoclear(path: &Path) -> bool {
    let flag = sysfs(path).and_then(|sys| fs::read_to_string(sys.join("loop/autoclear")).ok());
    flag.is_none_or(|flag| flag.trim() != "0")
}
