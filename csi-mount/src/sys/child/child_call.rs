//! What a child is asked.

use std::ffi::CStr;
use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::fs::{Mode, OFlags, ResolveFlags, openat, openat2};
use rustix::mount::UnmountFlags;

use crate::sys::ioctl::Unwritten;
use crate::sys::new_mount::NewMount;

/// The system call that the child makes.
#[derive(Clone, Copy)]
pub(crate) enum ChildCall<'a> {
    /// `openat2(2)` with `O_PATH`; the reply has the descriptor.
    Open(Open<'a>),
    /// `fstatfs(2)`.
    Usage(BorrowedFd<'a>),
    /// `fstatfs(2)`, and a `statx(2)` that must ask the server.
    Health(BorrowedFd<'a>),
    /// `umount2(2)` of this name in the directory, with these flags.
    Unmount(BorrowedFd<'a>, &'a CStr, UnmountFlags),
    /// A new mount; the reply has its descriptor, unless it is made at a path.
    Mount(NewMount<'a>),
    /// `LOOP_GET_STATUS64` of this node: the kernel stats the backing file, which asks that file's
    /// filesystem.
    LoopStatus(&'a CStr),
    /// `rmdir(2)` of a name in the directory that does not exist. It fails, but first waits while the
    /// filesystem is frozen.
    WaitForThaw(BorrowedFd<'a>),
    /// `chmod(2)` of a directory by the link of its descriptor in /proc, if it has other permissions.
    SetPermissions(BorrowedFd<'a>, &'a CStr, u32),
    /// Shuts the filesystem of this root down (`FS_IOC_SHUTDOWN`), unless it already is.
    ShutDown(BorrowedFd<'a>, Unwritten),
    /// `FITRIM` of the filesystem of this root, from a byte on and for so many; the reply's `blocks` are the freed bytes.
    Trim(BorrowedFd<'a>, u64, u64),
    /// `umount2(2)` in another mount namespace, of one mount and only if it is not in use.
    UnmountElsewhere(MountElsewhere<'a>),
    /// A call to a disk or its driver.
    #[cfg(feature = "remote")]
    Device(crate::sys::device_call::DeviceCall<'a>),
}

/// A mount in another mount namespace.
#[derive(Clone, Copy)]
pub(crate) struct MountElsewhere<'a> {
    /// `/proc/PID/ns/mnt`
    pub(crate) namespace: BorrowedFd<'a>,
    /// The directory that contains the mount point, as an absolute path in that namespace.
    pub(crate) directory: &'a CStr,
    pub(crate) name: &'a CStr,
    pub(crate) mount: u64,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Open<'a> {
    pub(crate) directory: BorrowedFd<'a>,
    pub(crate) path: &'a CStr,
    pub(crate) flags: OFlags,
    /// Only for a caller that has `openat2`.
    pub(crate) resolve: ResolveFlags,
}

impl Open<'_> {
    pub(crate) fn open(self) -> rustix::io::Result<OwnedFd> {
        let Self { directory, path, flags, resolve } = self;
        if resolve.is_empty() {
            openat(directory, path, flags, Mode::empty())
        } else {
            openat2(directory, path, flags, Mode::empty(), resolve)
        }
    }
}
