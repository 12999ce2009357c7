//! The UUID of an ext4, written in one piece: the superblock, and nothing else.
//!
//! `tune2fs` is not used: libext2fs writes only those words of the superblock that changed, so a kill between
//! two of them leaves a wrong checksum, and `e2fsck -p` calls the filesystem corrupt. For the same reason no
//! `e2fsck` replays the journal, but a mount does.
//!
//! With `metadata_csum` the checksums of all metadata begin with a seed that is made of the UUID. The feature
//! `metadata_csum_seed` keeps the seed in the superblock (Linux 4.4, e2fsprogs 1.43), so the seed is set to
//! that of the old UUID and no other checksum changes. `EXT4_IOC_SETFSUUID` (Linux 6.0) does the same to a
//! mounted filesystem, and has the same conditions; it does not set the feature.
//!
//! The backups of the superblock keep the old UUID. Each of them stays consistent in itself: it has the old
//! UUID and no seed, which is the same seed. `e2fsck -p` finds the difference and writes them again.

use super::{CHANGE, FilesystemUuid, not_replayed, read, replay};
use crate::device::block_device::BlockDevice;
use crate::device::exclusive::{AlignedBuffer, BLOCK, with_claim};
use crate::error::{Error, ErrorKind, Result};
use crate::filesystem::kind::Filesystem;
use crate::mounting::options::MountOptions;
use crate::sys::hash::crc32c;

/// `filetype`, `needs_recovery`, `meta_bg`, `extent`, `64bit`, `flex_bg`, `ea_inode`, `metadata_csum_seed`,
/// `large_dir`, `inline_data`, `encrypt`, `casefold`. Not `mmp`: the filesystem can be mounted on another
/// node.
const KNOWN_INCOMPATIBLE: u32 = 0x3_e6d6;
const NEEDS_RECOVERY: u32 = 0x4;
const EA_INODE: u32 = 0x400;
const CSUM_SEED: u32 = 0x2000;
/// All up to `orphan_present`, without `has_snapshot`, `read-only` and `shared_blocks`.
const KNOWN_READ_ONLY: u32 = 0x1_a77f;
const GDT_CSUM: u32 = 0x10;
const METADATA_CSUM: u32 = 0x400;
const HAS_JOURNAL: u32 = 0x4;
const STABLE_INODES: u32 = 0x800;

pub(super) fn has(device: &BlockDevice, wanted: FilesystemUuid) -> Result<bool> {
    Ok(Superblock::read(device)?.uuid() == wanted.0)
}

pub(super) fn set(device: &BlockDevice, wanted: FilesystemUuid) -> Result<()> {
    let found = Superblock::read(device)?;
    found.require_changeable(device)?;
    if found.needs_recovery() {
        replay(device, Filesystem::Ext4, &MountOptions::new())?;
    }
    with_claim(device, CHANGE, |claimed| {
        let mut superblock = Superblock::read(device)?;
        superblock.require_changeable(device)?;
        if superblock.needs_recovery() {
            return Err(not_replayed(device));
        }
        superblock.set_uuid(wanted);
        let mut buffer = AlignedBuffer::new();
        let block = buffer.first(BLOCK);
        block.copy_from_slice(&superblock.block);
        claimed.write(block, 0)?;
        claimed.flush()
    })
}

/// The first block of the device; the superblock begins at byte 1024.
struct Superblock {
    block: Vec<u8>,
}

impl Superblock {
    const START: usize = 1024;
    const UUID: usize = Self::START + 0x68;
    const SEED: usize = Self::START + 0x270;
    const CHECKSUM: usize = Self::START + 0x3fc;

    fn read(device: &BlockDevice) -> Result<Self> {
        Ok(Self { block: read(device, 0..BLOCK as u64)? })
    }

    fn word(&self, at: usize) -> u32 {
        let bytes = self.block[at..].first_chunk().copied().unwrap_or_default();
        u32::from_le_bytes(bytes)
    }

    fn put(&mut self, at: usize, word: u32) {
        self.block[at..at + 4].copy_from_slice(&word.to_le_bytes());
    }

    fn uuid(&self) -> [u8; 16] {
        self.block[Self::UUID..].first_chunk().copied().unwrap_or_default()
    }

    fn compatible(&self) -> u32 {
        self.word(Self::START + 0x5c)
    }

    fn incompatible(&self) -> u32 {
        self.word(Self::START + 0x60)
    }

    fn read_only(&self) -> u32 {
        self.word(Self::START + 0x64)
    }

    fn needs_recovery(&self) -> bool {
        self.incompatible() & NEEDS_RECOVERY != 0
    }

    fn checksum(&self) -> u32 {
        crc32c(!0, &self.block[Self::START..Self::CHECKSUM])
    }

    /// Refuses a filesystem in which something else depends on the UUID, or could.
    fn require_changeable(&self, device: &BlockDevice) -> Result<()> {
        let compatible = self.compatible();
        let incompatible = self.incompatible();
        let read_only = self.read_only();
        let has_seed = read_only & METADATA_CSUM != 0;
        let unknown = incompatible & !KNOWN_INCOMPATIBLE | read_only & !KNOWN_READ_ONLY;
        let journal_inode = self.word(Self::START + 0xe0);
        let reason = if has_seed && self.word(Self::CHECKSUM) != self.checksum() {
            return Err(Error::new(ErrorKind::Damaged, CHANGE, "its superblock has a wrong checksum")
                .at(device.path())
                .hint("copy the device, and repair it with e2fsck"));
        } else if unknown != 0 {
            format!("it has features that this version does not know or can't change ({unknown:#x})")
        } else if compatible & HAS_JOURNAL != 0 && journal_inode == 0 {
            "its journal is on another device, which names the UUID".to_owned()
        } else if compatible & STABLE_INODES != 0 {
            "it has encrypted files whose keys depend on the UUID (stable_inodes)".to_owned()
        } else if !has_seed && read_only & GDT_CSUM != 0 {
            "the checksums of its groups depend on the UUID (uninit_bg without metadata_csum)".to_owned()
        } else if !has_seed && incompatible & EA_INODE != 0 {
            "the hashes of its attributes depend on the UUID (ea_inode without metadata_csum)".to_owned()
        } else {
            return Ok(());
        };
        Err(Error::new(ErrorKind::Unsupported, CHANGE, reason).at(device.path()).hint(
            "leave the UUID as it is: the kernel mounts an ext4 clone next to its origin; format new volumes \
             with metadata_csum",
        ))
    }

    fn set_uuid(&mut self, wanted: FilesystemUuid) {
        let is_checked = self.read_only() & METADATA_CSUM != 0;
        if is_checked && self.incompatible() & CSUM_SEED == 0 {
            self.put(Self::SEED, crc32c(!0, &self.uuid()));
            self.put(Self::START + 0x60, self.incompatible() | CSUM_SEED);
        }
        self.block[Self::UUID..Self::UUID + 16].copy_from_slice(&wanted.0);
        if is_checked {
            self.put(Self::CHECKSUM, self.checksum());
        }
    }
}
