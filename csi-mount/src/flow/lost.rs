//! Mounts whose server or daemon is gone for good, found where a step wants to put its own.

use nix::libc;

use crate::{Detach, MountHealth, Result, Target, Unmount, Unmounted, health};

/// Takes off what is mounted at the target if its filesystem will never work again: the daemon is gone, or the server
/// says that it no longer has what was mounted. One that merely does not answer is left, for it may be back any moment,
/// with what was written to it.
pub(super) fn take_off_lost(target: &Target) -> Result<Option<Unmounted>> {
    match health(target.path())? {
        MountHealth::Dead(libc::ENOTCONN | libc::ESTALE) => {
            tracing::warn!(target = %target.path().display(), "a mount whose server is gone is taken off");
            Unmount::new().detach(Detach::IfUnresponsive).at(target).map(Some)
        }
        _ => Ok(None),
    }
}
