//! A disk image that a program writes in memory, and that is then copied to the device.
//!
//! `mkfs` and `cryptsetup luksFormat` never get the device. They get a file in memory (`memfd_create(2)`)
//! of the device's size, as an open descriptor. If they fail or die, the device is unchanged. Afterwards
//! their output is known block by block:
//!
//! - blocks that are not zero are the image;
//! - ranges that the program made zero must be zero on the device: an XFS's log, an ext4's journal.
//!
//! # Writing over zeros only
//!
//! [`DiskImage::write_to_device`] holds the device exclusively. It reads every block that it is going to
//! write, past the page cache, and refuses if one is not zero. The ranges that must be zero are read too,
//! up to 128 MiB in all, and then need not be written. If there are more of them, only what the prober
//! reads of them is read, and they are made zero, which a disk can do without writing (`BLKZEROOUT`).
//! [`record`](super::record) says how the copy can be killed at any moment.
//!
//! # Memory
//!
//! The blocks of the image stay in memory: 4 MiB for an ext4 of 10 GiB, 16 MiB for 1 TiB, 232 MiB for 16
//! TiB; 1 MiB for XFS and btrfs of any size, 16 MiB for LUKS. Zeros that a program writes take memory too.
//! So whenever the file has grown by 32 MiB, the program is stopped for a moment, and the zeros are punched
//! out of the file and recorded.

use std::fs::File;
use std::io;
use std::ops::{ControlFlow, Range};
use std::os::fd::AsFd as _;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::Path;

use rustix::fs::{FallocateFlags, MemfdFlags, SeekFrom, fallocate, ftruncate, memfd_create, seek};
use rustix::io::Errno;

use crate::device::block_device::BlockDevice;
use crate::device::exclusive::{AlignedBuffer, BLOCK, ExclusiveDevice, length_of, pieces, with_claim};
use crate::device::mapping::LUKS_HEADER;
use crate::device::users::{self, Tolerated};
use crate::error::{Error, ErrorKind, Result};
use crate::filesystem::format::record::{
    Entry, FormatKind, InterruptedContent, Record, SECTOR, blocks, runs, sectors,
};
use crate::filesystem::probe::{Probe, Reader, Unread, first_nonzero};
use crate::filesystem::tool::{OpenFile, RunningTool};

/// By how much the file can grow before zeros are removed from it.
const GROWTH: u64 = 32 << 20;
/// How much of a device is read to check that it is zero where the image is zero.
const MAX_ZEROS_READ: u64 = 128 << 20;

/// A file in memory that a program uses as its disk.
pub(crate) struct DiskImage<'d> {
    device: &'d BlockDevice,
    file: File,
    size: u64,
    /// Ranges that the program made zero and that are no longer in the file.
    zeros: Vec<Range<u64>>,
    /// The size of the file when zeros were last removed from it.
    kept: u64,
    operation: &'static str,
}

/// Decides whether bytes of the device that are not zero belong to nobody.
pub(crate) trait Blankness: Sync {
    /// Whether these bytes of the device, which are not zero, were never written by anybody.
    fn is_untouched(&self, range: &Range<u64>, bytes: &[u8]) -> Result<bool>;
}

/// The parts of an image, in device order.
struct Content {
    /// Those that are not zero, without the commit sector.
    sectors: Vec<Entry>,
    commit: Option<Vec<u8>>,
    zeros: Vec<Range<u64>>,
}

impl<'d> DiskImage<'d> {
    /// A file of the device's size that reads as zeros.
    pub(crate) fn for_device(device: &'d BlockDevice, operation: &'static str) -> Result<Self> {
        let size = device.size()?;
        let made = memfd_create("csi-mount image", MemfdFlags::CLOEXEC)
            .and_then(|fd| ftruncate(&fd, size).map(|()| File::from(fd)));
        let failed = |error: Errno| {
            Error::os(operation, device.path(), error).add_reason("no file in memory could be created for it")
        };
        let file = made.map_err(failed)?;
        Ok(Self { device, file, size, zeros: Vec::new(), kept: 0, operation })
    }

    /// The open file, for the program's command line.
    #[cfg(feature = "luks")]
    pub(crate) fn open_file(&self) -> OpenFile<'_> {
        OpenFile { fd: self.file.as_fd(), name: self.device.path() }
    }

    /// Splits the file from the record of its zeros, for a program that is watched while it runs.
    pub(crate) fn split(&mut self) -> (OpenFile<'_>, ZeroKeeper<'_>) {
        let Self { device, file, zeros, kept, operation, .. } = self;
        let (name, file): (&Path, &File) = (device.path(), file);
        (OpenFile { fd: file.as_fd(), name }, ZeroKeeper { file, zeros, kept, operation, name })
    }

    pub(crate) fn read(&self, place: u64, length: usize) -> Result<Vec<u8>> {
        let mut bytes = vec![0; length];
        self.read_into(&mut bytes, place)?;
        Ok(bytes)
    }

    fn read_into(&self, bytes: &mut [u8], place: u64) -> Result<()> {
        self.file.read_exact_at(bytes, place).map_err(|error| self.failed(error))
    }

    /// Adds a range that must be zero on the device, which the file itself does not show.
    pub(crate) fn has_zeros(&mut self, range: Range<u64>) {
        self.zeros.push(range);
    }

    fn failed(&self, error: io::Error) -> Error {
        Error::os(self.operation, self.device.path(), error)
    }

    /// Reads the whole image once.
    fn content(&self, made: FormatKind) -> Result<Content> {
        let mut content = Content { sectors: Vec::new(), commit: None, zeros: self.zeros.clone() };
        let mut buffer = AlignedBuffer::new();
        for piece in data_ranges(&self.file, self.size).map_err(|error| self.failed(error))? {
            let bytes = buffer.first(length_of(&piece));
            self.read_into(bytes, piece.start)?;
            for (place, block) in blocks(piece.start, bytes) {
                if first_nonzero(block).is_none() {
                    content.zeros.push(place..place + block.len() as u64);
                }
                for (place, sector) in sectors(place, block) {
                    if first_nonzero(sector).is_none() {
                        continue;
                    } else if place == made.commit_place() {
                        content.commit = Some(sector.to_vec());
                    } else {
                        content.sectors.push(Entry::from_sector(place, sector));
                    }
                }
            }
        }
        content.zeros = joined(std::mem::take(&mut content.zeros));
        Ok(content)
    }

    /// Copies the image to its device, where every byte of it must be zero.
    ///
    /// The caller has locked the device. This holds it exclusively from the last check until the end. What
    /// an interrupted format left is made zero first.
    ///
    /// # Errors
    ///
    /// [`NotBlank`](ErrorKind::NotBlank), [`Unreadable`](ErrorKind::Unreadable), [`Busy`](ErrorKind::Busy),
    /// [`WrongDevice`](ErrorKind::WrongDevice): nothing was written. [`Io`](ErrorKind::Io).
    pub(crate) fn write_to_device(&self, made: FormatKind, blankness: Option<&dyn Blankness>) -> Result<()> {
        let content = self.content(made)?;
        if !content.commit.as_deref().is_some_and(|sector| made.is_committed_by(sector)) {
            let reason = format!("the program reported success, but created no {made}");
            return Err(Error::new(ErrorKind::ToolFailed, self.operation, reason).at(self.device.path()));
        }
        let record = self.record(made, &content)?;
        users::refuse(self.device, self.operation, Tolerated::None)?;
        with_claim(self.device, self.operation, |disk| {
            let copy = Copy { image: self, disk, content: &content, blankness };
            copy.make_blank()?;
            copy.check(&record)?;
            copy.write(&record)
        })
    }

    /// The record of this image, with its manifest at the end of the last hole that is long enough.
    fn record(&self, made: FormatKind, content: &Content) -> Result<Record> {
        let length = Record::manifest_length(content.sectors.len());
        // LUKS leaves zeros that nothing reads before its content, which begins here. Everything after it
        // belongs to the user.
        let (end, zeros) = match made {
            FormatKind::Luks => (LUKS_HEADER, &[][..]),
            FormatKind::Filesystem(_) => (self.size, &content.zeros[..]),
        };
        let mut taken = zeros.to_vec();
        taken.extend(runs(content.sectors.iter().map(|entry| entry.place), self.size));
        taken.extend(FormatKind::COMMIT_BLOCKS.map(|place| place..place + BLOCK as u64));
        taken.retain(|range| range.start < end);
        taken.sort_unstable_by_key(|range| range.start);
        let whole_blocks = |end: u64| end - end % BLOCK as u64;
        let mut free = whole_blocks(end);
        for range in taken.into_iter().rev() {
            if range.end + length <= free {
                return Ok(Record::new(made, free - length, &content.sectors));
            }
            free = free.min(whole_blocks(range.start));
        }
        let reason = format!("the {made} has no {length} free bytes for the record of the format");
        Err(Error::new(ErrorKind::OutOfRange, self.operation, reason).at(self.device.path()))
    }
}

struct Copy<'c, 'd> {
    image: &'c DiskImage<'d>,
    disk: &'c ExclusiveDevice<'d>,
    content: &'c Content,
    blankness: Option<&'c dyn Blankness>,
}

impl Copy<'_, '_> {
    /// The last check of the whole device.
    fn make_blank(&self) -> Result<()> {
        let device = self.image.device;
        let operation = self.image.operation;
        match device.probe() {
            Probe::Blank(_) => return Ok(()),
            Probe::Interrupted(_) => {}
            changed => return Err(changed.refusal(operation, device)),
        }
        if let Ok(Some(remains)) = InterruptedContent::find(device) {
            remains.clear(self.disk)?;
        }
        match device.probe() {
            Probe::Blank(_) => Ok(()),
            changed => Err(changed.refusal(operation, device)),
        }
    }

    /// Reads everything that will be written, and everything that must be zero.
    fn check(&self, record: &Record) -> Result<()> {
        let device = self.image.device;
        let operation = self.image.operation;
        let commit = record.made.commit_place();
        let places = self.content.sectors.iter().map(|entry| entry.place).chain([commit]);
        let mut ranges = runs(places, self.disk.size);
        ranges.extend(record.manifest());
        if self.reads_zeros() {
            ranges.extend_from_slice(&self.content.zeros);
        }
        let unread =
            |Unread { offset, error }| Probe::Unreadable { offset, error }.refusal(operation, device);
        let found = Reader::new(device).map_err(unread)?.each(ranges, |start, bytes| {
            let Some(byte) = first_nonzero(bytes) else { return ControlFlow::Continue(()) };
            match self.make_zero(start, bytes) {
                Ok(true) => ControlFlow::Continue(()),
                Ok(false) => {
                    let offset = start + byte as u64;
                    ControlFlow::Break(
                        Probe::UnknownData { offset, looks_like: None }.refusal(operation, device),
                    )
                }
                Err(error) => ControlFlow::Break(error),
            }
        });
        match found.map_err(unread)? {
            None => Ok(()),
            Some(refusal) => Err(refusal),
        }
    }

    /// Makes bytes zero that nobody wrote; false if somebody did.
    fn make_zero(&self, start: u64, bytes: &[u8]) -> Result<bool> {
        let Some(blankness) = self.blankness else { return Ok(false) };
        let range = start..start + bytes.len() as u64;
        let is_untouched = blankness.is_untouched(&range, bytes)?;
        if is_untouched {
            self.disk.zero(&range, &mut AlignedBuffer::new())?;
        }
        Ok(is_untouched)
    }

    fn reads_zeros(&self) -> bool {
        self.blankness.is_some()
            || self.content.zeros.iter().map(length_of).sum::<usize>() as u64 <= MAX_ZEROS_READ
    }

    /// Writes the header, the manifest, the image, and the commit sector over the header. The disk is
    /// flushed after each: [`record`](super::record) says why.
    fn write(&self, record: &Record) -> Result<()> {
        let disk = self.disk;
        let buffer = &mut AlignedBuffer::new();
        let commit = record.made.commit_place();
        for block in runs([commit], disk.size) {
            let bytes = buffer.first(length_of(&block));
            record.put_header(block.start, bytes);
            disk.write(bytes, block.start)?;
        }
        disk.flush()?;

        let mut lists = record.lists(&self.content.sectors);
        for piece in record.manifest().into_iter().flat_map(pieces) {
            let bytes = buffer.first(length_of(&piece));
            bytes.fill(0);
            for (sector, (_, list)) in bytes.chunks_mut(SECTOR).zip(&mut lists) {
                sector.copy_from_slice(&list);
            }
            disk.write(bytes, piece.start)?;
        }
        disk.flush()?;

        // The ranges are made zero before the image is written: some blocks can lie in a range that was zero
        // earlier.
        if !self.reads_zeros() {
            for range in &self.content.zeros {
                disk.zero_out(range, buffer)?;
            }
        }
        for run in runs(self.content.sectors.iter().map(|entry| entry.place), disk.size) {
            let bytes = buffer.first(length_of(&run));
            self.image.read_into(bytes, run.start)?;
            record.put_header(run.start, bytes);
            disk.write(bytes, run.start)?;
        }
        disk.flush()?;

        let sector = disk.sector()?;
        let start = commit - commit % sector;
        let bytes = buffer.first(length_of(&(start..start + sector)));
        self.image.read_into(bytes, start)?;
        disk.write(bytes, start)?;
        disk.flush()?;
        record.manifest().map_or(Ok(()), |range| disk.zero(&range, buffer))
    }
}

/// Removes zeros that a program wrote from its file, so that they take no memory.
pub(crate) struct ZeroKeeper<'i> {
    file: &'i File,
    zeros: &'i mut Vec<Range<u64>>,
    kept: &'i mut u64,
    operation: &'static str,
    name: &'i Path,
}

impl ZeroKeeper<'_> {
    /// Called repeatedly while the program runs.
    pub(crate) fn punch_if_grown(&mut self, running: &RunningTool) -> Result<()> {
        let name = self.name;
        let failed = |error: io::Error| Error::os(self.operation, name, error);
        if self.allocated().map_err(failed)? < *self.kept + GROWTH {
            return Ok(());
        }
        running.while_stopped(|| self.punch_zeros().map_err(|error| Error::os(self.operation, name, error)))
    }

    fn allocated(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.blocks() * 512)
    }

    fn punch_zeros(&mut self) -> io::Result<()> {
        let mut buffer = AlignedBuffer::new();
        let size = self.file.metadata()?.len();
        for piece in data_ranges(self.file, size)? {
            let bytes = buffer.first(length_of(&piece));
            self.file.read_exact_at(bytes, piece.start)?;
            let zeros = blocks(piece.start, bytes).filter(|(_, block)| first_nonzero(block).is_none());
            for range in runs(zeros.map(|(place, _)| place), size) {
                let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                fallocate(self.file, flags, range.start, range.end - range.start)?;
                self.zeros.push(range);
            }
        }
        *self.zeros = joined(std::mem::take(self.zeros));
        *self.kept = self.allocated()?;
        Ok(())
    }
}

/// The parts of a sparse file that are not holes, in pieces of at most [`PIECE`] bytes, aligned to blocks.
fn data_ranges(file: &File, size: u64) -> io::Result<Vec<Range<u64>>> {
    let mut ranges = Vec::new();
    let mut end = 0;
    while end < size {
        let start = match seek(file, SeekFrom::Data(end)) {
            Ok(start) => start - start % BLOCK as u64,
            Err(Errno::NXIO) => break,
            Err(error) => return Err(error.into()),
        };
        end = seek(file, SeekFrom::Hole(start))?.next_multiple_of(BLOCK as u64).min(size);
        ranges.extend(pieces(start..end));
    }
    Ok(ranges)
}

/// Sorts ranges, and joins those that touch.
fn joined(mut ranges: Vec<Range<u64>>) -> Vec<Range<u64>> {
    ranges.sort_unstable_by_key(|range| range.start);
    let mut joined: Vec<Range<u64>> = Vec::new();
    for range in ranges {
        match joined.last_mut() {
            Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
            _ => joined.push(range),
        }
    }
    joined
}
