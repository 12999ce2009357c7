//! Paths of open descriptors, for system calls that take paths.

use std::os::fd::{AsFd, AsRawFd as _};
use std::path::PathBuf;

/// The path by which a system call that takes no descriptor reaches an open file. Needs /proc.
pub(crate) fn path_of(fd: impl AsFd) -> PathBuf {
    format!("/proc/self/fd/{}", fd.as_fd().as_raw_fd()).into()
}
