//! What a format that was cut short left behind, told from somebody's data.

use super::windows::Windows;
use super::{BlankProof, Probe, Unread};
use crate::device::claimed::BLOCK;
use crate::filesystem::format::record::{Made, Record, Remains};
use crate::{BlockDevice, Filesystem};

/// A format that was begun by this crate on a blank device and did not come to its end; see [`BlockDevice::probe`].
///
/// A record on the device says so, and everything else that is read of it is zero, or what the record says that this format
/// wrote. It was never a whole filesystem, so nothing of anybody's is on it. The same holds for an encrypted device whose
/// headers were begun.
#[derive(Debug)]
#[must_use]
pub struct InterruptedFormat<'d> {
    pub(super) device: &'d BlockDevice,
    pub(crate) made: Made,
}

impl<'d> InterruptedFormat<'d> {
    /// The filesystem that was being made; none if it was the headers of an encrypted device.
    pub fn filesystem(&self) -> Option<Filesystem> {
        match self.made {
            Made::Filesystem(filesystem) => Some(filesystem),
            Made::Luks => None,
        }
    }

    /// The proof to format the device anew, as any filesystem.
    pub fn into_proof(self) -> BlankProof<'d> {
        BlankProof { device: self.device }
    }
}

/// Whether what was found is an interrupted format; otherwise it is what it was.
///
/// A header alone proves nothing: all that the prober reads, and all that the format was going to write, has to be explained by it.
pub(super) fn judge<'d>(
    device: &'d BlockDevice,
    ends: &Windows,
    found: Probe<'d>,
) -> Result<Probe<'d>, Unread> {
    if found.filesystem().is_some() {
        return Ok(found);
    }
    let header = Made::COMMIT_PLACES
        .into_iter()
        .find_map(|place| ends.bytes(place, BLOCK).and_then(|block| Record::decode(block, place)));
    let Some(record) = header else { return Ok(found) };
    Ok(match (Remains::of(device, record)?.first_foreign(device)?, found) {
        (None, _) => Probe::Interrupted(InterruptedFormat { device, made: record.made }),
        (Some(offset), Probe::UnknownData { .. }) => Probe::UnknownData { offset, looks_like: None },
        (Some(_), found) => found,
    })
}
