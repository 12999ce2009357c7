//! The parts of a device that the prober reads: never from the page cache, always in full.

use std::io;
use std::ops::Range;
use std::os::fd::AsFd as _;

use rustix::fs::OFlags;
use rustix::io::Errno;

use crate::BlockDevice;
use crate::intent;
use crate::sys::ioctl;

const MIB: u64 = 1 << 20;
/// How much of each end is read. All that has a magic number has it there.
const END: u64 = 4 * MIB;
/// Reads past the page cache are aligned to this, which every block size up to it divides.
const ALIGN: u64 = 4096;
/// The size of a window between the ends.
const FAR: u64 = 64 * 1024;
/// How many windows are spread evenly over the device, besides those at well-known places.
const SPREAD: u64 = 256;
/// A device of this size is read in full: one as small as this is as quickly read as formatted.
const SMALL: u64 = 128 * MIB;

/// Parts of a device, read.
#[derive(Debug)]
pub(super) struct Windows {
    pub(super) size: u64,
    parts: Vec<(u64, Vec<u8>)>,
}

/// A part that could not be read.
#[derive(Debug)]
pub(crate) struct Unread {
    pub(crate) offset: u64,
    pub(crate) error: io::Error,
}

impl Windows {
    /// The first and the last 4 MiB.
    pub(super) fn ends(device: &BlockDevice) -> Result<Self, Unread> {
        let size = block_size(device)?;
        Self::read(device, size, &ends(size))
    }

    /// Single blocks, each with its place.
    pub(super) fn blocks(
        device: &BlockDevice,
        places: impl Iterator<Item = u64>,
    ) -> Result<Vec<(u64, Vec<u8>)>, Unread> {
        let ranges: Vec<Range<u64>> = places.map(|place| place..place + intent::BLOCK as u64).collect();
        Ok(Self::read(device, block_size(device)?, &ranges)?.parts)
    }

    /// The first window between the ends that is not all zero; none if all are.
    pub(super) fn between(device: &BlockDevice) -> Result<Option<Self>, Unread> {
        let size = block_size(device)?;
        forget_cache(device).map_err(|error| Unread { offset: 0, error })?;
        for range in places_between(size) {
            let window = Self { size, parts: vec![(range.start, read_range(device, &range)?)] };
            if window.first_nonzero().is_some() {
                return Ok(Some(window));
            }
        }
        Ok(None)
    }

    fn read(device: &BlockDevice, size: u64, ranges: &[Range<u64>]) -> Result<Self, Unread> {
        forget_cache(device).map_err(|error| Unread { offset: 0, error })?;
        let mut parts = Vec::with_capacity(ranges.len());
        for range in ranges.iter().filter(|range| !range.is_empty()) {
            parts.push((range.start, read_range(device, range)?));
        }
        Ok(Self { size, parts })
    }

    /// What was read at `offset`, if all of it was.
    pub(super) fn bytes(&self, offset: u64, length: usize) -> Option<&[u8]> {
        self.parts.iter().find_map(|(start, bytes)| {
            let from = usize::try_from(offset.checked_sub(*start)?).ok()?;
            bytes.get(from..from.checked_add(length)?)
        })
    }

    /// Whether these bytes are at `offset`.
    pub(super) fn has(&self, offset: u64, magic: &[u8]) -> bool {
        self.bytes(offset, magic.len()) == Some(magic)
    }

    /// The place of the first byte that is not zero.
    pub(super) fn first_nonzero(&self) -> Option<u64> {
        const ZEROS: &[u8] = &[0; 4096];
        for (start, bytes) in &self.parts {
            // Comparing blocks first is fast even where the compiler does not make it so.
            let block = bytes.chunks(ZEROS.len()).position(|block| *block != ZEROS[..block.len()]);
            let Some(block) = block else { continue };
            let from = block * ZEROS.len();
            let byte = bytes[from..].iter().position(|byte| *byte != 0).unwrap_or(0);
            return Some(start + (from + byte) as u64);
        }
        None
    }

    #[cfg(test)]
    pub(super) fn of(bytes: Vec<u8>) -> Self {
        Self { size: bytes.len() as u64, parts: vec![(0, bytes)] }
    }
}

/// The first and the last 4 MiB.
pub(super) fn ends(size: u64) -> [Range<u64>; 2] {
    let tail = size.saturating_sub(END).max(END.min(size));
    [0..END.min(size), aligned_down(tail)..size]
}

/// Where filesystems keep spare superblocks, and places spread evenly over the device; everything on a small one.
pub(super) fn places_between(size: u64) -> Vec<Range<u64>> {
    if size <= SMALL {
        let between = END..size.saturating_sub(END);
        let starts = between.clone().step_by(MIB as usize);
        return starts.map(|start| start..(start + MIB).min(between.end.next_multiple_of(ALIGN))).collect();
    }
    // Backup superblocks of ext2/3/4 are in groups 1 and the powers of 3, 5 and 7; a group has 8 blocks a byte.
    let ext = [1024u64, 2048, 4096].into_iter().flat_map(|block| {
        let first = u64::from(block == 1024) * block;
        [1, 3, 5, 7, 9, 25, 27, 49].into_iter().map(move |group| group * block * block * 8 + first)
    });
    let btrfs = [64 * MIB, 256 << 30];
    // mkfs.xfs makes four allocation groups, or groups of 1 TiB.
    let xfs = (1..4).map(|quarter| size / 4 * quarter).chain((1..64).map(|tebibyte| tebibyte << 40));
    let spread = (1..=SPREAD).map(|part| size / (SPREAD + 1) * part);

    let mut starts: Vec<u64> =
        ext.chain(btrfs).chain(xfs.map(|place| place.saturating_sub(FAR / 2))).collect();
    starts.extend(spread);
    let between = END..size.saturating_sub(END);
    let mut ranges: Vec<Range<u64>> = starts
        .into_iter()
        .map(aligned_down)
        .filter(|start| between.contains(start))
        .map(|start| start..(start + FAR).min(size))
        .collect();
    // A format's record is put nowhere but on zeros.
    let records = intent::places(size).map(|place| place..place + intent::BLOCK as u64);
    ranges.extend(records.filter(|record| between.contains(&record.start)));
    ranges.sort_by_key(|range| range.start);
    ranges.dedup();
    ranges
}

/// These bytes of a device.
#[cfg(feature = "luks")]
pub(super) fn bytes(device: &BlockDevice, range: Range<u64>) -> Result<Vec<u8>, Unread> {
    forget_cache(device).map_err(|error| Unread { offset: range.start, error })?;
    read_range(device, &range)
}

fn aligned_down(offset: u64) -> u64 {
    offset - offset % ALIGN
}

fn block_size(device: &BlockDevice) -> Result<u64, Unread> {
    let unread = |error| Unread { offset: 0, error };
    match ioctl::block_size_in_bytes(device.as_fd()) {
        Ok(0) => Err(unread(io::Error::other("the device has no size: no medium, or not yet attached"))),
        Ok(size) => Ok(size),
        Err(error) => Err(unread(error.into())),
    }
}

/// Empties the page cache of a device that can't be read past it.
fn forget_cache(device: &BlockDevice) -> io::Result<()> {
    if rustix::fs::fcntl_getfl(device)?.contains(OFlags::DIRECT) {
        return Ok(());
    }
    ioctl::flush_buffers(device.as_fd())?;
    Ok(())
}

#[cfg(any(test, feature = "testing"))]
thread_local! {
    /// What this thread read, while it is recorded.
    static READS: std::cell::RefCell<Option<Vec<Range<u64>>>> = const { std::cell::RefCell::new(None) };
}

/// What is read meanwhile.
#[cfg(any(test, feature = "testing"))]
pub(super) fn recorded(run: impl FnOnce()) -> Vec<Range<u64>> {
    READS.set(Some(Vec::new()));
    run();
    READS.take().unwrap_or_default()
}

fn read_range(device: &BlockDevice, range: &Range<u64>) -> Result<Vec<u8>, Unread> {
    #[cfg(any(test, feature = "testing"))]
    READS.with_borrow_mut(|reads| reads.as_mut().map(|reads| reads.push(range.clone())));
    let length = usize::try_from(range.end - range.start).unwrap_or(usize::MAX);
    // A direct read wants aligned memory: some room before, so that an aligned part of it is long enough.
    let mut memory = vec![0u8; length + ALIGN as usize];
    let lead = memory.as_ptr().align_offset(ALIGN as usize);
    let buffer = &mut memory[lead..lead + length];
    // One bad block fails the whole read; read block by block, it shows its place.
    if read_in_full(device, buffer, range.start).is_err() {
        for (index, block) in buffer.chunks_mut(ALIGN as usize).enumerate() {
            read_in_full(device, block, range.start + index as u64 * ALIGN)?;
        }
    }
    memory.copy_within(lead..lead + length, 0);
    memory.truncate(length);
    Ok(memory)
}

fn read_in_full(device: &BlockDevice, buffer: &mut [u8], start: u64) -> Result<(), Unread> {
    let mut done = 0;
    while done < buffer.len() {
        let offset = start + done as u64;
        match rustix::io::pread(device, &mut buffer[done..], offset) {
            Ok(0) => {
                let error = io::Error::new(io::ErrorKind::UnexpectedEof, "the device ends before its size");
                return Err(Unread { offset, error });
            }
            Ok(count) => done += count,
            Err(Errno::INTR) => {}
            Err(error) => return Err(Unread { offset, error: error.into() }),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_lie_between_the_ends_and_are_aligned() {
        for size in [0, 512, 8 * MIB, 9 * MIB + 512, 300 * MIB, 1 << 40, 1 << 50] {
            for range in places_between(size) {
                assert!(range.start % ALIGN == 0 && range.start >= END, "{size}: {range:?}");
                assert!(range.end <= size && range.end - range.start <= MIB, "{size}: {range:?}");
            }
        }
        assert!(places_between(1 << 30).iter().any(|range| range.start == 128 * MIB), "ext4's first backup");
        assert!(places_between(1 << 30).len() > 250);
        let small = places_between(SMALL);
        assert!(small.windows(2).all(|pair| pair[0].end == pair[1].start), "{small:?}");
    }

    #[test]
    fn the_first_nonzero_byte_is_found_anywhere() {
        for place in [0, 1, 4095, 4096, 12_345, 20_479] {
            let mut bytes = vec![0; 20_480];
            bytes[place] = 1;
            assert_eq!(Windows::of(bytes).first_nonzero(), Some(place as u64));
        }
        assert_eq!(Windows::of(vec![0; 20_480]).first_nonzero(), None);
    }
}
