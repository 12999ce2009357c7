//! The kernel version that introduced each filesystem feature: for what `mkfs` leaves out, and for why a
//! mount fails.

use std::fmt;
use std::str::FromStr;

use crate::device::block_device::BlockDevice;
use crate::error::{Error, ErrorKind, Result};
use crate::filesystem::kind::Filesystem;
use crate::filesystem::probe::blocks;

/// A kernel version, to the precision that features depend on: 6.18.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KernelVersion {
    /// The first number.
    pub(crate) major: u16,
    /// The second number.
    pub(crate) minor: u16,
}

impl KernelVersion {
    /// The version with these numbers.
    pub const fn new(major: u16, minor: u16) -> Self {
        Self { major, minor }
    }

    /// Returns the version of the running kernel.
    ///
    /// # Errors
    ///
    /// [`Io`](ErrorKind::Io) or [`Unsupported`](ErrorKind::Unsupported) if `/proc` does not show it.
    pub fn running() -> Result<Self> {
        const RELEASE: &str = "/proc/sys/kernel/osrelease";
        const ASK: &str = "read the kernel's version from";
        let text = std::fs::read_to_string(RELEASE).map_err(|error| Error::os(ASK, RELEASE, error))?;
        first_version(&text).ok_or_else(|| {
            Error::new(ErrorKind::Unsupported, ASK, format!("{:?} is not a version", text.trim())).at(RELEASE)
        })
    }
}

impl fmt::Display for KernelVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

/// The kernel that a filesystem is made for: newer programs enable features that older kernels do not know.
///
/// It can be parsed from a name, as in a storage class's parameter: `running`, `mkfs`, `linux-4.18`.
///
/// ```
/// use csi_mount::{KernelVersion, MkfsProfile};
///
/// let profile: MkfsProfile = "linux-5.4".parse()?;
/// assert_eq!(profile, MkfsProfile::Kernel(KernelVersion::new(5, 4)));
/// assert_eq!(profile.to_string(), "linux-5.4");
/// # Ok::<(), csi_mount::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum MkfsProfile {
    /// Only features that the running kernel can mount.
    #[default]
    Running,
    /// Only features that a kernel of this version can mount too, for a volume that moves between nodes.
    Kernel(KernelVersion),
    /// Whatever `mkfs` chooses.
    Mkfs,
}

impl fmt::Display for MkfsProfile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Running => f.write_str("running"),
            Self::Mkfs => f.write_str("mkfs"),
            Self::Kernel(version) => write!(f, "linux-{version}"),
        }
    }
}

impl FromStr for MkfsProfile {
    type Err = Error;

    /// # Errors
    ///
    /// [`InvalidInput`](ErrorKind::InvalidInput) for any other name.
    fn from_str(name: &str) -> Result<Self, Error> {
        let kernel = name.strip_prefix("linux-").and_then(|version| {
            let found = first_version(version)?;
            (found.to_string() == version).then_some(found)
        });
        match (name, kernel) {
            ("running", _) => Ok(Self::Running),
            ("mkfs", _) => Ok(Self::Mkfs),
            (_, Some(version)) => Ok(Self::Kernel(version)),
            _ => Err(Error::new(
                ErrorKind::InvalidInput,
                "choose a mkfs profile",
                format!("{name:?} is not a profile"),
            )
            .hint("use running, mkfs or linux-<major>.<minor>")),
        }
    }
}

/// The word of the superblock that has the feature's bit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FeatureSet {
    /// A kernel that does not know the feature still mounts the filesystem.
    Compatible,
    /// Such a kernel mounts it read-only.
    ReadOnly,
    /// Such a kernel does not mount it.
    Incompatible,
}

struct Feature {
    filesystem: Filesystem,
    name: &'static str,
    set: FeatureSet,
    bit: u32,
    /// The first kernel that knows the feature.
    kernel: KernelVersion,
    /// For a feature that `mkfs` can enable by itself: the argument that disables it, and the first version
    /// of `mkfs` that knows the argument.
    disable: Option<(&'static str, KernelVersion)>,
}

const fn v(major: u16, minor: u16) -> KernelVersion {
    KernelVersion::new(major, minor)
}

const fn feature(
    filesystem: Filesystem,
    name: &'static str,
    set: FeatureSet,
    bit: u32,
    kernel: KernelVersion,
    disable: Option<(&'static str, KernelVersion)>,
) -> Feature {
    Feature { filesystem, name, set, bit, kernel, disable }
}

use FeatureSet::{Compatible, Incompatible, ReadOnly};
use Filesystem::{Btrfs, Ext4, Xfs};

/// Features that came after Linux 4.18. Sources: ext4(5), mkfs.xfs(8), btrfs(5), and the headers of each
/// filesystem.
const FEATURES: &[Feature] = &[
    feature(Ext4, "orphan_file", Compatible, 0x1000, v(5, 15), Some(("^orphan_file", v(1, 47)))),
    feature(Ext4, "orphan_present", ReadOnly, 0x1_0000, v(5, 15), None),
    feature(Ext4, "verity", ReadOnly, 0x8000, v(5, 4), None),
    feature(Ext4, "casefold", Incompatible, 0x2_0000, v(5, 2), None),
    feature(Xfs, "inobtcount", ReadOnly, 0x8, v(5, 10), Some(("-minobtcount=0", v(5, 10)))),
    feature(Xfs, "bigtime", Incompatible, 0x8, v(5, 10), Some(("-mbigtime=0", v(5, 10)))),
    feature(Xfs, "nrext64", Incompatible, 0x20, v(5, 19), Some(("-inrext64=0", v(5, 19)))),
    feature(Xfs, "exchange", Incompatible, 0x40, v(6, 10), Some(("-iexchange=0", v(6, 10)))),
    feature(Xfs, "parent", Incompatible, 0x80, v(6, 10), Some(("-nparent=0", v(6, 10)))),
    feature(Xfs, "metadir", Incompatible, 0x100, v(6, 13), None),
    feature(Xfs, "zoned", Incompatible, 0x200, v(6, 15), None),
    feature(Btrfs, "metadata_uuid", Incompatible, 0x400, v(5, 0), None),
    feature(Btrfs, "raid1c34", Incompatible, 0x800, v(5, 5), None),
    feature(Btrfs, "zoned", Incompatible, 0x1000, v(5, 12), None),
    feature(Btrfs, "verity", ReadOnly, 0x4, v(5, 15), None),
    feature(Btrfs, "block-group-tree", ReadOnly, 0x8, v(6, 1), Some(("-O^block-group-tree", v(6, 7)))),
    feature(Btrfs, "raid-stripe-tree", Incompatible, 0x4000, v(6, 7), None),
    feature(Btrfs, "squota", Incompatible, 0x1_0000, v(6, 7), None),
];

/// The arguments that disable what `target` does not know. `mkfs` is asked for its version only if there
/// are any.
pub(crate) fn disabling_arguments(
    filesystem: Filesystem,
    target: KernelVersion,
    mkfs_version: impl FnOnce() -> Result<KernelVersion>,
) -> Result<Vec<&'static str>> {
    let newer = FEATURES.iter().filter(|row| row.filesystem == filesystem && row.kernel > target);
    let off: Vec<_> = newer.filter_map(|row| row.disable).collect();
    if off.is_empty() {
        return Ok(Vec::new());
    }
    let version = mkfs_version()?;
    Ok(off.into_iter().filter(|(_, since)| version >= *since).map(|(argument, _)| argument).collect())
}

/// The features of the filesystem on a device that this kernel does not know, as text for an operator; none
/// if no such feature is found.
pub(crate) fn unknown_features(
    device: &BlockDevice,
    filesystem: Filesystem,
    kernel: KernelVersion,
) -> Option<String> {
    let place = if filesystem == Btrfs { 64 * 1024 } else { 0 };
    let found = blocks(device, std::iter::once(place)).ok()?;
    let names = newer_features(&found.first()?.1, filesystem, kernel);
    (!names.is_empty())
        .then(|| format!("the filesystem uses {}, and the kernel is only {kernel}", names.join(", ")))
}

/// What the filesystem on a device has that not every kernel of any version can mount, and what the kernel needs for
/// it; none if there is no such thing. ext4 and XFS then return only `EINVAL` or `ENOSYS`.
pub(crate) fn optional_support(device: &BlockDevice, filesystem: Filesystem, writes: bool) -> Option<String> {
    let place = if filesystem == Btrfs { 64 * 1024 } else { 0 };
    let found = blocks(device, std::iter::once(place)).ok()?;
    let page = u64::try_from(rustix::param::page_size()).ok()?;
    let (what, needed) = optional_part(&found.first()?.1, filesystem, writes, page)?;
    Some(format!("the filesystem has {what}, for which the kernel needs {needed}"))
}

fn optional_part(
    block: &[u8],
    filesystem: Filesystem,
    writes: bool,
    page: u64,
) -> Option<(String, &'static str)> {
    const CASEFOLD: u32 = 0x2_0000;
    const QUOTA: u32 = 0x100 | 0x2000;
    let bytes =
        |at: usize| block.get(at..).and_then(|bytes| bytes.first_chunk::<4>()).copied().unwrap_or_default();
    let block_size = match filesystem {
        Ext4 => 1024_u64.checked_shl(u32::from_le_bytes(bytes(1024 + 24))).unwrap_or_default(),
        Xfs => u32::from_be_bytes(bytes(4)).into(),
        Btrfs => u32::from_le_bytes(bytes(0x90)).into(),
    };
    let has = |at: usize, bits: u32| filesystem == Ext4 && u32::from_le_bytes(bytes(1024 + at)) & bits != 0;
    if block_size > page {
        Some((format!("blocks of {block_size} bytes"), "pages of this size"))
    } else if has(0x60, CASEFOLD) {
        Some(("casefold".to_owned(), "CONFIG_UNICODE"))
    } else if writes && has(0x64, QUOTA) {
        Some(("quotas".to_owned(), "CONFIG_QFMT_V2 (module quota_v2)"))
    } else {
        None
    }
}

/// The features in a superblock's block that keep this kernel from mounting it.
fn newer_features(block: &[u8], filesystem: Filesystem, kernel: KernelVersion) -> Vec<String> {
    // The places of the read-only compatible and the incompatible features. Only XFS is big-endian.
    let (read_only, incompatible) = match filesystem {
        Ext4 => (1024 + 0x64, 1024 + 0x60),
        Xfs => (212, 216),
        Btrfs => (0xb4, 0xbc),
    };
    let word = |at: usize| {
        let bytes = block.get(at..).and_then(|bytes| bytes.first_chunk::<4>()).copied().unwrap_or_default();
        if filesystem == Xfs { u32::from_be_bytes(bytes) } else { u32::from_le_bytes(bytes) }
    };
    let newer = FEATURES.iter().filter(|row| row.filesystem == filesystem && row.kernel > kernel);
    newer
        .filter(|row| match row.set {
            Compatible => false,
            ReadOnly => word(read_only) & row.bit != 0,
            Incompatible => word(incompatible) & row.bit != 0,
        })
        .map(|row| format!("{} (Linux {})", row.name, row.kernel))
        .collect()
}

/// The first `number.number` in a text: "mke2fs 1.47.0 (5-Feb-2023)", "6.18.44-generic".
pub(crate) fn first_version(text: &str) -> Option<KernelVersion> {
    text.split(|letter: char| !letter.is_ascii_digit() && letter != '.').find_map(|word| {
        let mut numbers = word.split('.');
        Some(KernelVersion { major: numbers.next()?.parse().ok()?, minor: numbers.next()?.parse().ok()? })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_found_in_what_programs_print() {
        for (text, expected) in [
            ("mke2fs 1.47.0 (5-Feb-2023)\n\tUsing EXT2FS Library", Some(v(1, 47))),
            ("mkfs.xfs version 6.1.0", Some(v(6, 1))),
            ("mkfs.btrfs, part of btrfs-progs v6.2", Some(v(6, 2))),
            ("6.18.44-generic", Some(v(6, 18))),
            ("4.18", Some(v(4, 18))),
            ("none 7", None),
        ] {
            assert_eq!(first_version(text), expected, "{text}");
        }
    }

    #[test]
    fn features_that_an_older_kernel_does_not_know_are_disabled() {
        let off = |filesystem, kernel, mkfs| disabling_arguments(filesystem, kernel, || Ok(mkfs)).unwrap();
        assert_eq!(off(Xfs, v(5, 4), v(6, 1)), ["-minobtcount=0", "-mbigtime=0", "-inrext64=0"]);
        assert_eq!(off(Xfs, v(5, 15), v(6, 1)), ["-inrext64=0"]);
        assert_eq!(off(Xfs, v(5, 4), v(5, 0)), Vec::<&str>::new(), "an old mkfs does not know the arguments");
        assert_eq!(off(Ext4, v(4, 18), v(1, 47)), ["^orphan_file"]);
        let not_asked = || panic!("nothing depends on the version of mkfs");
        assert!(disabling_arguments(Xfs, v(6, 18), not_asked).unwrap().is_empty());
    }

    #[test]
    fn a_feature_that_is_too_new_is_named() {
        let block = |at: usize, bytes: [u8; 4]| {
            let mut block = vec![0; 4096];
            block[at..at + 4].copy_from_slice(&bytes);
            block
        };
        for (filesystem, block, kernel, expected) in [
            (
                Xfs,
                block(216, 0x28u32.to_be_bytes()),
                v(5, 4),
                &["bigtime (Linux 5.10)", "nrext64 (Linux 5.19)"][..],
            ),
            (Xfs, block(216, 0x28u32.to_be_bytes()), v(5, 19), &[]),
            (Ext4, block(1024 + 0x60, 0x2_0000u32.to_le_bytes()), v(4, 18), &["casefold (Linux 5.2)"]),
            (Ext4, block(1024 + 0x5c, 0x1000u32.to_le_bytes()), v(4, 18), &[]),
            (Btrfs, block(0xb4, 8u32.to_le_bytes()), v(5, 15), &["block-group-tree (Linux 6.1)"]),
        ] {
            assert_eq!(newer_features(&block, filesystem, kernel), expected, "{filesystem} {kernel}");
        }
    }

    #[test]
    fn what_a_kernel_can_be_built_without_is_named() {
        let block = |places: &[(usize, [u8; 4])]| {
            let mut block = vec![0; 4096];
            for (at, bytes) in places {
                block[*at..at + 4].copy_from_slice(bytes);
            }
            block
        };
        let ext4 = |at: usize, word: u32| block(&[(1024 + at, word.to_le_bytes())]);
        for (filesystem, block, writes, expected) in [
            (Ext4, ext4(24, 2), true, None),
            (Ext4, ext4(24, 6), false, Some(("blocks of 65536 bytes", "pages of this size"))),
            (Ext4, ext4(24, u32::MAX), false, None),
            (Ext4, ext4(0x60, 0x2_0000), false, Some(("casefold", "CONFIG_UNICODE"))),
            (Ext4, ext4(0x64, 0x100), true, Some(("quotas", "CONFIG_QFMT_V2 (module quota_v2)"))),
            (Ext4, ext4(0x64, 0x2000), false, None),
            (
                Xfs,
                block(&[(4, 0x1_0000_u32.to_be_bytes())]),
                true,
                Some(("blocks of 65536 bytes", "pages of this size")),
            ),
            (
                Btrfs,
                block(&[(0x90, 0x4000_u32.to_le_bytes())]),
                true,
                Some(("blocks of 16384 bytes", "pages of this size")),
            ),
        ] {
            let found = optional_part(&block, filesystem, writes, 4096);
            let found = found.as_ref().map(|(what, needed)| (&**what, *needed));
            assert_eq!(found, expected, "{filesystem}");
        }
    }

    #[test]
    fn profiles_have_names() {
        for name in ["running", "mkfs", "linux-4.18"] {
            assert_eq!(name.parse::<MkfsProfile>().unwrap().to_string(), name);
        }
        for name in ["", "linux-", "linux-4", "linux-x4.18", "linux-4.18.0", "Linux-4.18"] {
            assert_eq!(name.parse::<MkfsProfile>().unwrap_err().kind(), ErrorKind::InvalidInput, "{name}");
        }
    }
}
