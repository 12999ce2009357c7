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
//! | header | the commit block: the one without which nobody sees a filesystem, 64 KiB from the start for btrfs and the first block for all others | what is made, and where the manifest is |
//! | manifest | a hole of the image, 252 entries a block | the place and a hash of each block of the image but the commit block |
//!
//! The header is written first and then the manifest, both over zeros. After them the image is written, and
//! last of all the commit block, which replaces the header. So the filesystem exists exactly when the
//! header is gone. After that, the manifest is made zero. A process that is killed just before leaves the
//! manifest in a free part of the filesystem, where nothing reads it: without its header it explains
//! nothing.
//!
//! # What it explains
//!
//! A device can be formatted again if *everything* that the prober reads, and every block that the manifest
//! names, is zero, or belongs to the record, or has exactly the content that the manifest lists for this
//! place. With one other block, the device holds somebody's data. A header that is not at its own place, as
//! in an image of a disk inside a disk, does not count.
//!
//! Formatting again first makes all explained blocks zero, the header last.
//!
//! # Loss of power
//!
//! The disk's cache is flushed after the record, before the commit block, and after it. So a loss of power
//! leaves what a kill leaves, except where a disk tears one block of 4 KiB: a torn block is in no manifest,
//! and the device is refused.

use std::collections::HashMap;
use std::fmt;
use std::ops::{ControlFlow, Range};

use crate::device::claimed::{AlignedBuffer, BLOCK, ClaimedDevice, PIECE, length_of, with_claim};
use crate::filesystem::probe::{self, Reader, Unread, first_nonzero};
use crate::sys::fnv::hash_words;
use crate::{BlockDevice, Error, ErrorKind, Filesystem, Result};

const HEADER_MAGIC: &[u8; 16] = b"\x89csi-mount begun";
const LIST_MAGIC: &[u8; 16] = b"\x89csi-mount list\n";
const VERSION: u32 = 1;
/// How many bytes of a manifest block are not entries.
const LIST_HEAD: usize = 48;
const ENTRY: usize = 16;
const ENTRIES: usize = (BLOCK - LIST_HEAD) / ENTRY;
const REMOVE: &str = "remove the record of an interrupted format from";

/// What a format makes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FormatKind {
    Filesystem(Filesystem),
    /// LUKS headers, below a filesystem that is made later.
    Luks,
}

impl FormatKind {
    /// The places where a header can be.
    pub(crate) const COMMIT_PLACES: [u64; 2] = [0, 64 << 10];

    /// The place of the commit block.
    pub(crate) const fn commit_place(self) -> u64 {
        match self {
            Self::Filesystem(Filesystem::Btrfs) => 64 << 10,
            Self::Filesystem(Filesystem::Ext4 | Filesystem::Xfs) | Self::Luks => 0,
        }
    }

    /// Whether this block is a valid commit block.
    pub(crate) fn is_committed_by(self, block: &[u8]) -> bool {
        let (place, magic): (usize, &[u8]) = match self {
            Self::Filesystem(Filesystem::Ext4) => (1024 + 56, &[0x53, 0xef]),
            Self::Filesystem(Filesystem::Xfs) => (0, b"XFSB"),
            Self::Filesystem(Filesystem::Btrfs) => (0x40, b"_BHRfS_M"),
            Self::Luks => (0, b"LUKS\xba\xbe"),
        };
        block.get(place..place + magic.len()) == Some(magic)
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

/// A block of an image: its place on the device, and the hash of its content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) place: u64,
    pub(crate) hash: u64,
}

impl Entry {
    pub(crate) fn from_block(place: u64, block: &[u8]) -> Self {
        Self { place, hash: hash_words(block) }
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
    /// The record of these blocks, with its manifest at this place.
    pub(crate) fn new(made: FormatKind, manifest: u64, entries: &[Entry]) -> Self {
        let words: Vec<u8> =
            entries.iter().flat_map(|entry| [entry.place, entry.hash]).flat_map(u64::to_le_bytes).collect();
        Self { made, id: hash_words(&words), manifest, entries: entries.len() as u64 }
    }

    /// The size in bytes of a manifest with this many entries.
    pub(crate) fn manifest_length(entries: usize) -> u64 {
        (entries.div_ceil(ENTRIES) * BLOCK) as u64
    }

    fn manifest(&self) -> Option<Range<u64>> {
        let length = Self::manifest_length(usize::try_from(self.entries).ok()?);
        Some(self.manifest..self.manifest.checked_add(length)?)
    }

    /// The header, to be written at the commit place.
    pub(crate) fn header(&self) -> [u8; BLOCK] {
        let mut block = [0; BLOCK];
        block[..16].copy_from_slice(HEADER_MAGIC);
        block[16..20].copy_from_slice(&VERSION.to_le_bytes());
        block[20..24].copy_from_slice(&self.made.code().to_le_bytes());
        for (index, number) in
            [self.made.commit_place(), self.id, self.manifest, self.entries].iter().enumerate()
        {
            block[24 + index * 8..32 + index * 8].copy_from_slice(&number.to_le_bytes());
        }
        let sum = hash_words(&block);
        block[56..64].copy_from_slice(&sum.to_le_bytes());
        block
    }

    /// The record in this block, if it is a header and belongs to this place.
    pub(crate) fn decode(block: &[u8], place: u64) -> Option<Self> {
        let code = u32::from_le_bytes(block.get(20..24)?.try_into().ok()?);
        let made =
            FormatKind::ALL.into_iter().find(|made| made.code() == code && made.commit_place() == place)?;
        let found =
            Self { made, id: number(block, 32)?, manifest: number(block, 40)?, entries: number(block, 48)? };
        // Encoding it again compares everything, including the zeros after the record.
        (found.header()[..] == *block).then_some(found)
    }

    /// A block of the manifest. It holds its own place and this image's id, so that it is recognized
    /// without the others.
    pub(crate) fn list(&self, place: u64, entries: &[Entry]) -> [u8; BLOCK] {
        let mut block = [0; BLOCK];
        block[..16].copy_from_slice(LIST_MAGIC);
        block[16..24].copy_from_slice(&self.id.to_le_bytes());
        block[24..32].copy_from_slice(&place.to_le_bytes());
        block[32..40].copy_from_slice(&(entries.len() as u64).to_le_bytes());
        for (entry, bytes) in entries.iter().zip(block[LIST_HEAD..].chunks_mut(ENTRY)) {
            bytes[..8].copy_from_slice(&entry.place.to_le_bytes());
            bytes[8..].copy_from_slice(&entry.hash.to_le_bytes());
        }
        let sum = hash_words(&block);
        block[40..48].copy_from_slice(&sum.to_le_bytes());
        block
    }

    /// The manifest's blocks with their places.
    pub(crate) fn lists<'a>(&'a self, entries: &'a [Entry]) -> impl Iterator<Item = (u64, [u8; BLOCK])> + 'a {
        let places = (self.manifest..).step_by(BLOCK);
        places.zip(entries.chunks(ENTRIES)).map(|(place, entries)| (place, self.list(place, entries)))
    }

    /// The entries in this block, if it is part of this image's manifest and belongs to this place.
    fn entries_in(&self, block: &[u8], place: u64) -> Option<Vec<Entry>> {
        let count = usize::try_from(number(block, 32)?).ok().filter(|count| *count <= ENTRIES)?;
        let entries: Vec<Entry> = block[LIST_HEAD..]
            .chunks_exact(ENTRY)
            .take(count)
            .filter_map(|bytes| Some(Entry { place: number(bytes, 0)?, hash: number(bytes, 8)? }))
            .collect();
        (self.list(place, &entries)[..] == *block).then_some(entries)
    }
}

fn number(block: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(block.get(at..at + 8)?.try_into().ok()?))
}

/// What a format in progress can have left on a device.
#[derive(Debug)]
pub(crate) struct InterruptedContent {
    pub(crate) record: Record,
    /// The hash of each block that the manifest names, as far as the manifest was written.
    hashes: HashMap<u64, u64>,
    /// The manifest's blocks that were written.
    lists: Vec<u64>,
    size: u64,
}

impl InterruptedContent {
    /// The remains on the device that its record explains; none if there is no header.
    pub(crate) fn find(device: &BlockDevice) -> Result<Option<Self>, Unread> {
        let mut reader = Reader::new(device)?;
        let size = reader.size()?;
        let block = |place: u64| place..place + BLOCK as u64;
        let headers = FormatKind::COMMIT_PLACES.map(block).into_iter().filter(|range| range.end <= size);
        let found = reader.each(headers, |place, block| match Record::decode(block, place) {
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
            for (place, block) in blocks(start, bytes) {
                let Some(entries) = record.entries_in(block, place) else { continue };
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
        let explain = |place: u64, block: &[u8]| match first_nonzero(block) {
            Some(byte) if !self.explains(place, block) => ControlFlow::Break(place + byte as u64),
            _ => ControlFlow::Continue(()),
        };
        if let Some(foreign) = probe::nonzero_blocks(device, explain)? {
            return Ok(Some(foreign));
        }
        Reader::new(device)?.each(self.runs(), |start, bytes| {
            blocks(start, bytes).try_for_each(|(place, block)| explain(place, block))
        })
    }

    /// Whether this block belongs to the record or to the image.
    fn explains(&self, place: u64, block: &[u8]) -> bool {
        let is_own = place == self.record.made.commit_place() || self.lists.binary_search(&place).is_ok();
        (is_own && self.is_record(place, block))
            || self.hashes.get(&place).is_some_and(|hash| *hash == hash_words(block))
    }

    fn is_record(&self, place: u64, block: &[u8]) -> bool {
        Record::decode(block, place) == Some(self.record) || self.record.entries_in(block, place).is_some()
    }

    /// The blocks of the image; adjacent ones are joined.
    fn runs(&self) -> impl Iterator<Item = Range<u64>> {
        let mut places: Vec<u64> = self.hashes.keys().copied().filter(|place| *place < self.size).collect();
        places.sort_unstable();
        runs(places, self.size).into_iter()
    }

    /// Makes everything zero that is explained, the header last.
    pub(crate) fn clear(&self, disk: &ClaimedDevice<'_>) -> Result<()> {
        let buffer = &mut AlignedBuffer::new();
        for run in self.runs() {
            disk.zero(&run, buffer)?;
        }
        disk.flush()?;
        self.clear_record(disk)
    }

    /// Makes only the record zero.
    pub(crate) fn clear_record(&self, disk: &ClaimedDevice<'_>) -> Result<()> {
        let buffer = &mut AlignedBuffer::new();
        for run in runs(self.lists.clone(), self.size) {
            disk.zero(&run, buffer)?;
        }
        disk.flush()?;
        let place = self.record.made.commit_place();
        disk.zero(&(place..place + BLOCK as u64), buffer)?;
        disk.flush()
    }
}

/// Splits bytes at this place into blocks, each with its own place.
pub(crate) fn blocks(start: u64, bytes: &[u8]) -> impl Iterator<Item = (u64, &[u8])> {
    (start..).step_by(BLOCK).zip(bytes.chunks(BLOCK))
}

/// Turns blocks at sorted places into ranges; adjacent blocks are joined.
pub(crate) fn runs(places: impl IntoIterator<Item = u64>, size: u64) -> Vec<Range<u64>> {
    let mut runs: Vec<Range<u64>> = Vec::new();
    for place in places {
        let end = (place + BLOCK as u64).min(size);
        match runs.last_mut() {
            Some(run) if run.end == place && length_of(run) < PIECE => run.end = end,
            _ => runs.push(place..end),
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
    let unread = |Unread { offset, error }: Unread| {
        let failed = Error::os(REMOVE, device.path(), error);
        failed.with_kind(ErrorKind::Unreadable).add_reason(format_args!("at byte {offset}"))
    };
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
            let block = record.header();
            assert_eq!(Record::decode(&block, place), Some(record));
            assert_eq!(Record::decode(&block, 65_536 - place), None, "copied elsewhere");
            assert_eq!(Record::decode(&block[..64], place), None, "cut short");
            for byte in [0, 15, 16, 20, 23, 24, 31, 32, 40, 48, 55, 56, 63, 64, BLOCK - 1] {
                let mut torn = block;
                torn[byte] ^= 1;
                assert_eq!(Record::decode(&torn, place), None, "byte {byte}");
            }
        }
        assert_eq!(Record::decode(&[0; BLOCK], 0), None);
    }

    #[test]
    fn each_block_of_a_manifest_is_recognized_alone() {
        let entries = entries(300);
        let record = Record::new(FormatKind::Luks, 1 << 30, &entries);
        let lists: Vec<_> = record.lists(&entries).collect();
        assert_eq!((lists.len(), Record::manifest_length(300)), (2, 8192));
        assert_eq!(record.manifest(), Some(1 << 30..(1 << 30) + 8192));
        let found: Vec<Entry> =
            lists.iter().flat_map(|(place, block)| record.entries_in(block, *place).unwrap()).collect();
        assert_eq!(found, entries);
        let (place, block) = &lists[1];
        assert_eq!(record.entries_in(block, place - 4096), None, "elsewhere");
        let other = Record::new(FormatKind::Luks, 1 << 30, &entries[1..]);
        assert_eq!(other.entries_in(block, *place), None, "of another image");
        for byte in [0, 16, 24, 32, 40, 47, 48, 100, 1000, BLOCK - 1] {
            let mut torn = *block;
            torn[byte] ^= 1;
            assert_eq!(record.entries_in(&torn, *place), None, "byte {byte}");
        }
    }

    #[test]
    fn blocks_that_follow_each_other_are_one_run() {
        assert_eq!(runs([0, 4096, 12_288], 14_000), [0..8192, 12_288..14_000]);
        assert_eq!(runs([], 0), []);
    }

    #[test]
    fn every_part_of_a_block_counts_in_its_hash() {
        let block = [0x5a; BLOCK];
        let hash = hash_words(&block);
        for byte in 0..BLOCK {
            let mut changed = block;
            changed[byte] ^= 0x80;
            assert_ne!(hash_words(&changed), hash, "byte {byte}");
            changed[(byte + 8) % BLOCK] ^= 0x80;
            assert_ne!(hash_words(&changed), hash, "bytes {byte} and 8 after it");
        }
        assert_ne!(hash_words(&block[..512]), hash_words(&block[..520]));
    }
}
