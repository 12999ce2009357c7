//! The ioctls of block devices, loop devices and filesystems, each as a safe function.
#![allow(unsafe_code, reason = "ioctl(2) is a raw system call")]

use std::ffi::{CStr, c_int};
use std::io::{self, Write as _};
use std::os::fd::{AsRawFd as _, BorrowedFd};

use nix::libc;
use rustix::fs::{Access, ioctl_blkpbszget, ioctl_blksszget};
use rustix::io::{Errno, Result};
use rustix::ioctl::{Getter, IntegerSetter, NoArg, Setter, Updater, ioctl, opcode};

use super::features::{self, Feature};
use super::ids::DeviceNumber;

/// `struct loop_info64` of linux/loop.h.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct LoopInfo {
    pub(crate) device: u64,
    pub(crate) inode: u64,
    pub(crate) rdevice: u64,
    pub(crate) offset: u64,
    pub(crate) size_limit: u64,
    pub(crate) number: u32,
    encrypt_type: u32,
    encrypt_key_size: u32,
    pub(crate) flags: u32,
    pub(crate) file_name: [u8; 64],
    crypt_name: [u8; 64],
    encrypt_key: [u8; 32],
    init: [u64; 2],
}

impl LoopInfo {
    pub(crate) const READ_ONLY: u32 = 1;
    pub(crate) const DIRECT_IO: u32 = 16;

    /// The identity of the backing file: its device and its inode.
    pub(crate) fn backing(&self) -> (u64, u64) {
        (self.device, self.inode)
    }

    /// Whether reads return other content than that of the file (`cryptoloop`, before Linux 5.16).
    pub(crate) fn is_encrypted(&self) -> bool {
        self.encrypt_type != 0
    }

    pub(crate) const fn zeroed() -> Self {
        Self {
            device: 0,
            inode: 0,
            rdevice: 0,
            offset: 0,
            size_limit: 0,
            number: 0,
            encrypt_type: 0,
            encrypt_key_size: 0,
            flags: 0,
            file_name: [0; 64],
            crypt_name: [0; 64],
            encrypt_key: [0; 32],
            init: [0; 2],
        }
    }
}

/// What a loop device is attached to, and its disk sequence number (0 if the kernel has none), in a form that
/// can be passed between processes.
#[derive(Clone, Copy)]
pub(crate) struct LoopStatus {
    pub(crate) info: LoopInfo,
    pub(crate) sequence: u64,
}

impl LoopStatus {
    /// Seven numbers, and the name.
    pub(crate) const WORDS: usize = 7 + 64 / 8;

    pub(crate) fn to_words(self) -> [u64; Self::WORDS] {
        let LoopInfo { device, inode, rdevice, offset, size_limit, flags, file_name, .. } = self.info;
        let mut words = [0; Self::WORDS];
        words[..7].copy_from_slice(&[
            device,
            inode,
            rdevice,
            offset,
            size_limit,
            flags.into(),
            self.sequence,
        ]);
        for (word, bytes) in words[7..].iter_mut().zip(file_name.as_chunks().0) {
            *word = u64::from_ne_bytes(*bytes);
        }
        words
    }

    pub(crate) fn from_words(words: [u64; Self::WORDS]) -> Self {
        let mut info = LoopInfo::zeroed();
        let [device, inode, rdevice, offset, size_limit, flags, sequence, name @ ..] = words;
        (info.device, info.inode, info.rdevice) = (device, inode, rdevice);
        (info.offset, info.size_limit, info.flags) = (offset, size_limit, flags as u32);
        for (bytes, word) in info.file_name.as_chunks_mut().0.iter_mut().zip(name) {
            *bytes = word.to_ne_bytes();
        }
        Self { info, sequence }
    }
}

/// `struct loop_config` of linux/loop.h.
#[repr(C)]
struct LoopConfig {
    fd: u32,
    block_size: u32,
    info: LoopInfo,
    reserved: [u64; 8],
}

/// `struct xfs_fsop_geom_v1`: the version that every kernel knows.
#[repr(C)]
pub(crate) struct XfsGeometry {
    pub(crate) block_size: u32,
    rt_extent_size: u32,
    ag_blocks: u32,
    ag_count: u32,
    log_blocks: u32,
    sector_size: u32,
    inode_size: u32,
    pub(crate) max_inode_percent: u32,
    pub(crate) data_blocks: u64,
    rt_blocks: u64,
    rt_extents: u64,
    log_start: u64,
    uuid: [u8; 16],
    stripe_unit: u32,
    stripe_width: u32,
    version: i32,
    flags: u32,
    log_sector_size: u32,
    rt_sector_size: u32,
    dir_block_size: u32,
}

/// `struct xfs_growfs_data`.
#[repr(C)]
struct XfsGrowData {
    new_blocks: u64,
    max_inode_percent: u32,
}

/// `struct btrfs_ioctl_fs_info_args`, as far as it is used.
#[repr(C)]
pub(crate) struct BtrfsInfo {
    pub(crate) max_id: u64,
    pub(crate) devices: u64,
    rest: [u8; 1008],
}

/// `struct btrfs_ioctl_dev_info_args`.
#[repr(C)]
pub(crate) struct BtrfsDevice {
    pub(crate) id: u64,
    uuid: [u8; 16],
    pub(crate) bytes_used: u64,
    pub(crate) total_bytes: u64,
    unused: [u64; 379],
    /// The path of the device node, ended by a NUL.
    pub(crate) path: [u8; 1024],
}

/// `struct btrfs_ioctl_vol_args`.
#[repr(C)]
pub(super) struct BtrfsVolume {
    fd: i64,
    name: [u8; 4088],
}

impl BtrfsVolume {
    /// `None` if the name and the NUL after it have no room.
    pub(super) fn named(text: &[u8]) -> Option<Self> {
        let mut name = [0; 4088];
        name[..4087].get_mut(..text.len())?.copy_from_slice(text);
        Some(Self { fd: 0, name })
    }
}

// A structure of the wrong size also gives a wrong request number.
const _: () = assert!(size_of::<LoopInfo>() == 232);
const _: () = assert!(size_of::<LoopConfig>() == 304);
const _: () = assert!(size_of::<XfsGeometry>() == 112);
const _: () = assert!(size_of::<BtrfsInfo>() == 1024);
const _: () = assert!(size_of::<BtrfsDevice>() == 4096);
const _: () = assert!(size_of::<BtrfsVolume>() == 4096);

/// `struct fstrim_range`.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct TrimRange {
    start: u64,
    length: u64,
    /// Shorter unused ranges are left out.
    least: u64,
}

/// What happens to what a filesystem has not written when it is shut down.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unwritten {
    WrittenBack,
    /// Nothing more is written, not even the log.
    #[cfg(feature = "remote")]
    Dropped,
}

/// `BLKGETSIZE64`: the device's size in bytes.
pub(crate) fn block_size_in_bytes(fd: BorrowedFd<'_>) -> Result<u64> {
    // SAFETY: the kernel writes a u64, although the header says size_t.
    unsafe { ioctl(fd, Getter::<{ opcode::read::<usize>(0x12, 114) }, u64>::new()) }
}

/// `BLKGETDISKSEQ` (5.15): a number that no other disk gets until the next boot.
pub(crate) fn disk_sequence(fd: BorrowedFd<'_>) -> Result<u64> {
    if !features::has(Feature::DiskSequence) || is_mapping_without_sequence(fd) {
        return Err(Errno::NOTTY);
    }
    // SAFETY: the kernel writes one u64.
    unsafe { ioctl(fd, Getter::<{ opcode::read::<u64>(0x12, 128) }, u64>::new()) }
}

/// Whether this is a device mapper device of a kernel before 5.15. There the unknown ioctl goes to the device
/// mapper, where it waits without limit for a path of a multipath map that queues. It allocates nothing, because
/// forked children call it.
fn is_mapping_without_sequence(fd: BorrowedFd<'_>) -> bool {
    let Ok(found) = rustix::fs::fstat(fd) else { return false };
    let number = DeviceNumber::from_dev_t(found.st_rdev);
    let exists = |file: &str| {
        let mut path = [0; 64];
        let written = write!(&mut path[..], "/sys/dev/block/{number}/{file}\0");
        let path = CStr::from_bytes_until_nul(&path).ok().filter(|_| written.is_ok());
        path.is_some_and(|path| rustix::fs::access(path, Access::EXISTS).is_ok())
    };
    exists("dm") && !exists("diskseq")
}

/// `BLKROGET`: whether the device refuses writes.
pub(crate) fn is_read_only(fd: BorrowedFd<'_>) -> Result<bool> {
    // SAFETY: the kernel writes one int.
    let flag = unsafe { ioctl(fd, Getter::<{ opcode::none(0x12, 94) }, c_int>::new()) }?;
    Ok(flag != 0)
}

/// The I/O sizes that a block device reports, in bytes; 0 means not reported.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Topology {
    /// `BLKSSZGET`: the smallest unit that can be read or written.
    pub(crate) logical_sector: u32,
    /// `BLKPBSZGET`: the unit that the disk writes at once; at least the logical sector.
    pub(crate) physical_sector: u32,
    /// `BLKIOMIN`: for a RAID its chunk.
    pub(crate) minimum_io: u32,
    /// `BLKIOOPT`: for a RAID its stripe.
    pub(crate) optimal_io: u32,
    /// `BLKALIGNOFF`: whether the device starts between two physical sectors.
    pub(crate) is_misaligned: bool,
}

/// The device's sectors and RAID geometry, read as `libblkid` does.
pub(crate) fn topology(fd: BorrowedFd<'_>) -> Result<Topology> {
    let logical_sector = ioctl_blksszget(fd)?;
    // SAFETY: the kernel writes one int or unsigned int each.
    unsafe {
        Ok(Topology {
            logical_sector,
            physical_sector: ioctl_blkpbszget(fd)?.max(logical_sector),
            minimum_io: ioctl(fd, Getter::<{ opcode::none(0x12, 120) }, u32>::new())?,
            optimal_io: ioctl(fd, Getter::<{ opcode::none(0x12, 121) }, u32>::new())?,
            is_misaligned: ioctl(fd, Getter::<{ opcode::none(0x12, 122) }, c_int>::new())? != 0,
        })
    }
}

/// `BLKZEROOUT`: zeroes a range, with a command of the disk if it has one. Both numbers are multiples of the
/// sector.
pub(crate) fn zero_out(fd: BorrowedFd<'_>, start: u64, length: u64) -> Result<()> {
    // SAFETY: the kernel reads two u64.
    unsafe { ioctl(fd, Setter::<{ opcode::none(0x12, 127) }, _>::new([start, length])) }
}

/// `BLKDISCARD`: says that a range is not needed any more. What it reads as afterwards is the device's choice.
#[cfg(feature = "lvm")]
pub(crate) fn discard(fd: BorrowedFd<'_>, start: u64, length: u64) -> Result<()> {
    // SAFETY: the kernel reads two u64.
    unsafe { ioctl(fd, Setter::<{ opcode::none(0x12, 119) }, _>::new([start, length])) }
}

/// `BLKFLSBUF`: writes back and drops the device's page cache.
pub(crate) fn flush_buffers(fd: BorrowedFd<'_>) -> Result<()> {
    // SAFETY: takes no argument.
    unsafe { ioctl(fd, NoArg::<{ opcode::none(0x12, 97) }>::new()) }
}

/// `LOOP_CTL_GET_FREE`: the number of a loop device that was free at the time of the call.
pub(crate) fn loop_free_number(control: BorrowedFd<'_>) -> Result<u32> {
    // SAFETY: takes no argument. Not by rustix, which does not return the call's own result.
    let number = unsafe { libc::ioctl(control.as_raw_fd(), 0x4c82) };
    let failed = |_| Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::IO);
    u32::try_from(number).map_err(failed)
}

/// `LOOP_CTL_ADD`: makes the loop device with this number, unless it exists.
pub(crate) fn loop_add(control: BorrowedFd<'_>, number: u32) -> Result<()> {
    // SAFETY: takes a number.
    match unsafe { ioctl(control, IntegerSetter::<0x4c80>::new_usize(number as usize)) } {
        Err(Errno::EXIST) => Ok(()),
        added => added,
    }
}

/// `LOOP_CTL_REMOVE`: removes the loop device with this number, to which nothing is attached.
#[cfg(test)]
pub(crate) fn loop_remove(control: BorrowedFd<'_>, number: u32) -> Result<()> {
    // SAFETY: takes a number.
    unsafe { ioctl(control, IntegerSetter::<0x4c81>::new_usize(number as usize)) }
}

/// `LOOP_CONFIGURE` (5.8): binds and sets up a loop device in one step.
pub(crate) fn loop_configure(
    fd: BorrowedFd<'_>,
    backing: BorrowedFd<'_>,
    block_size: u32,
    info: LoopInfo,
) -> Result<()> {
    let backing = backing.as_raw_fd().cast_unsigned();
    let config = LoopConfig { fd: backing, block_size, info, reserved: [0; 8] };
    // SAFETY: the kernel reads one loop_config, and takes a reference of its own to the backing file.
    unsafe { ioctl(fd, Setter::<0x4c0a, _>::new(config)) }
}

/// `LOOP_SET_FD`, then the settings, for kernels before 5.8. Unbinds again if a needed setting is refused.
pub(crate) fn loop_set_up_in_steps(
    fd: BorrowedFd<'_>,
    backing: BorrowedFd<'_>,
    block_size: u32,
    info: LoopInfo,
) -> Result<()> {
    // SAFETY: takes a descriptor by value.
    unsafe { ioctl(fd, IntegerSetter::<0x4c00>::new_usize(backing.as_raw_fd() as usize)) }?;
    let settings = || {
        // SAFETY: the kernel reads one loop_info64.
        unsafe { ioctl(fd, Setter::<0x4c04, _>::new(info)) }?;
        if block_size != 0 {
            // SAFETY: takes a number by value.
            unsafe { ioctl(fd, IntegerSetter::<0x4c09>::new_usize(block_size as usize)) }?;
        }
        if info.flags & LoopInfo::DIRECT_IO != 0 {
            // SAFETY: takes a number by value. Direct I/O is best effort, so a refusal is ignored.
            let _ = unsafe { ioctl(fd, IntegerSetter::<0x4c08>::new_usize(1)) };
        }
        Ok(())
    };
    settings().inspect_err(|_| {
        // Report the error of the settings, not of the clear.
        let _ = loop_clear(fd);
    })
}

/// `LOOP_CLR_FD`: unbinds, at once or when the last user closes the device.
pub(crate) fn loop_clear(fd: BorrowedFd<'_>) -> Result<()> {
    // SAFETY: takes no argument.
    unsafe { ioctl(fd, NoArg::<0x4c01>::new()) }
}

/// `LOOP_GET_STATUS64`: what a loop device is bound to; `ENXIO` if it is not bound.
pub(crate) fn loop_status(fd: BorrowedFd<'_>) -> Result<LoopInfo> {
    // SAFETY: the kernel writes one loop_info64.
    unsafe { ioctl(fd, Getter::<0x4c05, LoopInfo>::new()) }
}

/// `LOOP_SET_CAPACITY`: reads the size of the backing file again.
pub(crate) fn loop_set_capacity(fd: BorrowedFd<'_>) -> Result<()> {
    // SAFETY: takes no argument.
    unsafe { ioctl(fd, NoArg::<0x4c07>::new()) }
}

/// `FIFREEZE`: writes back all dirty data, and blocks writers until the filesystem is thawed.
pub(crate) fn freeze(fd: BorrowedFd<'_>) -> Result<()> {
    // SAFETY: the kernel neither reads nor writes what the argument points to, and it points to a live int
    // anyway.
    unsafe { ioctl(fd, Setter::<{ opcode::read_write::<c_int>(b'X', 119) }, c_int>::new(0)) }
}

/// `FITHAW`: lets writes continue; `EINVAL` if the filesystem is not frozen.
pub(crate) fn thaw(fd: BorrowedFd<'_>) -> Result<()> {
    // SAFETY: as above.
    unsafe { ioctl(fd, Setter::<{ opcode::read_write::<c_int>(b'X', 120) }, c_int>::new(0)) }
}

/// `FITRIM`: frees on the device what the filesystem does not use of these bytes of it. Returns how many bytes it freed.
pub(crate) fn trim(fd: BorrowedFd<'_>, start: u64, length: u64) -> Result<u64> {
    let mut range = TrimRange { start, length, least: 0 };
    // SAFETY: the kernel reads and writes the struct, which is live.
    unsafe { ioctl(fd, Updater::<{ opcode::read_write::<TrimRange>(b'X', 121) }, _>::new(&mut range)) }?;
    Ok(range.length)
}

/// `FS_IOC_SHUTDOWN`: makes every operation of the filesystem fail from then on. With flags 0 it freezes the filesystem
/// first, so that everything is on its device. ext4, XFS, f2fs, and btrfs from Linux 6.19.
pub(crate) fn shut_down(fd: BorrowedFd<'_>, unwritten: Unwritten) -> Result<()> {
    let flags = match unwritten {
        Unwritten::WrittenBack => 0_u32,
        // EXT4_GOING_FLAGS_NOLOGFLUSH, XFS_FSOP_GOING_FLAGS_NOLOGFLUSH
        #[cfg(feature = "remote")]
        Unwritten::Dropped => 2,
    };
    // SAFETY: the kernel reads one u32, whatever the direction in the number is.
    unsafe { ioctl(fd, Setter::<{ opcode::read::<u32>(b'X', 125) }, _>::new(flags)) }
}

/// `EXT4_IOC_RESIZE_FS`: grows a mounted ext4 to this many blocks; needs `CAP_SYS_RESOURCE`.
pub(crate) fn ext4_resize(fd: BorrowedFd<'_>, blocks: u64) -> Result<()> {
    // SAFETY: the kernel reads one u64.
    unsafe { ioctl(fd, Setter::<{ opcode::write::<u64>(b'f', 16) }, _>::new(blocks)) }
}

/// `XFS_IOC_FSGEOMETRY_V1`: the geometry of a mounted XFS.
pub(crate) fn xfs_geometry(fd: BorrowedFd<'_>) -> Result<XfsGeometry> {
    // SAFETY: the kernel writes one xfs_fsop_geom_v1.
    unsafe { ioctl(fd, Getter::<{ opcode::read::<XfsGeometry>(b'X', 100) }, XfsGeometry>::new()) }
}

/// `XFS_IOC_FSGROWFSDATA`: grows a mounted XFS to this many blocks.
pub(crate) fn xfs_grow(fd: BorrowedFd<'_>, new_blocks: u64, max_inode_percent: u32) -> Result<()> {
    let data = XfsGrowData { new_blocks, max_inode_percent };
    // SAFETY: the kernel reads one xfs_growfs_data.
    unsafe { ioctl(fd, Setter::<{ opcode::write::<XfsGrowData>(b'X', 110) }, _>::new(data)) }
}

/// `BTRFS_IOC_FS_INFO`: how many devices a mounted btrfs has.
pub(crate) fn btrfs_info(fd: BorrowedFd<'_>) -> Result<BtrfsInfo> {
    let mut info = BtrfsInfo { max_id: 0, devices: 0, rest: [0; 1008] };
    // SAFETY: the kernel writes one btrfs_ioctl_fs_info_args, and a newer one reads its flags.
    unsafe { ioctl(fd, Updater::<{ opcode::read::<BtrfsInfo>(0x94, 31) }, _>::new(&mut info)) }?;
    Ok(info)
}

/// `BTRFS_IOC_DEV_INFO`: one device of a mounted btrfs; `ENODEV` if it has none with this id.
pub(crate) fn btrfs_device(fd: BorrowedFd<'_>, id: u64) -> Result<BtrfsDevice> {
    let mut device =
        BtrfsDevice { id, uuid: [0; 16], bytes_used: 0, total_bytes: 0, unused: [0; 379], path: [0; 1024] };
    // SAFETY: the kernel reads and writes one btrfs_ioctl_dev_info_args.
    unsafe { ioctl(fd, Updater::<{ opcode::read_write::<BtrfsDevice>(0x94, 30) }, _>::new(&mut device)) }?;
    Ok(device)
}

/// `BTRFS_IOC_RESIZE` with `<id>:max`: grows a mounted btrfs to the end of one of its devices.
pub(crate) fn btrfs_grow(fd: BorrowedFd<'_>, id: u64) -> Result<()> {
    let volume = BtrfsVolume::named(format!("{id}:max").as_bytes()).ok_or(Errno::NAMETOOLONG)?;
    // SAFETY: the kernel reads one btrfs_ioctl_vol_args, whose name ends in a NUL.
    unsafe { ioctl(fd, Setter::<{ opcode::write::<BtrfsVolume>(0x94, 3) }, _>::new(volume)) }
}
