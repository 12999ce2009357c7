//! Mounts whose server or daemon is gone for good, found where a step has to mount its own filesystem.

use std::path::Path;

use nix::libc;

use crate::mounted::health::{self, health};
use crate::{
    Detach, Error, ErrorKind, MountAttributes, MountHealth, Result, STATS_TIME_LIMIT, Target, Unmount,
};

/// Unmounts what is mounted at the target if that filesystem will never work again: its daemon is gone
/// (`ENOTCONN`), or the server no longer has what was mounted (`ESTALE`). A mount that only does not answer
/// stays: it can recover, with the data written to it. Returns the health that was found.
pub(super) fn unmount_if_lost(target: &Target) -> Result<MountHealth> {
    unmount_if_dead(target, |number| matches!(number, libc::ENOTCONN | libc::ESTALE))
}

/// As [`unmount_if_lost`], with the caller's choice of error numbers that mean "lost".
pub(super) fn unmount_if_dead(target: &Target, is_lost: impl Fn(i32) -> bool) -> Result<MountHealth> {
    let found = health(target.path())?;
    if matches!(found, MountHealth::Dead(number) if is_lost(number)) {
        tracing::warn!(target = %target.path().display(), "unmounting a mount that has lost its server");
        Unmount::new().detach(Detach::IfUnresponsive).at(target)?;
    }
    Ok(found)
}

/// Checks that the staged mount works before a workload gets it: readable, and writable if these attributes
/// allow writes.
pub(super) fn require_staged(
    operation: &'static str,
    staging: &Path,
    attributes: MountAttributes,
) -> Result<()> {
    // A frozen filesystem is published too: freezes are normally short.
    let found = health::health_and_details(&Target::new(staging)?, STATS_TIME_LIMIT)?;
    let health = found.map_or(MountHealth::NotMounted, |(health, _)| health);
    let refuse = |kind, hint| Err(Error::new(kind, operation, health.to_string()).at(staging).hint(hint));
    match health {
        MountHealth::Healthy | MountHealth::Frozen => Ok(()),
        MountHealth::ReadOnly if attributes.contains(MountAttributes::RDONLY) => Ok(()),
        MountHealth::ReadOnly => {
            refuse(ErrorKind::ReadOnly, "unstage it and stage it again; stage checks the filesystem")
        }
        // If the unmounted directory were bound, the workload would write to the node's own disk.
        MountHealth::NotMounted => {
            let reason = "no volume is staged there";
            Err(Error::new(ErrorKind::NotFound, operation, reason).at(staging).hint("stage it first"))
        }
        MountHealth::Unresponsive | MountHealth::Dead(_) => refuse(
            ErrorKind::Unresponsive,
            "restore its device, server or daemon; if that is not possible, unstage it and stage it again",
        ),
    }
}
