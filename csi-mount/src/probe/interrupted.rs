//! What a killed `mkfs` left behind, told from somebody's data.

use super::windows::{Unread, Windows};
use super::{BlankProof, Probe};
use crate::intent::{self, Intent};
use crate::{BlockDevice, Filesystem};

/// A format that was begun by this crate on a blank device and did not come to its end; see [`BlockDevice::probe`].
///
/// A record that was written to the device before `mkfs` says so, and what is at the device's start is what that
/// `mkfs` leaves there when it is killed. It was never a whole filesystem, so nothing of anybody's is on it.
#[derive(Debug)]
#[must_use]
pub struct InterruptedFormat<'d> {
    pub(super) device: &'d BlockDevice,
    pub(super) filesystem: Filesystem,
}

impl<'d> InterruptedFormat<'d> {
    /// The filesystem that was being made.
    pub fn filesystem(&self) -> Filesystem {
        self.filesystem
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
    let may_be = match &found {
        Probe::UnknownData { .. } => true,
        Probe::Filesystem(signature) => signature.progress == super::Progress::Unfinished,
        _ => false,
    };
    if !may_be {
        return Ok(found);
    }
    let blocks = super::blocks(device, intent::places(ends.size))?;
    let mut intents = blocks.iter().filter_map(|(place, block)| Intent::decode(block, *place));
    Ok(match intents.find(|intent| explains(*intent, ends)) {
        Some(Intent { filesystem, .. }) => Probe::Interrupted(InterruptedFormat { device, filesystem }),
        None => found,
    })
}

/// Whether this `mkfs`, killed at any write, can have left what is at the start.
fn explains(intent: Intent, ends: &Windows) -> bool {
    let is_zero =
        |offset, length| ends.bytes(offset, length).is_some_and(|bytes| bytes.iter().all(|byte| *byte == 0));
    let is_ours =
        |offset| intent.uuid.is_none_or(|uuid| ends.bytes(offset, uuid.len()) == Some(uuid.as_slice()));
    match intent.filesystem {
        Filesystem::Ext4 => is_zero(0, 2048),
        // A superblock here says itself that it is unfinished, or this would not be asked.
        Filesystem::Xfs => is_zero(0, 512) || (ends.has(0, b"XFSB") && is_ours(32)),
        Filesystem::Btrfs => {
            const SUPERBLOCK: u64 = 64 * 1024;
            let begun = ends.has(SUPERBLOCK + 0x40, b"!BHRfS_M") && is_ours(SUPERBLOCK + 0x20);
            is_zero(0, 64 * 1024) && (is_zero(SUPERBLOCK, 4096) || begun)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OURS: [u8; 16] = [7; 16];

    fn explained(filesystem: Filesystem, changes: &[(usize, &[u8])]) -> bool {
        let mut bytes = vec![0; 1 << 20];
        for (at, data) in changes {
            bytes[*at..at + data.len()].copy_from_slice(data);
        }
        explains(Intent { filesystem, uuid: Some(OURS) }, &Windows::of(bytes))
    }

    #[test]
    fn only_what_that_mkfs_leaves_is_explained() {
        use Filesystem::{Btrfs, Ext4, Xfs};
        let begun_btrfs = (65_536 + 0x40, &b"!BHRfS_M"[..]);
        for filesystem in Filesystem::ALL {
            assert!(explained(filesystem, &[]), "{filesystem}: killed before its first write");
            assert!(explained(filesystem, &[(200_000, b"metadata")]));
            assert!(!explained(filesystem, &[(0, b"somebody's")]), "{filesystem}");
            assert!(!explained(filesystem, &[(511, b"x")]), "{filesystem}");
        }
        assert!(!explained(Ext4, &[(2047, b"x")]));
        assert!(explained(Xfs, &[(0, b"XFSB"), (32, &OURS)]));
        assert!(!explained(Xfs, &[(0, b"XFSB"), (32, &[8; 16])]), "another's");
        assert!(explained(Btrfs, &[begun_btrfs, (65_536 + 0x20, &OURS)]));
        assert!(!explained(Btrfs, &[begun_btrfs, (65_536 + 0x20, &[8; 16])]), "another's");
        assert!(!explained(Btrfs, &[(65_536 + 0x40, b"_BHRfS_M"), (65_536 + 0x20, &OURS)]));
    }
}
