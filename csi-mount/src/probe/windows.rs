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
/// How much of the end is read.
const END: u64 = 4 * MIB;
/// How much of the start: all that has a magic number has it there, at last the second header of a LUKS2 device whose first
/// one is as large as can be.
const START: u64 = END + ALIGN;
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
    /// In their order on the device.
    parts: Vec<Part>,
}

/// One part, in memory that a direct read can go to.
#[derive(Debug)]
struct Part {
    start: u64,
    memory: Vec<u8>,
    /// Where in `memory` it begins.
    lead: usize,
}

impl Part {
    fn bytes(&self) -> &[u8] {
        &self.memory[self.lead..]
    }
}

/// A part that could not be read.
#[derive(Debug)]
pub(crate) struct Unread {
    pub(crate) offset: u64,
    pub(crate) error: io::Error,
}

impl Windows {
    /// The places where something may have a magic number: enough to name what is there, not to call it blank.
    pub(super) fn named(device: &BlockDevice) -> Result<Self, Unread> {
        let size = block_size(device)?;
        Self::read(device, size, &named(size))
    }

    /// What else the first and the last 4 MiB hold, besides [`named`](Self::named).
    pub(super) fn complete_ends(&mut self, device: &BlockDevice) -> Result<(), Unread> {
        let rest = Self::read(device, self.size, &rest_of_ends(self.size))?;
        self.parts.extend(rest.parts);
        self.parts.sort_by_key(|part| part.start);
        Ok(())
    }

    /// Single blocks, each with its place.
    pub(super) fn blocks(
        device: &BlockDevice,
        places: impl Iterator<Item = u64>,
    ) -> Result<Vec<(u64, Vec<u8>)>, Unread> {
        let ranges: Vec<Range<u64>> = places.map(|place| place..place + intent::BLOCK as u64).collect();
        let parts = Self::read(device, block_size(device)?, &ranges)?.parts;
        Ok(parts.into_iter().map(|part| (part.start, part.bytes().to_vec())).collect())
    }

    /// The first window between the ends that is not all zero; none if all are.
    pub(super) fn between(device: &BlockDevice) -> Result<Option<Self>, Unread> {
        let size = block_size(device)?;
        forget_cache(device).map_err(|error| Unread { offset: 0, error })?;
        for range in places_between(size) {
            let window = Self { size, parts: vec![read_range(device, &range)?] };
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
            parts.push(read_range(device, range)?);
        }
        Ok(Self { size, parts })
    }

    /// What was read at `offset`, if all of it was.
    pub(super) fn bytes(&self, offset: u64, length: usize) -> Option<&[u8]> {
        let found = self.parts.iter().find_map(|part| {
            let from = usize::try_from(offset.checked_sub(part.start)?).ok()?;
            part.bytes().get(from..from.checked_add(length)?)
        });
        #[cfg(test)]
        if found.is_none() && offset.saturating_add(length as u64) <= self.size {
            tests::MISSED.with_borrow_mut(|missed| missed.push(offset));
        }
        found
    }

    /// Whether it was read what is at `offset`.
    pub(super) fn reach(&self, offset: u64) -> bool {
        self.parts.iter().any(|part| (part.start..part.start + part.bytes().len() as u64).contains(&offset))
    }

    /// Whether these bytes are at `offset`.
    pub(super) fn has(&self, offset: u64, magic: &[u8]) -> bool {
        self.bytes(offset, magic.len()) == Some(magic)
    }

    /// The place of the first byte that is not zero.
    pub(super) fn first_nonzero(&self) -> Option<u64> {
        const ZEROS: &[u8] = &[0; 4096];
        for part in &self.parts {
            let (start, bytes) = (part.start, part.bytes());
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
        Self { size: bytes.len() as u64, parts: vec![Part { start: 0, memory: bytes, lead: 0 }] }
    }
}

/// Where the table of magic numbers looks, in parts that do not overlap. A test asks it about each of its places.
fn named(size: u64) -> Vec<Range<u64>> {
    const KIB: u64 = 1024;
    // The ring of ZFS's last label begins 128 KiB before the end of the last whole 256 KiB.
    let tail = (size & !(256 * KIB - 1)).saturating_sub(128 * KIB);
    let block = |start: u64| start..start + ALIGN;
    let ranges = [0..264 * KIB, block(512 * KIB), block(MIB), block(2 * MIB), block(4 * MIB), tail..size];
    let mut end = 0;
    let apart = ranges.map(|range| {
        let start = range.start.max(end);
        end = range.end.min(size).max(end);
        start..end
    });
    apart.into_iter().filter(|range| !range.is_empty()).collect()
}

/// What is between the parts of [`named`] in the [`ends`].
fn rest_of_ends(size: u64) -> Vec<Range<u64>> {
    let named = named(size);
    let mut rest = Vec::new();
    for end in ends(size) {
        let mut from = end.start;
        for range in named.iter().filter(|range| range.start < end.end && range.end > end.start) {
            rest.push(from..range.start.max(from));
            from = range.end;
        }
        rest.push(from..end.end.max(from));
    }
    rest.retain(|range| !range.is_empty());
    rest
}

/// The first 4 MiB and a block, and the last 4 MiB.
pub(super) fn ends(size: u64) -> [Range<u64>; 2] {
    let tail = size.saturating_sub(END).max(START.min(size));
    [0..START.min(size), aligned_down(tail)..size]
}

/// Where filesystems keep spare superblocks, and places spread evenly over the device; everything on a small one.
pub(super) fn places_between(size: u64) -> Vec<Range<u64>> {
    if size <= SMALL {
        let between = START..size.saturating_sub(END);
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
    let between = START..size.saturating_sub(END);
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
    Ok(read_range(device, &range)?.bytes().to_vec())
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

fn read_range(device: &BlockDevice, range: &Range<u64>) -> Result<Part, Unread> {
    #[cfg(any(test, feature = "testing"))]
    READS.with_borrow_mut(|reads| reads.as_mut().map(|reads| reads.push(range.clone())));
    let length = usize::try_from(range.end - range.start).unwrap_or(usize::MAX);
    // A direct read wants aligned memory: some room before, so that an aligned part of it is long enough.
    let mut memory = vec![0u8; length + ALIGN as usize];
    let lead = memory.as_ptr().align_offset(ALIGN as usize);
    memory.truncate(lead + length);
    let buffer = &mut memory[lead..];
    // One bad block fails the whole read; read block by block, it shows its place.
    if read_in_full(device, buffer, range.start).is_err() {
        for (index, block) in buffer.chunks_mut(ALIGN as usize).enumerate() {
            read_in_full(device, block, range.start + index as u64 * ALIGN)?;
        }
    }
    Ok(Part { start: range.start, memory, lead })
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
pub(super) mod tests {
    use super::*;

    thread_local! {
        /// Places on the device that were asked for and not read.
        pub(super) static MISSED: std::cell::RefCell<Vec<u64>> = const { std::cell::RefCell::new(Vec::new()) };
    }

    /// Zeros at all places that have names, and the function's questions that these do not answer.
    pub(in crate::probe) fn missed(size: u64, ask: impl FnOnce(&Windows)) -> Vec<u64> {
        let parts = named(size).into_iter().map(|range| Part {
            start: range.start,
            memory: vec![0; (range.end - range.start) as usize],
            lead: 0,
        });
        MISSED.take();
        ask(&Windows { size, parts: parts.collect() });
        MISSED.take()
    }

    #[test]
    fn named_places_and_the_rest_are_the_ends() {
        for size in
            [1, 512, 4096, 400 << 10, MIB + 512, 5 * MIB, 8 * MIB, 8 * MIB + 4608, 300 * MIB, (1 << 40) + 512]
        {
            let mut all = named(size);
            all.extend(rest_of_ends(size));
            all.sort_by_key(|range| range.start);
            assert!(all.windows(2).all(|pair| pair[0].end <= pair[1].start), "{size}: overlap in {all:?}");
            let covered =
                |ranges: &[Range<u64>]| ranges.iter().map(|range| range.end - range.start).sum::<u64>();
            // The ends of a device smaller than both overlap.
            let [first, last] = ends(size);
            assert_eq!(
                covered(&all),
                covered(&[first.clone(), last.start.max(first.end)..last.end]),
                "{size}: {all:?}"
            );
            assert!(all.iter().all(|range| range.start % ALIGN == 0 && range.end <= size), "{size}: {all:?}");
        }
    }

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
