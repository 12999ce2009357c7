//! Distinguishes what an interrupted format left from somebody's data.

use super::windows::Windows;
use super::{BlankProof, Probe, Unread};
use crate::device::block_device::BlockDevice;
use crate::device::exclusive::BLOCK;
use crate::filesystem::format::record::{FormatKind, InterruptedContent, Record};
use crate::filesystem::kind::Filesystem;

/// A format that this crate started on a blank device and that did not finish; see `BlockDevice::probe`.
///
/// A record on the device says so, and everything else that is read is zero, or is what the record says
/// that this format wrote. The device never held a complete filesystem, so it holds nobody's data. The same
/// applies to an encrypted device whose headers were not finished.
#[derive(Debug)]
#[must_use]
pub struct InterruptedFormat<'d> {
    pub(crate) device: &'d BlockDevice,
    pub(crate) made: FormatKind,
}

impl<'d> InterruptedFormat<'d> {
    /// The filesystem that was being made; none if it was the headers of an encrypted device.
    pub fn filesystem(&self) -> Option<Filesystem> {
        match self.made {
            FormatKind::Filesystem(filesystem) => Some(filesystem),
            FormatKind::Luks => None,
        }
    }

    /// Returns the proof to format the device again, with any filesystem.
    pub fn into_proof(self) -> BlankProof<'d> {
        BlankProof { device: self.device }
    }
}

/// The record whose header is among these parts of the device.
pub(super) fn record(ends: &Windows) -> Option<Record> {
    let in_block = |place| Record::in_block(place, ends.bytes(place, BLOCK)?);
    FormatKind::COMMIT_BLOCKS.into_iter().find_map(in_block)
}

/// Returns [`Probe::Interrupted`] if the content is an interrupted format, and otherwise the probe result
/// unchanged.
///
/// A header alone proves nothing: it must explain everything that the prober reads and every place that the
/// format was going to write.
pub(super) fn classify<'d>(
    device: &'d BlockDevice,
    record: Record,
    found: Probe<'d>,
) -> Result<Probe<'d>, Unread> {
    Ok(match (InterruptedContent::from_record(device, record)?.first_foreign_byte(device)?, found) {
        (None, _) => Probe::Interrupted(InterruptedFormat { device, made: record.made }),
        (Some(offset), Probe::UnknownData { .. }) => Probe::UnknownData { offset, looks_like: None },
        (Some(_), found) => found,
    })
}
