//! Whether anything was ever written inside an encrypted device.

use crate::probe::{self, Unread};
use crate::{BlockDevice, Error, ErrorKind, Result};

const LOOK: &str = "look for data inside encrypted device";
const BLOCK: usize = 4096;

/// Whether what is inside is noise that nobody wrote: as blank as a device that [`BlockDevice::probe`] calls blank, and not zeros.
/// In all of the parts that are read there, each block reads as zeros either inside, or beneath, where nothing was ever written to
/// it then.
///
/// Beneath, it begins at `offset`. What is written inside is noise beneath, and what is zero beneath is noise inside, so
/// neither of the two alone would say it.
pub(super) fn is_noise_of_nobody(inside: &BlockDevice, beneath: &BlockDevice, offset: u64) -> Result<bool> {
    let mut is_noise = false;
    for range in probe::parts(inside.size()?) {
        let length = range.end - range.start;
        let above = probe::bytes(inside, range.clone()).map_err(|unread| unreadable(inside, unread))?;
        let start = range.start + offset;
        let below =
            probe::bytes(beneath, start..start + length).map_err(|unread| unreadable(beneath, unread))?;
        match compare(&above, &below) {
            Found::Zeros => {}
            Found::Noise => is_noise = true,
            Found::Written => return Ok(false),
        }
    }
    Ok(is_noise)
}

/// What a part holds inside.
#[derive(Debug, PartialEq, Eq)]
enum Found {
    Zeros,
    /// In some of it, which was never written.
    Noise,
    /// By somebody.
    Written,
}

fn compare(above: &[u8], below: &[u8]) -> Found {
    const ZEROS: &[u8] = &[0; BLOCK];
    let is_zero = |block: &[u8]| *block == ZEROS[..block.len()];
    if above.len() != below.len() {
        return Found::Written;
    }
    let mut found = Found::Zeros;
    for (above, below) in above.chunks(BLOCK).zip(below.chunks(BLOCK)) {
        match (is_zero(above), is_zero(below)) {
            (true, _) => {}
            (false, true) => found = Found::Noise,
            (false, false) => return Found::Written,
        }
    }
    found
}

fn unreadable(device: &BlockDevice, Unread { offset, error }: Unread) -> Error {
    Error::os(LOOK, device.path(), error)
        .as_kind(ErrorKind::Unreadable)
        .because(format_args!("at byte {offset}, so what it holds is not known"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_that_is_noise_on_both_sides_was_written() {
        let (zeros, noise) = (vec![0; 3 * BLOCK], vec![7; 3 * BLOCK]);
        assert_eq!(compare(&noise, &zeros), Found::Noise, "never written");
        assert_eq!(compare(&zeros, &noise), Found::Zeros, "zeros were written");
        assert_eq!(compare(&zeros, &zeros), Found::Zeros);
        assert_eq!(compare(&noise, &noise), Found::Written);
        let mut one = zeros.clone();
        one[2 * BLOCK + 1] = 1;
        assert_eq!(compare(&one, &zeros), Found::Noise);
        assert_eq!(compare(&noise, &one), Found::Written);
        assert_eq!(compare(&zeros, &zeros[1..]), Found::Written, "a part is missing");
    }
}
