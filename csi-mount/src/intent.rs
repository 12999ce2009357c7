//! The record of a format that was begun: where it lives, what it proves, and when it goes.
//!
//! `mkfs` may be killed anywhere. What it leaves then is neither blank nor a filesystem, and nothing in it says whose
//! it is; so a record is written to the device itself before `mkfs` starts, and taken off again when it has succeeded.
//! It is on the device and not beside it, so that it comes along when the volume comes back on another node.
//!
//! # Where
//!
//! Many copies of one block, at places that depend on nothing but their index: 148 KiB from the start, and each half as
//! far again as the one before, up to the end of the device. `mkfs` writes over some of them but never over all: what it
//! writes is at the start, the end, the boundaries of groups and one log or journal. A device that grew has all the
//! places that it had before. The prober looks at each place before it calls a device blank, so no copy is written over
//! anything but zeros.
//!
//! # What it proves
//!
//! A copy holds a magic number, what is made, the UUID that `mkfs` was told to use, its own place and a checksum. A
//! copy elsewhere, as in an image of a disk inside a disk, is none. It excuses formatting anew only if what else is at
//! the start of the device is what this `mkfs` leaves when it is killed, which was measured at every write of it:
//!
//! | made | until the last write | then |
//! |---|---|---|
//! | ext4 | the first 2 KiB are zero | the superblock |
//! | XFS | the first 512 bytes are zero, or a superblock with `sb_inprogress` and our UUID | `sb_inprogress` is cleared |
//! | btrfs | the first 64 KiB are zero, and a superblock has a magic number of its own and our UUID | the true magic number |
//! | LUKS | both headers are zero or have our UUID, and the second names no key slot | the second header names it |
//!
//! The second header of LUKS counts, because whatever opens a device brings it up to the first one: a device whose
//! second header names no key slot was never opened, so nothing was ever written through a mapping of it.
//!
//! Anything else at the start, and every signature that the prober knows, is somebody's: it is refused as before. So
//! is a filesystem that is whole, even with copies left: it is kept, whoever made it.
//!
//! # When it goes
//!
//! After `mkfs` succeeded, the copies that are still there are zero again: the filesystem is what it would be without.
//! If we die between the two, staging finds a whole filesystem and takes them off before the first mount: left there, a
//! later loss of the superblock would look like an interrupted format. Publishing the raw device for writing takes them
//! off too, because from then on the device holds its user's data.
//!
//! # What it does not cover
//!
//! A device of less than 152 KiB has no place for it. Two nodes that have the device attached for writing at once are
//! kept apart by whoever attaches it. After a loss of power, not a kill, the order of writes is the kernel's: `mkfs.ext4`
//! and `mkfs.btrfs` flush before the last write, `mkfs.xfs` does not, so an XFS may then be refused as damaged.

use std::fmt;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::AsFd as _;
use std::os::unix::fs::FileExt as _;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use crate::fnv::fnv1a;
use crate::own_descriptors::with_own_descriptors;
use crate::sys::ioctl;
use crate::{BlockDevice, Error, ErrorKind, Filesystem, Result};

/// The size of a copy: no sector is larger.
pub(crate) const BLOCK: usize = 4096;
const MAGIC: &[u8; 16] = b"\x89csi-mount mkfs\n";
const VERSION: u32 = 1;
const MARK: &str = "mark the begin of a format on";

/// A UUID's bytes as on disk.
pub(crate) type Uuid = [u8; 16];

/// What a format makes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Made {
    Filesystem(Filesystem),
    /// LUKS's headers, under a filesystem to come.
    Luks,
}

impl Made {
    pub(crate) fn all() -> impl Iterator<Item = Self> {
        Filesystem::ALL.into_iter().map(Self::Filesystem).chain([Self::Luks])
    }

    const fn code(self) -> u32 {
        match self {
            Self::Filesystem(Filesystem::Ext4) => 1,
            Self::Filesystem(Filesystem::Xfs) => 2,
            Self::Filesystem(Filesystem::Btrfs) => 3,
            Self::Luks => 4,
        }
    }

    fn of_code(code: u32) -> Option<Self> {
        Self::all().find(|made| made.code() == code)
    }
}

impl fmt::Display for Made {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Filesystem(filesystem) => filesystem.fmt(f),
            Self::Luks => f.pad("LUKS"),
        }
    }
}

/// What a record says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Intent {
    pub(crate) made: Made,
    /// The UUID that `mkfs` was told to use; none if the caller's arguments choose it.
    pub(crate) uuid: Option<Uuid>,
}

impl Intent {
    fn encode(self, place: u64) -> [u8; BLOCK] {
        let mut block = [0; BLOCK];
        block[..16].copy_from_slice(MAGIC);
        block[16..20].copy_from_slice(&VERSION.to_le_bytes());
        block[20..24].copy_from_slice(&self.made.code().to_le_bytes());
        block[24..40].copy_from_slice(&self.uuid.unwrap_or_default());
        block[40..48].copy_from_slice(&place.to_le_bytes());
        let sum = fnv1a(&block[..48]);
        block[48..56].copy_from_slice(&sum.to_le_bytes());
        block
    }

    /// The record in this block, if it is one and belongs to this place.
    pub(crate) fn decode(block: &[u8], place: u64) -> Option<Self> {
        // Encoding again compares everything, the zeros after the record too.
        let field = |from: usize| block.get(from..from + 4)?.try_into().ok().map(u32::from_le_bytes);
        let made = Made::of_code(field(20)?)?;
        let uuid = Uuid::try_from(block.get(24..40)?).ok()?;
        let found = Self { made, uuid: (uuid != Uuid::default()).then_some(uuid) };
        (found.encode(place)[..] == *block).then_some(found)
    }
}

/// Where the copies are on a device of this size.
pub(crate) fn places(size: u64) -> impl Iterator<Item = u64> {
    let block = BLOCK as u64;
    std::iter::successors(Some(37u64), |index| index.checked_add(index / 2))
        .map_while(move |index| index.checked_mul(block))
        .take_while(move |place| place.checked_add(block).is_some_and(|end| end <= size))
}

/// A UUID as text.
pub(crate) fn hyphenated(uuid: Uuid) -> String {
    let digits = format!("{:032x}", u128::from_be_bytes(uuid));
    let (a, b, c, d, e) = (&digits[..8], &digits[8..12], &digits[12..16], &digits[16..20], &digits[20..]);
    format!("{a}-{b}-{c}-{d}-{e}")
}

/// A random UUID for what is to be made.
pub(crate) fn random_uuid(device: &BlockDevice) -> Result<Uuid> {
    const SOURCE: &str = "/proc/sys/kernel/random/uuid";
    let failed = |error: io::Error| Error::os(MARK, device.path(), error).because(SOURCE);
    let text = std::fs::read_to_string(SOURCE).map_err(failed)?;
    let digits: String = text.chars().filter(char::is_ascii_hexdigit).collect();
    let number = u128::from_str_radix(&digits, 16).map_err(|error| failed(io::Error::other(error)))?;
    Ok(number.to_be_bytes())
}

/// Writes every copy. What lies between them in `rubble` becomes zero first, while the old copies still stand for it.
pub(crate) fn begin(device: &BlockDevice, intent: Intent, rubble: &[Range<u64>]) -> Result<()> {
    begin_if(device, intent, rubble, || Ok(true)).map(drop)
}

/// As [`begin`], if `may` says so, which looks while the device is held exclusively; and whether it did.
pub(crate) fn begin_if(
    device: &BlockDevice,
    intent: Intent,
    rubble: &[Range<u64>],
    may: impl FnOnce() -> Result<bool> + Send,
) -> Result<bool> {
    with_own_descriptors(|| {
        let file = open_exclusively(device)?;
        if !may()? {
            return Ok(false);
        }
        write_all(device, &file, intent, rubble).map(|()| true)
    })
}

fn write_all(device: &BlockDevice, file: &File, intent: Intent, rubble: &[Range<u64>]) -> Result<()> {
    let failed = |error: io::Error| Error::os(MARK, device.path(), error);
    let size = device.size()?;
    for range in rubble {
        clear_around_places(file, range, size).map_err(failed)?;
    }
    if !rubble.is_empty() {
        file.sync_data().map_err(failed)?;
    }
    for place in places(size) {
        file.write_all_at(&intent.encode(place), place).map_err(failed)?;
    }
    file.sync_data().map_err(failed)
}

fn clear_around_places(file: &File, range: &Range<u64>, size: u64) -> io::Result<()> {
    let zeros = vec![0; 1 << 20];
    let mut at = range.start;
    while at < range.end {
        let next = places(size).find(|place| place + BLOCK as u64 > at).unwrap_or(u64::MAX);
        if next <= at {
            at = next + BLOCK as u64;
            continue;
        }
        let count = (range.end.min(next) - at).min(zeros.len() as u64);
        file.write_all_at(&zeros[..usize::try_from(count).unwrap_or(zeros.len())], at)?;
        at += count;
    }
    Ok(())
}

/// Takes every copy off that is still there, and says how many there were.
pub(crate) fn erase(device: &BlockDevice) -> Result<usize> {
    if found(device)?.is_empty() {
        return Ok(0);
    }
    with_own_descriptors(|| clear_all(device))
}

fn clear_all(device: &BlockDevice) -> Result<usize> {
    let failed = |error: io::Error| Error::os(MARK, device.path(), error);
    let file = open_exclusively(device)?;
    let mut erased = 0;
    // Looked at again, now that nobody else writes.
    for (place, _) in found(device)? {
        file.write_all_at(&[0; BLOCK], place).map_err(failed)?;
        erased += 1;
    }
    file.sync_data().map_err(failed)?;
    Ok(erased)
}

/// The copies that are on the device, and where, read past the page cache.
pub(crate) fn found(device: &BlockDevice) -> Result<Vec<(u64, Intent)>> {
    crate::probe::blocks(device, places(device.size()?))
        .map(|blocks| {
            let decoded = blocks.iter().map(|(place, block)| Some((*place, Intent::decode(block, *place)?)));
            decoded.flatten().collect()
        })
        .map_err(|crate::probe::Unread { offset, error }| {
            let failed = Error::os("look for a begun format on", device.path(), error);
            failed.as_kind(ErrorKind::Unreadable).because(format_args!("at byte {offset}"))
        })
}

fn open_exclusively(device: &BlockDevice) -> Result<File> {
    let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::EXCL;
    let end = std::time::Instant::now() + std::time::Duration::from_secs(2);
    loop {
        match rustix::fs::open(device.path(), flags, Mode::empty()) {
            Ok(file) => {
                let file = File::from(file);
                device.same(&file)?;
                return Ok(file);
            }
            // A tool that was killed with us may still be on its way out.
            Err(Errno::BUSY) if std::time::Instant::now() < end => {
                std::thread::sleep(std::time::Duration::from_millis(10));
            }
            Err(error) => return Err(Error::os(MARK, device.path(), error)),
        }
    }
}

/// Takes off what is left of a format that came to its end. A device that refuses writes keeps it.
pub(crate) fn settle(device: &BlockDevice) -> Result<()> {
    if ioctl::is_read_only(device.as_fd()).unwrap_or(false) {
        return Ok(());
    }
    match erase(device) {
        Ok(0) => Ok(()),
        Ok(copies) => {
            tracing::info!(device = %device.path().display(), copies, "a format had come to its end");
            Ok(())
        }
        // Mounted elsewhere: it is in use, so nobody will take it for an interrupted format.
        Err(error) if error.kind() == ErrorKind::Busy => {
            tracing::warn!(%error, "the record of a finished format stays");
            Ok(())
        }
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_one_at_its_own_place_only() {
        for made in [1, 2, 3, 4].map(|code| Made::of_code(code).unwrap()) {
            for uuid in [None, Some([7; 16])] {
                let intent = Intent { made, uuid };
                let block = intent.encode(151_552);
                assert_eq!(Intent::decode(&block, 151_552), Some(intent));
                assert_eq!(Intent::decode(&block, 225_280), None, "copied elsewhere");
                assert_eq!(Intent::decode(&block[..64], 151_552), None, "cut short");
                for byte in [0, 15, 16, 20, 23, 24, 39, 40, 47, 48, 55, 56, 63, 64, BLOCK - 1] {
                    let mut torn = block;
                    torn[byte] ^= 1;
                    assert_eq!(Intent::decode(&torn, 151_552), None, "byte {byte}");
                }
            }
        }
        assert_eq!(Intent::decode(&[0; BLOCK], 0), None);
    }

    #[test]
    fn a_device_that_grows_keeps_its_places() {
        let sizes = [0, 148 << 10, 152 << 10, 2 << 20, 300 << 20, 1 << 40, 1 << 63, u64::MAX];
        for pair in sizes.windows(2) {
            let (small, large) = (places(pair[0]).collect::<Vec<_>>(), places(pair[1]).collect::<Vec<_>>());
            assert_eq!(small, large[..small.len()], "{pair:?}");
        }
        assert_eq!(places(148 << 10).count(), 0);
        assert_eq!(places(152 << 10).count(), 1);
        assert!(places(2 << 20).count() >= 7 && places(1 << 40).count() < 50);
        assert!(places(1 << 50).all(|place| place % BLOCK as u64 == 0));
    }
}

#[cfg(test)]
mod needs_root {
    use std::fs::File;

    use super::*;
    use crate::{DeviceUse, LoopDevice, LoopOptions};

    #[test]
    fn what_is_there_is_looked_at_while_nobody_else_can_have_it() {
        let directory = tempfile::tempdir().unwrap();
        let image = directory.path().join("image");
        File::create(&image).unwrap().set_len(2 << 20).unwrap();
        let attached = LoopDevice::attach(&image, &LoopOptions::new()).unwrap();
        let device = BlockDevice::open(attached.path()).unwrap();
        let intent = Intent { made: Made::Luks, uuid: None };
        for may in [false, true] {
            let is_begun = begin_if(&device, intent, &[], || {
                assert_eq!(device.in_use()?, DeviceUse::InUse);
                assert_eq!(found(&device)?, []);
                Ok(may)
            });
            assert_eq!(is_begun.unwrap(), may);
            assert_eq!(!found(&device).unwrap().is_empty(), may, "written to");
        }
        drop(device);
        attached.detach().unwrap();
    }
}
