//! Ready-made node flows: the steps of a volume on a node, without the parts that only the vendor knows.
//!
//! The flows take paths and need no orchestrator. Each step can be repeated after a crash at any point.
//!
//! | volumes that are | |
//! |---|---|
//! | block devices | [`block`] |
//! | filesystems of a server | [`shared`] |
//! | filesystems that a program serves by FUSE | [`fuse`] |
//! | known content, in memory | [`ephemeral`] |

pub mod block;
pub mod ephemeral;
pub mod fuse;
pub mod shared;

use std::path::Path;

use nix::libc;

use crate::error::{Error, ErrorKind, Result};
use crate::mounted::health::{self, MountHealth, health};
use crate::mounted::stats::STATS_TIME_LIMIT;
use crate::mounting::unmount::{Detach, Unmount};
use crate::place::target::{Created, Target};
use crate::sys::attributes::MountAttributes;

/// Removes the directory or file that a failed step has made.
fn remove_created(created: Created, target: &Target) {
    if created == Created::Created
        && let Err(left) = target.remove()
    {
        tracing::warn!(%left, "an empty target stays after a failed publish");
    }
}

/// Unmounts what is mounted at the target if that filesystem will never work again: its daemon is gone
/// (`ENOTCONN`), or the server no longer has what was mounted (`ESTALE`). A mount that only does not answer
/// stays: it can recover, with the data written to it. Returns the health that was found.
fn unmount_if_lost(target: &Target) -> Result<MountHealth> {
    unmount_if_dead(target, |number| matches!(number, libc::ENOTCONN | libc::ESTALE))
}

/// As [`unmount_if_lost`], with the caller's choice of error numbers that mean "lost".
fn unmount_if_dead(target: &Target, is_lost: impl Fn(i32) -> bool) -> Result<MountHealth> {
    let found = health(target.path())?;
    if matches!(found, MountHealth::Dead(number) if is_lost(number)) {
        tracing::warn!(target = %target.path().display(), "unmounting a mount that has lost its server");
        Unmount::new().detach(Detach::IfUnresponsive).at(target)?;
    }
    Ok(found)
}

/// Checks that the staged mount works before a workload gets it: readable, and writable if these attributes
/// allow writes.
fn require_staged(operation: &'static str, staging: &Path, attributes: MountAttributes) -> Result<()> {
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
