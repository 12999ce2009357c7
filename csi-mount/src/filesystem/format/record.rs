//! The record of a format in progress: where it is, what content it explains, and when it is removed.
//!
//! A format ([`disk_image`](super::disk_image)) copies the blocks that `mkfs` made in memory to a device on
//! which all of them are zero. A copy that is interrupted leaves a device that is neither blank nor a
//! filesystem. So that it can be started again, on any node, a record is on the device itself during the
//! copy.
//!
//! # Where
//!
//! | part | place | holds |
//! |---|---|---|
//! | header | the commit sector: the one without which nobody sees a filesystem. 1 KiB from the start for ext4, 64 KiB for btrfs, the first sector for XFS and LUKS | what is made, and where the manifest is |
//! | manifest | a hole of the image, 29 entries a sector | the place and a hash of each sector of the image that is not zero, but the commit sector |
//!
//! The header is written first and then the manifest, both over zeros. After them the image is written, and
//! last of all the commit sector, which replaces the header. So the filesystem exists exactly when the
//! header is gone. After that, the manifest is made zero. A process that is killed just before leaves the
//! manifest in a free part of the filesystem, where nothing reads it: without its header it explains
//! nothing.
//!
//! # What it explains
//!
//! A device can be formatted again if every sector in *everything* that the prober reads, and in every block
//! that the manifest names, is zero, or belongs to the record, or has exactly the content that the manifest
//! lists for this place. With one other sector, the device holds somebody's data. A header that is not at
//! its own place, as in an image of a disk inside a disk, does not count.
//!
//! Formatting again first makes all explained sectors zero: the image, then the manifest, then the header.
//!
//! # Loss of power
//!
//! A disk that loses power has everything that was written before the last flush, and any part of what was
//! written after it. It writes a sector of 512 bytes whole or not at all. So the disk is flushed after each
//! step on which the next one relies: the header, the manifest, the image, the commit sector. Each sector is
//! recognized without the others, so it does not matter where a disk tears a larger write.

use std::collections::HashMap;
use std::fmt;
use std::ops::{ControlFlow, Range};

use crate::device::block_device::BlockDevice;
use crate::device::exclusive::{AlignedBuffer, BLOCK, ExclusiveDevice, PIECE, length_of, with_claim};
use crate::error::{Error, ErrorKind, Result};
use crate::filesystem::kind::Filesystem;
use crate::filesystem::probe::{self, Reader, Unread, first_nonzero};
use crate::sys::hash::hash_words;

const HEADER_MAGIC: &[u8; 16] = b"\x89csi-mount begun";
const LIST_MAGIC: &[u8; 16] = b"\x89csi-mount list\n";
const VERSION: u32 = 2;
/// What a disk writes whole or not at all, in bytes.
pub(crate) const SECTOR: usize = 512;
/// How many bytes of a manifest sector are not entries.
const LIST_HEAD: usize = 48;
const ENTRY: usize = 16;
const ENTRIES: usize = (SECTOR - LIST_HEAD) / ENTRY;
const REMOVE: &str = "remove the record of an interrupted format from";

/// What a format makes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FormatKind {
    Filesystem(Filesystem),
    /// LUKS headers, below a filesystem that is made later.
    Luks,
}

impl FormatKind {
    /// The blocks in which a header can be.
    pub(crate) const COMMIT_BLOCKS: [u64; 2] = [0, 64 << 10];

    pub(crate) const fn commit_place(self) -> u64 {
        match self {
            Self::Filesystem(Filesystem::Ext4) => 1024,
            Self::Filesystem(Filesystem::Btrfs) => 64 << 10,
            Self::Filesystem(Filesystem::Xfs) | Self::Luks => 0,
        }
    }

    /// Whether this sector is a valid commit sector.
    pub(crate) fn is_committed_by(self, sector: &[u8]) -> bool {
        let (place, magic): (usize, &[u8]) = match self {
            Self::Filesystem(Filesystem::Ext4) => (56, &[0x53, 0xef]),
            Self::Filesystem(Filesystem::Xfs) => (0, b"XFSB"),
            Self::Filesystem(Filesystem::Btrfs) => (0x40, b"_BHRfS_M"),
            Self::Luks => (0, b"LUKS\xba\xbe"),
        };
        sector.get(place..place + magic.len()) == Some(magic)
    }

    const ALL: [Self; 4] = [
        Self::Filesystem(Filesystem::Ext4),
        Self::Filesystem(Filesystem::Xfs),
        Self::Filesystem(Filesystem::Btrfs),
        Self::Luks,
    ];

    const fn code(self) -> u32 {
        match self {
            Self::Filesystem(Filesystem::Ext4) => 1,
            Self::Filesystem(Filesystem::Xfs) => 2,
            Self::Filesystem(Filesystem::Btrfs) => 3,
            Self::Luks => 4,
        }
    }
}

impl fmt::Display for FormatKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Filesystem(filesystem) => filesystem.fmt(f),
            Self::Luks => f.pad("LUKS"),
        }
    }
}

/// A sector of an image: its place on the device, and the hash of its content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) place: u64,
    pub(crate) hash: u64,
}

impl Entry {
    pub(crate) fn from_sector(place: u64, sector: &[u8]) -> Self {
        Self { place, hash: hash_words(sector) }
    }
}

/// The content of a header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Record {
    pub(crate) made: FormatKind,
    /// Identifies this image by its content.
    id: u64,
    /// Where the manifest begins, and how many entries it has.
    manifest: u64,
    entries: u64,
}

impl Record {
    /// The record of these sectors, with its manifest at this place.
    pub(crate) fn new(made: FormatKind, manifest: u64, entries: &[Entry]) -> Self {
        let words: Vec<u8> =
            entries.iter().flat_map(|entry| [entry.place, entry.hash]).flat_map(u64::to_le_bytes).collect();
        Self { made, id: hash_words(&words), manifest, entries: entries.len() as u64 }
    }

    /// The size in bytes of a manifest with this many entries: whole blocks.
    pub(crate) fn manifest_length(entries: usize) -> u64 {
        (entries.div_ceil(ENTRIES) * SECTOR).next_multiple_of(BLOCK) as u64
    }

    /// Where the manifest is; none if a device can't have it there.
    pub(crate) fn manifest(&self) -> Option<Range<u64>> {
        let length = Self::manifest_length(usize::try_from(self.entries).ok()?);
        Some(self.manifest..self.manifest.checked_add(length)?)
    }

    /// The header, to be written at the commit place.
    fn header(&self) -> [u8; SECTOR] {
        let mut sector = [0; SECTOR];
        sector[..16].copy_from_slice(HEADER_MAGIC);
        sector[16..20].copy_from_slice(&VERSION.to_le_bytes());
        sector[20..24].copy_from_slice(&self.made.code().to_le_bytes());
        for (index, number) in
            [self.made.commit_place(), self.id, self.manifest, self.entries].iter().enumerate()
        {
            sector[24 + index * 8..32 + index * 8].copy_from_slice(&number.to_le_bytes());
        }
        let sum = hash_words(&sector);
        sector[56..64].copy_from_slice(&sum.to_le_bytes());
        sector
    }

    /// Puts the header into bytes that are written from this place on, if it belongs there.
    pub(crate) fn put_header(&self, start: u64, bytes: &mut [u8]) {
        let commit = self.made.commit_place();
        let found = sectors_mut(start, bytes).find(|(place, _)| *place == commit);
        if let Some((_, sector)) = found {
            sector.copy_from_slice(&self.header());
        }
    }

    /// The record in this sector, if it is a header and belongs to this place.
    fn decode(sector: &[u8], place: u64) -> Option<Self> {
        let code = u32::from_le_bytes(sector.get(20..24)?.try_into().ok()?);
        let made =
            FormatKind::ALL.into_iter().find(|made| made.code() == code && made.commit_place() == place)?;
        let found = Self {
            made,
            id: number(sector, 32)?,
            manifest: number(sector, 40)?,
            entries: number(sector, 48)?,
        };
        // Encoding it again compares everything, including the zeros after the record.
        (found.header()[..] == *sector).then_some(found)
    }

    /// The record whose header is in this block.
    pub(crate) fn in_block(place: u64, block: &[u8]) -> Option<Self> {
        sectors(place, block).find_map(|(place, sector)| Self::decode(sector, place))
    }

    /// A sector of the manifest. It holds its own place and this image's id, so that it is recognized
    /// without the others.
    fn list(&self, place: u64, entries: &[Entry]) -> [u8; SECTOR] {
        let mut sector = [0; SECTOR];
        sector[..16].copy_from_slice(LIST_MAGIC);
        sector[16..24].copy_from_slice(&self.id.to_le_bytes());
        sector[24..32].copy_from_slice(&place.to_le_bytes());
        sector[32..40].copy_from_slice(&(entries.len() as u64).to_le_bytes());
        for (entry, bytes) in entries.iter().zip(sector[LIST_HEAD..].chunks_mut(ENTRY)) {
            bytes[..8].copy_from_slice(&entry.place.to_le_bytes());
            bytes[8..].copy_from_slice(&entry.hash.to_le_bytes());
        }
        let sum = hash_words(&sector);
        sector[40..48].copy_from_slice(&sum.to_le_bytes());
        sector
    }

    /// The manifest's sectors with their places.
    pub(crate) fn lists<'a>(
        &'a self,
        entries: &'a [Entry],
    ) -> impl Iterator<Item = (u64, [u8; SECTOR])> + 'a {
        let places = (self.manifest..).step_by(SECTOR);
        places.zip(entries.chunks(ENTRIES)).map(|(place, entries)| (place, self.list(place, entries)))
    }

    /// The entries in this sector, if it is part of this image's manifest and belongs to this place.
    fn entries_in(&self, sector: &[u8], place: u64) -> Option<Vec<Entry>> {
        let count = usize::try_from(number(sector, 32)?).ok().filter(|count| *count <= ENTRIES)?;
        let entries: Vec<Entry> = sector[LIST_HEAD..]
            .chunks_exact(ENTRY)
            .take(count)
            .filter_map(|bytes| Some(Entry { place: number(bytes, 0)?, hash: number(bytes, 8)? }))
            .collect();
        (self.list(place, &entries)[..] == *sector).then_some(entries)
    }
}

fn number(sector: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(sector.get(at..at + 8)?.try_into().ok()?))
}

/// What a format in progress can have left on a device.
#[derive(Debug)]
pub(crate) struct InterruptedContent {
    pub(crate) record: Record,
    /// The hash of each sector that the manifest names, as far as the manifest was written.
    hashes: HashMap<u64, u64>,
    /// The manifest's sectors that were written.
    lists: Vec<u64>,
    size: u64,
}

impl InterruptedContent {
    /// The remains on the device that its record explains; none if there is no header.
    pub(crate) fn find(device: &BlockDevice) -> Result<Option<Self>, Unread> {
        let mut reader = Reader::new(device)?;
        let size = reader.size()?;
        let block = |place: u64| place..place + BLOCK as u64;
        let headers = FormatKind::COMMIT_BLOCKS.map(block).into_iter().filter(|range| range.end <= size);
        let found = reader.each(headers, |place, block| match Record::in_block(place, block) {
            Some(record) => ControlFlow::Break(record),
            None => ControlFlow::Continue(()),
        })?;
        found.map(|record| Self::from_record(device, record)).transpose()
    }

    /// The remains that this record explains, from its manifest.
    pub(crate) fn from_record(device: &BlockDevice, record: Record) -> Result<Self, Unread> {
        let mut reader = Reader::new(device)?;
        let size = reader.size()?;
        let mut remains = Self { record, hashes: HashMap::new(), lists: Vec::new(), size };
        let manifest = record.manifest().filter(|range| range.end <= size);
        reader.each(manifest, |start, bytes| {
            for (place, sector) in sectors(start, bytes) {
                let Some(entries) = record.entries_in(sector, place) else { continue };
                remains.lists.push(place);
                remains.hashes.extend(entries.iter().map(|entry| (entry.place, entry.hash)));
            }
            ControlFlow::<()>::Continue(())
        })?;
        Ok(remains)
    }

    /// The place of the first byte that this format did not write, in everything that the prober reads and
    /// the format writes.
    pub(crate) fn first_foreign_byte(&self, device: &BlockDevice) -> Result<Option<u64>, Unread> {
        let explain = |start: u64, bytes: &[u8]| {
            let foreign = sectors(start, bytes).find_map(|(place, sector)| {
                let byte = first_nonzero(sector)?;
                (!self.explains(place, sector)).then_some(place + byte as u64)
            });
            foreign.map_or(ControlFlow::Continue(()), ControlFlow::Break)
        };
        if let Some(foreign) = probe::nonzero_blocks(device, explain)? {
            return Ok(Some(foreign));
        }
        Reader::new(device)?.each(runs(self.image(), self.size), explain)
    }

    /// Whether this sector belongs to the record or to the image.
    fn explains(&self, place: u64, sector: &[u8]) -> bool {
        let is_own = place == self.record.made.commit_place() || self.lists.binary_search(&place).is_ok();
        (is_own && self.is_record(place, sector))
            || self.hashes.get(&place).is_some_and(|hash| *hash == hash_words(sector))
    }

    fn is_record(&self, place: u64, sector: &[u8]) -> bool {
        Record::decode(sector, place) == Some(self.record) || self.record.entries_in(sector, place).is_some()
    }

    /// The places of the image's sectors, sorted.
    fn image(&self) -> Vec<u64> {
        let mut places: Vec<u64> = self.hashes.keys().copied().filter(|place| *place < self.size).collect();
        places.sort_unstable();
        places
    }

    /// Makes everything zero that is explained, the header last.
    pub(crate) fn clear(&self, disk: &ExclusiveDevice<'_>) -> Result<()> {
        self.zero(disk, &self.image())?;
        disk.flush()?;
        self.clear_record(disk)
    }

    /// Makes only the record zero.
    pub(crate) fn clear_record(&self, disk: &ExclusiveDevice<'_>) -> Result<()> {
        self.zero(disk, &self.lists)?;
        disk.flush()?;
        self.zero(disk, &[self.record.made.commit_place()])?;
        disk.flush()
    }

    /// Makes sectors zero. What their blocks have in addition stays: the header, or somebody's data.
    fn zero(&self, disk: &ExclusiveDevice<'_>, places: &[u64]) -> Result<()> {
        let buffer = &mut AlignedBuffer::new();
        let unread = |unread| unread_error(disk.device, unread);
        let mut reader = Reader::new(disk.device).map_err(unread)?;
        let failed = reader.each(runs(places.iter().copied(), self.size), |start, found| {
            let bytes = buffer.first(found.len());
            bytes.copy_from_slice(found);
            for (place, sector) in sectors_mut(start, bytes) {
                if places.binary_search(&place).is_ok() {
                    sector.fill(0);
                }
            }
            disk.write(bytes, start).map_or_else(ControlFlow::Break, ControlFlow::Continue)
        });
        failed.map_err(unread)?.map_or(Ok(()), Err)
    }
}

fn unread_error(device: &BlockDevice, Unread { offset, error }: Unread) -> Error {
    let failed = Error::os(REMOVE, device.path(), error);
    failed.with_kind(ErrorKind::Unreadable).add_reason(format_args!("at byte {offset}"))
}

/// Splits bytes at this place into blocks, each with its own place.
pub(crate) fn blocks(start: u64, bytes: &[u8]) -> impl Iterator<Item = (u64, &[u8])> {
    (start..).step_by(BLOCK).zip(bytes.chunks(BLOCK))
}

/// Splits bytes at this place into sectors, each with its own place.
pub(crate) fn sectors(start: u64, bytes: &[u8]) -> impl Iterator<Item = (u64, &[u8])> {
    (start..).step_by(SECTOR).zip(bytes.chunks(SECTOR))
}

fn sectors_mut(start: u64, bytes: &mut [u8]) -> impl Iterator<Item = (u64, &mut [u8])> {
    (start..).step_by(SECTOR).zip(bytes.chunks_mut(SECTOR))
}

/// The blocks that contain these sorted places, as ranges; adjacent blocks are joined.
pub(crate) fn runs(places: impl IntoIterator<Item = u64>, size: u64) -> Vec<Range<u64>> {
    let mut runs: Vec<Range<u64>> = Vec::new();
    for place in places {
        let start = place - place % BLOCK as u64;
        let end = (start + BLOCK as u64).min(size);
        match runs.last_mut() {
            Some(run) if run.contains(&start) => {}
            Some(run) if run.end == start && length_of(run) < PIECE => run.end = end,
            _ => runs.push(start..end),
        }
    }
    runs
}

/// Removes the record of a format in progress, for a device that is given to a user.
///
/// If nothing else is on the device, everything that the format wrote is removed too, and the device is
/// blank. Otherwise only the record is removed.
///
/// # Errors
///
/// [`Busy`](ErrorKind::Busy) if somebody holds the device, so that the record would stay.
pub(crate) fn remove_record(device: &BlockDevice) -> Result<()> {
    let unread = |unread| unread_error(device, unread);
    if InterruptedContent::find(device).map_err(unread)?.is_none() {
        return Ok(());
    }
    with_claim(device, REMOVE, |disk| {
        // Read again, now that nobody else can write.
        let Some(remains) = InterruptedContent::find(device).map_err(unread)? else { return Ok(()) };
        tracing::info!(device = %device.path().display(), made = %remains.record.made, "the record of an \
            interrupted format is removed");
        match remains.first_foreign_byte(device).map_err(unread)? {
            None => remains.clear(disk),
            Some(_) => remains.clear_record(disk),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entries(count: u64) -> Vec<Entry> {
        (1..=count).map(|index| Entry { place: index << 20, hash: index * 7 }).collect()
    }

    #[test]
    fn a_header_is_valid_only_at_its_own_place() {
        for made in FormatKind::ALL {
            let place = made.commit_place();
            let record = Record::new(made, 1 << 30, &entries(300));
            let sector = record.header();
            assert_eq!(Record::decode(&sector, place), Some(record));
            assert_eq!(Record::decode(&sector, 65_536 - place), None, "copied elsewhere");
            assert_eq!(Record::decode(&sector[..64], place), None, "cut short");
            for byte in [0, 15, 16, 20, 23, 24, 31, 32, 40, 48, 55, 56, 63, 64, SECTOR - 1] {
                let mut changed = sector;
                changed[byte] ^= 1;
                assert_eq!(Record::decode(&changed, place), None, "byte {byte}");
            }
            let block = place - place % BLOCK as u64;
            let mut bytes = [7; BLOCK];
            record.put_header(block, &mut bytes);
            assert_eq!(Record::in_block(block, &bytes), Some(record));
            assert_eq!(Record::in_block(block + BLOCK as u64, &bytes), None);
        }
        assert_eq!(Record::decode(&[0; SECTOR], 0), None);
    }

    #[test]
    fn each_sector_of_a_manifest_is_recognized_alone() {
        let entries = entries(300);
        let record = Record::new(FormatKind::Luks, 1 << 30, &entries);
        let lists: Vec<_> = record.lists(&entries).collect();
        assert_eq!((lists.len(), Record::manifest_length(300)), (11, 8192));
        assert_eq!(record.manifest(), Some(1 << 30..(1 << 30) + 8192));
        let found: Vec<Entry> =
            lists.iter().flat_map(|(place, sector)| record.entries_in(sector, *place).unwrap()).collect();
        assert_eq!(found, entries);
        let (place, sector) = &lists[1];
        assert_eq!(record.entries_in(sector, place - 512), None, "elsewhere");
        let other = Record::new(FormatKind::Luks, 1 << 30, &entries[1..]);
        assert_eq!(other.entries_in(sector, *place), None, "of another image");
        for byte in [0, 16, 24, 32, 40, 47, 48, 100, SECTOR - 1] {
            let mut changed = *sector;
            changed[byte] ^= 1;
            assert_eq!(record.entries_in(&changed, *place), None, "byte {byte}");
        }
    }

    #[test]
    fn blocks_that_follow_each_other_are_one_run() {
        assert_eq!(runs([0, 512, 4608, 12_288, 13_824], 14_000), [0..8192, 12_288..14_000]);
        assert_eq!(runs([], 0), []);
    }

    #[test]
    fn every_part_of_a_sector_counts_in_its_hash() {
        let sector = [0x5a; SECTOR];
        let hash = hash_words(&sector);
        for byte in 0..SECTOR {
            let mut changed = sector;
            changed[byte] ^= 0x80;
            assert_ne!(hash_words(&changed), hash, "byte {byte}");
            changed[(byte + 8) % SECTOR] ^= 0x80;
            assert_ne!(hash_words(&changed), hash, "bytes {byte} and 8 after it");
        }
        assert_ne!(hash_words(&sector[..256]), hash_words(&sector[..264]));
    }
}
