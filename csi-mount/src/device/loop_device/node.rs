//! The nodes of loop devices, each open only for as long as it is asked something.

use std::fs::{self, File};
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use crate::sys::ioctl::{self, LoopInfo};
use crate::{DeviceAccess, DeviceNumber, Error, Result};

const OPEN: &str = "open loop device";

/// An open node. As long as it is, the device does not go when it is detached.
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

    /// What is attached; none if nothing is. It asks the filesystem of the backing file: only where that is the caller's own.
    pub(super) fn info(&self) -> Result<Option<LoopInfo>> {
        match ioctl::loop_status(self.file.as_fd()) {
            Ok(info) => Ok(Some(info)),
            Err(nix::Error::ENXIO) => Ok(None),
            Err(error) => Err(Error::os("ask what is attached to loop device", &self.path, error)),
        }
    }
}

/// Whether what was attached is no longer: nothing is, or already something else.
pub(super) fn is_gone(path: &Path, sequence: Option<u64>) -> bool {
    let Some(name) = path.file_name() else { return true };
    let sys = Path::new("/sys/block").join(name);
    if !sys.join("loop/backing_file").exists() {
        return true;
    }
    let now = fs::read_to_string(sys.join("diskseq")).ok().and_then(|text| text.trim().parse().ok());
    sequence.is_some() && now.is_some() && now != sequence
}

/// Whether the device goes with its last user: the kernel sets this when it is detached while somebody has it open. One that has
/// gone already counts too.
pub(super) fn is_autoclear(path: &Path) -> bool {
    let Some(name) = path.file_name() else { return true };
    let flag = fs::read_to_string(Path::new("/sys/block").join(name).join("loop/autoclear"));
    flag.map_or(true, |flag| flag.trim() != "0")
}
