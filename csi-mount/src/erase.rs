//! Makes a block device read as zeros, and proves it by reading.

use std::fmt;
use std::ops::Range;
use std::str::FromStr;
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::Errno;
use rustix::rand::{GetRandomFlags, getrandom};

use crate::device::block_device::BlockDevice;
use crate::device::exclusive::{AlignedBuffer, BLOCK, ExclusiveDevice, length_of, pieces, with_claim};
use crate::device::users::{self, Tolerated};
use crate::error::{Error, ErrorKind, Result};
use crate::sys::ioctl;

const ERASE: &str = "erase";
/// The largest part that is erased between two reports of progress.
const LARGEST_STEP: u64 = 1 << 30;
/// The smallest one, at a low rate. A multiple of every sector.
const SMALLEST_STEP: u64 = 1 << 20;
/// How much is read back at each end of the device.
const END: u64 = 16 << 20;
/// How many random places are read back, and how much at each.
const SAMPLES: usize = 64;
const SAMPLE: u64 = 64 << 10;

/// What happens to the data of a volume that is deleted.
///
/// As text, for the parameter of a storage class: `zero`, `discard` or `none`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum EraseMode {
    /// Every byte reads as zero afterwards, by `fallocate(2)` with `PUNCH_HOLE` and, if the device can't do
    /// that, by `BLKZEROOUT`. Both ends and random samples are then read back.
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

impl fmt::Display for EraseMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Zero => "zero",
            Self::Discard => "discard",
            Self::None => "none",
        })
    }
}

impl FromStr for EraseMode {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        [Self::Zero, Self::Discard, Self::None].into_iter().find(|mode| mode.to_string() == text).ok_or_else(
            || {
                let reason = format!("{text:?} is none of zero, discard, none");
                Error::new(ErrorKind::InvalidInput, "read the erase mode", reason)
            },
        )
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
/// With [`EraseMode::Zero`], the page cache is dropped at the end, and the first and last 16 MiB and 64 random
/// places of 64 KiB are read from the device. The erase has succeeded only if all of them are zero. That is a
/// sample: a device that ignores some of the writes can pass.
///
/// The call can take hours, and waits without limit for a device that does not answer. Needs Linux 4.9
/// (`PUNCH_HOLE` on block devices); without it `BLKZEROOUT` does the work. See `fallocate(2)`.
///
/// # Errors
/// - [`ErrorKind::Busy`]: something uses the device. Nothing was written.
/// - [`ErrorKind::WrongDevice`]: the path leads to another device now. Nothing was written.
/// - [`ErrorKind::NotBlank`]: a byte is not zero after the erase. The space must not be used again.
/// - [`ErrorKind::OutOfRange`]: [`EraseOptions::start_at`] is after the end of the device, or no multiple of its sector.
/// - Errors of the device, and those of `progress`.
///
/// ```no_run
/// use csi_mount::BlockDevice;
/// use csi_mount::erase::{EraseMode, EraseOptions, erase};
///
/// let device = BlockDevice::open("/dev/vdb")?;
/// let options = EraseOptions::new().bytes_per_second(200 << 20);
/// erase(&device, EraseMode::Zero, options, |offset| {
///     println!("{offset} bytes are erased");
///     Ok(())
/// })?;
/// # Ok::<(), csi_mount::Error>(())
/// ```
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
            EraseMode::Zero => verify(claimed),
            EraseMode::Discard | EraseMode::None => Ok(()),
        }
    })
}

/// Whether the places that [`erase`] reads back are all zero. Nothing is written.
pub(crate) fn reads_as_zeros(device: &BlockDevice) -> Result<bool> {
    with_claim(device, ERASE, |claimed| Ok(first_nonzero(claimed)?.is_none()))
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
        match mode {
            EraseMode::Discard if !discard(device, &part)? => return Ok(()),
            EraseMode::Discard | EraseMode::None => {}
            EraseMode::Zero => {
                can_punch = can_punch && punch_hole(device, &part)?;
                if !can_punch {
                    let length = part.end - part.start;
                    let done = ioctl::zero_out(device.as_fd(), part.start, length);
                    done.map_err(|error| failed(device, Errno::from_raw_os_error(error as i32)))?;
                }
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
        // ENODEV: before Linux 4.9, for every block device.
        Err(Errno::OPNOTSUPP | Errno::NODEV) => Ok(false),
        Err(error) => Err(failed(device, error)),
    }
}

/// Returns false if the device can't do it.
fn discard(device: &ExclusiveDevice<'_>, part: &Range<u64>) -> Result<bool> {
    match ioctl::discard(device.as_fd(), part.start, part.end - part.start) {
        Ok(()) => Ok(true),
        Err(nix::Error::EOPNOTSUPP) => Ok(false),
        Err(error) => Err(failed(device, Errno::from_raw_os_error(error as i32))),
    }
}

fn failed(device: &ExclusiveDevice<'_>, error: Errno) -> Error {
    Error::os(ERASE, device.device.path(), error)
}

fn verify(device: &ExclusiveDevice<'_>) -> Result<()> {
    match first_nonzero(device)? {
        None => Ok(()),
        Some(offset) => {
            let reason = format!("the byte at {offset} is not zero after the erase");
            let error = Error::new(ErrorKind::NotBlank, ERASE, reason).at(device.device.path());
            Err(error.hint("the disk does not do what it confirms: do not use it again"))
        }
    }
}

/// The offset of a byte that is not zero, at the ends and at random places.
fn first_nonzero(device: &ExclusiveDevice<'_>) -> Result<Option<u64>> {
    // Without direct I/O, the cache would answer.
    ioctl::flush_buffers(device.as_fd())
        .map_err(|error| failed(device, Errno::from_raw_os_error(error as i32)))?;
    let mut random = [0; SAMPLES * 8];
    getrandom(&mut random, GetRandomFlags::empty()).map_err(|error| failed(device, error))?;
    let (random, _) = random.as_chunks::<8>();
    let random = random.iter().map(|bytes| u64::from_ne_bytes(*bytes));
    let mut buffer = AlignedBuffer::new();
    for place in places(device.size, random).into_iter().flat_map(pieces) {
        let bytes = buffer.first(length_of(&place));
        device.read(bytes, place.start)?;
        if let Some(index) = bytes.iter().position(|byte| *byte != 0) {
            return Ok(Some(place.start + index as u64));
        }
    }
    Ok(None)
}

/// Both ends, and one place for each random number.
fn places(size: u64, random: impl Iterator<Item = u64>) -> Vec<Range<u64>> {
    let block = BLOCK as u64;
    let tail = size.saturating_sub(END);
    let tail = (tail - tail % block).max(END.min(size));
    let mut places = vec![0..END.min(size), tail..size];
    let middle = tail.saturating_sub(END) / block;
    if middle > 0 {
        let starts = random.map(|number| END + number % middle * block);
        places.extend(starts.map(|start| start..(start + SAMPLE).min(tail)));
    }
    places
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

    #[test]
    fn steps_are_whole_mebibytes_within_their_limits() {
        let mebibyte = 1 << 20;
        for (rate, step) in [
            (None, 1 << 30),
            (Some(1), mebibyte),
            (Some(10 * mebibyte), 2 * mebibyte),
            (Some(1 << 40), 1 << 30),
        ] {
            let options = EraseOptions::new();
            let options = rate.map_or(options, |rate| options.bytes_per_second(rate));
            assert_eq!(options.step(), step, "{rate:?}");
        }
    }

    #[test]
    fn both_ends_and_places_between_them_are_read() {
        let numbers = || [0, 1, u64::MAX].into_iter();
        for size in [0, 512, 4096, END, END + 512, 2 * END, 2 * END + 4096 + 512, 1 << 40] {
            let places = places(size, numbers());
            assert_eq!((places[0].start, places[0].end), (0, END.min(size)), "{size}");
            assert_eq!(places[1].end, size);
            let read = places[1].start.saturating_sub(places[0].end);
            assert!(read == 0 || places[1].end - places[1].start >= END, "{size}: {places:?}");
            for place in &places {
                assert!(
                    place.start.is_multiple_of(512) && place.start <= place.end && place.end <= size,
                    "{places:?}"
                );
            }
            assert_eq!(places.len() > 2, size > 2 * END, "{size}");
        }
    }
}
