//! The images of the corpus: what each tool writes, magic numbers alone, and changes to these images.

use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::process::{Command, Stdio};

use csi_mount::LoopOptions;

use crate::devices::{Image, MIB, is_zero};

/// An image as its tool wrote it.
pub(crate) struct Base {
    pub(crate) name: String,
    pub(crate) bytes: Vec<u8>,
}

/// A change to an image.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Change {
    None,
    /// Truncated to one half, rounded up to a MiB.
    Truncated,
    FirstHalfZero,
    SecondHalfZero,
    /// Only the first 64 KiB are zero, as after a short `dd`.
    StartZero,
    /// Moved by one sector, by one block, or by 1 MiB as if into a partition.
    BySector,
    ByBlock,
    ByMebibyte,
    /// In a partition, with a partition table that names it.
    InPartition,
    /// On a larger device.
    OnLargerDevice,
}

impl Change {
    pub(crate) const ALL: [Self; 10] = [
        Self::None,
        Self::Truncated,
        Self::FirstHalfZero,
        Self::SecondHalfZero,
        Self::StartZero,
        Self::BySector,
        Self::ByBlock,
        Self::ByMebibyte,
        Self::InPartition,
        Self::OnLargerDevice,
    ];

    /// Returns the changed image, or `None` if the change is not possible for it.
    pub(crate) fn apply(self, bytes: &[u8]) -> Option<Image> {
        let half = bytes.len() / 2;
        let mebibyte = MIB as usize;
        let (mut bytes, shift, more) = match self {
            Self::None => (bytes.to_vec(), 0, 0),
            Self::Truncated if bytes.len() >= 2 * mebibyte => {
                (bytes[..half.next_multiple_of(mebibyte)].to_vec(), 0, 0)
            }
            Self::Truncated => return None,
            Self::FirstHalfZero => ([&vec![0; half], &bytes[half..]].concat(), 0, 0),
            Self::SecondHalfZero => ([&bytes[..half], &vec![0; bytes.len() - half]].concat(), 0, 0),
            Self::StartZero => {
                let zeros = bytes.len().min(64 * 1024);
                ([&vec![0; zeros], &bytes[zeros..]].concat(), 0, 0)
            }
            Self::BySector => (bytes.to_vec(), 512, mebibyte),
            Self::ByBlock => (bytes.to_vec(), 4096, mebibyte),
            Self::ByMebibyte | Self::InPartition => (bytes.to_vec(), mebibyte, mebibyte),
            Self::OnLargerDevice => (bytes.to_vec(), 0, 8 * mebibyte),
        };
        bytes.splice(..0, std::iter::repeat_n(0, shift));
        bytes.resize(bytes.len() - shift + more.max(shift), 0);
        if let Self::InPartition = self {
            let sectors = u32::try_from(bytes.len() / 512 - 2048).unwrap();
            bytes[446..462].copy_from_slice(&[0x80, 0, 2, 0, 0x83, 0, 0, 0, 0, 8, 0, 0, 0, 0, 0, 0]);
            bytes[458..462].copy_from_slice(&sectors.to_le_bytes());
            bytes[510..512].copy_from_slice(&[0x55, 0xaa]);
        }
        let image = Image::of_bytes(bytes.len() as u64, &LoopOptions::new());
        write_sparse(&image, &bytes);
        Some(image)
    }
}

fn write_sparse(image: &Image, bytes: &[u8]) {
    let device = fs::OpenOptions::new().write(true).open(image.path()).unwrap();
    for (index, block) in bytes.chunks(1 << 16).enumerate() {
        if !is_zero(block) {
            device.write_all_at(block, (index << 16) as u64).unwrap();
        }
    }
    device.sync_all().unwrap();
}

/// A name, the size in MiB, and a tool with its arguments. `@` stands for the image.
type Tool = (&'static str, u64, &'static str);

/// The tools that every machine with these tests has.
const TOOLS: &[Tool] = &[
    ("ext2", 8, "mkfs.ext2 -q -F @"),
    ("ext3", 16, "mkfs.ext3 -q -F @"),
    ("ext4", 16, "mkfs.ext4 -q -F @"),
    ("ext4 of 1 KiB blocks", 8, "mkfs.ext4 -q -F -b 1024 -O ^has_journal @"),
    ("ext4 of 4 KiB blocks", 32, "mkfs.ext4 -q -F -b 4096 @"),
    ("ext journal", 16, "mkfs.ext4 -q -F -O journal_dev @"),
    ("xfs", 32, "mkfs.xfs -q --unsupported @"),
    ("btrfs", 16, "mkfs.btrfs -q --mixed @"),
    ("vfat 12", 2, "mkfs.vfat -F 12 @"),
    ("vfat 16", 16, "mkfs.vfat -F 16 @"),
    ("vfat 32", 34, "mkfs.vfat -F 32 @"),
    ("swap", 8, "mkswap -q @"),
    ("swap of 64 KiB pages", 8, "mkswap -q -p 65536 @"),
    ("minix", 4, "mkfs.minix @"),
    ("minix 3", 4, "mkfs.minix -3 @"),
    ("bfs", 4, "mkfs.bfs @"),
    ("cramfs", 4, "mkfs.cramfs /etc/apt @"),
];

/// The tools that must be installed first.
const MORE_TOOLS: &[Tool] = &[
    ("dos table", 16, "sh -c echo ,,L|sfdisk -q --label dos @"),
    ("empty dos table", 16, "parted -s @ mklabel msdos"),
    ("gpt", 16, "sh -c echo ,,L|sfdisk -q --label gpt @"),
    ("empty gpt", 16, "parted -s @ mklabel gpt"),
    ("sgi table", 16, "parted -s @ mklabel dvh"),
    ("sun table", 16, "parted -s @ mklabel sun"),
    ("mac table", 16, "parted -s @ mklabel mac"),
    ("bsd table", 16, "parted -s @ mklabel bsd"),
    ("xfs of the least size", 300, "mkfs.xfs -q @"),
    ("btrfs of the least size", 110, "mkfs.btrfs -q @"),
    ("f2fs", 64, "mkfs.f2fs -q @"),
    ("ntfs", 16, "mkntfs -q -F -f @"),
    ("exfat", 16, "mkfs.exfat @"),
    ("udf", 16, "mkudffs --media-type=hd --blocksize=512 @"),
    ("udf of 2 KiB blocks", 16, "mkudffs --media-type=hd --blocksize=2048 @"),
    ("squashfs", 4, "mksquashfs /etc/apt @ -noappend -quiet -no-progress"),
    ("erofs", 4, "mkfs.erofs --quiet @ /etc/apt"),
    ("jfs", 16, "mkfs.jfs -q @"),
    ("nilfs2", 130, "mkfs.nilfs2 -q -f @"),
    ("reiserfs", 64, "mkfs.reiserfs -q -f -f @"),
    ("iso9660", 4, "genisoimage -quiet -o @ /etc/apt"),
    ("romfs", 4, "genromfs -f @ -d /etc/apt"),
    ("luks 1", 16, "sh -c echo key|cryptsetup luksFormat -q --type luks1 --pbkdf-force-iterations 1000 @ -"),
    (
        "luks 2",
        32,
        "sh -c echo key|cryptsetup luksFormat -q --pbkdf pbkdf2 --pbkdf-force-iterations 1000 @ -",
    ),
];

/// The tools that need a block device.
const DEVICE_TOOLS: &[Tool] =
    &[("lvm2", 16, "pvcreate -q -y --devices @ @"), ("bcache", 16, "make-bcache -B @")];

/// A position and the magic number there.
type Number = (i64, &'static [u8]);

/// Magic numbers alone, for formats that no tool here writes: a name, the size in MiB, and each number with
/// its position. A negative position counts from the end.
const WRITTEN: &[(&str, u64, &[Number])] = &[
    ("md 1.1 by hand", 16, &[(0, b"\xfc\x4e\x2b\xa9\x01\0\0\0")]),
    ("md 1.2 by hand", 16, &[(4096, b"\xfc\x4e\x2b\xa9\x01\0\0\0")]),
    (
        "zfs by hand",
        16,
        &[
            (135_168, &[0x0c, 0xb1, 0xba, 0, 0, 0, 0, 0]),
            (136_192, &[0x0c, 0xb1, 0xba, 0, 0, 0, 0, 0]),
            (137_216, &[0x0c, 0xb1, 0xba, 0, 0, 0, 0, 0]),
            (138_240, &[0x0c, 0xb1, 0xba, 0, 0, 0, 0, 0]),
        ],
    ),
    ("bluestore by hand", 16, &[(0, b"bluestore block device\n")]),
    ("vmfs by hand", 16, &[(2 << 20, &[0x5e, 0xf1, 0xab, 0x2f])]),
    ("vmfs member by hand", 16, &[(1 << 20, &[0x0d, 0xd0, 0x01, 0xc0])]),
    ("drbd by hand", 16, &[(-4096 + 60, b"\x83\x74\x02\x6b")]),
    ("hfs+ by hand", 16, &[(1024, b"H+\0\x04")]),
    ("romfs by hand", 4, &[(0, b"-rom1fs-")]),
    ("squashfs by hand", 4, &[(0, b"hsqs"), (28, &[4])]),
    ("gfs2 by hand", 16, &[(65_536, &[1, 0x16, 0x19, 0x70])]),
    ("ocfs2 by hand", 16, &[(4096, b"OCFSV2")]),
    ("isw raid by hand", 16, &[(-1024, b"Intel Raid ISM Cfg Sig. ")]),
    ("stratis by hand", 16, &[(516, b"!Stra0tis\x86\xff\x02^\x41rh")]),
    ("gpt at the end by hand", 16, &[(-512, b"EFI PART")]),
    ("luks header by hand", 16, &[(0, b"LUKS\xba\xbe\0\x01")]),
    ("boot sector by hand", 16, &[(510, &[0x55, 0xaa])]),
    ("text", 4, &[(0, b"This disk is in use.")]),
    ("text in the middle of the last MiB", 16, &[(-500_000, b"This disk is in use.")]),
];

/// Returns every image. Those of tools that must be installed are included only if `all` is set.
pub(crate) fn bases(all: bool) -> impl Iterator<Item = Base> {
    let tools = TOOLS.iter().chain(if all { MORE_TOOLS } else { &[] });
    let made = tools.map(|tool| Base { name: tool.0.to_owned(), bytes: on_file(tool) });
    let on_devices = if all { DEVICE_TOOLS } else { &[] }.iter();
    let on_devices = on_devices.map(|tool| Base { name: tool.0.to_owned(), bytes: on_device(tool) });
    let raids = if all { &["0.90", "1.0", "1.1", "1.2"][..] } else { &[] }.iter().map(|version| md(version));
    let written = WRITTEN.iter().map(|(name, mebibytes, numbers)| {
        let mut bytes = vec![0; (mebibytes * MIB) as usize];
        for (place, number) in *numbers {
            let place =
                usize::try_from(*place).unwrap_or_else(|_| bytes.len() - place.unsigned_abs() as usize);
            bytes[place..place + number.len()].copy_from_slice(number);
        }
        Base { name: (*name).to_owned(), bytes }
    });
    made.chain(on_devices).chain(raids).chain(written)
}

fn on_file((_, mebibytes, line): &Tool) -> Vec<u8> {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("image");
    let size = mebibytes * MIB;
    File::create(&file).unwrap().set_len(size).unwrap();
    run_line(line, &file);
    let mut bytes = fs::read(&file).unwrap();
    // Some tools extend the file to the size that they need.
    bytes.resize(bytes.len().max(size as usize).next_multiple_of(4096), 0);
    bytes
}

fn on_device((_, mebibytes, line): &Tool) -> Vec<u8> {
    let image = Image::new(*mebibytes);
    run_line(line, image.path());
    File::open(image.path()).unwrap().sync_all().unwrap();
    fs::read(image.file()).unwrap()
}

/// Builds a RAID 1 superblock without the kernel's RAID driver, with the checksum that libblkid requires.
fn md(version: &str) -> Base {
    let size = 16 * MIB as usize;
    let mut bytes = vec![0; size];
    let name = format!("md {version}");
    if version == "0.90" {
        let place = (size & !0xffff) - 0x10000;
        let words: [u32; 8] = [0xa92b_4efc, 0, 90, 0, 0, 1, 2, 3];
        for (index, word) in words.into_iter().enumerate() {
            bytes[place + index * 4..place + index * 4 + 4].copy_from_slice(&word.to_le_bytes());
        }
        return Base { name, bytes };
    }
    let place = match version {
        "1.0" => (size & !4095) - 8192,
        "1.1" => 0,
        _ => 4096,
    };
    let block = &mut bytes[place..place + 256];
    block[..8].copy_from_slice(b"\xfc\x4e\x2b\xa9\x01\0\0\0");
    block[16..32].copy_from_slice(&[7; 16]);
    block[32..37].copy_from_slice(b"md:md");
    // The position of the superblock itself, in sectors.
    block[144..152].copy_from_slice(&(place as u64 / 512).to_le_bytes());
    let sum: u64 = block.chunks(4).map(|word| u64::from(u32::from_le_bytes(word.try_into().unwrap()))).sum();
    let folded = (sum & 0xffff_ffff) + (sum >> 32);
    block[216..220].copy_from_slice(&u32::try_from(folded & 0xffff_ffff).unwrap().to_le_bytes());
    Base { name, bytes }
}

fn run_line(line: &str, image: &Path) {
    let line = line.replace('@', image.to_str().unwrap());
    let mut words = line.split(' ');
    let program = words.next().unwrap();
    let mut command = Command::new(program);
    if program == "sh" {
        command.arg("-c").arg(line.split_once(" -c ").unwrap().1);
    } else {
        command.args(words);
    }
    let output = command
        .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
        .stdin(Stdio::null())
        .output()
        .unwrap_or_else(|error| panic!("{program} is needed here: {error}"));
    assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
}
