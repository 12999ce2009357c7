//! Grows a filesystem to the size of its device.

use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use crate::device::block_device::BlockDevice;
use crate::device::users::{self, Tolerated};
use crate::error::{Error, ErrorKind, Result};
use crate::filesystem::check::{CheckLimits, CheckPolicy, check, run_within};
use crate::filesystem::kind::Filesystem;
use crate::filesystem::probe::{Probe, Signature};
use crate::filesystem::tool::Tool;
use crate::sys::ids::DeviceNumber;
use crate::sys::ioctl::{self, BtrfsDevice};

const GROW: &str = "grow the filesystem on";
/// `resize2fs` writes the metadata of the new part. If it is killed, the filesystem needs a repair.
const RESIZE_TIME_LIMIT: Duration = Duration::from_secs(6 * 3600);

/// The smallest size to which the kernel resizes a btrfs (btrfs_ioctl_resize), whatever size it has.
const BTRFS_MIN_RESIZE_BYTES: u64 = 256 << 20;

/// What growing did. Sizes are the bytes of the device that the filesystem covers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Grown {
    /// The filesystem already covers the device.
    Unchanged {
        /// Its size in bytes.
        size: u64,
    },
    /// The filesystem grew.
    Grown {
        /// Its size in bytes before.
        from: u64,
        /// Its size in bytes now.
        to: u64,
    },
}

impl Grown {
    /// The current size in bytes.
    pub fn size(self) -> u64 {
        match self {
            Self::Unchanged { size } | Self::Grown { to: size, .. } => size,
        }
    }

    fn between(from: u64, to: u64) -> Self {
        if to > from { Self::Grown { from, to } } else { Self::Unchanged { size: to } }
    }
}

/// Grows a mounted filesystem to its device's size, through the filesystem's own ioctl.
///
/// `mounted_at` is any directory of the mounted filesystem; the mount must be writable. The kernel must
/// already know the device's new size (`LoopDevice::refresh_size`, a
/// SCSI rescan).
pub fn grow_mounted(
    device: &BlockDevice,
    filesystem: Filesystem,
    mounted_at: impl AsRef<Path>,
) -> Result<Grown> {
    let mounted_at = mounted_at.as_ref();
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let directory = rustix::fs::open(mounted_at, flags, Mode::empty())
        .map_err(|error| Error::os(GROW, mounted_at, error))?;
    let directory = Mounted { directory, at: mounted_at, device };
    match filesystem {
        Filesystem::Ext4 => directory.ext4(),
        Filesystem::Xfs => directory.xfs(),
        Filesystem::Btrfs => directory.btrfs(),
    }
}

struct Mounted<'m> {
    directory: OwnedFd,
    at: &'m Path,
    device: &'m BlockDevice,
}

impl Mounted<'_> {
    fn ext4(&self) -> Result<Grown> {
        self.verify_device()?;
        let before = on_disk(self.device, Filesystem::Ext4)?;
        let from = before.size.unwrap_or(0);
        let size = self.device.size()?;
        if !before.can_grow_to(size) {
            return Ok(Grown::Unchanged { size: from });
        }
        let block = self.block_size()?;
        ioctl::ext4_resize(self.directory.as_fd(), size / block).map_err(|error| {
            let failed = Error::os(GROW, self.at, error);
            if failed.kind() != ErrorKind::PermissionDenied {
                return failed;
            }
            failed.add_reason("a mounted ext4 grows only with CAP_SYS_RESOURCE").hint(
                "give the process CAP_SYS_RESOURCE, or wait: the filesystem grows when it is staged again",
            )
        })?;
        Ok(Grown::between(from, on_disk(self.device, Filesystem::Ext4)?.size.unwrap_or(from)))
    }

    fn xfs(&self) -> Result<Grown> {
        self.verify_device()?;
        let failed = |error: Errno| Error::os(GROW, self.at, error);
        let before = ioctl::xfs_geometry(self.directory.as_fd()).map_err(failed)?;
        let block = u64::from(before.block_size.max(1));
        let blocks = self.device.size()? / block;
        if blocks > before.data_blocks {
            ioctl::xfs_grow(self.directory.as_fd(), blocks, before.max_inode_percent).map_err(failed)?;
        }
        let after = ioctl::xfs_geometry(self.directory.as_fd()).map_err(failed)?;
        Ok(Grown::between(before.data_blocks * block, after.data_blocks * block))
    }

    fn btrfs(&self) -> Result<Grown> {
        let before = btrfs_device(&self.directory, self.at)?;
        let number = node_number(&node(&before)).map_err(|error| error.at(self.at))?;
        if number != self.device.number() {
            return Err(self.wrong_device(number));
        }
        let failed = |error: Errno| Error::os(GROW, self.at, error);
        let block = self.block_size()?;
        let size = self.device.size()? / block * block;
        if size > before.total_bytes {
            if size < BTRFS_MIN_RESIZE_BYTES {
                let reason = format!(
                    "btrfs can only be grown to {BTRFS_MIN_RESIZE_BYTES} bytes or more, and the device has \
                     {size}"
                );
                return Err(Error::new(ErrorKind::OutOfRange, GROW, reason)
                    .at(self.at)
                    .hint("expand the volume to 256 MiB or more"));
            }
            ioctl::btrfs_grow(self.directory.as_fd(), before.id).map_err(failed)?;
        }
        let after = btrfs_device(&self.directory, self.at)?;
        Ok(Grown::between(before.total_bytes, after.total_bytes))
    }

    fn verify_device(&self) -> Result<()> {
        let stat = rustix::fs::fstat(&self.directory).map_err(|error| Error::os(GROW, self.at, error))?;
        let number = DeviceNumber::from_dev_t(stat.st_dev);
        if number == self.device.number() { Ok(()) } else { Err(self.wrong_device(number)) }
    }

    fn wrong_device(&self, mounted: DeviceNumber) -> Error {
        let reason = format!(
            "the mounted device is {mounted}, not {} ({})",
            self.device.path().display(),
            self.device.number()
        );
        Error::new(ErrorKind::WrongDevice, GROW, reason).at(self.at)
    }

    fn block_size(&self) -> Result<u64> {
        let stat = rustix::fs::fstatvfs(&self.directory).map_err(|error| Error::os(GROW, self.at, error))?;
        Ok(stat.f_frsize.max(1))
    }
}

/// The only device of a mounted btrfs.
fn btrfs_device(directory: &OwnedFd, at: &Path) -> Result<BtrfsDevice> {
    const ASK: &str = "find the device under";
    let info = ioctl::btrfs_info(directory.as_fd()).map_err(|error| match error {
        Errno::NOTTY => {
            let reason = "the filesystem is not on a known block device";
            Error::new(ErrorKind::Unsupported, ASK, reason).at(at)
        }
        other => Error::os(ASK, at, other),
    })?;
    if info.devices != 1 {
        let reason =
            format!("it has {} devices, and only a filesystem on one device is supported", info.devices);
        return Err(Error::new(ErrorKind::Unsupported, ASK, reason).at(at));
    }
    // Device ids are not reused, so a device that replaced another has a higher id.
    for id in 1..=info.max_id {
        match ioctl::btrfs_device(directory.as_fd(), id) {
            Ok(device) => return Ok(device),
            Err(Errno::NODEV) => {}
            Err(error) => return Err(Error::os(ASK, at, error)),
        }
    }
    Err(Error::new(ErrorKind::NotFound, ASK, "it names no device").at(at))
}

/// The node of a btrfs's device, as the filesystem reports it.
fn node(device: &BtrfsDevice) -> PathBuf {
    let length = device.path.iter().position(|byte| *byte == 0).unwrap_or(device.path.len());
    PathBuf::from(std::ffi::OsStr::from_bytes(&device.path[..length]))
}

fn node_number(path: &Path) -> Result<DeviceNumber> {
    let metadata = std::fs::metadata(path).map_err(|error| Error::os("look at", path, error))?;
    Ok(DeviceNumber::from_dev_t(metadata.rdev()))
}

/// Grows a filesystem that is mounted nowhere to its device's size.
///
/// It runs `e2fsck -f -p`, which `resize2fs` requires, and then `resize2fs`. The memory limit holds for both
/// programs, the time limit for the check. `resize2fs` always has six hours: if it is killed earlier, the
/// filesystem needs a repair.
pub fn grow_unmounted(
    device: &BlockDevice,
    filesystem: Filesystem,
    limits: impl Into<CheckLimits>,
) -> Result<Grown> {
    const TOOL: Tool = Tool { program: "resize2fs", package: "e2fsprogs" };
    if !filesystem.is_maintained_unmounted() {
        let reason = format!("{filesystem} grows only while it is mounted");
        return Err(Error::new(ErrorKind::Unsupported, GROW, reason).at(device.path()));
    }
    device.verify()?;
    users::refuse(device, GROW, Tolerated::Readers)?;
    let before = on_disk(device, filesystem)?;
    let from = before.size.unwrap_or(0);
    if !before.can_grow_to(device.size()?) {
        return Ok(Grown::Unchanged { size: from });
    }
    TOOL.find()?;
    let limits = limits.into();
    check(device, filesystem, CheckPolicy::Preen, limits)?;
    let limits = limits.time(RESIZE_TIME_LIMIT);
    let output = run_within(TOOL, &[], device, limits)?;
    let after = on_disk(device, filesystem)?;
    if output.status.success() {
        return Ok(Grown::between(from, after.size.unwrap_or(from)));
    }
    let failed = TOOL.failed(device.path(), &output);
    // `resize2fs` sets this mark before its first change, and takes it back after the last one.
    if after.has_errors || after.size != before.size {
        return Err(failed);
    }
    Err(failed
        .with_kind(ErrorKind::Unsupported)
        .hint("the filesystem is unchanged, and can be used as it is"))
}

/// Reads the superblock past the page cache.
fn on_disk(device: &BlockDevice, filesystem: Filesystem) -> Result<Signature> {
    match device.probe() {
        Probe::Filesystem(found) if found.filesystem() == Some(filesystem) => Ok(found),
        Probe::Unreadable { offset, error } => Err(Probe::Unreadable { offset, error }.refusal(GROW, device)),
        other => {
            let reason = format!("the device does not contain {filesystem}, but {other}");
            Err(Error::new(ErrorKind::WrongDevice, GROW, reason).at(device.path()))
        }
    }
}
