//! Where a device has data, if the kernel knows: of a loop device, where its file does.
//!
//! A hole of a file reads as zeros, by definition of `SEEK_HOLE`; what is not known to be a hole is data (lseek(2)). So a loop
//! device is known exactly if it is known which file is beneath, what of it, and that nothing is on its way there.
//!
//! No other device says so much. `SEEK_DATA` of a block device is what is not beyond its end. A zone that is empty has
//! no defined content. Whether unmapped blocks of a SCSI or NVMe disk read as zeros is the disk's word, as is what is
//! unmapped. How much of a thin volume is mapped is exact, and only the device mapper's own ioctls tell it: not asked.

use std::fs::File;
use std::ops::Range;
use std::os::fd::AsFd as _;

use rustix::fs::{FileType, Mode, OFlags, SeekFrom};
use rustix::io::Errno;

use super::places::{ALIGN, SMALL};
use crate::BlockDevice;
use crate::device::loop_device::{Attached, attached_as};
use crate::path::lookup;
use crate::sys::fd_path::path_of;
use crate::sys::ioctl;
use crate::table::details::Details;
use crate::table::facts;

/// More parts than that, or more bytes than those of a small device, are not read one by one.
const MOST_PARTS: usize = 4096;

/// Filesystems that answer from what they have in memory and on their disk, and whose answer is exact: what is dirty in the
/// page cache, and what is allocated and was written to since, counts as data.
const EXACT: [&str; 6] = ["btrfs", "ext2", "ext3", "ext4", "tmpfs", "xfs"];

/// Every part of the device that may be anything but zeros, in whole blocks; none if that is not known, or too much.
pub(super) fn data(device: &BlockDevice, size: u64) -> Option<Vec<Range<u64>>> {
    let attached = attached_as(device)?;
    let offset = attached.info.offset;
    let file = open(&attached)?;
    // What was written to the device through its page cache is in no file before this.
    ioctl::flush_buffers(device.as_fd()).ok()?;
    // Beyond the file's end the device has no zeros, it can't be read.
    if file.metadata().ok()?.len() < offset.checked_add(size)? {
        return None;
    }
    let parts = parts(&file, offset, size)?;
    let still = attached_as(device)?;
    (still.info.backing() == attached.info.backing() && still.info.offset == offset).then_some(parts)
}

/// The file beneath, if the path that the kernel names leads to it, and it is on a filesystem that can be asked.
fn open(attached: &Attached) -> Option<File> {
    let path = &attached.listed.backing;
    let place = lookup::open_path(path, OFlags::NOFOLLOW).ok()?;
    let facts = facts::from_fd(&place).ok()?;
    let is_file = facts.file_type == FileType::RegularFile;
    if !is_file
        || attached.info.is_encrypted()
        || attached.info.backing() != (facts.device.dev_t(), facts.inode)
    {
        return None;
    }
    let details = Details::of(&place, "look for holes in", path).ok().flatten()?;
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
        // A file that changes meanwhile.
        if from <= start {
            return None;
        }
        let part = start - start % ALIGN..from.next_multiple_of(ALIGN).min(size);
        match parts.last_mut() {
            Some(last) if part.start <= last.end => last.end = part.end,
            _ => parts.push(part.clone()),
        }
        bytes += part.end - part.start;
        if parts.len() > MOST_PARTS || bytes > SMALL {
            return None;
        }
    }
    Some(parts)
}
