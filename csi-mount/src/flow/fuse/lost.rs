//! Mounts that have lost their daemon.

use std::path::{Path, PathBuf};

use nix::libc;

use super::device::mount_fuse;
use super::processes::Processes;
use crate::error::Result;
use crate::flow::unmount_if_dead;
use crate::mounted::health::{MountHealth, health};
use crate::mounting::options::MountOptions;
use crate::place::owner::OwnerId;
use crate::place::target::Target;
use crate::table::details::is_fuse;
use crate::table::mountinfo::{MountEntry, mounts};

/// A FUSE filesystem whose daemon is gone: see [`lost_mounts`].
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct LostMount {
    /// Where it is mounted.
    pub path: PathBuf,
    /// The volume that the place is marked as, if it is.
    pub owner: Option<OwnerId>,
}

/// Lists the FUSE filesystems of this mount namespace whose daemon is gone, staged or published, for the
/// start of a plugin.
///
/// # Errors
/// Those of [`mounts`](crate::mounts()). A mount whose state can't be found out is left out.
pub fn lost_mounts() -> Result<Vec<LostMount>> {
    let lost = |entry: MountEntry| {
        if !is_fuse(&entry.fs_type) || !is_lost(&entry.mount_point).unwrap_or(false) {
            return None;
        }
        let owner = Target::new(&entry.mount_point).and_then(|target| target.marked_owner()).ok().flatten();
        Some(LostMount { path: entry.mount_point, owner })
    };
    Ok(mounts()?.into_iter().filter_map(lost).collect())
}

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
