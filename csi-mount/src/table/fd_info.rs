//! What `/proc` reports about an open descriptor, without its filesystem.

use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd};

use crate::sys::ids::MountId;

pub(crate) struct FdInfo {
    pub(crate) mount: MountId,
    /// From Linux 5.14.
    pub(crate) inode: Option<u64>,
}

impl FdInfo {
    pub(crate) fn read(fd: BorrowedFd<'_>) -> io::Result<Self> {
        let path = format!("/proc/thread-self/fdinfo/{}", fd.as_raw_fd());
        // Drops the error number: a missing /proc must not look like a missing file.
        let unknown = |error| {
            io::Error::other(format!("{path} cannot be read; mount /proc into the container: {error}"))
        };
        Self::parse(&std::fs::read_to_string(&path).map_err(unknown)?)
    }

    /// Reads `/proc/PID/fdinfo/FD`.
    pub(crate) fn parse(text: &str) -> io::Result<Self> {
        let number = |key: &str| {
            text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':')?.trim().parse().ok())
        };
        let mount = number("mnt_id").map(MountId).ok_or_else(|| io::Error::other("fdinfo has no mnt_id"))?;
        Ok(Self { mount, inode: number("ino") })
    }
}
