//! The end of an XFS log: the record that a clean unmount leaves.
//!
//! The log is a ring of blocks of 512 bytes. The first word of each block is the number of the cycle that
//! wrote it, or, in the header of a record, the second word. The log ends where the number decreases.

use std::ops::Range;

use crate::device::block_device::BlockDevice;
use crate::error::Result;
use crate::filesystem::uuid::read;
use crate::sys::hash::crc32c;

pub(super) const BLOCK: u64 = 512;
/// The number of blocks before the end that can be in flight at once: 8 records of 256 KiB
/// (`XLOG_TOTAL_REC_SHIFT`). All are of one cycle, unless the log is not clean.
const IN_FLIGHT: u64 = 8 * (256 << 10) / BLOCK;
const MAGIC: [u8; 4] = 0xfeed_babe_u32.to_be_bytes();
/// The length of a header (`struct xlog_rec_header`), and of each further header of a record that can be
/// longer than 32 KiB.
const HEADER: usize = 328;
const FURTHER_HEADER: usize = 260;
const CHECKSUM: usize = 32;
const UUID: usize = 304;

/// The last record of a clean log.
pub(super) struct UnmountRecord {
    /// Where it begins, in bytes on the device.
    pub(super) place: u64,
    /// Its headers and its content, in blocks.
    bytes: Vec<u8>,
}

/// Finds the last record of the log. None if the log is not clean, or not in a state that this code knows: a
/// mount and unmount changes that.
pub(super) fn unmount_record(
    device: &BlockDevice,
    log: &Range<u64>,
    uuid: [u8; 16],
) -> Result<Option<UnmountRecord>> {
    let count = (log.end - log.start) / BLOCK;
    let block = |number: u64| {
        let start = log.start + number * BLOCK;
        read(device, start..start + BLOCK)
    };
    let first = cycle(&block(0)?);
    let last = cycle(&block(count - 1)?);
    let mut end = count;
    if first != last {
        let mut whole = 0;
        end = count - 1;
        while end - whole > 1 {
            let middle = whole.midpoint(end);
            if cycle(&block(middle)?) == first { whole = middle } else { end = middle }
        }
    }
    // The blocks before the end, and what precedes block 0: the end of the ring.
    let before = end.min(IN_FLIGHT);
    let wrapped = count - (IN_FLIGHT.min(count) - before)..count;
    let in_bytes = |blocks: Range<u64>| log.start + blocks.start * BLOCK..log.start + blocks.end * BLOCK;
    let mut bytes = read(device, in_bytes(wrapped.clone()))?;
    let older = bytes.len();
    bytes.extend(read(device, in_bytes(end - before..end))?);
    let is_of = |bytes: &[u8], wanted| bytes.chunks(BLOCK as usize).all(|block| cycle(block) == wanted);
    if !is_of(&bytes[..older], last) || !is_of(&bytes[older..], first) {
        return Ok(None);
    }
    let Some(at) = bytes.chunks(BLOCK as usize).rposition(|block| block.starts_with(&MAGIC)) else {
        return Ok(None);
    };
    let from_end = (bytes.len() / BLOCK as usize - at) as u64;
    let start = (end + count - from_end) % count;
    let record =
        UnmountRecord { place: log.start + start * BLOCK, bytes: bytes.split_off(at * BLOCK as usize) };
    Ok(record.is_of_clean_unmount(uuid).then_some(record))
}

/// The cycle that wrote a block.
fn cycle(block: &[u8]) -> u32 {
    word(block, if block.starts_with(&MAGIC) { 4 } else { 0 })
}

fn word(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..).and_then(<[u8]>::first_chunk).copied().map_or(0, u32::from_be_bytes)
}

impl UnmountRecord {
    /// The number of header blocks: a record that can be longer than 32 KiB has more than one.
    fn headers(&self) -> usize {
        const VERSION_2: u32 = 2;
        const PER_HEADER: usize = 32 << 10;
        match word(&self.bytes, 8) & VERSION_2 {
            0 => 1,
            _ => (word(&self.bytes, 320) as usize).div_ceil(PER_HEADER).max(1),
        }
    }

    /// Whether it is what a clean unmount of the filesystem with this UUID writes: one operation, which marks
    /// the unmount, up to the end of the log, with a right checksum.
    fn is_of_clean_unmount(&self, uuid: [u8; 16]) -> bool {
        const FLAGS: usize = 9;
        const UNMOUNT: u8 = 0x20;
        let content = self.headers() * BLOCK as usize;
        let operation = self.bytes.get(content + FLAGS).copied().unwrap_or_default();
        let own = &self.bytes[UUID..UUID + 16];
        let is_one = word(&self.bytes, 40) == 1 && operation & UNMOUNT != 0;
        let is_whole =
            content + (word(&self.bytes, 12) as usize).next_multiple_of(BLOCK as usize) == self.bytes.len();
        is_one
            && is_whole
            && (own == uuid || own == [0; 16])
            && self.bytes[CHECKSUM..CHECKSUM + 4] == checksum(&self.bytes, self.headers())
    }

    /// The block of its header with a null UUID.
    pub(super) fn without_uuid(&self) -> Vec<u8> {
        let mut bytes = self.bytes.clone();
        bytes[UUID..UUID + 16].fill(0);
        let checksum = checksum(&bytes, self.headers());
        bytes[CHECKSUM..CHECKSUM + 4].copy_from_slice(&checksum);
        bytes.truncate(BLOCK as usize);
        bytes
    }
}

/// As `xlog_cksum`: the header with zeros in place of the checksum, the further headers, the content.
fn checksum(bytes: &[u8], headers: usize) -> [u8; 4] {
    let block = BLOCK as usize;
    let content = headers * block;
    let sum = crc32c(!0, &bytes[..CHECKSUM]);
    let sum = crc32c(sum, &[0; 4]);
    let sum = crc32c(sum, &bytes[CHECKSUM + 4..HEADER]);
    let further = (1..headers).map(|number| &bytes[number * block..number * block + FURTHER_HEADER]);
    let sum = further.fold(sum, crc32c);
    (!crc32c(sum, &bytes[content..content + word(bytes, 12) as usize])).to_le_bytes()
}
