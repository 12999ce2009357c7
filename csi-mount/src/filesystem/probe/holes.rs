//! Where a device has data, if the kernel knows it: for a loop device, where its file has data.
//!
//! A hole of a file reads as zeros, by the definition of `SEEK_HOLE`; anything not known to be a hole is
//! data (lseek(2)). So the data of a loop device is known exactly if it is known which file is beneath,
//! which part of it, and that no writes are still on their way there.
//!
//! No other device gives this certainty. `SEEK_DATA` on a block device reports everything up to its end. An
//! empty zone has no defined content. That unmapped blocks of a SCSI or NVMe disk read as zeros, and which
//! blocks are unmapped, is only the disk's claim. How much of a thin volume is mapped is exact, but only
//! the device mapper's own ioctls report it, and this crate does not use them.

use std::fs::File;
use std::ops::Range;
use std::os::fd::AsFd as _;

use rustix::fs::{FileType, Mode, OFlags, SeekFrom};
use rustix::io::Errno;

use super::places::{ALIGN, MAX_FULL_READ_BYTES};
use crate::device::block_device::BlockDevice;
use crate::device::loop_device::{Attached, attached_as};
use crate::path::lookup;
use crate::sys::descriptor::path_of;
use crate::sys::ioctl;
use crate::table::details::Details;
use crate::table::facts;

/// With more parts than this, or more bytes than a small device has, the parts are not read one by one.
const MAX_PARTS: usize = 4096;

/// Filesystems that answer from their memory and their disk, and whose answer is exact: dirty pages in the
/// page cache, and blocks that were allocated and then written, count as data.
const EXACT: [&str; 6] = ["btrfs", "ext2", "ext3", "ext4", "tmpfs", "xfs"];

/// Every part of the device that can hold anything but zeros, in whole blocks; none if that is unknown, or
/// too much.
pub(super) fn data(device: &BlockDevice, size: u64) -> Option<Vec<Range<u64>>> {
    let attached = attached_as(device)?;
    let offset = attached.info.offset;
    let file = open(&attached)?;
    // Writes to the device through its page cache reach the file only after this.
    ioctl::flush_buffers(device.as_fd()).ok()?;
    // Beyond the file's end the device does not read as zeros: it can't be read there.
    if file.metadata().ok()?.len() < offset.checked_add(size)? {
        return None;
    }
    let parts = parts(&file, offset, size)?;
    let still = attached_as(device)?;
    (still.info.backing() == attached.info.backing() && still.info.offset == offset).then_some(parts)
}

/// The file beneath, if the path that the kernel names leads to it, and it is on a filesystem with exact
/// answers.
fn open(attached: &Attached) -> Option<File> {
    let path = &attached.listed.backing();
    let place = lookup::open_path(path, OFlags::NOFOLLOW).ok()?;
    let facts = facts::from_fd(&place).ok()?;
    let is_file = facts.file_type == FileType::RegularFile;
    if !is_file
        || attached.info.is_encrypted()
        || attached.info.backing() != (facts.device.dev_t(), facts.inode)
    {
        return None;
    }
    let details = Details::from_fd(&place, "look for holes in", path).ok().flatten()?;
    if !EXACT.contains(&&*details.fs_type) {
        return None;
    }
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    Some(rustix::fs::open(path_of(&place), flags, Mode::empty()).ok()?.into())
}

fn parts(file: &File, offset: u64, size: u64) -> Option<Vec<Range<u64>>> {
    let mut parts: Vec<Range<u64>> = Vec::new();
    let mut bytes = 0;
    let mut from = 0;
    while from < size {
        let start = match rustix::fs::seek(file, SeekFrom::Data(offset + from)) {
            Ok(start) => start.saturating_sub(offset),
            Err(Errno::NXIO) => break,
            Err(_) => return None,
        };
        if start >= size {
            break;
        }
        let end = rustix::fs::seek(file, SeekFrom::Hole(offset + start)).ok()?;
        from = end.saturating_sub(offset).min(size);
        // The file changes at the same time.
        if from <= start {
            return None;
        }
        let part = start - start % ALIGN..from.next_multiple_of(ALIGN).min(size);
        match parts.last_mut() {
            Some(last) if part.start <= last.end => last.end = part.end,
            _ => parts.push(part.clone()),
        }
        bytes += part.end - part.start;
        if parts.len() > MAX_PARTS || bytes > MAX_FULL_READ_BYTES {
            return None;
        }
    }
    Some(parts)
}
