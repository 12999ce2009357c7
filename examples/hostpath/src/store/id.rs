//! Ids that nobody had before.

use std::fmt::Write as _;
use std::fs::File;
use std::io::Read as _;

use csi_core::Result;

/// 128 random bits as text that is a file name. An id is not made of the object's name: the name can come again after the
/// object was deleted, and what is then said of the old one does not touch the new one.
pub(crate) fn new_id() -> Result<String> {
    let mut bytes = [0; 16];
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(bytes.iter().fold(String::with_capacity(32), |mut text, byte| {
        // Writing to a String can't fail.
        let _ = write!(text, "{byte:02x}");
        text
    }))
}
