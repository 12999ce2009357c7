//! Mounts that have lost their daemon.

use std::path::Path;

use nix::libc;

use super::device::mount_fuse;
use super::processes::Processes;
use crate::error::Result;
use crate::flow::unmount_if_dead;
use crate::mounted::health::{MountHealth, health};
use crate::mounting::options::MountOptions;
use crate::place::target::Target;

/// See [`Mounts::has_lost_daemon`](crate::Mounts::has_lost_daemon).
pub fn is_lost(path: impl AsRef<Path>) -> Result<bool> {
    let path = path.as_ref();
    Ok(matches!(health(path)?, MountHealth::Dead(number) if is_lost_with(path, number)))
}

/// The newest kernels (7.2) return `ECONNREFUSED` if the daemon ended before its first answer. A living
/// daemon can return the same error number, for example from its backend.
fn is_lost_with(path: &Path, number: i32) -> bool {
    match number {
        libc::ENOTCONN => true,
        libc::ECONNREFUSED => Processes::for_place(path).running().is_empty(),
        _ => false,
    }
}

/// Unmounts a mount that has lost its daemon. Returns the health that was found.
pub(super) fn unmount_if_lost(staging: &Target) -> Result<MountHealth> {
    let is_lost = |number| number == libc::ESTALE || is_lost_with(staging.path(), number);
    unmount_if_dead(staging, is_lost)
}

/// Mounts a placeholder without a daemon: the staging path still counts as lost, not as unstaged.
pub(super) fn mount_lost_placeholder(staging: &Target) -> Result<()> {
    mount_fuse("recover", Path::new("daemon-is-gone"), &MountOptions::new(), staging).map(drop)
}
