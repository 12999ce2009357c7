//! Whether anything was ever written inside an encrypted device.

use std::ops::Range;

use crate::device::block_device::BlockDevice;
use crate::error::{Error, ErrorKind, Result};
use crate::filesystem::format::disk_image::Blankness;
use crate::filesystem::probe::{self, Reader, Unread, places};
use crate::sys::ids::DeviceNumber;

const LOOK: &str = "look for data inside encrypted device";
/// The smallest unit of encryption, and what a disk writes whole or not at all. Of a larger unit that a disk
/// tore, each sector is still content or zeros beneath: XTS decrypts every 16 bytes alone.
const SECTOR: usize = 512;

/// The encrypted device beneath a mapping, and where in it the content begins.
///
/// Data written inside is noise beneath, and zeros beneath are noise inside. So neither side alone shows
/// whether a sector holds data: a sector that is zero on either side holds none.
#[derive(Debug)]
pub(crate) struct Beneath {
    device: BlockDevice,
    offset: u64,
}

impl Beneath {
    pub(super) fn new(number: DeviceNumber, offset: u64) -> Result<Self> {
        Ok(Self { device: BlockDevice::from_number(number)?, offset })
    }

    /// Whether the inside is noise that nobody wrote: as blank as a device that [`BlockDevice::probe`]
    /// calls blank, but not zeros.
    pub(super) fn is_unwritten_noise(&self, inside: &BlockDevice) -> Result<bool> {
        let unreadable_inside = |unread| unreadable(inside, unread);
        let mut above = Reader::new(inside).map_err(unreadable_inside)?;
        let size = inside.size()?;
        let mut is_noise = false;
        for group in std::iter::once(probe::ends(size).to_vec()).chain(places::between(size)) {
            let above = above.all(group).map_err(unreadable_inside)?;
            for ((_, above), below) in above.iter().zip(self.below(&above)?) {
                match compare(above, &below) {
                    PartContent::Zeros => {}
                    PartContent::Noise => is_noise = true,
                    PartContent::Written => return Ok(false),
                }
            }
        }
        Ok(is_noise)
    }

    /// The bytes beneath each of these parts.
    fn below(&self, parts: &[(u64, Vec<u8>)]) -> Result<Vec<Vec<u8>>> {
        let unread = |unread| unreadable(&self.device, unread);
        let ranges =
            parts.iter().map(|(start, bytes)| start + self.offset..start + self.offset + bytes.len() as u64);
        let below = Reader::new(&self.device).and_then(|mut reader| reader.all(ranges)).map_err(unread)?;
        Ok(below.into_iter().map(|(_, bytes)| bytes).collect())
    }
}

impl Blankness for Beneath {
    fn is_untouched(&self, range: &Range<u64>, bytes: &[u8]) -> Result<bool> {
        let below = self.below(&[(range.start, bytes.to_vec())])?;
        Ok(compare(bytes, &below.concat()) != PartContent::Written)
    }
}

/// What a part holds inside.
#[derive(Debug, PartialEq, Eq)]
enum PartContent {
    Zeros,
    /// Some of it is noise that was never written.
    Noise,
    /// Somebody wrote to it.
    Written,
}

fn compare(above: &[u8], below: &[u8]) -> PartContent {
    const ZEROS: &[u8] = &[0; SECTOR];
    let is_zero = |sector: &[u8]| *sector == ZEROS[..sector.len()];
    if above.len() != below.len() {
        return PartContent::Written;
    }
    let mut found = PartContent::Zeros;
    for (above, below) in above.chunks(SECTOR).zip(below.chunks(SECTOR)) {
        match (is_zero(above), is_zero(below)) {
            (true, _) => {}
            (false, true) => found = PartContent::Noise,
            (false, false) => return PartContent::Written,
        }
    }
    found
}

fn unreadable(device: &BlockDevice, Unread { offset, error }: Unread) -> Error {
    Error::os(LOOK, device.path(), error)
        .with_kind(ErrorKind::Unreadable)
        .add_reason(format_args!("at byte {offset}, so its content is not known"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sector_that_is_noise_on_both_sides_was_written() {
        let zeros = vec![0; 3 * SECTOR];
        let noise = vec![7; 3 * SECTOR];
        assert_eq!(compare(&noise, &zeros), PartContent::Noise, "never written");
        assert_eq!(compare(&zeros, &noise), PartContent::Zeros, "zeros were written");
        assert_eq!(compare(&zeros, &zeros), PartContent::Zeros);
        assert_eq!(compare(&noise, &noise), PartContent::Written);
        let mut one = zeros.clone();
        one[2 * SECTOR + 1] = 1;
        assert_eq!(compare(&one, &zeros), PartContent::Noise);
        assert_eq!(compare(&noise, &one), PartContent::Written);
        assert_eq!(compare(&zeros, &zeros[1..]), PartContent::Written, "a part is missing");
    }
}
