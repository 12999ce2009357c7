//! Project quotas: which project a file belongs to, and what a project uses and can use.
#![allow(unsafe_code, reason = "ioctl(2) and quotactl(2) are raw system calls")]

use std::ffi::{CStr, c_int, c_void};
use std::os::fd::{AsRawFd as _, BorrowedFd};

use nix::Result;
use nix::errno::Errno;
use nix::libc;

use super::features::QUOTACTL_FD;

/// `FS_XFLAG_PROJINHERIT`: what is made in the directory belongs to its project.
pub(crate) const INHERIT: u32 = 0x200;
/// `FS_QUOTA_PDQ_ACCT` and `FS_QUOTA_PDQ_ENFD`: the usage of projects is counted, and their limits are enforced.
pub(crate) const COUNTED: u16 = 1 << 4;
pub(crate) const ENFORCED: u16 = 1 << 5;
/// `PRJQUOTA`.
const PROJECT: u32 = 2;
const Q_GETQUOTA: u32 = 0x80_0007;
const Q_SETQUOTA: u32 = 0x80_0008;
const Q_XGETQSTAT: u32 = 0x5805;
/// `QIF_BLIMITS | QIF_ILIMITS`.
const LIMITS: u32 = 1 | 4;

/// `struct fsxattr` of linux/fs.h.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct FileAttributes {
    pub(crate) flags: u32,
    extent_size: u32,
    extents: u32,
    pub(crate) project: u32,
    cow_extent_size: u32,
    padding: [u8; 8],
}

/// `struct if_dqblk` of linux/quota.h. A limit of 0 is none.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Account {
    /// In KiB, as the next one.
    hard_blocks: u64,
    soft_blocks: u64,
    pub(crate) used_bytes: u64,
    pub(crate) hard_inodes: u64,
    soft_inodes: u64,
    pub(crate) used_inodes: u64,
    times: [u64; 2],
    valid: u32,
}

/// `struct fs_quota_stat` of linux/dqblk_xfs.h, as far as it is used.
#[repr(C)]
struct State {
    version: i8,
    flags: u16,
    rest: [u64; 9],
}

// A structure of the wrong size also gives a wrong request number.
const _: () = assert!(size_of::<FileAttributes>() == 28);
const _: () = assert!(size_of::<Account>() == 72);
const _: () = assert!(size_of::<State>() == 80);

mod raw {
    use super::FileAttributes;

    nix::ioctl_read!(file_attributes, b'X', 31, FileAttributes); // FS_IOC_FSGETXATTR
    nix::ioctl_write_ptr!(set_file_attributes, b'X', 32, FileAttributes); // FS_IOC_FSSETXATTR
}

/// `FS_IOC_FSGETXATTR`.
pub(crate) fn file_attributes(file: BorrowedFd<'_>) -> Result<FileAttributes> {
    let mut attributes = FileAttributes::default();
    // SAFETY: the kernel writes one fsxattr.
    unsafe { raw::file_attributes(file.as_raw_fd(), &raw mut attributes) }?;
    Ok(attributes)
}

/// `FS_IOC_FSSETXATTR`.
pub(crate) fn set_file_attributes(file: BorrowedFd<'_>, attributes: &FileAttributes) -> Result<()> {
    // SAFETY: the kernel reads one fsxattr.
    unsafe { raw::set_file_attributes(file.as_raw_fd(), &raw const *attributes) }.map(drop)
}

impl Account {
    /// What the project can use in bytes; 0 is without limit.
    pub(crate) fn hard_bytes(&self) -> u64 {
        self.hard_blocks.saturating_mul(1024)
    }
}

/// How the kernel is told the filesystem.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Quotas<'a> {
    /// By an open file (`quotactl_fd(2)`), which can be opened with `O_PATH`.
    Of(BorrowedFd<'a>),
    /// By the node of its device (`quotactl(2)`).
    OnDevice(&'a CStr),
}

impl Quotas<'_> {
    /// What of [`COUNTED`] and [`ENFORCED`] is switched on. `ENOSYS` if nothing is. Both filesystems answer this call,
    /// whose name is that of XFS (`Q_XGETQSTAT`).
    pub(crate) fn state(self) -> Result<u16> {
        let mut state = State { version: 1, flags: 0, rest: [0; 9] };
        self.call(Q_XGETQSTAT, 0, (&raw mut state).cast())?;
        Ok(state.flags)
    }

    /// The account of a project; one that nothing belongs to is empty. The kernel translates this call for XFS.
    pub(crate) fn account(self, project: u32) -> Result<Account> {
        let mut account = Account::default();
        match self.call(Q_GETQUOTA, project, (&raw mut account).cast()) {
            // XFS, if it has none.
            Err(Errno::ENOENT) => Ok(Account::default()),
            called => called.map(|()| account),
        }
    }

    /// Sets both limits of a project, soft ones equal to the hard ones; 0 is none. Bytes are a multiple of 1 KiB.
    pub(crate) fn set_limits(self, project: u32, bytes: u64, inodes: u64) -> Result<()> {
        let mut account = Account {
            hard_blocks: bytes / 1024,
            soft_blocks: bytes / 1024,
            hard_inodes: inodes,
            soft_inodes: inodes,
            valid: LIMITS,
            ..Account::default()
        };
        self.call(Q_SETQUOTA, project, (&raw mut account).cast())
    }

    /// `argument` points to the structure of the command.
    fn call(self, command: u32, project: u32, argument: *mut c_void) -> Result<()> {
        let command = (command << 8 | PROJECT) as c_int;
        // SAFETY: the callers give each command its own structure, which is live; the kernel reads or writes one.
        let result = unsafe {
            match self {
                Self::Of(file) => libc::syscall(QUOTACTL_FD, file.as_raw_fd(), command, project, argument),
                Self::OnDevice(node) => {
                    libc::quotactl(command, node.as_ptr(), project as c_int, argument.cast()).into()
                }
            }
        };
        Errno::result(result).map(drop)
    }
}
