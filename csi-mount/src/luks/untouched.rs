//! Whether anything was ever written inside an encrypted device.

use crate::probe::{self, Unread};
use crate::{BlockDevice, Error, ErrorKind, Result};

const LOOK: &str = "look for data inside encrypted device";
const BLOCK: usize = 4096;

/// Whether what is inside is as blank as a device that [`BlockDevice::probe`] calls blank: in all of the parts that are read
/// there, each block reads as zeros either inside, or beneath, where nothing was ever written to it then.
///
/// Beneath, it begins at `offset`. What is written inside is noise beneath, and what is zero beneath is noise inside, so
/// neither of the two alone would say it.
pub(super) fn is_untouched(inside: &BlockDevice, beneath: &BlockDevice, offset: u64) -> Result<bool> {
    for range in probe::parts(inside.size()?) {
        let length = range.end - range.start;
        let above = probe::bytes(inside, range.clone()).map_err(|unread| unreadable(inside, unread))?;
        let start = range.start + offset;
        let below =
            probe::bytes(beneath, start..start + length).map_err(|unread| unreadable(beneath, unread))?;
        if !all_blank(&above, &below) {
            return Ok(false);
        }
    }
    Ok(true)
}

fn all_blank(above: &[u8], below: &[u8]) -> bool {
    const ZEROS: &[u8] = &[0; BLOCK];
    let is_zero = |block: &[u8]| *block == ZEROS[..block.len()];
    let mut pairs = above.chunks(BLOCK).zip(below.chunks(BLOCK));
    above.len() == below.len() && pairs.all(|(above, below)| is_zero(above) || is_zero(below))
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
        assert!(all_blank(&noise, &zeros), "never written");
        assert!(all_blank(&zeros, &noise), "zeros were written");
        assert!(!all_blank(&noise, &noise));
        let mut one = zeros.clone();
        one[2 * BLOCK + 1] = 1;
        assert!(all_blank(&noise, &zeros) && !all_blank(&noise, &one));
        assert!(!all_blank(&zeros, &zeros[1..]), "a part is missing");
    }
}
