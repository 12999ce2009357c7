//! Ids that were never used before.

use std::fmt::Write as _;
use std::fs::File;
use std::io::Read as _;

use csi_core::{IoContext as _, Result};

/// Returns 128 random bits as text that is valid as a file name. An id does not contain the object's name:
/// the name can be used again after a deletion, and late calls for the old object must not affect the new.
pub(crate) fn new_id() -> Result<String> {
    let mut bytes = [0; 16];
    const RANDOM: &str = "/dev/urandom";
    File::open(RANDOM).at("open", RANDOM)?.read_exact(&mut bytes).at("read", RANDOM)?;
    Ok(bytes.iter().fold(String::with_capacity(32), |mut text, byte| {
        // Writing to a String can't fail.
        let _ = write!(text, "{byte:02x}");
        text
    }))
}
