//! The UUID of an XFS: `META_UUID` (Linux 4.3), which `xfs_admin -U` sets too, in an order that a kill can't
//! break.
//!
//! All metadata has the UUID that the filesystem was made with. With the feature, `sb_meta_uuid` keeps it,
//! and `sb_uuid` can be any. Only the headers of the log have `sb_uuid`: the kernel compares it with that of
//! the last record, and does not mount the filesystem if it differs. `xfs_db` therefore clears the log, in
//! many writes, and a kill leaves a filesystem that neither the kernel mounts nor `xfs_db` changes any more.
//!
//! The kernel accepts a null UUID in a clean log, as IRIX wrote it (`xlog_header_check_mount`). So the order
//! is:
//!
//! 1. the last record of the clean log gets a null UUID: it now belongs to the old and to the new one;
//! 2. each secondary superblock gets the new UUID, in one sector each. The kernel reads none of them at a
//!    mount. Until the end, `xfs_repair` reports their feature as a mismatch, and would make them equal;
//! 3. the primary superblock gets the new UUID, in one sector.
//!
//! Each write is flushed before the next kind. The next mount writes records with the new UUID.

mod log;

use std::ops::Range;

use super::{CHANGE, FilesystemUuid, not_replayed, read, replay};
use crate::device::block_device::BlockDevice;
use crate::device::exclusive::{AlignedBuffer, ExclusiveDevice, with_claim};
use crate::error::{Error, ErrorKind, Result};
use crate::filesystem::kind::Filesystem;
use crate::mounting::options::MountOptions;
use crate::sys::hash::crc32c;

/// `ftype`, `spinodes`, `meta_uuid`, `bigtime`, `nrext64`, `exchange`, `parent`. Not `needsrepair`, and not
/// `metadir`, with which other superblocks have the UUID too.
const KNOWN_INCOMPATIBLE: u32 = 0xef;
const META_UUID: u32 = 0x4;
/// `finobt`, `rmapbt`, `reflink`, `inobtcount`.
const KNOWN_READ_ONLY: u32 = 0xf;

pub(super) fn has(device: &BlockDevice, wanted: FilesystemUuid) -> Result<bool> {
    Ok(Superblock::read(device, 0)?.uuid() == wanted.0)
}

pub(super) fn set(device: &BlockDevice, wanted: FilesystemUuid) -> Result<()> {
    let found = Superblock::primary(device)?;
    if log::unmount_record(device, &found.log_range(), found.uuid())?.is_none() {
        replay(device, Filesystem::Xfs, &MountOptions::new().with_flag_option("nouuid")?)?;
    }
    with_claim(device, CHANGE, |claimed| {
        let mut primary = Superblock::primary(device)?;
        let record = log::unmount_record(device, &primary.log_range(), primary.uuid())?
            .ok_or_else(|| not_replayed(device))?;
        let mut secondaries = primary.secondaries(device)?;
        write(claimed, primary.sector(), record.place, &record.without_uuid())?;
        claimed.flush()?;
        for secondary in &mut secondaries {
            secondary.set_uuid(wanted);
            write(claimed, primary.sector(), secondary.place, &secondary.bytes)?;
        }
        claimed.flush()?;
        primary.set_uuid(wanted);
        write(claimed, primary.sector(), 0, &primary.bytes)?;
        claimed.flush()
    })
}

/// Writes bytes in one piece, together with the rest of their sector.
fn write(claimed: &ExclusiveDevice<'_>, sector: u64, place: u64, bytes: &[u8]) -> Result<()> {
    let start = place - place % sector;
    let whole = read(claimed.device, start..start + sector)?;
    let mut buffer = AlignedBuffer::new();
    let block = buffer.first(whole.len());
    block.copy_from_slice(&whole);
    let offset = (place - start) as usize;
    block[offset..offset + bytes.len()].copy_from_slice(bytes);
    claimed.write(block, start)
}

/// A superblock: the first sector of an allocation group.
struct Superblock {
    place: u64,
    bytes: Vec<u8>,
}

impl Superblock {
    const UUID: usize = 32;
    const INCOMPATIBLE: usize = 216;
    const CHECKSUM: usize = 224;
    const META_UUID: usize = 248;

    /// Reads the superblock at this place, and refuses one that is damaged or of a kind that has no checksum.
    fn read(device: &BlockDevice, place: u64) -> Result<Self> {
        let mut found = Self { place, bytes: read(device, place..place + 512)? };
        if !found.bytes.starts_with(b"XFSB") || found.half(100) & 0xf != 5 {
            let reason = format!("there is no XFS superblock of version 5 (with CRC) at byte {place}");
            return Err(Error::new(ErrorKind::Unsupported, CHANGE, reason).at(device.path()).hint(LEAVE));
        }
        let sector = found.sector();
        if (512..=32768).contains(&sector) {
            found.bytes = read(device, place..place + sector)?;
            if found.bytes[Self::CHECKSUM..Self::CHECKSUM + 4] == found.checksum() {
                return Ok(found);
            }
        }
        let reason = format!("its superblock at byte {place} has a wrong checksum");
        Err(Error::new(ErrorKind::Damaged, CHANGE, reason)
            .at(device.path())
            .hint("copy the device, and repair it with xfs_repair"))
    }

    /// Refuses a filesystem in which something else depends on the UUID, or could.
    fn primary(device: &BlockDevice) -> Result<Self> {
        let found = Self::read(device, 0)?;
        let unknown = found.word(Self::INCOMPATIBLE) & !KNOWN_INCOMPATIBLE
            | found.word(Self::INCOMPATIBLE - 4) & !KNOWN_READ_ONLY;
        let reason = if unknown != 0 {
            format!("it has features that this version does not know or can't change ({unknown:#x})")
        } else if found.long(48) == 0 {
            "its log is on another device".to_owned()
        } else if found.long(16) != 0 {
            "it has a realtime device".to_owned()
        } else if !found.is_within(device.size()?) {
            let reason = "its superblock names places that are not on the device";
            return Err(Error::new(ErrorKind::Damaged, CHANGE, reason)
                .at(device.path())
                .hint("repair it with xfs_repair"));
        } else {
            return Ok(found);
        };
        Err(Error::new(ErrorKind::Unsupported, CHANGE, reason).at(device.path()).hint(LEAVE))
    }

    /// All other superblocks of the filesystem.
    fn secondaries(&self, device: &BlockDevice) -> Result<Vec<Self>> {
        let group = self.group_length();
        let count = u64::from(self.word(88));
        let read = |group_start| {
            let found = Self::read(device, group_start)?;
            if found.sector() == self.sector() && found.meta_uuid() == self.meta_uuid() {
                return Ok(found);
            }
            let reason = format!("its superblock at byte {group_start} belongs to another filesystem");
            Err(Error::new(ErrorKind::Damaged, CHANGE, reason)
                .at(device.path())
                .hint("copy the device, and repair it with xfs_repair"))
        };
        (1..count).map(|number| read(number * group)).collect()
    }

    fn half(&self, at: usize) -> u16 {
        u16::from_be_bytes(self.bytes[at..].first_chunk().copied().unwrap_or_default())
    }

    fn word(&self, at: usize) -> u32 {
        u32::from_be_bytes(self.bytes[at..].first_chunk().copied().unwrap_or_default())
    }

    fn long(&self, at: usize) -> u64 {
        u64::from_be_bytes(self.bytes[at..].first_chunk().copied().unwrap_or_default())
    }

    fn sector(&self) -> u64 {
        u64::from(self.half(102))
    }

    fn block_length(&self) -> u64 {
        u64::from(self.word(4))
    }

    /// The length of an allocation group in bytes.
    fn group_length(&self) -> u64 {
        u64::from(self.word(84)) * self.block_length()
    }

    /// Where the log is, in bytes. The superblock must be [within](Self::is_within) its device.
    fn log_range(&self) -> Range<u64> {
        let start = self.log_start().unwrap_or_default();
        start..start + self.log_length()
    }

    /// The number of a block consists of its group and its place in the group.
    fn log_start(&self) -> Option<u64> {
        let bits = u32::from(self.bytes[124]);
        let start = self.long(48);
        let in_group = start & (1u64.checked_shl(bits)? - 1);
        let group = (start >> bits).checked_mul(self.group_length())?;
        group.checked_add(in_group.checked_mul(self.block_length())?)
    }

    fn log_length(&self) -> u64 {
        u64::from(self.word(96)) * self.block_length()
    }

    /// Whether all groups and the log are on a device of this size. A volume's content can be any numbers.
    fn is_within(&self, size: u64) -> bool {
        let last_group = u64::from(self.word(88)).saturating_sub(1).checked_mul(self.group_length());
        let log_end = self.log_start().and_then(|start| start.checked_add(self.log_length()));
        last_group.is_some_and(|start| start < size)
            && log_end.is_some_and(|end| end <= size)
            && self.log_length() >= log::BLOCK
    }

    fn uuid(&self) -> [u8; 16] {
        self.bytes[Self::UUID..].first_chunk().copied().unwrap_or_default()
    }

    /// The UUID that all metadata has.
    fn meta_uuid(&self) -> [u8; 16] {
        match self.word(Self::INCOMPATIBLE) & META_UUID {
            0 => self.uuid(),
            _ => self.bytes[Self::META_UUID..].first_chunk().copied().unwrap_or_default(),
        }
    }

    /// Of the sector with zeros in place of the checksum; the only number that is little-endian.
    fn checksum(&self) -> [u8; 4] {
        let sum = crc32c(!0, &self.bytes[..Self::CHECKSUM]);
        let sum = crc32c(sum, &[0; 4]);
        (!crc32c(sum, &self.bytes[Self::CHECKSUM + 4..])).to_le_bytes()
    }

    fn set_uuid(&mut self, wanted: FilesystemUuid) {
        let (meta_uuid, features) = (self.meta_uuid(), self.word(Self::INCOMPATIBLE) | META_UUID);
        let mut put = |at: usize, bytes: &[u8]| self.bytes[at..at + bytes.len()].copy_from_slice(bytes);
        put(Self::META_UUID, &meta_uuid);
        put(Self::INCOMPATIBLE, &features.to_be_bytes());
        put(Self::UUID, &wanted.0);
        let checksum = self.checksum();
        self.bytes[Self::CHECKSUM..Self::CHECKSUM + 4].copy_from_slice(&checksum);
    }
}

const LEAVE: &str = "leave the UUID as it is: the clone is mounted next to its origin (nouuid)";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_number_in_a_superblock_leads_off_the_device() {
        let put =
            |bytes: &mut Vec<u8>, at: usize, value: &[u8]| bytes[at..at + value.len()].copy_from_slice(value);
        // 4 groups of 4,096 blocks of 4 KiB; the log has 1,024 blocks in group 2.
        let mut bytes = vec![0; 512];
        for (at, word) in [(4, 4096u32), (84, 4096), (88, 4), (96, 1024)] {
            put(&mut bytes, at, &word.to_be_bytes());
        }
        put(&mut bytes, 48, &((2u64 << 12) + 6).to_be_bytes());
        bytes[124] = 12;
        let size = 4 * 4096 * 4096;
        let superblock = Superblock { place: 0, bytes: bytes.clone() };
        assert!(superblock.is_within(size) && !superblock.is_within(size / 2));
        let start = 2 * 4096 * 4096 + 6 * 4096;
        assert_eq!(superblock.log_range(), start..start + 1024 * 4096);
        let max = [0xff; 8];
        for (at, value) in [
            (4, &max[..4]),
            (84, &max[..4]),
            (88, &max[..4]),
            (96, &max[..4]),
            (96, &[0; 4]),
            (48, &max),
            (124, &[64]),
            (124, &[255]),
        ] {
            let mut bytes = bytes.clone();
            put(&mut bytes, at, value);
            let is_within = Superblock { place: 0, bytes }.is_within(size);
            assert!(!is_within, "{value:?} at {at}");
        }
    }
}
