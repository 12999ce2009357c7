//! The UUID of a filesystem, changed on request: for a clone that is used next to its origin.

use std::fmt;
use std::os::unix::fs::FileExt as _;
use std::time::{Duration, Instant};

use crate::device::users::{self, Tolerated};
use crate::filesystem::check::run_within;
use crate::filesystem::tool::{Output, Tool};
use crate::sys::fnv::{fnv1a, hash_words};
use crate::{
    BlockDevice, CheckLimits, DeviceUse, Error, ErrorKind, Filesystem, KernelVersion, Mount, Result, Target,
};

const CHANGE: &str = "change the UUID of";
/// How long the tool can take. It writes some blocks only.
const TIME_LIMIT: Duration = Duration::from_secs(600);
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

    /// The UUID with these bytes, in the order in which it is written.
    pub const fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }
}

impl fmt::Display for FilesystemUuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits = format!("{:032x}", u128::from_be_bytes(self.0));
        let (a, b, c, d, e) = (&digits[..8], &digits[8..12], &digits[12..16], &digits[16..20], &digits[20..]);
        write!(f, "{a}-{b}-{c}-{d}-{e}")
    }
}

/// Refuses a filesystem whose UUID can't be changed safely, before anything is written.
pub(crate) fn require_changeable(filesystem: Filesystem) -> Result<()> {
    match filesystem {
        Filesystem::Btrfs => Ok(()),
        // tune2fs writes the superblock in several pieces (libext2fs writes only the words that changed). If
        // it is killed between two of them, the checksum is wrong, and e2fsck -p calls the filesystem corrupt.
        Filesystem::Ext4 => Err(unsupported(filesystem)
            .hint("leave the UUID as it is: the kernel mounts an ext4 clone next to its origin")),
        // xfs_db zeroes the log first, in many writes. If it is killed then, the kernel does not mount the
        // filesystem, and neither does xfs_db finish the change: the log reads as one with changes in it.
        Filesystem::Xfs => Err(unsupported(filesystem)
            .hint("leave the UUID as it is: the clone is mounted next to its origin (nouuid)")),
    }
}

fn unsupported(filesystem: Filesystem) -> Error {
    let reason = format!("the UUID of {filesystem} can't be changed so that a kill does no harm");
    Error::new(ErrorKind::Unsupported, CHANGE, reason)
}

/// Gives the filesystem on a device this UUID, if it has another.
///
/// `btrfstune` writes the block that contains the UUID in one piece, with everything that depends on it. So a
/// call that is killed leaves a filesystem with either UUID, and the next call finishes the change.
pub(crate) fn set_uuid(
    device: &BlockDevice,
    filesystem: Filesystem,
    wanted: FilesystemUuid,
    limits: CheckLimits,
) -> Result<()> {
    require_changeable(filesystem)?;
    if Superblock::read(device)?.has(wanted) {
        return Ok(());
    }
    let _lock = device.lock()?;
    device.verify()?;
    users::refuse(device, CHANGE, Tolerated::None)?;
    let change = Change { device, wanted: wanted.to_string(), limits: limits.time(TIME_LIMIT) };
    let output = change.btrfs(&Superblock::read(device)?)?;
    // What counts is on the device, whatever the tool says.
    let after = Superblock::read(device)?;
    if after.has(wanted) {
        tracing::info!(device = %device.path().display(), uuid = %wanted, "the filesystem has its own UUID");
        return Ok(());
    }
    Err(output.0.failed(device.path(), &output.1).add_reason("the filesystem does not have the new UUID"))
}

struct Change<'d> {
    device: &'d BlockDevice,
    wanted: String,
    limits: CheckLimits,
}

impl Change<'_> {
    /// `btrfstune -M` writes the superblock only (`METADATA_UUID`, Linux 5.0). With a log tree it would make
    /// the filesystem unusable: it commits, and the log's blocks are then of an older generation.
    fn btrfs(&self, found: &Superblock) -> Result<(Tool, Output)> {
        const TOOL: Tool = Tool { program: "btrfstune", package: "btrfs-progs" };
        let kernel = KernelVersion::running()?;
        if kernel < KernelVersion::new(5, 0) {
            let reason = format!("Linux {kernel} does not mount a btrfs with a changed UUID, Linux 5.0 does");
            return Err(Error::new(ErrorKind::Unsupported, CHANGE, reason).at(self.device.path()));
        }
        TOOL.find()?;
        if found.has_log_tree() {
            self.replay().map_err(|error| {
                error.hint(
                    "before Linux 6.7 a clone can't be mounted next to its origin: unstage the origin, or \
                            clone it while it is not mounted",
                )
            })?;
            if Superblock::read(self.device)?.has_log_tree() {
                let reason = "a mount has not replayed its log";
                return Err(Error::new(ErrorKind::Damaged, CHANGE, reason).at(self.device.path()));
            }
        }
        Ok((TOOL, self.run(TOOL, &["-f", "-M", &self.wanted])?))
    }

    fn run(&self, tool: Tool, arguments: &[&str]) -> Result<Output> {
        run_within(tool, arguments, self.device, self.limits)
    }

    /// Mounts it where nobody sees it, so that the kernel writes what is in its log.
    fn replay(&self) -> Result<()> {
        // Only for error messages: the mount has no path.
        let nowhere = Target::new("/proc/unseen")?;
        let mounted = Mount::new("btrfs", self.device.path()).prepared(&nowhere);
        drop(mounted.map_err(|error| error.at(self.device.path()))?);
        let end = Instant::now() + RELEASE_TIME_LIMIT;
        while self.device.in_use()? == DeviceUse::InUse {
            if Instant::now() > end {
                users::refuse(self.device, CHANGE, Tolerated::None)?;
                let reason = "it is still in use after it was mounted to replay its log";
                return Err(Error::new(ErrorKind::Busy, CHANGE, reason).at(self.device.path()));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }
}

/// The bytes of a btrfs superblock in which the UUID is.
struct Superblock(Vec<u8>);

impl Superblock {
    const PLACE: u64 = 64 << 10;

    /// Reads past the page cache, which the tools do not change.
    fn read(device: &BlockDevice) -> Result<Self> {
        use std::os::fd::AsFd as _;
        let failed = |error| Error::os("read the superblock of", device.path(), error);
        let mut buffer = crate::device::claimed::AlignedBuffer::new();
        let block = buffer.first(4096);
        let file = std::fs::File::from(device.as_fd().try_clone_to_owned().map_err(failed)?);
        file.read_exact_at(block, Self::PLACE).map_err(failed)?;
        Ok(Self(block[..1024].to_owned()))
    }

    /// Whether it has this UUID, and no change of it was interrupted (`BTRFS_SUPER_FLAG_CHANGING_FSID` and
    /// its second version).
    fn has(&self, wanted: FilesystemUuid) -> bool {
        const CHANGING: u64 = 1 << 35 | 1 << 36;
        self.0[32..48] == wanted.0 && self.le64(0x38) & CHANGING == 0
    }

    fn has_log_tree(&self) -> bool {
        self.le64(0x60) != 0
    }

    fn le64(&self, at: usize) -> u64 {
        self.0[at..at + 8].try_into().map(u64::from_le_bytes).unwrap_or(0)
    }
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
        let bytes =
            FilesystemUuid::from_bytes(*b"\x11\x11\x11\x11\x22\x22\x43\x33\x84\x44\x55\x55\x55\x55\x55\x55");
        assert_eq!(bytes.to_string(), "11111111-2222-4333-8444-555555555555");
    }
}
