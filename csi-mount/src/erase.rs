//! Makes a block device read as zeros, and proves it by reading.

use std::ops::{ControlFlow, Range};
use std::str::FromStr;
use std::thread::sleep;
use std::time::{Duration, Instant};
use std::{fmt, io};

use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::Errno;

use crate::device::block_device::BlockDevice;
use crate::device::exclusive::{ExclusiveDevice, with_claim};
use crate::device::users::{self, Tolerated};
use crate::error::{Error, ErrorKind, Result};
use crate::filesystem::probe::{first_nonzero, nonzero_blocks};
use crate::sys::ioctl;

const ERASE: &str = "erase";
/// The largest part that is erased between two reports of progress.
const LARGEST_STEP: u64 = 1 << 30;
/// The smallest one, at a low rate. A multiple of every sector.
const SMALLEST_STEP: u64 = 1 << 20;

/// What happens to the data of a volume that is deleted.
///
/// As text, for the parameter of a storage class: `zero`, `discard` or `none`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum EraseMode {
    /// Every byte reads as zero afterwards, by `fallocate(2)` with `PUNCH_HOLE` and, if the device can't do
    /// that, by `BLKZEROOUT`. The device is then read back as a sample.
    ///
    /// It concerns what the device returns. Cells that an SSD has set aside keep old data; only a sanitize
    /// command or a discarded encryption key removes that.
    #[default]
    Zero,
    /// `BLKDISCARD`, which is a hint: the device can return the old data afterwards. It promises nothing, and
    /// a device that has no discard counts as erased.
    Discard,
    /// Nothing is done: the next user of the space can read the data.
    None,
}

impl EraseMode {
    const ALL: [(Self, &'static str); 3] =
        [(Self::Zero, "zero"), (Self::Discard, "discard"), (Self::None, "none")];
}

impl fmt::Display for EraseMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Self::ALL.iter().filter(|(mode, _)| mode == self).try_for_each(|(_, text)| f.write_str(text))
    }
}

impl FromStr for EraseMode {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let found = Self::ALL.into_iter().find(|(_, word)| *word == text);
        found.map(|(mode, _)| mode).ok_or_else(|| {
            let reason = format!("{text:?} is none of zero, discard, none");
            Error::new(ErrorKind::InvalidInput, "read the erase mode", reason)
        })
    }
}

/// Where an erase begins and how fast it is.
#[derive(Debug, Clone, Copy, Default)]
#[must_use]
pub struct EraseOptions {
    from: u64,
    bytes_per_second: Option<u64>,
}

impl EraseOptions {
    /// From the start of the device, without a limit.
    pub fn new() -> Self {
        Self::default()
    }

    /// Continues at this offset in bytes: the last one that an earlier call reported as progress.
    pub fn start_at(mut self, offset: u64) -> Self {
        self.from = offset;
        self
    }

    /// Limits the bandwidth, so that other volumes on the same disk stay usable. A value below 1 MiB counts
    /// as 1 MiB.
    pub fn bytes_per_second(mut self, rate: u64) -> Self {
        self.bytes_per_second = Some(rate.max(SMALLEST_STEP));
        self
    }

    /// The length of one step: a quarter of a second's work at the given rate.
    fn step(self) -> u64 {
        let wanted = self.bytes_per_second.map_or(LARGEST_STEP, |rate| rate / 4);
        (wanted - wanted % SMALLEST_STEP).clamp(SMALLEST_STEP, LARGEST_STEP)
    }
}

/// Erases a whole block device.
///
/// The device is held exclusively all the time. `progress` is called with the offset up to which everything
/// is erased and flushed. A caller that stores this offset durably can continue there after a crash
/// ([`EraseOptions::start_at`]). An error of `progress` ends the erase.
///
/// With [`EraseMode::Zero`], the device is then read past the page cache, at the places that
/// a probe reads before it calls a device blank: all of up to 128 MiB, and of a larger device both
/// ends and up to 4,096 places between them. The erase has succeeded only if all of them are zero. That is a
/// sample: a device that ignores some of the writes can pass.
///
/// The call can take hours, and waits without limit for a device that does not answer. Needs Linux 4.9
/// (`PUNCH_HOLE` on block devices); without it `BLKZEROOUT` does the work. See `fallocate(2)`.
pub fn erase(
    device: &BlockDevice,
    mode: EraseMode,
    options: EraseOptions,
    progress: impl FnMut(u64) -> Result<()>,
) -> Result<()> {
    if mode == EraseMode::None {
        return Ok(());
    }
    users::refuse(device, ERASE, Tolerated::None)?;
    with_claim(device, ERASE, |claimed| {
        write(claimed, mode, options, progress)?;
        match mode {
            EraseMode::Zero => nonzero_place(device)?.map_or(Ok(()), |place| {
                let reason = format!("the byte at {place} is not zero after the erase");
                let error = Error::new(ErrorKind::NotBlank, ERASE, reason).at(device.path());
                Err(error.hint("the disk does not do what it confirms: do not use it again"))
            }),
            EraseMode::Discard | EraseMode::None => Ok(()),
        }
    })
}

fn write(
    device: &ExclusiveDevice<'_>,
    mode: EraseMode,
    options: EraseOptions,
    mut progress: impl FnMut(u64) -> Result<()>,
) -> Result<()> {
    if options.from > device.size || !options.from.is_multiple_of(device.sector()?) {
        let reason = format!("the offset {} is not a sector of its {} bytes", options.from, device.size);
        return Err(Error::new(ErrorKind::OutOfRange, ERASE, reason).at(device.device.path()));
    }
    let mut can_punch = true;
    let mut start = options.from;
    while start < device.size {
        let began = Instant::now();
        let part = start..(start + options.step()).min(device.size);
        if mode == EraseMode::Discard {
            match ioctl::discard(device.as_fd(), part.start, part.end - part.start) {
                Ok(()) => {}
                Err(Errno::OPNOTSUPP) => return Ok(()),
                Err(error) => return Err(failed(device, error)),
            }
        } else {
            can_punch = can_punch && punch_hole(device, &part)?;
            if !can_punch {
                let zeroed = ioctl::zero_out(device.as_fd(), part.start, part.end - part.start);
                zeroed.map_err(|error| failed(device, error))?;
            }
        }
        device.flush()?;
        progress(part.end)?;
        if let Some(rate) = options.bytes_per_second {
            let wanted = Duration::from_secs_f64((part.end - part.start) as f64 / rate as f64);
            sleep(wanted.saturating_sub(began.elapsed()));
        }
        start = part.end;
    }
    Ok(())
}

/// Returns false if the device can't do it.
fn punch_hole(device: &ExclusiveDevice<'_>, part: &Range<u64>) -> Result<bool> {
    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    match fallocate(device.as_fd(), flags, part.start, part.end - part.start) {
        Ok(()) => Ok(true),
        // NODEV: before Linux 4.9, for every block device.
        Err(Errno::OPNOTSUPP | Errno::NODEV) => Ok(false),
        Err(error) => Err(failed(device, error)),
    }
}

fn failed(device: &ExclusiveDevice<'_>, error: impl Into<io::Error>) -> Error {
    Error::os(ERASE, device.device.path(), error)
}

/// The place of a byte that is not zero, among those that a [probe](BlockDevice::probe) reads. Nothing is written.
pub(crate) fn nonzero_place(device: &BlockDevice) -> Result<Option<u64>> {
    let first = |place, block: &[u8]| ControlFlow::Break(place + first_nonzero(block).unwrap_or(0) as u64);
    nonzero_blocks(device, first).map_err(|unread| Error::os(ERASE, device.path(), unread.error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_are_the_words_of_a_class() {
        for (text, mode) in
            [("zero", EraseMode::Zero), ("discard", EraseMode::Discard), ("none", EraseMode::None)]
        {
            assert_eq!((text.parse::<EraseMode>().unwrap(), &*mode.to_string()), (mode, text));
        }
        let error = "Zero".parse::<EraseMode>().unwrap_err();
        assert_eq!(error.to_string(), "read the erase mode: \"Zero\" is none of zero, discard, none");
    }
}
