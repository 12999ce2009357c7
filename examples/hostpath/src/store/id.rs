//! Ids that nobody had before.

use std::fmt::Write as _;
use std::fs::File;
use std::io::Read as _;

use csi_core::{IoContext as _, Result};

/// 128 random bits as text that is a file name. An id is not made of the object's name: the name can come again after the
/// object was deleted, and what is then said of the old one does not touch the new one.
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
