//! What a child is asked.

use std::ffi::{CStr, c_int};
use std::os::fd::BorrowedFd;

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
    Unmount(BorrowedFd<'a>, &'a CStr, c_int),
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
    /// None if the path is absolute.
    pub(crate) directory: Option<BorrowedFd<'a>>,
    pub(crate) path: &'a CStr,
    /// `O_…`
    pub(crate) flags: c_int,
    /// `RESOLVE_…`. If it is not 0, `openat2` is used.
    pub(crate) resolve: u64,
}
