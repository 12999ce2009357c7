//! Block devices: opened once, and then identified by the open file and not by the path.

use std::fs::{self, File, Metadata};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileTypeExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use crate::device::sysfs::{DeviceIdentity, Rescan, Sysfs};
use crate::error::{Error, ErrorKind, Result};
use crate::path::paths;
use crate::sys::descriptor::Locked;
use crate::sys::features::{self, Feature};
use crate::sys::ids::DeviceNumber;
use crate::sys::ioctl;
use crate::sys::own_descriptors::with_own_descriptors;

/// How long another program can hold a device's lock: udev takes a shared one while it probes a new device.
const LOCK_TIME_LIMIT: Duration = Duration::from_secs(2);

/// An open block device.
///
/// The path is resolved once, when the device is opened. Whatever the path names later, this stays the same
/// device. An operation that opens the device again (an exclusive open, the lock) opens the node that the
/// path led to, and checks that it is still the same device.
///
/// ```no_run
/// use csi_mount::BlockDevice;
///
/// let device = BlockDevice::open("/dev/disk/by-id/virtio-vol-1")?;
/// println!("{} {} bytes", device.number(), device.size()?);
/// # Ok::<(), csi_mount::Error>(())
/// ```
#[derive(Debug)]
pub struct BlockDevice {
    file: File,
    path: PathBuf,
    number: DeviceNumber,
    sequence: Option<u64>,
}

/// Whether a device is held exclusively: see [`Devices::in_use`](crate::Devices::in_use).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeviceUse {
    /// Nobody holds it: no mount in any namespace, no device mapper, no RAID.
    Free,
    /// A mount, device mapper, RAID, swap or another exclusive open holds it.
    InUse,
}

/// Whether a device accepts writes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum DeviceAccess {
    /// It accepts writes.
    #[default]
    ReadWrite,
    /// It refuses writes from every opener.
    ReadOnly,
}

impl BlockDevice {
    /// Opens a block device for reading. Symbolic links are followed, such as those in `/dev/disk`.
    ///
    /// # Errors
    ///
    /// [`InvalidInput`](ErrorKind::InvalidInput) if the path is not absolute, not UTF-8 or not a block
    /// device, [`NotFound`](ErrorKind::NotFound) if the path does not exist or the node has no device
    /// behind it, [`PermissionDenied`](ErrorKind::PermissionDenied) without access to the node.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let asked = path.as_ref();
        let failed = |error: std::io::Error| Error::os(OPEN, asked, error);
        paths::text(OPEN, asked)?;
        if !asked.is_absolute() {
            return Err(not_a_device(asked, "the path is not absolute"));
        }
        let path = fs::canonicalize(asked).map_err(failed)?;
        // Opening anything else could block (a pipe) or have an effect (a tape), so the type is checked
        // first.
        if !fs::symlink_metadata(&path).map_err(failed)?.file_type().is_block_device() {
            return Err(not_a_device(asked, "not a block device"));
        }
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOFOLLOW;
        let direct = if features::has(Feature::DirectRead) { OFlags::DIRECT } else { OFlags::empty() };
        let file = match rustix::fs::open(&path, flags | direct, Mode::empty()) {
            // Not every driver can read past the page cache; the prober then empties the cache instead.
            Err(Errno::INVAL) => rustix::fs::open(&path, flags, Mode::empty()),
            other => other,
        };
        let file = File::from(file.map_err(|error| failed(error.into()))?);
        let metadata = file.metadata().map_err(failed)?;
        if !metadata.file_type().is_block_device() {
            return Err(not_a_device(asked, "not a block device"));
        }
        let number = DeviceNumber::from_dev_t(metadata.rdev());
        let sequence = ioctl::disk_sequence(file.as_fd()).ok();
        Ok(Self { file, path, number, sequence })
    }

    /// Opens the device with this number, through the node that the kernel names for it.
    pub(crate) fn from_number(number: DeviceNumber) -> Result<Self> {
        let sys = PathBuf::from(format!("/sys/dev/block/{number}/uevent"));
        let events = fs::read_to_string(&sys)
            .map_err(|error| Error::os("find the node of a block device in", &sys, error))?;
        let Some(name) = events.lines().find_map(|line| line.strip_prefix("DEVNAME=")) else {
            return Err(Error::new(
                ErrorKind::NotFound,
                "find the node of a block device in",
                "the file has no DEVNAME",
            )
            .at(sys));
        };
        let device = Self::open(Path::new("/dev").join(name))?;
        if device.number != number {
            let reason = format!("it is {}, but for the kernel {number} has this name", device.number);
            return Err(Error::new(ErrorKind::WrongDevice, OPEN, reason).at(device.path));
        }
        Ok(device)
    }

    /// Not a device, for tests that only look at its path.
    #[cfg(test)]
    pub(crate) fn for_test() -> Self {
        let path = PathBuf::from("/dev/null");
        let file = File::open(&path).unwrap();
        Self { file, path, number: DeviceNumber { major: 0, minor: 0 }, sequence: None }
    }

    /// The device's node, with symbolic links resolved.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The device's number.
    pub fn number(&self) -> DeviceNumber {
        self.number
    }

    /// See [`Devices::disk_sequence`](crate::Devices::disk_sequence).
    pub(crate) fn disk_sequence(&self) -> Option<u64> {
        self.sequence
    }

    /// Returns the device's current size in bytes.
    ///
    /// # Errors
    ///
    /// [`Io`](ErrorKind::Io) or [`NotFound`](ErrorKind::NotFound) if the device went away.
    pub fn size(&self) -> Result<u64> {
        ioctl::block_size_in_bytes(self.as_fd())
            .map_err(|error| Error::os("read the size of", &self.path, error))
    }

    /// Returns whether the device refuses writes (`BLKROGET`).
    pub(crate) fn is_read_only(&self) -> Result<bool> {
        ioctl::is_read_only(self.as_fd())
            .map_err(|error| Error::os("find out whether the device is read-only:", &self.path, error))
    }

    /// See [`Devices::in_use`](crate::Devices::in_use).
    pub(crate) fn in_use(&self) -> Result<DeviceUse> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::EXCL;
        // Nothing of this process can be used inside, so the comparison is made outside.
        let opened = with_own_descriptors(|| -> io::Result<_> {
            let file = File::from(rustix::fs::open(&self.path, flags, Mode::empty())?);
            Ok((file.metadata()?, ioctl::disk_sequence(file.as_fd()).ok()))
        });
        match opened {
            Ok((metadata, sequence)) => self.same_as(&metadata, sequence).map(|()| DeviceUse::Free),
            Err(error) if error.raw_os_error() == Some(nix::libc::EBUSY) => Ok(DeviceUse::InUse),
            Err(error) => Err(Error::os("open exclusively", &self.path, error)),
        }
    }

    /// Checks that the path still leads to this device.
    ///
    /// It compares the number and, from Linux 5.15, the disk's sequence number. This detects another disk
    /// that got the number of one that was removed.
    pub(crate) fn verify(&self) -> Result<()> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let file = rustix::fs::open(&self.path, flags, Mode::empty())
            .map_err(|error| Error::os(OPEN, &self.path, error))?;
        self.same(&File::from(file))
    }

    /// The identity that the disk reports, from sysfs; for a partition that of its disk.
    pub(crate) fn identity(&self) -> Result<DeviceIdentity> {
        Sysfs::system().identity(self.number())
    }

    /// Returns the names of the devices that are built on this one (`dm-0`, `md0`). If there are any, this
    /// one is in use.
    pub(crate) fn holders(&self) -> Result<Vec<String>> {
        Sysfs::system().holders(self.number())
    }

    /// See [`Devices::rescan`](crate::Devices::rescan).
    pub(crate) fn rescan(&self) -> Result<Rescan> {
        Sysfs::system().rescan(self.number())
    }

    pub(crate) fn same(&self, other: &File) -> Result<()> {
        let metadata = other.metadata().map_err(|error| Error::os(OPEN, &self.path, error))?;
        self.same_as(&metadata, ioctl::disk_sequence(other.as_fd()).ok())
    }

    fn same_as(&self, metadata: &Metadata, sequence: Option<u64>) -> Result<()> {
        let number = DeviceNumber::from_dev_t(metadata.rdev());
        // The open file's own sequence number is read again: a loop device attached to another file keeps
        // its number.
        let now = ioctl::disk_sequence(self.as_fd()).ok();
        if number == self.number && sequence == self.sequence && now == self.sequence {
            return Ok(());
        }
        let reason = format!("the path now leads to another disk ({number} instead of {})", self.number);
        Err(Error::new(ErrorKind::WrongDevice, OPEN, reason).at(&self.path))
    }

    /// Takes the device's lock, which `udev` and the util-linux programs respect, until the guard is
    /// dropped.
    pub(crate) fn lock(&self) -> Result<DeviceLock<'_>> {
        // A second open file, so that dropping the guard cannot release a lock that another guard holds.
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let file = rustix::fs::open(&self.path, flags, Mode::empty())
            .map_err(|error| Error::os(OPEN, &self.path, error))?;
        let file = File::from(file);
        self.same(&file)?;
        match Locked::within(file, LOCK_TIME_LIMIT) {
            Ok(file) => Ok(DeviceLock { _file: file, _device: self }),
            Err(Errno::WOULDBLOCK) => {
                Err(Error::new(ErrorKind::Busy, "lock", "another program has locked the device")
                    .at(&self.path)
                    .hint("wait until that program is done, and try again"))
            }
            Err(error) => Err(Error::os("lock", &self.path, error)),
        }
    }
}

impl AsFd for BlockDevice {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// The device's lock, released when dropped.
#[derive(Debug)]
pub(crate) struct DeviceLock<'d> {
    _file: Locked<File>,
    _device: &'d BlockDevice,
}

const OPEN: &str = "open block device";

fn not_a_device(path: &Path, reason: &str) -> Error {
    Error::new(ErrorKind::InvalidInput, OPEN, reason).at(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_block_devices_are_opened() {
        for (path, kind) in [
            ("/dev/null", ErrorKind::InvalidInput),
            ("/proc/self/status", ErrorKind::InvalidInput),
            ("/", ErrorKind::InvalidInput),
            ("dev/loop0", ErrorKind::InvalidInput),
            ("", ErrorKind::InvalidInput),
            ("/dev/no-such-device", ErrorKind::NotFound),
        ] {
            assert_eq!(BlockDevice::open(path).unwrap_err().kind(), kind, "{path}");
        }
    }
}
