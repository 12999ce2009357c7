//! What a killed `mkfs` left behind, told from somebody's data.

use super::windows::{Unread, Windows};
use super::{BlankProof, Probe};
use crate::intent::{self, Intent, Made, Uuid, hyphenated};
use crate::{BlockDevice, Filesystem};

/// A format that was begun by this crate on a blank device and did not come to its end; see [`BlockDevice::probe`].
///
/// A record that was written to the device before `mkfs` says so, and what is at the device's start is what that
/// `mkfs` leaves there when it is killed. It was never a whole filesystem, so nothing of anybody's is on it. The same
/// holds for an encrypted device whose headers were begun.
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
pub(super) fn judge<'d>(
    device: &'d BlockDevice,
    ends: &Windows,
    found: Probe<'d>,
) -> Result<Probe<'d>, Unread> {
    if !Made::all().any(|made| may_leave(&found, made)) {
        return Ok(found);
    }
    let blocks = super::blocks(device, intent::places(ends.size))?;
    let mut intents = blocks.iter().filter_map(|(place, block)| Intent::decode(block, *place));
    Ok(match intents.find(|intent| may_leave(&found, intent.made) && explains(*intent, ends)) {
        Some(Intent { made, .. }) => Probe::Interrupted(InterruptedFormat { device, made }),
        None => found,
    })
}

/// Whether what makes this can leave anything that looks so: the headers of an encrypted device are no filesystem's, even
/// where the first of them is lost.
fn may_leave(found: &Probe<'_>, made: Made) -> bool {
    match found {
        Probe::UnknownData { .. } => true,
        Probe::Filesystem(signature) => signature.progress == super::Progress::Unfinished,
        Probe::Container(signature) => signature.is_luks() && made == Made::Luks,
        _ => false,
    }
}

/// Whether this `mkfs`, killed at any write, can have left what is at the start.
fn explains(intent: Intent, ends: &Windows) -> bool {
    let is_zero =
        |offset, length| ends.bytes(offset, length).is_some_and(|bytes| bytes.iter().all(|byte| *byte == 0));
    let is_ours =
        |offset| intent.uuid.is_none_or(|uuid| ends.bytes(offset, uuid.len()) == Some(uuid.as_slice()));
    match intent.made {
        Made::Luks => is_unopened_luks(ends, intent.uuid.unwrap_or_default()),
        Made::Filesystem(Filesystem::Ext4) => is_zero(0, 2048),
        // A superblock here says itself that it is unfinished, or this would not be asked.
        Made::Filesystem(Filesystem::Xfs) => is_zero(0, 512) || (ends.has(0, b"XFSB") && is_ours(32)),
        Made::Filesystem(Filesystem::Btrfs) => {
            const SUPERBLOCK: u64 = 64 * 1024;
            let begun = ends.has(SUPERBLOCK + 0x40, b"!BHRfS_M") && is_ours(SUPERBLOCK + 0x20);
            is_zero(0, 64 * 1024) && (is_zero(SUPERBLOCK, 4096) || begun)
        }
    }
}

/// Whether these are the headers of a `luksFormat` that did not come to its end: see [`intent`](crate::intent).
fn is_unopened_luks(ends: &Windows, uuid: Uuid) -> bool {
    /// Of a header and of the text that describes the key slots, which follows it.
    const HEADER: u64 = 4096;
    const SECOND: u64 = 16 * 1024;
    const UUID: u64 = 168;
    let uuid = hyphenated(uuid);
    let is_begun = |at: u64, magic: &[u8]| {
        let zeros = ends.bytes(at, HEADER as usize).is_some_and(|bytes| bytes.iter().all(|byte| *byte == 0));
        zeros || (ends.has(at, magic) && ends.has(at + UUID, uuid.as_bytes()))
    };
    is_begun(0, b"LUKS\xba\xbe")
        && is_begun(SECOND, b"SKUL\xba\xbe")
        && !ends.has(SECOND + HEADER, b"{\"keyslots\":{\"")
}

#[cfg(test)]
mod tests {
    use super::*;

    const OURS: [u8; 16] = [7; 16];

    fn explained(made: Made, changes: &[(usize, &[u8])]) -> bool {
        let mut bytes = vec![0; 1 << 20];
        for (at, data) in changes {
            bytes[*at..at + data.len()].copy_from_slice(data);
        }
        explains(Intent { made, uuid: Some(OURS) }, &Windows::of(bytes))
    }

    #[test]
    fn only_what_that_mkfs_leaves_is_explained() {
        let [ext4, xfs, btrfs] = Filesystem::ALL.map(Made::Filesystem);
        let begun_btrfs = (65_536 + 0x40, &b"!BHRfS_M"[..]);
        for made in [ext4, xfs, btrfs, Made::Luks] {
            assert!(explained(made, &[]), "{made}: killed before its first write");
            assert!(explained(made, &[(200_000, b"metadata")]));
            assert!(!explained(made, &[(0, b"somebody's")]), "{made}");
            assert!(!explained(made, &[(511, b"x")]), "{made}");
        }
        assert!(!explained(ext4, &[(2047, b"x")]));
        assert!(explained(xfs, &[(0, b"XFSB"), (32, &OURS)]));
        assert!(!explained(xfs, &[(0, b"XFSB"), (32, &[8; 16])]), "another's");
        assert!(explained(btrfs, &[begun_btrfs, (65_536 + 0x20, &OURS)]));
        assert!(!explained(btrfs, &[begun_btrfs, (65_536 + 0x20, &[8; 16])]), "another's");
        assert!(!explained(btrfs, &[(65_536 + 0x40, b"_BHRfS_M"), (65_536 + 0x20, &OURS)]));
    }

    #[test]
    fn headers_of_an_encrypted_device_are_no_filesystem_that_was_begun() {
        let luks = Probe::Container(super::super::Signature::new("crypto_LUKS", 16_384));
        assert!(may_leave(&luks, Made::Luks));
        for filesystem in Filesystem::ALL {
            // Of one whose first header is lost the first bytes are what these leave.
            assert!(explained(Made::Filesystem(filesystem), &[(200_000, b"SKUL")]));
            assert!(!may_leave(&luks, Made::Filesystem(filesystem)));
            assert!(may_leave(
                &Probe::UnknownData { offset: 9, looks_like: None },
                Made::Filesystem(filesystem)
            ));
        }
    }

    #[test]
    fn luks_is_unfinished_until_its_second_header_names_a_key_slot() {
        let uuid = hyphenated(OURS);
        let (first, second) = ((0, &b"LUKS\xba\xbe"[..]), (16_384, &b"SKUL\xba\xbe"[..]));
        let ids = [168, 16_384 + 168].map(|at| (at, uuid.as_bytes()));
        let slots = |at, text: &'static [u8]| (at, text);
        let none = slots(20_480, b"{\"keyslots\":{},\"tokens\"");
        let one = slots(20_480, b"{\"keyslots\":{\"0\":{\"type\"");
        let (keyslots, foreign) = ((40_000, &b"noise"[..]), (168, &b"00000000-0000"[..]));
        for (changes, expected) in [
            (&[keyslots][..], true),
            (&[first, ids[0]], true),
            (&[first, ids[0], slots(4096, b"{\"keyslots\":{\"0\":{")], true),
            (&[first, second, ids[0], ids[1], none], true),
            (&[first, second, ids[0], ids[1], one], false),
            (&[first], false),
            (&[first, foreign], false),
            (&[first, second, ids[0]], false),
            (&[second, ids[1], one], false),
        ] {
            assert_eq!(explained(Made::Luks, changes), expected, "{changes:?}");
        }
    }
}
