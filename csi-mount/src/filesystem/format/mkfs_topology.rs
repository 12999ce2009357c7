//! What `mkfs` would ask a block device, and must be given for a file: sector sizes and RAID geometry.
//!
//! The rules are those of `mke2fs(8)` and `mkfs.xfs(8)`; `mkfs.btrfs` uses neither. What the caller's
//! arguments choose is left to them.

use crate::filesystem::format::disk_image::DiskImage;
use crate::sys::ioctl::Topology;

/// XFS needs a stripe unit that is a multiple of this, and a volume that is large enough for stripes.
const XFS_BLOCK: u32 = 4096;
const XFS_STRIPES_FROM: u64 = 1 << 30;

impl Topology {
    /// The environment that gives `mke2fs` the sector sizes.
    pub(crate) fn environment(self) -> [(&'static str, String); 2] {
        [
            ("MKE2FS_DEVICE_SECTSIZE", self.logical_sector.to_string()),
            ("MKE2FS_DEVICE_PHYS_SECTSIZE", self.physical_sector.to_string()),
        ]
    }

    /// The arguments that give `mkfs.xfs` the sector size and the stripes, next to those of the caller.
    pub(crate) fn xfs_arguments(self, given: &[String], size: u64) -> Vec<String> {
        let has = |name: &str| given.iter().any(|argument| argument.contains(name));
        let mut more = Vec::new();
        if !given.iter().any(|argument| argument.starts_with("-s")) {
            let sector = if self.is_misaligned { self.logical_sector } else { self.physical_sector };
            more.push(format!("-ssize={sector}"));
        }
        // A caller can set stripes with `su`, `sw`, `sunit` and `swidth`.
        if !has("su") && !has("sw") && !has("noalign") && size >= XFS_STRIPES_FROM {
            more.extend(self.xfs_stripes());
        }
        more
    }

    fn xfs_stripes(self) -> Option<String> {
        let unit = self.minimum_io;
        let width = self.optimal_io;
        let is_reported = unit != self.physical_sector && width != self.physical_sector;
        let is_valid = unit > 0 && width > 0 && unit.is_multiple_of(XFS_BLOCK) && width.is_multiple_of(unit);
        (is_reported && is_valid).then(|| format!("-dsunit={},swidth={}", unit / 512, width / 512))
    }

    /// The extended options that give `mke2fs` the stripes of a RAID, in blocks of the filesystem; empty
    /// without stripes.
    pub(crate) fn ext4_stripes(self, block_size: u32) -> Vec<String> {
        let or = |one: u32, other: u32| if one == 0 { other } else { one };
        let physical = if self.physical_sector > block_size { self.physical_sector } else { 0 };
        let unit = or(self.minimum_io, physical);
        let width = or(self.optimal_io, or(unit, physical));
        let option =
            |name: &str, bytes: u32| (bytes > block_size).then(|| format!("{name}={}", bytes / block_size));
        [option("stride", unit), option("stripe_width", width)].into_iter().flatten().collect()
    }
}

/// The layout of an ext4 in memory, from its superblock.
pub(crate) struct Ext4Layout {
    pub(crate) block_size: u32,
    /// Where the journal is, in bytes; none if it is mapped in a form that this code does not know.
    pub(crate) journal: Option<Vec<std::ops::Range<u64>>>,
}

impl Ext4Layout {
    /// Reads the layout; none if there is no superblock.
    pub(crate) fn from_image(image: &DiskImage<'_>) -> Option<Self> {
        let superblock = image.read(1024, 1024).ok()?;
        if superblock.get(56..58)? != [0x53, 0xef] {
            return None;
        }
        let block_size = 1024u32.checked_shl(le32(&superblock, 24)?)?;
        // `s_journal_inum`, and `s_jnl_blocks` with a copy of the journal inode's block map.
        let inode = le32(&superblock, 224)?;
        let copy_kind = *superblock.get(253)?;
        let journal = match (inode, copy_kind) {
            (0, _) => Some(Vec::new()),
            (_, 1) => extents(image, superblock.get(268..268 + 60)?, u64::from(block_size), 2),
            _ => None,
        };
        Some(Self { block_size, journal })
    }
}

/// The extents of a node of an extent tree, and of the nodes below it.
fn extents(
    image: &DiskImage<'_>,
    node: &[u8],
    block_size: u64,
    depth_left: u32,
) -> Option<Vec<std::ops::Range<u64>>> {
    const MAGIC: u16 = 0xf30a;
    let count = le16(node, 2)?;
    let depth = le16(node, 6)?;
    if le16(node, 0)? != MAGIC || depth_left == 0 {
        return None;
    }
    let mut ranges = Vec::new();
    for entry in node.get(12..)?.chunks_exact(12).take(count.into()) {
        if depth > 0 {
            let leaf = u64::from(le16(entry, 8)?) << 32 | u64::from(le32(entry, 4)?);
            let below = image.read(leaf.checked_mul(block_size)?, usize::try_from(block_size).ok()?).ok()?;
            ranges.extend(extents(image, &below, block_size, depth_left - 1)?);
        } else {
            let start = u64::from(le16(entry, 6)?) << 32 | u64::from(le32(entry, 8)?);
            let length = u64::from(le16(entry, 4)?);
            // A greater length marks an extent that was not written.
            if length > 32_768 {
                return None;
            }
            ranges.push(start.checked_mul(block_size)?..(start + length).checked_mul(block_size)?);
        }
    }
    Some(ranges)
}

fn le16(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

fn le32(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    const DISK: Topology = Topology {
        logical_sector: 512,
        physical_sector: 4096,
        minimum_io: 4096,
        optimal_io: 0,
        is_misaligned: false,
    };
    const RAID: Topology = Topology { minimum_io: 65_536, optimal_io: 262_144, ..DISK };

    fn xfs(arguments: &[&str], topology: Topology, size: u64) -> String {
        let given: Vec<String> = arguments.iter().map(ToString::to_string).collect();
        topology.xfs_arguments(&given, size).join(" ")
    }

    #[test]
    fn mkfs_xfs_gets_the_stripes_that_it_would_read_from_the_device() {
        let small = 1 << 29;
        let large = 1 << 40;
        assert_eq!(xfs(&[], DISK, large), "-ssize=4096");
        assert_eq!(xfs(&[], Topology { is_misaligned: true, ..DISK }, large), "-ssize=512");
        assert_eq!(xfs(&[], RAID, large), "-ssize=4096 -dsunit=128,swidth=512");
        assert_eq!(xfs(&[], RAID, small), "-ssize=4096", "stripes are not for small volumes");
        assert_eq!(xfs(&["-s", "size=512"], RAID, small), "");
        assert_eq!(xfs(&["-d", "su=4096,sw=2"], RAID, large), "-ssize=4096");
        for optimal_io in [0, 100_000, 32_768] {
            assert_eq!(xfs(&[], Topology { optimal_io, ..RAID }, large), "-ssize=4096", "nonsense");
        }
    }

    #[test]
    fn mkfs_ext4_gets_stripes_longer_than_a_block() {
        assert_eq!(DISK.ext4_stripes(4096), Vec::<String>::new());
        assert_eq!(DISK.ext4_stripes(1024), ["stride=4", "stripe_width=4"]);
        assert_eq!(RAID.ext4_stripes(4096), ["stride=16", "stripe_width=64"]);
        assert_eq!(RAID.environment().map(|(_, size)| size), ["512", "4096"]);
    }
}
