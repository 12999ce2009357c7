//! Recognition by a magic number at a fixed place.

use super::windows::Windows;

/// What a signature belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Category {
    Filesystem,
    PartitionTable,
    Container,
}

use Category::{Container, Filesystem, PartitionTable};

/// A magic number, its place from the start of the device, and the name that libblkid uses.
pub(super) struct Magic {
    pub(super) name: &'static str,
    pub(super) category: Category,
    offset: u64,
    bytes: &'static [u8],
}

const fn magic(name: &'static str, category: Category, offset: u64, bytes: &'static [u8]) -> Magic {
    Magic { name, category, offset, bytes }
}

const KIB: u64 = 1024;

/// ext, xfs and btrfs are not here: their superblocks are parsed.
const MAGICS: &[Magic] = &[
    magic("vfat", Filesystem, 54, b"FAT12   "),
    magic("vfat", Filesystem, 54, b"FAT16   "),
    magic("vfat", Filesystem, 82, b"FAT32   "),
    magic("exfat", Filesystem, 3, b"EXFAT   "),
    magic("ntfs", Filesystem, 3, b"NTFS    "),
    magic("ReFS", Filesystem, 3, b"ReFS\0\0\0\0"),
    magic("iso9660", Filesystem, 32 * KIB + 1, b"CD001"),
    magic("iso9660", Filesystem, 32 * KIB + 9, b"CDROM"),
    magic("squashfs", Filesystem, 0, b"hsqs"),
    magic("squashfs", Filesystem, 0, b"sqsh"),
    magic("cramfs", Filesystem, 0, &[0x45, 0x3d, 0xcd, 0x28]),
    magic("romfs", Filesystem, 0, b"-rom1fs-"),
    magic("erofs", Filesystem, KIB, &[0xe2, 0xe1, 0xf5, 0xe0]),
    magic("f2fs", Filesystem, KIB, &[0x10, 0x20, 0xf5, 0xf2]),
    magic("hfsplus", Filesystem, KIB, b"H+\0\x04"),
    magic("hfsplus", Filesystem, KIB, b"HX\0\x05"),
    magic("jfs", Filesystem, 32 * KIB, b"JFS1"),
    magic("reiserfs", Filesystem, 8 * KIB + 52, b"ReIsErFs"),
    magic("reiserfs", Filesystem, 64 * KIB + 52, b"ReIsErFs"),
    magic("reiserfs", Filesystem, 64 * KIB + 52, b"ReIsEr2Fs"),
    magic("reiserfs", Filesystem, 64 * KIB + 52, b"ReIsEr3Fs"),
    magic("reiser4", Filesystem, 64 * KIB, b"ReIsEr4"),
    magic("gfs2", Filesystem, 64 * KIB, &[0x01, 0x16, 0x19, 0x70]),
    magic("ocfs2", Filesystem, KIB, b"OCFSV2"),
    magic("ocfs2", Filesystem, 2 * KIB, b"OCFSV2"),
    magic("ocfs2", Filesystem, 4 * KIB, b"OCFSV2"),
    magic("ocfs2", Filesystem, 8 * KIB, b"OCFSV2"),
    magic("ufs", Filesystem, 64 * KIB + 1372, &[0x19, 0x01, 0x54, 0x19]),
    magic("ufs", Filesystem, 8 * KIB + 1372, &[0x54, 0x19, 0x01, 0x00]),
    magic("ufs", Filesystem, 64 * KIB + 1372, &[0x54, 0x19, 0x01, 0x00]),
    magic("apfs", Filesystem, 32, b"NXSB"),
    magic("bfs", Filesystem, 0, &[0xce, 0xfa, 0xad, 0x1b]),
    magic("befs", Filesystem, 32, b"1SFB"),
    magic("befs", Filesystem, 512 + 32, b"1SFB"),
    magic("vxfs", Filesystem, KIB, &[0xf5, 0xfc, 0x01, 0xa5]),
    magic("vxfs", Filesystem, 8 * KIB, &[0xa5, 0x01, 0xfc, 0xf5]),
    magic("hpfs", Filesystem, 8 * KIB, &[0x49, 0xe8, 0x95, 0xf9]),
    magic("nss", Filesystem, 4 * KIB, b"SPB5"),
    magic("zonefs", Filesystem, 0, b"SFOZ"),
    magic("cramfs", Filesystem, 0, &[0x28, 0xcd, 0x3d, 0x45]),
    magic("ubifs", Filesystem, 0, &[0x31, 0x18, 0x10, 0x06]),
    magic("exfs", Filesystem, 0, b"EXFS"),
    magic("VMFS", Filesystem, 2048 * KIB, &[0x5e, 0xf1, 0xab, 0x2f]),
    magic("bcachefs", Filesystem, 4 * KIB + 24, b"\xc6\x85\x73\xf6\x66\xce\x90\xa9"),
    magic("bcache", Container, 4 * KIB + 24, b"\xc6\x85\x73\xf6\x4e\x1a\x45\xca"),
    magic("crypto_LUKS", Container, 0, b"LUKS\xba\xbe"),
    // The second header of LUKS2, for each size of the first.
    magic("crypto_LUKS", Container, 16 * KIB, b"SKUL\xba\xbe"),
    magic("crypto_LUKS", Container, 32 * KIB, b"SKUL\xba\xbe"),
    magic("crypto_LUKS", Container, 64 * KIB, b"SKUL\xba\xbe"),
    magic("crypto_LUKS", Container, 128 * KIB, b"SKUL\xba\xbe"),
    magic("crypto_LUKS", Container, 256 * KIB, b"SKUL\xba\xbe"),
    magic("crypto_LUKS", Container, 512 * KIB, b"SKUL\xba\xbe"),
    magic("crypto_LUKS", Container, 1024 * KIB, b"SKUL\xba\xbe"),
    magic("crypto_LUKS", Container, 2048 * KIB, b"SKUL\xba\xbe"),
    magic("crypto_LUKS", Container, 4096 * KIB, b"SKUL\xba\xbe"),
    magic("BitLocker", Container, 3, b"-FVE-FS-"),
    // Physical volume labels can be in any of the first four sectors.
    magic("LVM2_member", Container, 24, b"LVM2 001"),
    magic("LVM2_member", Container, 512 + 24, b"LVM2 001"),
    magic("LVM2_member", Container, 1024 + 24, b"LVM2 001"),
    magic("LVM2_member", Container, 1536 + 24, b"LVM2 001"),
    // Versions 1.1 and 1.2; those at the end of the device are in `at_the_end`.
    magic("linux_raid_member", Container, 0, b"\xfc\x4e\x2b\xa9\x01\0\0\0"),
    magic("linux_raid_member", Container, 4 * KIB, b"\xfc\x4e\x2b\xa9\x01\0\0\0"),
    magic("swap", Container, 4 * KIB - 10, b"SWAPSPACE2"),
    magic("swap", Container, 8 * KIB - 10, b"SWAPSPACE2"),
    magic("swap", Container, 16 * KIB - 10, b"SWAPSPACE2"),
    magic("swap", Container, 64 * KIB - 10, b"SWAPSPACE2"),
    magic("swap", Container, 4 * KIB - 10, b"SWAP-SPACE"),
    magic("swap", Container, 8 * KIB - 10, b"SWAP-SPACE"),
    magic("swap", Container, 64 * KIB - 10, b"SWAP-SPACE"),
    magic("swap", Container, 32 * KIB - 10, b"SWAPSPACE2"),
    magic("swsuspend", Container, 4 * KIB - 10, b"S1SUSPEND"),
    magic("swsuspend", Container, 4 * KIB - 10, b"S2SUSPEND"),
    magic("swsuspend", Container, 4 * KIB - 10, b"ULSUSPEND"),
    magic("swsuspend", Container, 4 * KIB - 10, b"LINHIB0001"),
    magic("swsuspend", Container, 0, &[0xed, 0xc3, 0x02, 0xe9, 0x98, 0x56, 0xe5, 0x0c]),
    magic("ubi", Container, 0, b"UBI#"),
    magic("drbdmanage_control_volume", Container, 0, b"$DRBDmgr=q"),
    magic("drbdproxy_datalog", Container, 16, b"DRBDdlh*"),
    magic("hpt37x_raid_member", Container, 4608 + 32, &[0xf0, 0x16, 0x78, 0x5a]),
    magic("hpt37x_raid_member", Container, 4608 + 32, &[0xfd, 0x16, 0x78, 0x5a]),
    magic("cs_fvault2", Container, 88, &[0x43, 0x53, 0x01, 0x00]),
    magic("vdo", Container, 0, b"dmvdo001"),
    magic("stratis", Container, 516, b"!Stra0tis"),
    magic("ceph_bluestore", Container, 0, b"bluestore block device"),
    magic("DM_verity_hash", Container, 0, b"verity\0\0"),
    magic("DM_integrity", Container, 0, b"integrt\0"),
    magic("DM_snapshot_cow", Container, 0, b"SnAp"),
    magic("oracleasm", Container, 32, b"ORCLDISK"),
    magic("VMFS_volume_member", Container, 1024 * KIB, &[0x0d, 0xd0, 0x01, 0xc0]),
    magic("gpt", PartitionTable, 512, b"EFI PART"),
    magic("gpt", PartitionTable, 4 * KIB, b"EFI PART"),
    magic("bsd", PartitionTable, 512, &[0x57, 0x45, 0x56, 0x82]),
    magic("sgi", PartitionTable, 0, &[0x0b, 0xe5, 0xa9, 0x41]),
];

/// Magic numbers so short that a superblock of something else can contain them by chance. They count only
/// if nothing else is found; the device is not formatted in either case.
const SHORT_MAGICS: &[Magic] = &[
    magic("nilfs2", Filesystem, KIB + 6, &[0x34, 0x34]),
    magic("minix", Filesystem, KIB + 16, &[0x7f, 0x13]),
    magic("minix", Filesystem, KIB + 16, &[0x8f, 0x13]),
    magic("minix", Filesystem, KIB + 16, &[0x68, 0x24]),
    magic("minix", Filesystem, KIB + 16, &[0x78, 0x24]),
    magic("minix", Filesystem, KIB + 24, &[0x5a, 0x4d]),
    magic("hfs", Filesystem, KIB, b"BD"),
    magic("lvm1_member", Container, 0, b"HM\x01\0"),
    magic("lvm1_member", Container, 0, b"HM\x02\0"),
    magic("sun", PartitionTable, 508, &[0xda, 0xbe]),
    magic("mac", PartitionTable, 512, b"PM\0\0"),
];

/// Every magic number found, with its place.
pub(super) fn at_the_start(windows: &Windows) -> impl Iterator<Item = (&'static Magic, u64)> {
    MAGICS
        .iter()
        .filter(|magic| windows.has(magic.offset, magic.bytes))
        .map(|magic| (magic, magic.offset))
        .chain(zfs(windows))
        .chain(udf(windows))
}

/// A short magic number, for a device on which nothing else is found.
pub(super) fn short(windows: &Windows) -> Option<(&'static Magic, u64)> {
    // The second superblock of NILFS is in the last block.
    let last = (windows.size & !4095).saturating_sub(4096);
    SHORT_MAGICS.iter().flat_map(|magic| [(magic, magic.offset), (magic, last + magic.offset % KIB)]).find(
        |(magic, place)| {
            (*place == magic.offset || magic.name == "nilfs2") && windows.has(*place, magic.bytes)
        },
    )
}

/// UDF's descriptor is part of a sequence that also begins ISO 9660, in blocks of 2 or 4 KiB.
fn udf(windows: &Windows) -> Option<(&'static Magic, u64)> {
    static UDF: Magic = magic("udf", Filesystem, 0, &[]);
    [2 * KIB, 4 * KIB]
        .into_iter()
        .flat_map(|block| (0..16).map(move |index| 32 * KIB + index * block + 1))
        .find(|place| windows.has(*place, b"NSR02") || windows.has(*place, b"NSR03"))
        .map(|place| (&UDF, place))
}

/// ZFS has a ring of uberblocks in each label; one uberblock is enough. The first and the last label are
/// always checked. The two between matter only if both of those are lost, and are checked once all of the
/// ends is read.
fn zfs(windows: &Windows) -> Option<(&'static Magic, u64)> {
    static ZFS: Magic = magic("zfs_member", Container, 0, &[]);
    // Two labels at the start and two at the end.
    let end = (windows.size & !(256 * KIB - 1)).saturating_sub(512 * KIB);
    let is_first_or_last = |label: u64| label == 0 || label == end + 256 * KIB;
    [0, 256 * KIB, end, end + 256 * KIB]
        .into_iter()
        .filter(|label| is_first_or_last(*label) || windows.reach(label + 128 * KIB))
        .flat_map(|label| (0..128u64).map(move |slot| label + (128 + slot) * KIB))
        .find(|place| {
            windows.has(*place, &[0x0c, 0xb1, 0xba, 0, 0, 0, 0, 0])
                || windows.has(*place, &[0, 0, 0, 0, 0, 0xba, 0xb1, 0x0c])
        })
        .map(|place| (&ZFS, place))
}

/// Containers with their superblock at the end: the start can look like what they contain.
pub(super) fn at_the_end(windows: &Windows) -> Vec<(&'static str, u64)> {
    let size = windows.size;
    let version_1_0 = (size & !4095).saturating_sub(8 * KIB);
    let version_0_9 = (size & !(64 * KIB - 1)).saturating_sub(64 * KIB);
    let drbd = (size & !4095).saturating_sub(4096);
    let magics: [(&'static str, u64, &[u8]); 8] = [
        ("linux_raid_member", version_1_0, b"\xfc\x4e\x2b\xa9\x01\0\0\0"),
        ("linux_raid_member", version_0_9, b"\xfc\x4e\x2b\xa9\0\0\0\0"),
        ("linux_raid_member", version_0_9, b"\xa9\x2b\x4e\xfc\0\0\0\0"),
        ("isw_raid_member", size.saturating_sub(1024), b"Intel Raid ISM Cfg Sig. "),
        ("ddf_raid_member", size.saturating_sub(512), b"\xde\x11\xde\x11"),
        ("drbd", drbd + 60, b"\x83\x74\x02\x6b"),
        ("drbd", drbd + 60, b"\x83\x74\x02\x6c"),
        ("drbd", drbd + 60, b"\x83\x74\x02\x6d"),
    ];
    magics
        .into_iter()
        .filter(|(_, place, bytes)| windows.has(*place, bytes))
        .map(|(name, place, _)| (name, place))
        .collect()
}

/// The second header of a GPT, in the last sector.
pub(super) fn gpt_backup(windows: &Windows) -> Option<u64> {
    [512, 4096]
        .map(|sector| windows.size.saturating_sub(sector))
        .into_iter()
        .find(|at| windows.has(*at, b"EFI PART"))
}

/// What a boot sector's signature (`55 AA`) stands for.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum BootSector {
    Absent,
    /// No partition in it: an empty table, or only a boot loader.
    Empty,
    /// A table with partitions.
    Partitions,
}

/// Reads the master boot record.
pub(super) fn boot_sector(windows: &Windows) -> BootSector {
    let Some(sector) = windows.bytes(0, 512) else { return BootSector::Absent };
    if sector[510..] != [0x55, 0xaa] {
        return BootSector::Absent;
    }
    let mut entries = sector[446..510].chunks(16);
    let valid = sector[446..510].chunks(16).all(|entry| entry[0] & 0x7f == 0);
    let any = entries.any(|entry| entry[4] != 0 && entry[12..] != [0; 4]);
    if valid && any { BootSector::Partitions } else { BootSector::Empty }
}

/// Says which spare superblock the data between the ends looks like.
pub(super) fn spare_superblock(windows: &Windows, nonzero: u64) -> Option<&'static str> {
    // Spare superblocks begin at a block of at least 1 KiB; the first bytes of an ext superblock can be
    // zero.
    let block = nonzero & !(KIB - 1);
    if windows.has(block, b"XFSB") {
        return Some("a spare superblock of xfs");
    }
    if windows.has(block + 0x40, b"_BHRfS_M") {
        return Some("a spare superblock of btrfs");
    }
    windows.has(block + 56, &[0x53, 0xef]).then_some("a spare superblock of ext2, ext3 or ext4")
}
