//! Reads parts of a device: never from the page cache, always completely, many at a time.

use std::io;
use std::ops::{ControlFlow, Range};
use std::os::fd::AsFd as _;

use rustix::fs::OFlags;
use rustix::io::Errno;

use super::places::ALIGN;
use crate::device::block_device::BlockDevice;
use crate::sys::ioctl;
use crate::sys::many_reads::{MAX_READS, ManyReads, Read};

/// The largest single read.
const PIECE: u64 = 128 * 1024;
/// Total memory of the reads in flight.
const MEMORY: usize = 1 << 20;

/// A part that could not be read.
#[derive(Debug)]
pub(crate) struct Unread {
    pub(crate) offset: u64,
    pub(crate) error: io::Error,
}

/// Reads parts of one device.
pub(crate) struct Reader<'d> {
    device: &'d BlockDevice,
    many: Option<ManyReads>,
    /// As much as the largest batch has needed so far, plus room to align it: a direct read needs aligned
    /// memory.
    memory: Vec<u8>,
}

impl<'d> Reader<'d> {
    /// Makes a reader of the device's current content. If the device can't be read past its page cache, the
    /// cache is emptied.
    pub(crate) fn new(device: &'d BlockDevice) -> Result<Self, Unread> {
        let unread = |error| Unread { offset: 0, error };
        let is_direct = rustix::fs::fcntl_getfl(device).map_err(|error| unread(error.into()))?;
        if !is_direct.contains(OFlags::DIRECT) {
            ioctl::flush_buffers(device.as_fd()).map_err(|error| unread(error.into()))?;
        }
        Ok(Self { device, many: ManyReads::new(), memory: Vec::new() })
    }

    /// The device's size in bytes.
    pub(crate) fn size(&self) -> Result<u64, Unread> {
        let unread = |error| Unread { offset: 0, error };
        match ioctl::block_size_in_bytes(self.device.as_fd()) {
            Ok(0) => Err(unread(io::Error::other(
                "the device has size 0: it has no medium, or is not attached yet",
            ))),
            Ok(size) => Ok(size),
            Err(error) => Err(unread(error.into())),
        }
    }

    /// Reads these parts in order and passes each piece to `show` with its place, until `show` breaks with
    /// a value.
    ///
    /// A part begins at a multiple of [`ALIGN`] and ends at another, or at the device's end. So does a
    /// piece, which has at most 128 KiB.
    pub(crate) fn each<B>(
        &mut self,
        parts: impl IntoIterator<Item = Range<u64>>,
        mut show: impl FnMut(u64, &[u8]) -> ControlFlow<B>,
    ) -> Result<Option<B>, Unread> {
        let mut pieces = parts.into_iter().flat_map(pieces).peekable();
        loop {
            let mut room = MEMORY as u64;
            let fits = |piece: &Range<u64>| {
                let fits = length(piece) as u64 <= room;
                room = room.saturating_sub((length(piece) as u64).next_multiple_of(ALIGN));
                fits
            };
            let batch = next_batch(&mut pieces, fits);
            if batch.is_empty() {
                return Ok(None);
            }
            for read in self.read_batch(&batch)? {
                if let ControlFlow::Break(value) = show(read.offset, read.buffer) {
                    return Ok(Some(value));
                }
            }
        }
    }

    /// Reads these parts and returns each with its place.
    pub(crate) fn all(
        &mut self,
        parts: impl IntoIterator<Item = Range<u64>>,
    ) -> Result<Vec<(u64, Vec<u8>)>, Unread> {
        let mut found = Vec::new();
        self.each(parts, |offset, bytes| {
            found.push((offset, bytes.to_vec()));
            ControlFlow::<()>::Continue(())
        })?;
        Ok(found)
    }

    fn read_batch(&mut self, batch: &[Range<u64>]) -> Result<Vec<Read<'_>>, Unread> {
        #[cfg(any(test, feature = "testing"))]
        READS.with_borrow_mut(|reads| reads.as_mut().map(|reads| reads.extend_from_slice(batch)));
        let needed: usize = batch.iter().map(|piece| length(piece).next_multiple_of(ALIGN as usize)).sum();
        if self.memory.len() < needed + ALIGN as usize {
            self.memory = vec![0; needed + ALIGN as usize];
        }
        let lead = self.memory.as_ptr().align_offset(ALIGN as usize);
        let mut rest = self.memory.get_mut(lead..).unwrap_or_default();
        let mut reads = Vec::with_capacity(batch.len());
        for piece in batch {
            let (buffer, others) = rest.split_at_mut(length(piece).next_multiple_of(ALIGN as usize));
            reads.push(Read {
                offset: piece.start,
                buffer: &mut buffer[..length(piece)],
                is_complete: false,
            });
            rest = others;
        }
        // A batch of one read gains nothing.
        if let (Some(many), 2..) = (&mut self.many, reads.len())
            && let Err(error) = many.read(self.device.as_fd(), &mut reads)
        {
            tracing::debug!(%error, "asynchronous reads are not available; blocks are read one after the \
                                     other");
            self.many = None;
        }
        for read in reads.iter_mut().filter(|read| !read.is_complete) {
            read_alone(self.device, read.buffer, read.offset)?;
        }
        Ok(reads)
    }
}

impl std::fmt::Debug for Reader<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reader").field("device", &self.device).finish_non_exhaustive()
    }
}

fn next_batch(
    pieces: &mut std::iter::Peekable<impl Iterator<Item = Range<u64>>>,
    mut fits: impl FnMut(&Range<u64>) -> bool,
) -> Vec<Range<u64>> {
    let mut batch = Vec::new();
    while batch.len() < MAX_READS {
        match pieces.next_if(&mut fits) {
            Some(piece) => batch.push(piece),
            None => break,
        }
    }
    batch
}

fn pieces(part: Range<u64>) -> impl Iterator<Item = Range<u64>> {
    let end = part.end;
    part.step_by(PIECE as usize).map(move |start| start..(start + PIECE).min(end))
}

/// At most [`PIECE`].
fn length(piece: &Range<u64>) -> usize {
    usize::try_from(piece.end - piece.start).unwrap_or(0)
}

/// One bad block fails the whole read. Reading block by block then finds its place.
fn read_alone(device: &BlockDevice, buffer: &mut [u8], start: u64) -> Result<(), Unread> {
    if read_in_full(device, buffer, start).is_err() {
        for (index, block) in (0..).zip(buffer.chunks_mut(ALIGN as usize)) {
            read_in_full(device, block, start + index * ALIGN)?;
        }
    }
    Ok(())
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

/// The place of the first byte that is not zero.
pub(crate) fn first_nonzero(bytes: &[u8]) -> Option<usize> {
    const ZEROS: &[u8] = &[0; ALIGN as usize];
    // Comparing blocks first is fast even if the compiler does not vectorize the search.
    let block = bytes.chunks(ZEROS.len()).position(|block| *block != ZEROS[..block.len()])?;
    let from = block * ZEROS.len();
    Some(from + bytes[from..].iter().position(|byte| *byte != 0).unwrap_or(0))
}

#[cfg(any(test, feature = "testing"))]
thread_local! {
    /// The ranges that this thread reads, while recording is on.
    static READS: std::cell::RefCell<Option<Vec<Range<u64>>>> = const { std::cell::RefCell::new(None) };
}

/// Records the ranges that are read while `run` runs.
#[cfg(any(test, feature = "testing"))]
pub(super) fn recorded(run: impl FnOnce()) -> Vec<Range<u64>> {
    READS.set(Some(Vec::new()));
    run();
    READS.take().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_nonzero_byte_is_found_anywhere() {
        for place in [0, 1, 4095, 4096, 12_345, 20_479] {
            let mut bytes = vec![0; 20_480];
            bytes[place] = 1;
            assert_eq!(first_nonzero(&bytes), Some(place));
        }
        assert_eq!(first_nonzero(&[0; 20_480]), None);
        assert_eq!(first_nonzero(&[]), None);
    }

    #[test]
    fn pieces_are_the_part() {
        for part in [0..0, 4096..8192, 4096..(1 << 20) + 512, 0..PIECE, 0..PIECE + 512] {
            let found: Vec<_> = pieces(part.clone()).collect();
            assert!(found.windows(2).all(|pair| pair[0].end == pair[1].start), "{found:?}");
            assert!(found.iter().all(|piece| piece.start % ALIGN == 0 && length(piece) as u64 <= PIECE));
            assert_eq!(found.iter().map(length).sum::<usize>(), length(&part));
        }
    }
}
