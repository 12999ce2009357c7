//! A device that is held exclusively while it is written to, past the page cache.

use std::fs::File;
use std::io;
use std::ops::Range;
#[cfg(feature = "lvm")]
use std::os::fd::BorrowedFd;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::fs::FileExt as _;
use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use crate::device::block_device::{BlockDevice, DeviceUse};
use crate::device::users::{self, Tolerated};
use crate::error::{Error, Result};
use crate::sys::ioctl;

/// The unit of images and records in bytes: no sector is larger.
pub(crate) const BLOCK: usize = 4096;
/// The largest piece that is written at once.
pub(crate) const PIECE: usize = 1 << 20;
/// How long to wait for another process to release the device: a killed tool can still be ending.
const RELEASE_TIME_LIMIT: Duration = Duration::from_secs(2);
const POLL_INTERVAL: Duration = Duration::from_millis(1);

/// A device that this call holds exclusively: nobody can mount it or claim it otherwise.
///
/// Its descriptor is in the process's shared descriptor table, because the copy can take seconds. A thread
/// with its own table would keep a copy of every other descriptor for that time, and with it mounts and
/// devices of other volumes. A child process of another thread can have this descriptor until it runs its
/// program, so [`with_claim`] waits for that at the end.
pub(crate) struct ExclusiveDevice<'d> {
    pub(crate) device: &'d BlockDevice,
    pub(crate) size: u64,
    file: File,
    operation: &'static str,
}

/// Runs a function with the device held exclusively. When this returns, nothing of this process holds it
/// any more.
///
/// # Errors
///
/// [`Busy`](crate::ErrorKind::Busy) if it is in use, [`WrongDevice`](crate::ErrorKind::WrongDevice) if its
/// path leads to another device.
pub(crate) fn with_claim<T>(
    device: &BlockDevice,
    operation: &'static str,
    run: impl FnOnce(&ExclusiveDevice<'_>) -> Result<T>,
) -> Result<T> {
    let claimed = ExclusiveDevice::claim(device, operation)?;
    let done = run(&claimed);
    drop(claimed);
    let end = Instant::now() + RELEASE_TIME_LIMIT;
    while device.in_use()? == DeviceUse::InUse && Instant::now() < end {
        std::thread::sleep(POLL_INTERVAL);
    }
    done
}

impl<'d> ExclusiveDevice<'d> {
    fn claim(device: &'d BlockDevice, operation: &'static str) -> Result<Self> {
        let size = device.size()?;
        let end = Instant::now() + RELEASE_TIME_LIMIT;
        loop {
            match open(device) {
                Ok(file) => {
                    let file = File::from(file);
                    device.same(&file)?;
                    return Ok(Self { device, size, file, operation });
                }
                Err(Errno::BUSY) if Instant::now() < end => std::thread::sleep(POLL_INTERVAL),
                Err(Errno::BUSY) => {
                    users::refuse(device, operation, Tolerated::None)?;
                    return Err(Error::os(operation, device.path(), Errno::BUSY));
                }
                Err(error) => return Err(Error::os(operation, device.path(), error)),
            }
        }
    }

    #[cfg(feature = "lvm")]
    pub(crate) fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Writes an [`AlignedBuffer`]'s bytes to this place.
    pub(crate) fn write(&self, bytes: &[u8], place: u64) -> Result<()> {
        self.file.write_all_at(bytes, place).map_err(|error| self.failed(error))
    }

    pub(crate) fn zero(&self, range: &Range<u64>, buffer: &mut AlignedBuffer) -> Result<()> {
        for piece in pieces(range.clone()) {
            let zeros = buffer.first(length_of(&piece));
            zeros.fill(0);
            self.write(zeros, piece.start)?;
        }
        Ok(())
    }

    /// Makes a long range zero, with a command of the disk if it has one.
    pub(crate) fn zero_out(&self, range: &Range<u64>, buffer: &mut AlignedBuffer) -> Result<()> {
        match ioctl::zero_out(self.file.as_fd(), range.start, range.end - range.start) {
            Ok(()) => Ok(()),
            Err(_) => self.zero(range, buffer),
        }
    }

    /// The smallest unit that can be written, in bytes.
    pub(crate) fn sector(&self) -> Result<u64> {
        let topology = ioctl::topology(self.file.as_fd()).map_err(|error| self.failed(error.into()))?;
        Ok(topology.logical_sector.into())
    }

    /// Returns once everything that was written is on the disk.
    pub(crate) fn flush(&self) -> Result<()> {
        self.file.sync_data().map_err(|error| self.failed(error))
    }

    fn failed(&self, error: io::Error) -> Error {
        Error::os(self.operation, self.device.path(), error)
    }
}

fn open(device: &BlockDevice) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::EXCL;
    match rustix::fs::open(device.path(), flags | OFlags::DIRECT, Mode::empty()) {
        // Not every driver can write past the page cache; a flush then writes the cache out.
        Err(Errno::INVAL) => rustix::fs::open(device.path(), flags, Mode::empty()),
        other => other,
    }
}

/// Memory that direct writes can use: aligned to [`BLOCK`], [`PIECE`] long.
pub(crate) struct AlignedBuffer {
    memory: Vec<u8>,
    lead: usize,
}

impl AlignedBuffer {
    pub(crate) fn new() -> Self {
        let memory = vec![0; PIECE + BLOCK];
        let lead = memory.as_ptr().align_offset(BLOCK);
        Self { memory, lead }
    }

    /// The first bytes of the buffer.
    pub(crate) fn first(&mut self, length: usize) -> &mut [u8] {
        &mut self.memory[self.lead..self.lead + length]
    }
}

/// Splits a range into pieces that fit the buffer.
pub(crate) fn pieces(range: Range<u64>) -> impl Iterator<Item = Range<u64>> {
    let end = range.end;
    range.step_by(PIECE).map(move |start| start..(start + PIECE as u64).min(end))
}

/// The length of a range that fits in memory.
pub(crate) fn length_of(range: &Range<u64>) -> usize {
    usize::try_from(range.end.saturating_sub(range.start)).unwrap_or(usize::MAX)
}
