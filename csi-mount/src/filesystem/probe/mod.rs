//! What a block device holds, and the proof that it holds nothing.

mod holes;
mod interrupted;
pub(crate) mod places;
mod reader;
mod signature;
mod superblock;
mod table;
mod windows;

use std::fmt;
use std::io;
use std::ops::{ControlFlow, Range};
use std::os::fd::AsFd as _;

pub use self::interrupted::InterruptedFormat;
use self::places::ALIGN;
pub(crate) use self::places::ends;
pub(crate) use self::reader::{Reader, Unread, first_nonzero};
pub use self::signature::{Progress, Signature};
use self::table::{BootSector, Category};
use self::windows::Windows;
use crate::device::block_device::BlockDevice;
use crate::error::{Error, ErrorKind};
use crate::filesystem::kind::Filesystem;
use crate::sys::ioctl;

/// What `BlockDevice::probe` found on a device.
///
/// `Display` says what was found and where.
#[derive(Debug)]
#[non_exhaustive]
#[must_use]
pub enum Probe<'d> {
    /// Nothing: every byte that was read is zero, and no read failed. This lets the device be formatted.
    ///
    /// A device of up to 128 MiB is read in full. So is, for a loop device, everything that is not a hole
    /// of the file beneath. Any other device is read as a sample: `probe` says what
    /// is read. If everything else is zero, an extent of data is missed at this share of its possible
    /// positions:
    ///
    /// | extent | 1 GiB | 10 GiB | 100 GiB | 1 TiB |
    /// |---|---|---|---|---|
    /// | 4 KiB | 97.5 % | 99.7 % | 99.98 % | 99.998 % |
    /// | 1 MiB | 0 | 60.7 % | 95.9 % | 99.6 % |
    /// | 64 MiB | 0 | 0 | 0 | 75.1 % |
    ///
    /// A driver that knows that a volume has content can forbid formatting:
    /// [`StagePlan::never_format`](crate::flow::block::StagePlan::never_format).
    Blank(BlankProof<'d>),
    /// One filesystem.
    Filesystem(Signature),
    /// A partition table, possibly without partitions.
    PartitionTable(Signature),
    /// Something that another layer uses: LUKS, LVM, RAID, bcache, swap.
    Container(Signature),
    /// More than one of these, so it is unknown which one is valid.
    Ambiguous(Vec<Signature>),
    /// Data that the prober does not recognize.
    UnknownData {
        /// The place of the first byte found that is not zero.
        offset: u64,
        /// What it can be, if it has the form of a spare superblock.
        looks_like: Option<&'static str>,
    },
    /// Only what an interrupted format of this crate left on the blank device. The format can be started
    /// again.
    Interrupted(InterruptedFormat<'d>),
    /// A part could not be read, so nothing is known.
    Unreadable {
        /// Where the read failed.
        offset: u64,
        /// Why.
        error: io::Error,
    },
}

/// Proof that a device was blank, except for what an interrupted format left.
/// `Format::run` consumes it.
///
/// It is tied to the open device, can't be copied, and only `BlockDevice::probe` makes one:
///
/// ```compile_fail,E0382
/// fn twice(proof: csi_mount::internal::BlankProof<'_>) {
///     let format = csi_mount::internal::Format::new(csi_mount::Filesystem::Ext4);
///     let _ = format.run(proof);
///     let _ = format.run(proof);
/// }
/// ```
///
/// ```compile_fail,E0451
/// fn from_nothing(device: &csi_mount::BlockDevice) -> csi_mount::internal::BlankProof<'_> {
///     csi_mount::internal::BlankProof { device }
/// }
/// ```
#[derive(Debug)]
#[must_use]
pub struct BlankProof<'d> {
    device: &'d BlockDevice,
}

impl<'d> BlankProof<'d> {
    /// The device that was blank.
    pub fn device(&self) -> &'d BlockDevice {
        self.device
    }

    #[cfg(test)]
    pub(crate) fn for_test(device: &'d BlockDevice) -> Self {
        Self { device }
    }
}

impl BlockDevice {
    /// Reads what the device holds.
    ///
    /// The places where a magic number can be are read first: about 400 KiB at both ends. A signature found
    /// there is enough to name the device's content. If there is none, more is read, and the device is
    /// [`Blank`](Probe::Blank) only if all of it is zero:
    ///
    /// - A loop device over a file with up to 128 MiB of data: everything that is not a hole (`SEEK_DATA`).
    ///   The file must be on ext4, XFS, btrfs or tmpfs and reachable by the path that the kernel names, and
    ///   the device must be a whole device, not a partition.
    /// - A device of up to 128 MiB: everything.
    /// - Any other device: the first and the last 4 MiB, windows where filesystems keep spare superblocks,
    ///   and 4,096 blocks of 4 KiB spread over the rest, one in each 4,096th of it at a pseudorandom place.
    ///   Reading these blocks stops after 250 ms, which only a slow disk reaches, but not before 512 of
    ///   them are read. Data that lies only between these places is missed.
    ///
    /// Everything is read past the page cache, many reads at a time. The places are the same each time for
    /// a device of the same size.
    ///
    /// Data is [`Interrupted`](Probe::Interrupted) if a record of `Format::run` is on
    /// the device, and everything that is read, and everything that this format writes, is zero or what the
    /// record says that it wrote.
    ///
    /// The probe does not use libblkid, whose "nothing found" also stands for a device that can't be read.
    pub(crate) fn probe(&self) -> Probe<'_> {
        match look(self) {
            Ok(probe) => probe,
            Err(Unread { offset, error }) => Probe::Unreadable { offset, error },
        }
    }
}

fn look(device: &BlockDevice) -> Result<Probe<'_>, Unread> {
    let mut reader = Reader::new(device)?;
    let mut ends = Windows::new(reader.size()?);
    let found = content(device, &mut reader, &mut ends)?;
    match interrupted::record(&ends) {
        Some(record) => interrupted::classify(device, record, found),
        None => Ok(found),
    }
}

/// What the device holds, whatever a record says about it.
fn content<'d>(
    device: &'d BlockDevice,
    reader: &mut Reader<'_>,
    ends: &mut Windows,
) -> Result<Probe<'d>, Unread> {
    let size = ends.size;
    read(reader, ends, places::named(size))?;
    let data = match recognise(ends) {
        // Without a signature the device can hold unknown data or be blank: the rest of the ends decides.
        None | Some(Probe::UnknownData { .. }) => holes::data(device, size),
        Some(found) => return Ok(found),
    };
    let rest = places::ends_without_named(size);
    match &data {
        None => read(reader, ends, rest)?,
        Some(data) => {
            read(reader, ends, windows::common(&rest, data))?;
            ends.are_zero(rest);
        }
    }
    if let Some(found) = recognise(ends) {
        return Ok(found);
    }
    for group in groups(size, data) {
        let found = reader.each(group, |start, bytes| match reader::first_nonzero(bytes) {
            Some(first) => ControlFlow::Break((start + first as u64, Windows::one(size, start, bytes))),
            None => ControlFlow::Continue(()),
        })?;
        if let Some((offset, window)) = found {
            let looks_like = table::spare_superblock(&window, offset);
            return Ok(Probe::UnknownData { offset, looks_like });
        }
    }
    Ok(Probe::Blank(BlankProof { device }))
}

fn read(reader: &mut Reader<'_>, ends: &mut Windows, parts: Vec<Range<u64>>) -> Result<(), Unread> {
    reader.each(parts, |start, bytes| {
        ends.add(start, bytes);
        ControlFlow::<()>::Continue(())
    })?;
    Ok(())
}

/// The parts between the ends to read, in groups: where the data is if that is known, else places all over
/// the device.
fn groups(size: u64, data: Option<Vec<Range<u64>>>) -> impl Iterator<Item = Vec<Range<u64>>> {
    let (known, places) = match data {
        Some(data) => (Some(data), None),
        None => (None, Some(places::between(size))),
    };
    known.into_iter().chain(places.into_iter().flatten())
}

/// Passes every block of 4 KiB that a probe reads and that is not zero to `show`, with its place, until
/// `show` breaks. The last block of the device can be shorter.
pub(crate) fn nonzero_blocks<B>(
    device: &BlockDevice,
    mut show: impl FnMut(u64, &[u8]) -> ControlFlow<B>,
) -> Result<Option<B>, Unread> {
    let mut reader = Reader::new(device)?;
    let size = reader.size()?;
    let groups = match holes::data(device, size) {
        Some(data) => groups(size, Some(data)).chain(None),
        None => groups(size, None).chain(Some(ends(size).to_vec())),
    };
    for group in groups {
        let found = reader.each(group, |start, bytes| {
            let blocks = (start..).step_by(ALIGN as usize).zip(bytes.chunks(ALIGN as usize));
            let mut nonzero = blocks.filter(|(_, block)| reader::first_nonzero(block).is_some());
            nonzero.try_for_each(|(place, block)| show(place, block))
        })?;
        if found.is_some() {
            return Ok(found);
        }
    }
    Ok(None)
}

/// Reads the blocks at these places past the page cache. The error names the first place that can't be
/// read.
pub(crate) fn blocks(
    device: &BlockDevice,
    places: impl Iterator<Item = u64>,
) -> Result<Vec<(u64, Vec<u8>)>, Unread> {
    Reader::new(device)?.all(places.map(|place| place..place + ALIGN))
}

/// The ranges that a probe of the device reads, in its order.
#[cfg(any(test, feature = "testing"))]
pub fn probe_reads(device: &BlockDevice) -> Vec<Range<u64>> {
    reader::recorded(|| drop(device.probe()))
}

/// What is at the ends of the device; none if they are zero.
fn recognise<'d>(ends: &Windows) -> Option<Probe<'d>> {
    let offset = ends.first_nonzero()?;
    let mut found = signatures(ends);
    // The content of a member belongs to its volume, and can look like a filesystem of its own.
    if found.iter().any(|(_, signature)| IS_MEMBER.contains(&signature.name)) {
        found.retain(|(_, signature)| IS_MEMBER.contains(&signature.name));
    }
    Some(match (found.len(), found.pop()) {
        (1, Some((Category::Filesystem, only))) => Probe::Filesystem(only),
        (1, Some((Category::PartitionTable, only))) => Probe::PartitionTable(only),
        (1, Some((Category::Container, only))) => Probe::Container(only),
        (_, Some(last)) => {
            found.push(last);
            Probe::Ambiguous(found.into_iter().map(|(_, signature)| signature).collect())
        }
        (_, None) => Probe::UnknownData { offset, looks_like: None },
    })
}

/// Members of multi-disk volumes. They take precedence over what they contain, as in libblkid.
const IS_MEMBER: [&str; 7] = [
    "linux_raid_member",
    "isw_raid_member",
    "ddf_raid_member",
    "hpt37x_raid_member",
    "LVM2_member",
    "bcache",
    "drbd",
];

fn signatures(ends: &Windows) -> Vec<(Category, Signature)> {
    let known = [superblock::ext(ends), superblock::xfs(ends), superblock::btrfs(ends)];
    let mut found: Vec<(Category, Signature)> = known
        .into_iter()
        .flatten()
        .map(|signature| match signature.name {
            "jbd" => (Category::Container, signature),
            _ => (Category::Filesystem, signature),
        })
        .collect();
    let start = table::at_the_start(ends).map(|(magic, at)| (magic.category, magic.name, at));
    let end = table::at_the_end(ends).into_iter().map(|(name, at)| (Category::Container, name, at));
    for (category, name, offset) in start.chain(end) {
        // One format can have several magic numbers: copies, or one for each sector size.
        if found.iter().all(|(_, known)| known.name != name) {
            found.push((category, Signature::new(name, offset)));
        }
    }
    if let (true, Some((magic, offset))) = (found.is_empty(), table::short(ends)) {
        found.push((magic.category, Signature::new(magic.name, offset)));
    }
    // Next to other content, a spare GPT at the end is only a remnant. GPT has a boot record of its own.
    if let (true, Some(offset)) = (found.is_empty(), table::gpt_backup(ends)) {
        found.push((Category::PartitionTable, Signature::new("gpt", offset)));
    }
    let has_own_boot_sector =
        |name: &str| ["gpt", "vfat", "exfat", "ntfs", "ReFS", "BitLocker"].contains(&name);
    match table::boot_sector(ends) {
        _ if found.iter().any(|(_, known)| has_own_boot_sector(known.name)) => {}
        BootSector::Partitions => found.push((Category::PartitionTable, Signature::new("dos", 510))),
        BootSector::Empty if found.is_empty() => {
            found.push((Category::PartitionTable, Signature::new("dos", 510)));
        }
        BootSector::Empty | BootSector::Absent => {}
    }
    found
}

impl Probe<'_> {
    /// The filesystem found, if this crate makes and mounts it.
    pub fn filesystem(&self) -> Option<Filesystem> {
        match self {
            Self::Filesystem(signature) => signature.filesystem(),
            _ => None,
        }
    }

    /// The error that refuses `operation` on the device because of its content.
    pub(crate) fn refusal(self, operation: &'static str, device: &BlockDevice) -> Error {
        let text = self.to_string();
        match self {
            Self::Unreadable { offset, .. } if offset >= whole_sectors(device) => {
                let reason = format!(
                    "the size of the device is not a multiple of its sectors: the bytes from {offset} on can't \
                     be read or written"
                );
                Error::new(ErrorKind::OutOfRange, operation, reason)
                    .at(device.path())
                    .hint("grow the image to whole sectors, or attach it with sectors of 512 bytes")
            }
            Self::Unreadable { offset, error } => Error::os(operation, device.path(), error)
                .with_kind(ErrorKind::Unreadable)
                .add_reason(format!("the device can't be read at byte {offset}, so its content is not known"))
                .hint("repair the device or its connection; the device was not changed"),
            _ => Error::new(ErrorKind::NotBlank, operation, format!("the device holds {text}"))
                .at(device.path())
                .hint(
                    "check whether this is the volume's device; if it is, its content is needed, the volume \
                     was not new, or it is encrypted and the call has no key; the device was not changed",
                ),
        }
    }
}

/// How many bytes of a device its sectors cover. The image below a loop device can have an incomplete one at
/// its end.
fn whole_sectors(device: &BlockDevice) -> u64 {
    let sizes = device.size().and_then(|size| {
        let topology = ioctl::topology(device.as_fd());
        topology
            .map(|topology| (size, u64::from(topology.logical_sector)))
            .map_err(|error| Error::os("read the sector size of", device.path(), error))
    });
    sizes.map_or(u64::MAX, |(size, sector)| size - size % sector.max(1))
}

/// The error for a device without content whose volume must never be formatted. `found` describes the probe
/// result.
pub(crate) fn content_missing(
    operation: &'static str,
    device: &BlockDevice,
    found: impl fmt::Display,
) -> Error {
    let reason =
        format!("the device holds {found}, but the volume must already have content, so it is not formatted");
    Error::new(ErrorKind::Damaged, operation, reason).at(device.path()).hint(
        "check whether this is the volume's device and whether its storage is complete; if the content is \
         lost, restore it, or create a new volume; the device was not changed",
    )
}

impl fmt::Display for Probe<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Blank(_) => f.write_str("nothing"),
            Self::Filesystem(found) => write!(f, "the filesystem {found}"),
            Self::PartitionTable(found) => write!(f, "the partition table {found}"),
            Self::Container(found) => write!(f, "{found}"),
            Self::Ambiguous(all) => {
                f.write_str("more than one signature:")?;
                for (index, found) in all.iter().enumerate() {
                    write!(f, "{} {found}", if index == 0 { "" } else { "," })?;
                }
                Ok(())
            }
            Self::UnknownData { offset, looks_like: None } => write!(f, "unknown data at byte {offset}"),
            Self::UnknownData { offset, looks_like: Some(form) } => {
                write!(f, "data at byte {offset} that looks like {form}")
            }
            Self::Interrupted(format) => {
                write!(f, "an interrupted format as {}, which can be started again", format.made)
            }
            Self::Unreadable { offset, error } => {
                write!(f, "content that can't be read at byte {offset} ({error})")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(changes: &[(usize, &[u8])]) -> Vec<&'static str> {
        let mut bytes = vec![0; 5 << 20];
        for (at, data) in changes {
            bytes[*at..at + data.len()].copy_from_slice(data);
        }
        signatures(&Windows::from_bytes(bytes)).into_iter().map(|(_, found)| found.name).collect()
    }

    const BOOT: (usize, &[u8]) = (510, &[0x55, 0xaa]);
    const EXT: (usize, &[u8]) = (1024 + 56, &[0x53, 0xef]);
    const PARTITION: (usize, &[u8]) = (446, &[0x80, 0, 2, 0, 0x83, 0, 0, 0, 0, 8, 0, 0, 0, 0, 1, 0]);
    const END: usize = 5 << 20;

    #[test]
    fn every_place_with_a_name_is_read_first() {
        for size in [5 << 20, 300 << 20, (300 << 20) + 512, (1 << 40) + (200 << 10), 1 << 50] {
            let missed = windows::tests::missed(size, |windows| drop(signatures(windows)));
            assert_eq!(missed, [0_u64; 0], "of {size}");
        }
    }

    #[test]
    fn boot_sectors_belong_to_what_they_start() {
        assert_eq!(names(&[BOOT]), ["dos"], "an empty table");
        assert_eq!(names(&[BOOT, PARTITION]), ["dos"]);
        assert_eq!(names(&[BOOT, PARTITION, (512, b"EFI PART")]), ["gpt"]);
        assert_eq!(names(&[BOOT, (82, b"FAT32   ")]), ["vfat"]);
        assert_eq!(names(&[BOOT, EXT]), ["ext2"], "a boot loader before a filesystem");
        assert_eq!(names(&[BOOT, PARTITION, EXT]), ["ext2", "dos"], "nobody knows");
    }

    #[test]
    fn containers_at_the_end_count_in_addition_to_their_content() {
        let raid_1_0: (usize, &[u8]) = (END - 8192, b"\xfc\x4e\x2b\xa9\x01\0\0\0");
        let raid_0_9: (usize, &[u8]) = (END - 65_536, b"\xfc\x4e\x2b\xa9\0\0\0\0");
        assert_eq!(names(&[raid_1_0]), ["linux_raid_member"]);
        assert_eq!(names(&[raid_0_9, EXT]), ["ext2", "linux_raid_member"]);
        assert_eq!(names(&[(END - 4096 + 60, b"\x83\x74\x02\x6b"), EXT]), ["ext2", "drbd"]);
        assert_eq!(names(&[(END - 512, b"EFI PART")]), ["gpt"]);
        assert_eq!(names(&[(END - 512, b"EFI PART"), EXT]), ["ext2"], "a remnant");
    }

    #[test]
    fn one_signature_with_several_magic_numbers_counts_once() {
        assert_eq!(names(&[(0, b"LUKS\xba\xbe"), (16_384, b"SKUL\xba\xbe")]), ["crypto_LUKS"]);
        assert_eq!(names(&[(0, b"LUKS\xba\xbe"), EXT]), ["ext2", "crypto_LUKS"]);
        assert_eq!(names(&[(131 * 1024, &[0x0c, 0xb1, 0xba, 0, 0, 0, 0, 0])]), ["zfs_member"]);
        assert_eq!(names(&[(1000, b"x")]), Vec::<&str>::new());
    }

    #[test]
    fn an_unfinished_xfs_is_not_a_filesystem_to_mount() {
        let mut bytes = vec![0; 1 << 20];
        bytes[..4].copy_from_slice(b"XFSB");
        let finished = superblock::xfs(&Windows::from_bytes(bytes.clone())).unwrap();
        assert_eq!(finished.filesystem(), Some(Filesystem::Xfs));
        bytes[126] = 1;
        let unfinished = superblock::xfs(&Windows::from_bytes(bytes)).unwrap();
        assert_eq!(unfinished.filesystem(), None);
        assert!(unfinished.to_string().contains("did not finish"), "{unfinished}");
    }
}
