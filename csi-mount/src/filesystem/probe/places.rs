//! Where the prober reads a device of a given size: the same places each time.

use std::iter;
use std::ops::Range;
use std::time::{Duration, Instant};

const KIB: u64 = 1024;
const MIB: u64 = 1 << 20;
/// How much of the end is read.
const END_BYTES: u64 = 4 * MIB;
/// How much of the start is read. All magic numbers are within it; the last one is the second header of a
/// LUKS2 device with the largest possible first header.
const START_BYTES: u64 = END_BYTES + ALIGN;
/// Alignment of reads past the page cache. Every block size up to it divides it.
pub(crate) const ALIGN: u64 = 4096;
/// The size of a window around a well-known place.
const WINDOW_BYTES: u64 = 64 * KIB;
/// How many blocks are spread over the rest of the device: one in each of this many slots.
pub(crate) const SPREAD_BLOCKS: u64 = 4096;
/// How many of them are always read, however long it takes.
pub(crate) const MIN_SPREAD_BLOCKS: u64 = 512;
/// Time limit for reading the others, so that a disk with moving heads is not read for half a minute.
const SPREAD_TIME_LIMIT: Duration = Duration::from_millis(250);
/// How many blocks are read between two checks of the time.
const GROUP_BLOCKS: u64 = 256;
/// A device of up to this size is read in full: that is as quick as formatting it.
pub(super) const MAX_FULL_READ_BYTES: u64 = 128 * MIB;

/// The places that the table of magic numbers reads, as parts that do not overlap. A test checks each place
/// of the table.
pub(super) fn named(size: u64) -> Vec<Range<u64>> {
    // The ring of ZFS's last label begins 128 KiB before the end of the last whole 256 KiB.
    let tail = (size & !(256 * KIB - 1)).saturating_sub(128 * KIB);
    let block = |start: u64| start..start + ALIGN;
    let ranges = [0..264 * KIB, block(512 * KIB), block(MIB), block(2 * MIB), block(4 * MIB), tail..size];
    let mut end = 0;
    let separate = ranges.map(|range| {
        let start = range.start.max(end);
        end = range.end.min(size).max(end);
        start..end
    });
    separate.into_iter().filter(|range| !range.is_empty()).collect()
}

pub(super) fn ends_without_named(size: u64) -> Vec<Range<u64>> {
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
pub(crate) fn ends(size: u64) -> [Range<u64>; 2] {
    let tail = size.saturating_sub(END_BYTES).max(START_BYTES.min(size));
    [0..START_BYTES.min(size), aligned_down(tail)..size]
}

/// The parts between the [`ends`] that must be zero for a device to be blank, in groups: all of a small
/// device; on another, the places where filesystems keep spare superblocks, and then [`SPREAD_BLOCKS`]
/// blocks.
///
/// Each group of blocks is spread over the whole device. The groups end once the time is over, counted from
/// the first group, and [`MIN_SPREAD_BLOCKS`] blocks were in them.
pub(crate) fn between(size: u64) -> impl Iterator<Item = Vec<Range<u64>>> {
    let mut start = None;
    let (groups, first) = if size > MAX_FULL_READ_BYTES {
        (SPREAD_BLOCKS / GROUP_BLOCKS, vec![windows(size)])
    } else {
        (0, in_order(middle(size)))
    };
    let spread = (0..groups).map_while(move |group| {
        let start = *start.get_or_insert_with(Instant::now);
        (group < MIN_SPREAD_BLOCKS / GROUP_BLOCKS || start.elapsed() < SPREAD_TIME_LIMIT)
            .then(|| spread_group(size, group))
    });
    first.into_iter().chain(spread)
}

/// The whole range, in parts that need little memory.
fn in_order(whole: Range<u64>) -> Vec<Vec<Range<u64>>> {
    let end = whole.end;
    whole.step_by(MIB as usize).map(|start| iter::once(start..(start + MIB).min(end)).collect()).collect()
}

fn middle(size: u64) -> Range<u64> {
    START_BYTES.min(size)..aligned_down(size.saturating_sub(END_BYTES).max(START_BYTES.min(size)))
}

/// Where filesystems keep spare superblocks.
fn windows(size: u64) -> Vec<Range<u64>> {
    // Backup superblocks of ext2/3/4 are in group 1 and the groups that are powers of 3, 5 and 7. A group
    // has 8 blocks for each byte of a block.
    let ext = [1024u64, 2048, 4096].into_iter().flat_map(|block| {
        let first = u64::from(block == 1024) * block;
        [1, 3, 5, 7, 9, 25, 27, 49].into_iter().map(move |group| group * block * block * 8 + first)
    });
    let btrfs = [64 * MIB, 256 << 30];
    // mkfs.xfs makes four allocation groups, or groups of 1 TiB.
    let xfs = (1..4).map(|quarter| size / 4 * quarter).chain((1..64).map(|tebibyte| tebibyte << 40));
    let starts =
        ext.chain(btrfs).chain(xfs.map(|place| place.saturating_sub(WINDOW_BYTES / 2))).map(aligned_down);
    let between = middle(size);
    let mut ranges: Vec<Range<u64>> = starts
        .filter(|start| between.contains(start))
        .map(|start| start..(start + WINDOW_BYTES).min(between.end))
        .collect();
    ranges.sort_by_key(|range| range.start);
    ranges.dedup();
    ranges
}

/// One block in every sixteenth slot, in the order of the device. The groups are ordered so that the first
/// few of them are as evenly spread as all.
fn spread_group(size: u64, group: u64) -> Vec<Range<u64>> {
    const GROUPS: u64 = SPREAD_BLOCKS / GROUP_BLOCKS;
    let slot_offset = group.reverse_bits() >> (u64::BITS - GROUPS.trailing_zeros());
    (0..GROUP_BLOCKS).map(|index| spread_block(size, index * GROUPS + slot_offset)).collect()
}

/// The block of a slot, at a pseudorandom place: data tends to begin at round numbers.
fn spread_block(size: u64, slot: u64) -> Range<u64> {
    let Range { start, end } = middle(size);
    let blocks = u128::from((end - start) / ALIGN);
    let [from, to] = [slot, slot + 1].map(|slot| blocks * u128::from(slot) / u128::from(SPREAD_BLOCKS));
    let within = ((to - from) * u128::from(pseudorandom(slot))) >> u64::BITS;
    let place = start + u64::try_from(from + within).unwrap_or(0) * ALIGN;
    place..place + ALIGN
}

/// A pseudorandom number for each number (SplitMix64).
fn pseudorandom(number: u64) -> u64 {
    let mixed = (number + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

fn aligned_down(offset: u64) -> u64 {
    offset - offset % ALIGN
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn named_places_and_the_rest_are_the_ends() {
        for size in
            [1, 512, 4096, 400 << 10, MIB + 512, 5 * MIB, 8 * MIB, 8 * MIB + 4608, 300 * MIB, (1 << 40) + 512]
        {
            let mut all = named(size);
            all.extend(ends_without_named(size));
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
    fn places_lie_between_the_ends_and_are_aligned() {
        for size in [
            0,
            512,
            8 * MIB,
            9 * MIB + 512,
            MAX_FULL_READ_BYTES,
            MAX_FULL_READ_BYTES + 512,
            300 * MIB,
            1 << 40,
            1 << 60,
        ] {
            let [_, last] = ends(size);
            for range in between(size).flatten() {
                assert!(range.start % ALIGN == 0 && range.end % ALIGN == 0, "{size}: {range:?}");
                assert!(range.is_empty() || range.start >= START_BYTES, "{size}: {range:?}");
                assert!(range.end <= last.start.max(START_BYTES), "{size}: {range:?}");
            }
        }
        assert!(between(1 << 30).flatten().any(|range| range.start == 128 * MIB), "ext4's first backup");
    }

    #[test]
    fn a_small_device_is_read_in_full() {
        for size in [9 * MIB + 512, 64 * MIB, MAX_FULL_READ_BYTES] {
            let [first, last] = ends(size);
            let parts: Vec<_> = [first].into_iter().chain(between(size).flatten()).chain([last]).collect();
            assert!(parts.windows(2).all(|pair| pair[0].end == pair[1].start), "{parts:?}");
        }
    }

    /// Any extent of two slots is seen, wherever it is. With the least number of blocks, any extent of two
    /// in eight is.
    #[test]
    fn each_slot_has_a_block_and_the_first_groups_are_spread_evenly() {
        for size in [MAX_FULL_READ_BYTES + MIB, 1 << 30, (1 << 40) + 512, 1 << 60] {
            let slot = middle(size).end / SPREAD_BLOCKS + 2 * ALIGN;
            for (groups, slots) in [
                (SPREAD_BLOCKS / GROUP_BLOCKS, 1),
                (MIN_SPREAD_BLOCKS / GROUP_BLOCKS, SPREAD_BLOCKS / MIN_SPREAD_BLOCKS),
            ] {
                let mut places: Vec<u64> = (0..groups)
                    .flat_map(|group| spread_group(size, group))
                    .map(|range| range.start)
                    .collect();
                places.sort_unstable();
                let widest = places.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap();
                assert!(widest <= (slots + 1) * slot, "{size}, {groups} groups: {widest}");
                places.dedup();
                assert_eq!(places.len() as u64, groups * GROUP_BLOCKS, "{size}");
            }
        }
    }

    /// Data begins at round numbers, such as multiples of 1 MiB: blocks on a grid would see all of it or
    /// none.
    #[test]
    fn blocks_are_on_no_grid() {
        let places: Vec<u64> = (0..SPREAD_BLOCKS).map(|slot| spread_block(1 << 40, slot).start).collect();
        for grid in [64 * KIB, MIB, 4 * MIB, 256 * MIB] {
            let mut low = 0;
            let mut most = 0;
            // Each sixteenth of the grid has about the same number of blocks.
            for part in 0..16 {
                let within = |place: &&u64| *place % grid / (grid / 16) == part;
                let count = places.iter().filter(within).count();
                (low, most) = (if part == 0 { count } else { low.min(count) }, most.max(count));
            }
            assert!(low > 190 && most < 330, "{grid}: {low} to {most} of 256");
        }
    }

    /// The percentage of 4 KiB positions at which no byte of an extent is read.
    fn unseen(size: u64, extent: u64, reads: &[Range<u64>]) -> f64 {
        let [blocks, length] = [size / ALIGN, extent / ALIGN];
        let positions = blocks - length + 1;
        // The positions from which an extent reaches a part that is read.
        let mut seen: Vec<Range<u64>> = reads
            .iter()
            .map(|read| (read.start / ALIGN + 1).saturating_sub(length)..(read.end / ALIGN).min(positions))
            .collect();
        seen.sort_by_key(|range| range.start);
        let mut count = 0;
        let mut end = 0;
        for range in seen {
            let start = range.start.max(end);
            count += range.end.saturating_sub(start);
            end = end.max(range.end);
        }
        (positions - count) as f64 * 100.0 / positions as f64
    }

    #[test]
    fn the_share_of_missed_data_is_as_published() {
        let sizes = [1u64, 10, 100, 1024].map(|gibibytes| gibibytes << 30);
        let mut rows = Vec::new();
        for (blocks, groups) in [
            (SPREAD_BLOCKS, SPREAD_BLOCKS / GROUP_BLOCKS),
            (MIN_SPREAD_BLOCKS, MIN_SPREAD_BLOCKS / GROUP_BLOCKS),
        ] {
            for (name, extent) in [("4 KiB", 4 * KIB), ("1 MiB", MIB), ("64 MiB", 64 * MIB)] {
                let shares = sizes.map(|size| {
                    let spread = (0..groups).flat_map(|group| spread_group(size, group));
                    let reads: Vec<_> = ends(size).into_iter().chain(windows(size)).chain(spread).collect();
                    format!("{:.3}", unseen(size, extent, &reads))
                });
                rows.push(format!("| {name} | {blocks} | {} |", shares.join(" | ")));
            }
        }
        let published: Vec<_> = include_str!("missed_data.txt").lines().collect();
        assert_eq!(rows, published, "the table is\n{}", rows.join("\n"));
    }
}
