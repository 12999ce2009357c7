//! The UUID of a filesystem, changed on request: for a clone that is used next to its origin.
//!
//! Each filesystem's superblocks are written here, because its tool writes them in an order that a kill
//! breaks.

mod btrfs;
mod ext4;
mod xfs;

use std::fmt;
use std::ops::Range;
use std::time::{Duration, Instant};

use crate::device::block_device::{BlockDevice, DeviceUse};
use crate::device::same_disk::is_same_disk;
use crate::device::sysfs::Sysfs;
use crate::device::users::{self, Tolerated};
use crate::error::{Error, ErrorKind, Result};
use crate::filesystem::kind::Filesystem;
use crate::filesystem::probe::{ALIGN, Reader, Unread};
use crate::mounting::mount::Mount;
use crate::mounting::options::MountOptions;
use crate::place::target::Target;
use crate::sys::hash::{fnv1a, hash_words};

const CHANGE: &str = "change the UUID of";
/// How long the kernel can take to let go of a device that was mounted for a moment.
const RELEASE_TIME_LIMIT: Duration = Duration::from_secs(10);

/// The UUID that a filesystem is to have: see
/// [`StagePlan::own_uuid`](crate::flow::block::StagePlan::own_uuid).
///
/// ```
/// use csi_mount::FilesystemUuid;
///
/// let uuid = FilesystemUuid::from_name("pvc-5f1d");
/// assert_eq!(uuid, FilesystemUuid::from_name("pvc-5f1d"));
/// assert_ne!(uuid, FilesystemUuid::from_name("pvc-5f1e"));
/// assert_eq!(uuid.to_string().len(), 36);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct FilesystemUuid([u8; 16]);

impl FilesystemUuid {
    /// A UUID made of a name, the same in every process and version: of the volume's id, or of the driver's
    /// name and the volume's id. It is a UUID of version 8 (RFC 9562).
    pub fn from_name(name: &str) -> Self {
        let number = u128::from(hash_words(name.as_bytes())) << 64 | u128::from(fnv1a(name.as_bytes()));
        let mut bytes = number.to_be_bytes();
        bytes[6] = 0x80 | bytes[6] & 0x0f;
        bytes[8] = 0x80 | bytes[8] & 0x3f;
        Self(bytes)
    }
}

impl fmt::Display for FilesystemUuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits = format!("{:032x}", u128::from_be_bytes(self.0));
        let a = &digits[..8];
        let b = &digits[8..12];
        let c = &digits[12..16];
        let d = &digits[16..20];
        let e = &digits[20..];
        write!(f, "{a}-{b}-{c}-{d}-{e}")
    }
}

/// Gives the filesystem on a device this UUID, if it has another. Nothing else on the device changes its
/// meaning: a call that is killed leaves a filesystem that mounts, with either UUID, and the next call
/// finishes the change.
pub(crate) fn set_uuid(device: &BlockDevice, filesystem: Filesystem, wanted: FilesystemUuid) -> Result<()> {
    let is_set = match filesystem {
        Filesystem::Ext4 => ext4::has(device, wanted),
        Filesystem::Xfs => xfs::has(device, wanted),
        Filesystem::Btrfs => btrfs::has(device, wanted),
    };
    if is_set? {
        return Ok(());
    }
    let _lock = device.lock()?;
    device.verify()?;
    users::refuse(device, CHANGE, Tolerated::None)?;
    if let Some(name) = mounted_on_same_disk(device, filesystem)? {
        let reason = format!("{} is a disk that is mounted as /dev/{name}", device.path().display());
        return Err(Error::new(ErrorKind::Busy, CHANGE, reason).hint("unmount it there"));
    }
    match filesystem {
        Filesystem::Ext4 => ext4::set(device, wanted),
        Filesystem::Xfs => xfs::set(device, wanted),
        Filesystem::Btrfs => btrfs::set(device, wanted),
    }?;
    tracing::info!(device = %device.path().display(), uuid = %wanted, "the filesystem has its own UUID");
    Ok(())
}

/// The name of another device of the same disk through which the filesystem is mounted, in any mount
/// namespace.
pub(crate) fn mounted_on_same_disk(device: &BlockDevice, filesystem: Filesystem) -> Result<Option<String>> {
    let sysfs = Sysfs::system();
    let mounted = match filesystem {
        Filesystem::Btrfs => sysfs.mounted_btrfs_devices(),
        Filesystem::Ext4 | Filesystem::Xfs => sysfs.mounted_devices(filesystem.name()),
    };
    for (name, other) in mounted {
        if other != device.number() && is_same_disk(device.number(), other)? {
            return Ok(Some(name));
        }
    }
    Ok(None)
}

/// Mounts the filesystem where nobody sees it, so that the kernel writes what is in its log. The kernel does
/// that in an order that a kill can't break.
fn replay(device: &BlockDevice, filesystem: Filesystem, options: &MountOptions) -> Result<()> {
    // Only for error messages: the mount has no path.
    let nowhere = Target::new("/proc/unseen")?;
    let mounted = Mount::new(filesystem.name(), device.path()).options(options).prepared(&nowhere);
    drop(mounted.map_err(|error| error.at(device.path()))?);
    let end = Instant::now() + RELEASE_TIME_LIMIT;
    while device.in_use()? == DeviceUse::InUse {
        if Instant::now() > end {
            users::refuse(device, CHANGE, Tolerated::None)?;
            let reason = "it is still in use after it was mounted to replay its log";
            return Err(Error::new(ErrorKind::Busy, CHANGE, reason).at(device.path()));
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}

fn not_replayed(device: &BlockDevice) -> Error {
    Error::new(ErrorKind::Damaged, CHANGE, "its log is not clean after a mount").at(device.path())
}

/// Reads a range past the page cache, which a mount does not change.
fn read(device: &BlockDevice, range: Range<u64>) -> Result<Vec<u8>> {
    let failed = |unread: Unread| Error::os("read the superblock of", device.path(), unread.error);
    let aligned = range.start - range.start % ALIGN..range.end.next_multiple_of(ALIGN).min(device.size()?);
    let start = (range.start - aligned.start) as usize;
    let found = Reader::new(device).and_then(|mut reader| reader.all([aligned])).map_err(failed)?;
    let mut bytes = found.into_iter().map(|(_, bytes)| bytes).collect::<Vec<_>>().concat();
    bytes.drain(..start.min(bytes.len()));
    let length = (range.end - range.start) as usize;
    if bytes.len() < length {
        let reason = format!("it ends before byte {}", range.end);
        return Err(Error::new(ErrorKind::Damaged, CHANGE, reason).at(device.path()));
    }
    bytes.truncate(length);
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_has_the_same_uuid_in_every_version() {
        let uuid = FilesystemUuid::from_name("vol-1").to_string();
        assert_eq!((&uuid[14..15], uuid.len()), ("8", 36));
        assert!("89ab".contains(&uuid[19..20]), "{uuid}");
        assert_eq!(uuid, "8f1c8703-827e-81c9-9d5e-6182992a0acc");
        let bytes = FilesystemUuid(*b"\x11\x11\x11\x11\x22\x22\x43\x33\x84\x44\x55\x55\x55\x55\x55\x55");
        assert_eq!(bytes.to_string(), "11111111-2222-4333-8444-555555555555");
    }
}
