//! The UUID of a btrfs, written in one piece: the superblock, and nothing else (`METADATA_UUID`, Linux 5.0).
//!
//! All metadata has the UUID that the filesystem was made with, and with the feature the superblock keeps it
//! next to its own. That holds for the log tree too, so it stays as it is.
//!
//! `btrfstune -M` is not used: it writes a superblock with the flag `CHANGING_FSID_V2` first. Killed then, it
//! leaves a filesystem that the kernel does not mount (Linux 6.7) and that the next `btrfstune -M` refuses
//! (6.2). It also commits, which makes a log tree unusable.
//!
//! The copies of the superblock keep the old UUID until the first commit after the mount; the kernel mounts
//! by the first one only.

use super::{CHANGE, FilesystemUuid, read};
use crate::device::block_device::BlockDevice;
use crate::device::exclusive::{AlignedBuffer, BLOCK, with_claim};
use crate::error::{Error, ErrorKind, Result};
use crate::filesystem::kernel_features::KernelVersion;
use crate::sys::hash::crc32c;

const PLACE: u64 = 64 << 10;
/// All up to `simple_quota`, without `zoned` (whose superblock is elsewhere) and `extent_tree_v2`.
const KNOWN_INCOMPATIBLE: u64 = 0x1_4fff;
const METADATA_UUID: u64 = 0x400;
/// Flags of a change by `btrfstune`: `CHANGING_FSID` and its second version.
const CHANGING: u64 = 1 << 35 | 1 << 36;
const SEEDING: u64 = 1 << 32;

pub(super) fn has(device: &BlockDevice, wanted: FilesystemUuid) -> Result<bool> {
    let found = Superblock::read(device)?;
    Ok(found.uuid(Superblock::UUID) == wanted.0 && found.flags() & CHANGING == 0)
}

pub(super) fn set(device: &BlockDevice, wanted: FilesystemUuid) -> Result<()> {
    let kernel = KernelVersion::running()?;
    if kernel < KernelVersion::new(5, 0) {
        let reason = format!("Linux {kernel} does not mount a btrfs with a changed UUID, Linux 5.0 does");
        return Err(Error::new(ErrorKind::Unsupported, CHANGE, reason).at(device.path()));
    }
    with_claim(device, CHANGE, |claimed| {
        let mut superblock = Superblock::read(device)?;
        superblock.require_changeable(device)?;
        superblock.set_uuid(wanted);
        let mut buffer = AlignedBuffer::new();
        let block = buffer.first(BLOCK);
        block.copy_from_slice(&superblock.bytes);
        claimed.write(block, PLACE)?;
        claimed.flush()
    })
}

struct Superblock {
    bytes: Vec<u8>,
}

impl Superblock {
    const UUID: usize = 0x20;
    const INCOMPATIBLE: usize = 0xbc;
    const METADATA_UUID: usize = 0x23b;
    const CHECKSUM: std::ops::Range<usize> = 0..4;

    fn read(device: &BlockDevice) -> Result<Self> {
        Ok(Self { bytes: read(device, PLACE..PLACE + BLOCK as u64)? })
    }

    fn long(&self, at: usize) -> u64 {
        u64::from_le_bytes(self.bytes[at..].first_chunk().copied().unwrap_or_default())
    }

    fn flags(&self) -> u64 {
        self.long(0x38)
    }

    fn incompatible(&self) -> u64 {
        self.long(Self::INCOMPATIBLE)
    }

    fn uuid(&self, at: usize) -> [u8; 16] {
        self.bytes[at..].first_chunk().copied().unwrap_or_default()
    }

    /// Of everything after the field for the checksum.
    fn checksum(&self) -> [u8; 4] {
        (!crc32c(!0, &self.bytes[0x20..])).to_le_bytes()
    }

    /// Refuses a filesystem that has its UUID elsewhere too, or could.
    fn require_changeable(&self, device: &BlockDevice) -> Result<()> {
        let is_crc32c = self.bytes[0xc4..0xc6] == [0, 0];
        let unknown = self.incompatible() & !KNOWN_INCOMPATIBLE;
        let damaged = |reason, hint: &str| {
            Err(Error::new(ErrorKind::Damaged, CHANGE, reason).at(device.path()).hint(hint))
        };
        let reason = if is_crc32c && self.bytes[Self::CHECKSUM] != self.checksum() {
            return damaged(
                "its superblock has a wrong checksum",
                "copy the device, and restore the superblock (btrfs rescue super-recover)",
            );
        } else if self.flags() & CHANGING != 0 {
            return damaged("a change of its UUID was interrupted", "finish it with btrfstune");
        } else if !is_crc32c {
            "its checksums are not CRC-32C".to_owned()
        } else if unknown != 0 {
            format!("it has features that this version does not know or can't change ({unknown:#x})")
        } else if self.long(0x88) != 1 || self.flags() & SEEDING != 0 {
            "it is on more than one device".to_owned()
        } else {
            return Ok(());
        };
        Err(Error::new(ErrorKind::Unsupported, CHANGE, reason)
            .at(device.path())
            .hint("leave the UUID as it is: Linux 6.7 mounts a btrfs clone next to its origin"))
    }

    fn set_uuid(&mut self, wanted: FilesystemUuid) {
        if self.incompatible() & METADATA_UUID == 0 {
            let made_with = self.uuid(Self::UUID);
            self.put(Self::METADATA_UUID, &made_with);
            self.put(Self::INCOMPATIBLE, &(self.incompatible() | METADATA_UUID).to_le_bytes());
        }
        self.put(Self::UUID, &wanted.0);
        let checksum = self.checksum();
        self.put(Self::CHECKSUM.start, &checksum);
    }

    fn put(&mut self, at: usize, bytes: &[u8]) {
        self.bytes[at..at + bytes.len()].copy_from_slice(bytes);
    }
}
