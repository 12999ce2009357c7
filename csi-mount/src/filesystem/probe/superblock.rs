//! The superblocks of the filesystems that this crate reads in detail.

use super::windows::Windows;
use super::{Progress, Signature};

/// ext2, ext3, ext4 and their journal devices: distinguished by their features, as in libblkid.
pub(super) fn ext(windows: &Windows) -> Option<Signature> {
    const HAS_JOURNAL: u32 = 0x4;
    const JOURNAL_DEVICE: u32 = 0x8;
    const SIXTY_FOUR_BIT: u32 = 0x80;
    // The features that ext3 knows; any other makes it ext4.
    const EXT3_INCOMPATIBLE: u32 = 0x2 | 0x4 | 0x10;
    const EXT3_READ_ONLY: u32 = 0x1 | 0x2 | 0x4;

    let block = Block(windows.bytes(1024, 1024)?);
    if block.0[56..58] != [0x53, 0xef] || block.le32(24) > 6 {
        return None;
    }
    let compatible = block.le32(92);
    let incompatible = block.le32(96);
    let read_only = block.le32(100);
    let name = if incompatible & JOURNAL_DEVICE != 0 {
        "jbd"
    } else if incompatible & !EXT3_INCOMPATIBLE != 0 || read_only & !EXT3_READ_ONLY != 0 {
        "ext4"
    } else if compatible & HAS_JOURNAL != 0 {
        "ext3"
    } else {
        "ext2"
    };
    let block_size = 1024u64 << block.le32(24);
    let high = if incompatible & SIXTY_FOUR_BIT != 0 { u64::from(block.le32(336)) << 32 } else { 0 };
    let blocks = u64::from(block.le32(4)) | high;
    let mut signature = Signature::new(name, 1024);
    signature.uuid = block.uuid(104);
    signature.label = block.text(120, 16);
    signature.size = Some(blocks.saturating_mul(block_size));
    // EXT2_ERROR_FS
    signature.has_errors = block.le16(58) & 2 != 0;
    signature.min_growth = ext_min_growth(&block, blocks).saturating_mul(block_size);
    Some(signature)
}

/// By how many blocks the device must be larger before ext4 can use any of them: one while the last group
/// is not full; after that, what a new group needs for itself.
fn ext_min_growth(block: &Block<'_>, blocks: u64) -> u64 {
    let per_group = u64::from(block.le32(32).max(1));
    let first = u64::from(block.le32(20));
    if blocks.saturating_sub(first) % per_group != 0 {
        return 1;
    }
    let block_size = 1024u64 << block.le32(24);
    let inode_table = u64::from(block.le32(40)) * u64::from(block.le16(88).max(128)) / block_size;
    let descriptor = u64::from(block.le16(254).max(32));
    // The number of blocks can be any number.
    let descriptors = (blocks / per_group).saturating_add(1).saturating_mul(descriptor) / block_size + 1;
    // Superblock, two bitmaps, and the 50 more blocks that mke2fs and the kernel require.
    inode_table + descriptors + u64::from(block.le16(206)) + 3 + 50
}

/// XFS. Its superblock says if mkfs did not finish.
pub(super) fn xfs(windows: &Windows) -> Option<Signature> {
    let block = Block(windows.bytes(0, 512)?);
    if &block.0[..4] != b"XFSB" {
        return None;
    }
    let mut signature = Signature::new("xfs", 0);
    signature.uuid = block.uuid(32);
    signature.label = block.text(108, 12);
    signature.size = Some(block.be64(8).saturating_mul(u64::from(block.be32(4))));
    if block.0[126] != 0 {
        signature.progress = Progress::Unfinished;
    }
    Some(signature)
}

/// btrfs; the size is that of this one device.
pub(super) fn btrfs(windows: &Windows) -> Option<Signature> {
    let block = Block(windows.bytes(64 * 1024, 4096)?);
    if &block.0[0x40..0x48] != b"_BHRfS_M" {
        return None;
    }
    let mut signature = Signature::new("btrfs", 64 * 1024);
    signature.uuid = block.uuid(0x20);
    signature.label = block.text(0x12b, 256);
    // The device's own item begins at 0xc9: its id, then its size.
    signature.size = Some(block.le64(0xc9 + 8));
    Some(signature)
}

/// A superblock's bytes. Every offset used is a constant within them.
struct Block<'b>(&'b [u8]);

impl Block<'_> {
    fn array<const N: usize>(&self, at: usize) -> [u8; N] {
        self.0.get(at..at + N).and_then(|bytes| bytes.try_into().ok()).unwrap_or([0; N])
    }

    fn le16(&self, at: usize) -> u16 {
        u16::from_le_bytes(self.array(at))
    }

    fn le32(&self, at: usize) -> u32 {
        u32::from_le_bytes(self.array(at))
    }

    fn le64(&self, at: usize) -> u64 {
        u64::from_le_bytes(self.array(at))
    }

    fn be32(&self, at: usize) -> u32 {
        u32::from_be_bytes(self.array(at))
    }

    fn be64(&self, at: usize) -> u64 {
        u64::from_be_bytes(self.array(at))
    }

    fn uuid(&self, at: usize) -> Option<String> {
        let number = u128::from_be_bytes(self.array(at));
        let digits = format!("{number:032x}");
        let a = &digits[..8];
        let b = &digits[8..12];
        let c = &digits[12..16];
        let d = &digits[16..20];
        let e = &digits[20..];
        (number != 0).then(|| format!("{a}-{b}-{c}-{d}-{e}"))
    }

    fn text(&self, at: usize, length: usize) -> Option<String> {
        let bytes = self.0.get(at..at + length)?;
        let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(length);
        (end > 0).then(|| String::from_utf8_lossy(&bytes[..end]).into_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_of_blocks_can_be_any_number() {
        // One block in each group, so that there are as many groups as blocks.
        let mut bytes = vec![0xff; 1024];
        bytes[32..36].copy_from_slice(&1u32.to_le_bytes());
        bytes[20..28].fill(0);
        for blocks in [0, 1, u64::MAX / 2, u64::MAX] {
            assert!(ext_min_growth(&Block(&bytes), blocks) > 0, "{blocks}");
        }
    }
}
