//! System calls that no other crate offers, made at a mount point: for a table of what they do there.
//!
//! Each opens the path with `O_PATH` and calls with the descriptor.

use std::io;
use std::path::Path;

use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::mount::{OpenTreeFlags, open_tree};

use crate::MountAttributes;
use crate::sys::mount_api::{self, Depth};
use crate::sys::other_calls;
use crate::table::details::unique_id;

/// `statmount(2)` of the mount there, with every field that this crate uses.
///
/// # Errors
///
/// The call's own: ENOSYS before Linux 6.8.
pub fn statmount(at: impl AsRef<Path>) -> io::Result<()> {
    mount_api::statmount(id(at.as_ref())?).map(drop)
}

/// `listmount(2)` of what is mounted on the mount there.
///
/// # Errors
///
/// The call's own: ENOSYS before Linux 6.8.
pub fn listmount(at: impl AsRef<Path>) -> io::Result<()> {
    other_calls::listmount(id(at.as_ref())?)
}

/// `mount_setattr(2)` that makes a detached copy (`open_tree(2)`) of the mount there read-only.
///
/// # Errors
///
/// The calls' own: ENOSYS before Linux 5.12.
pub fn mount_setattr(at: impl AsRef<Path>) -> io::Result<()> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    let copy = open_tree(CWD, at.as_ref(), flags)?;
    mount_api::mount_setattr(copy, MountAttributes::RDONLY, Depth::Single)
}

/// `name_to_handle_at(2)` of the mount's root.
///
/// # Errors
///
/// The call's own.
pub fn name_to_handle(at: impl AsRef<Path>) -> io::Result<()> {
    other_calls::name_to_handle(place(at.as_ref())?)
}

fn place(at: &Path) -> io::Result<impl std::os::fd::AsFd> {
    Ok(openat(CWD, at, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?)
}

fn id(at: &Path) -> io::Result<u64> {
    unique_id(place(at)?)?.ok_or_else(|| rustix::io::Errno::NOSYS.into())
}

/// `PTRACE_LISTEN`, for a process that the calling thread has seized and a signal has stopped: the process
/// stays stopped, and its parent sees the stop.
///
/// # Errors
/// As `ptrace(2)`.
pub fn ptrace_listen(process: i32) -> io::Result<()> {
    other_calls::ptrace_listen(process)
}

#[cfg(test)]
mod needs_root {
    use super::*;

    /// As root, at a mount point of this machine.
    #[test]
    fn each_is_the_call_that_it_says() {
        for call in [statmount, listmount, mount_setattr] {
            match call(Path::new("/proc")) {
                Ok(()) => {}
                Err(error) if error.raw_os_error() == Some(nix::libc::ENOSYS) => {}
                Err(error) => panic!("{error}"),
            }
        }
        // For the file of a descriptor. Not every filesystem has handles.
        match name_to_handle(std::env::temp_dir()) {
            Ok(()) => {}
            Err(error) => assert_eq!(error.raw_os_error(), Some(nix::libc::EOPNOTSUPP)),
        }
        assert_eq!(statmount("/no-such-place").unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
