//! Node flow for filesystems that a program serves by FUSE.
//!
//! | step | |
//! |---|---|
//! | stage | [`stage`]: start the daemon, wait until its mount answers |
//! | publish | [`publish`]: bind the staged filesystem |
//! | stats | [`stats`](crate::stats()), [`health`](crate::health()) |
//! | unpublish | [`unpublish`] |
//! | unstage | [`unstage`]: unmount, and wait for the daemon to end |
//!
//! The daemon does not end with the process that started it: it has its own process group, and a launcher
//! that the driver chooses ([`FuseDaemon::launcher`]) can move it out of the service's control group or
//! container. A later process recognizes the daemon by a mark in its environment, `CSI_MOUNT_FUSE_AT`, and
//! what it serves by a second mark ([`FuseDaemon::identity`]). Both need access to the daemon's process: a
//! daemon in another process namespace is neither waited for nor killed.
//!
//! If the daemon of a mount is gone (`ENOTCONN`), [`stage`] unmounts it and mounts again. The process that
//! started a daemon logs its end. [`recover`] starts it again and binds its targets again, for one volume or,
//! by [`FuseDaemon::restart_when_lost`], whenever it dies; [`lost_mounts`] lists what is lost when a plugin
//! starts.
//!
//! ```no_run
//! use csi_mount::flow::fuse::{FuseDaemon, publish, stage, unpublish, unstage};
//! use csi_mount::{MountAttributes, Target};
//!
//! let staging = Target::new("/var/lib/kubelet/plugins/kubernetes.io/csi/s3.example.org/vol-1/globalmount")?;
//! let target = Target::new("/var/lib/kubelet/pods/1/volumes/kubernetes.io~csi/vol-1/mount")?;
//!
//! let daemon = FuseDaemon::new("example-s3").args(["-f", "bucket"]).arg(staging.path()).secret("key:secret");
//! stage(&staging, &daemon)?;
//! publish(staging.path(), &target, MountAttributes::empty())?;
//!
//! unpublish(&target)?;
//! unstage(&staging)?;
//! # Ok::<(), csi_mount::Error>(())
//! ```

mod daemon;
mod device;
mod hand_over;
mod memory;
mod output;
mod place_lock;
mod processes;
mod recover;
mod start;
mod watch;

use std::ffi::OsString;
use std::path::Path;
use std::time::{Duration, Instant};

use nix::libc;

use super::{lost, shared};

use crate::health;
use crate::place::target_lock::{Purpose, TargetLock};
use crate::table::siblings::siblings;
use crate::{
    Error, ErrorKind, MountAttributes, MountHealth, Outcome, Removed, Result, Target, UNMOUNT_TIME_LIMIT,
    Unmounted, mounts,
};
use place_lock::PlaceLock;
use processes::Processes;

pub use daemon::FuseDaemon;
pub use recover::{LostMount, Recovered, lost_mounts, recover};
pub use start::stage;

const UNSTAGE: &str = "unstage";
/// How long to wait for another start of a daemon that is in progress.
const START_TIME_LIMIT: Duration = Duration::from_secs(20);

/// Returns whether the filesystem mounted at a path has lost its daemon.
///
/// # Errors
/// Those of [`health`](crate::health()).
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

/// Returns what the daemon at a path serves ([`FuseDaemon::identity`]), whichever process started it.
///
/// None if that was not set, or the daemon is not visible from here.
pub fn identity_at(path: impl AsRef<Path>) -> Option<OsString> {
    Processes::for_place(path.as_ref()).identity()
}

/// Returns the memory limit in bytes of the daemon of a staging directory, if the kernel has killed it over this
/// limit ([`FuseDaemon::memory_limit`]) and it was not started again.
pub fn exceeded_memory_limit(staging: impl AsRef<Path>) -> Option<u64> {
    memory::MemoryGroup::existing(staging.as_ref())?.exceeded()
}

/// Binds the staged filesystem to the target directory; see [`shared::publish`], whose errors it has too.
///
/// A target that was bound before the daemon was lost is bound again.
///
/// # Errors
/// [`Unresponsive`](ErrorKind::Unresponsive) if the daemon is gone or does not answer: stage it again.
pub fn publish(staging: impl AsRef<Path>, target: &Target, attributes: MountAttributes) -> Result<Outcome> {
    shared::publish(staging, target, attributes)
}

/// Undoes [`publish`], also when the daemon hangs or is gone, and removes the directory.
///
/// # Errors
/// [`Busy`](ErrorKind::Busy) while something uses it.
pub fn unpublish(target: &Target) -> Result<Removed> {
    shared::unpublish(target)
}

/// Undoes [`stage`]: unmounts, by force if the daemon does not answer, and waits up to [`UNMOUNT_TIME_LIMIT`]
/// for the daemon to end. Then the daemon is killed.
///
/// The directory stays. A daemon that a killed stage left, and that mounts only during this call, is ended
/// too.
///
/// # Errors
/// [`Busy`](ErrorKind::Busy) while the volume is still published somewhere on this node, or is in use, or a
/// start of its daemon is in progress and does not finish; nothing was changed then.
/// [`Unresponsive`](ErrorKind::Unresponsive) if the daemon can't even be killed.
pub fn unstage(staging: &Target) -> Result<Unmounted> {
    unstage_within(staging, UNMOUNT_TIME_LIMIT)
}

/// As [`unstage`], with another time limit for the daemon to end by itself.
///
/// Use it for a daemon that sends data then, for example from a cache. Data that it has not sent within
/// this time is lost.
///
/// # Errors
/// As for [`unstage`].
pub fn unstage_within(staging: &Target, limit: Duration) -> Result<Unmounted> {
    let Some(_lock) = TargetLock::take_within(staging, Purpose::StartDaemon, START_TIME_LIMIT) else {
        let reason = "another thread is starting its daemon";
        return Err(Error::new(ErrorKind::Busy, UNSTAGE, reason).at(staging.path()));
    };
    // The lock is taken and released: after that, every daemon of a killed stage is visible by its mark.
    PlaceLock::take(UNSTAGE, staging, START_TIME_LIMIT)?;
    staging.require_own(UNSTAGE)?;
    if staging.is_marked_by_other(UNSTAGE)? {
        return Ok(Unmounted::NotMounted);
    }
    refuse_published(staging)?;
    let deadline = Instant::now() + limit;
    let unmounted = shared::unstage_within(staging, limit)?;
    let processes = Processes::for_place(staging.path());
    if !processes.wait_until_ended(deadline.saturating_duration_since(Instant::now())) {
        tracing::warn!(at = %staging.path().display(), "killing a daemon that does not end");
        processes.kill(staging.path())?;
    }
    memory::remove_group(staging.path());
    // The daemon can have mounted during this call.
    match shared::unstage(staging)? {
        Unmounted::NotMounted => Ok(unmounted),
        late => Ok(late),
    }
}

/// A daemon serves all mounts of its filesystem: it must not be ended while another mount exists.
fn refuse_published(staging: &Target) -> Result<()> {
    let table = mounts()?;
    let Some(staged) = table.iter().rev().find(|entry| entry.mount_point == staging.path()) else {
        return Ok(());
    };
    let elsewhere: Vec<String> =
        siblings(&table, staged).iter().map(|entry| entry.mount_point.display().to_string()).collect();
    if elsewhere.is_empty() {
        return Ok(());
    }
    let reason = format!("its filesystem is still mounted at {}", elsewhere.join(", "));
    Err(Error::new(ErrorKind::Busy, UNSTAGE, reason).at(staging.path()).hint("unpublish it first"))
}

/// Unmounts a mount that has lost its daemon. Returns the health that was found.
fn unmount_if_lost(staging: &Target) -> Result<MountHealth> {
    let is_lost = |number| number == libc::ESTALE || is_lost_with(staging.path(), number);
    lost::unmount_if_dead(staging, is_lost)
}
