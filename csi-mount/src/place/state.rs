//! Whether something is mounted at a path: one call that never hangs and does not depend on the number of
//! mounts.

use std::path::Path;

use rustix::fs::OFlags;

use crate::MountState;
use crate::path::lookup;
use crate::path::paths;
use crate::table::facts::{self, Facts};
use crate::{Error, Result, Target};

/// Returns what is mounted at an absolute path. A symbolic link as the last component is not followed.
///
/// It never asks the filesystem there, so it returns on a mount whose daemon or server is dead. It uses one
/// `openat2(2)` with `RESOLVE_CACHED` and one `statx(2)` with `AT_STATX_DONT_SYNC`; before Linux 5.8
/// `/proc/self/fdinfo` instead of `statx`.
///
/// ```
/// # fn main() -> csi_mount::Result<()> {
/// use csi_mount::{MountState, mount_state};
///
/// assert!(matches!(mount_state("/proc")?, MountState::Mounted(_)));
/// assert_eq!(mount_state("/no/such/path")?, MountState::Absent);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// An error never counts as "not mounted".
/// - [`InvalidInput`](crate::ErrorKind::InvalidInput): the path can never work.
/// - [`PermissionDenied`](crate::ErrorKind::PermissionDenied): an ancestor cannot be searched.
pub fn mount_state(path: impl AsRef<Path>) -> Result<MountState> {
    let operation = "look for a mount at";
    if let Some(state) = lookup::quick_state(path.as_ref()) {
        return Ok(state);
    }
    let path = paths::absolute(operation, path.as_ref())?;
    if path.parent().is_some() {
        return Target::new(path)?.state();
    }
    let root = lookup::open_path(&path, OFlags::DIRECTORY).and_then(facts::from_fd);
    let facts = root.map_err(|error| Error::os(operation, &path, error))?;
    // Before Linux 5.8 nothing reports whether "/" is the root of a mount. It always is, except in a chroot.
    Ok(MountState::from_facts(&Facts { is_mount_root: true, ..facts }))
}
