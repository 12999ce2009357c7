//! Subvolumes of btrfs, and their quota groups, which count and limit what they hold.
#![allow(unsafe_code, reason = "ioctl(2) is a raw system call")]

use std::ffi::OsStr;
use std::os::fd::BorrowedFd;
use std::os::unix::ffi::OsStrExt as _;

use rustix::io::{Errno, Result};
use rustix::ioctl::{Getter, Setter, Updater, ioctl, opcode};

use super::ioctl::BtrfsVolume;

/// `BTRFS_FIRST_FREE_OBJECTID`: the inode number of each subvolume's root directory.
pub(crate) const ROOT_INODE: u64 = 256;
/// `BTRFS_QGROUP_STATUS_FLAG_ON` and `_INCONSISTENT`: the kernel counts; and it has stopped until it scans again.
pub(crate) const ON: u64 = 1;
pub(crate) const INCONSISTENT: u64 = 4;
/// `BTRFS_QUOTA_TREE_OBJECTID`.
const QUOTA_TREE: u64 = 8;
/// `BTRFS_QGROUP_STATUS_KEY`, `BTRFS_QGROUP_INFO_KEY` and `BTRFS_QGROUP_LIMIT_KEY`.
const STATUS: u32 = 240;
const INFO: u32 = 242;
const LIMIT: u32 = 244;
/// `BTRFS_QGROUP_LIMIT_MAX_RFER`: the bytes that a subvolume refers to are limited, whether others share them or not.
const REFERENCED: u64 = 1;

/// `struct btrfs_ioctl_ino_lookup_args`.
#[repr(C)]
struct Lookup {
    tree: u64,
    object: u64,
    name: [u8; 4080],
}

/// `struct btrfs_ioctl_search_args`.
#[repr(C)]
struct Search {
    tree: u64,
    /// Pairs of the least and the greatest.
    objects: [u64; 2],
    offsets: [u64; 2],
    transactions: [u64; 2],
    types: [u32; 2],
    /// How many items are wanted, then how many were found.
    items: u32,
    unused: [u32; 9],
    found: [u64; 499],
}

/// `struct btrfs_ioctl_qgroup_limit_args`. The group 0 is that of the open file's subvolume.
#[repr(C)]
struct GroupLimit {
    group: u64,
    flags: u64,
    referenced: u64,
    others: [u64; 3],
}

// A structure of the wrong size also gives a wrong request number.
const _: () = assert!(size_of::<Lookup>() == 4096);
const _: () = assert!(size_of::<Search>() == 4096);
const _: () = assert!(size_of::<GroupLimit>() == 48);

/// `BTRFS_IOC_INO_LOOKUP`: the number of the subvolume that a file is in. Other filesystems do not know the request.
pub(crate) fn subvolume(file: BorrowedFd<'_>) -> Result<u64> {
    let mut lookup = Lookup { tree: 0, object: ROOT_INODE, name: [0; 4080] };
    // SAFETY: the kernel reads and writes one btrfs_ioctl_ino_lookup_args.
    unsafe { ioctl(file, Updater::<{ opcode::read_write::<Lookup>(0x94, 18) }, _>::new(&mut lookup)) }?;
    Ok(lookup.tree)
}

/// `BTRFS_IOC_SUBVOL_CREATE`: makes an empty subvolume, with the mode 0777 minus the umask.
pub(crate) fn create_subvolume(parent: BorrowedFd<'_>, name: &OsStr) -> Result<()> {
    let volume = BtrfsVolume::named(name.as_bytes()).ok_or(Errno::NAMETOOLONG)?;
    // SAFETY: the kernel reads one btrfs_ioctl_vol_args, whose name ends in a NUL.
    unsafe { ioctl(parent, Setter::<{ opcode::write::<BtrfsVolume>(0x94, 14) }, _>::new(volume)) }
}

/// `BTRFS_IOC_SUBVOL_GETFLAGS` and `_SETFLAGS`: makes a read-only subvolume writable, by its root directory. False if it
/// is none.
pub(crate) fn make_writable(root: BorrowedFd<'_>) -> Result<bool> {
    /// `BTRFS_SUBVOL_RDONLY`.
    const READ_ONLY: u64 = 2;
    // SAFETY: the kernel writes one u64.
    let flags = unsafe { ioctl(root, Getter::<{ opcode::read::<u64>(0x94, 25) }, u64>::new()) }?;
    if flags & READ_ONLY == 0 {
        return Ok(false);
    }
    // SAFETY: the kernel reads one u64.
    unsafe { ioctl(root, Setter::<{ opcode::write::<u64>(0x94, 26) }, _>::new(flags & !READ_ONLY)) }?;
    Ok(true)
}

/// `BTRFS_IOC_START_SYNC` and `_WAIT_SYNC`: writes all changes of the filesystem's metadata to the disk, and with them
/// the limits of subvolumes and what the kernel has counted. Data that is not written yet stays in memory, where
/// `syncfs(2)` would write all of it.
pub(crate) fn commit(file: BorrowedFd<'_>) -> Result<()> {
    // SAFETY: the kernel writes one u64, and reads it in the second call.
    unsafe {
        let transaction = ioctl(file, Getter::<{ opcode::read::<u64>(0x94, 24) }, u64>::new())?;
        ioctl(file, Setter::<{ opcode::write::<u64>(0x94, 22) }, _>::new(transaction))
    }
}

/// The flags of the filesystem's quotas, such as [`ON`]; 0 if they are switched off. Needs CAP_SYS_ADMIN, as the two
/// functions below.
pub(crate) fn quota_state(file: BorrowedFd<'_>) -> Result<u64> {
    Ok(item(file, STATUS, 0)?.map_or(0, |[_version, _generation, flags, _]| flags))
}

/// How many bytes a subvolume holds, with its metadata, as of the last commit.
pub(crate) fn used_bytes(file: BorrowedFd<'_>, subvolume: u64) -> Result<u64> {
    Ok(item(file, INFO, subvolume)?.map_or(0, |[_generation, referenced, ..]| referenced))
}

/// How many bytes a subvolume can hold.
pub(crate) fn limit(file: BorrowedFd<'_>, subvolume: u64) -> Result<Option<u64>> {
    let limit = item(file, LIMIT, subvolume)?;
    Ok(limit.and_then(|[flags, referenced, ..]| (flags & REFERENCED != 0).then_some(referenced)))
}

/// `BTRFS_IOC_QGROUP_LIMIT`: limits the subvolume that a directory is in.
pub(crate) fn set_limit(directory: BorrowedFd<'_>, bytes: u64) -> Result<()> {
    let limit = GroupLimit { group: 0, flags: REFERENCED, referenced: bytes, others: [0; 3] };
    // SAFETY: the kernel reads one btrfs_ioctl_qgroup_limit_args, whatever the direction in the number is.
    unsafe { ioctl(directory, Setter::<{ opcode::read::<GroupLimit>(0x94, 43) }, _>::new(limit)) }
}

/// `BTRFS_IOC_TREE_SEARCH`: the first four numbers of an item in the tree of the quotas, of which each kind has at
/// least so many. `None` without the item or without quotas.
fn item(file: BorrowedFd<'_>, kind: u32, group: u64) -> Result<Option<[u64; 4]>> {
    /// `struct btrfs_ioctl_search_header` in front of the item.
    const HEADER: usize = 4;
    let mut search = Search {
        tree: QUOTA_TREE,
        objects: [0; 2],
        offsets: [group; 2],
        transactions: [0, u64::MAX],
        types: [kind; 2],
        items: 1,
        unused: [0; 9],
        found: [0; 499],
    };
    // SAFETY: the kernel reads and writes one btrfs_ioctl_search_args.
    match unsafe { ioctl(file, Updater::<{ opcode::read_write::<Search>(0x94, 17) }, _>::new(&mut search)) } {
        Err(Errno::NOENT) => return Ok(None),
        searched => searched?,
    };
    Ok((search.items > 0).then(|| std::array::from_fn(|index| u64::from_le(search.found[HEADER + index]))))
}

/// `BTRFS_IOC_QUOTA_CTL` with `BTRFS_QUOTA_CTL_ENABLE_SIMPLE_QUOTA` (Linux 6.7).
#[cfg(any(test, feature = "testing"))]
pub(crate) fn enable_simple_quotas(file: BorrowedFd<'_>) -> Result<()> {
    let mut command_and_status = [4, 0];
    // SAFETY: the kernel reads and writes one btrfs_ioctl_quota_ctl_args.
    unsafe {
        ioctl(file, Updater::<{ opcode::read_write::<[u64; 2]>(0x94, 40) }, _>::new(&mut command_and_status))
    }
}
