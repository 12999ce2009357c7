//! The steps of a FUSE filesystem.

use std::ffi::OsString;
use std::path::Path;
use std::time::{Duration, Instant};

use super::daemon_start_lock::{DaemonStartLock, START_TIME_LIMIT, lock_threads};
use super::processes::{Processes, warn_of_loss};
use super::recover::after_end;
use super::start::stage_locked;
use super::{FuseDaemon, credentials, memory};
use crate::error::{Error, ErrorKind, Result};
use crate::flow::shared;
use crate::mounting::attach::Outcome;
use crate::mounting::unmount::{UNMOUNT_TIME_LIMIT, Unmounted};
use crate::place::target::Target;
use crate::sys::deadline::deadline;
use crate::table::mountinfo::{mounts, siblings};

const STAGE: &str = "stage";
const UNSTAGE: &str = "unstage";

/// See [`FuseVolumes::stage`](crate::FuseVolumes::stage).
pub fn stage(staging: &Target, daemon: &FuseDaemon) -> Result<Outcome> {
    let _lock = lock_threads(STAGE, staging, daemon.ready_time_limit)?;
    stage_locked(staging, daemon, 0, after_end)
}

/// See [`FuseVolumes::identity`](crate::FuseVolumes::identity).
pub fn identity_at(path: impl AsRef<Path>) -> Option<OsString> {
    Processes::for_place(path.as_ref()).identity()
}

/// See [`FuseVolumes::exceeded_memory_limit`](crate::FuseVolumes::exceeded_memory_limit).
pub fn exceeded_memory_limit(staging: impl AsRef<Path>) -> Option<u64> {
    memory::MemoryGroup::existing(staging.as_ref())?.exceeded()
}

/// See [`FuseVolumes::unstage`](crate::FuseVolumes::unstage).
pub fn unstage(staging: &Target, limit: Duration) -> Result<Unmounted> {
    let _lock = lock_threads(UNSTAGE, staging, START_TIME_LIMIT)?;
    // The lock is taken and released: after that, every daemon of a killed stage is visible by its mark.
    DaemonStartLock::take(UNSTAGE, staging, START_TIME_LIMIT)?;
    staging.require_own(UNSTAGE)?;
    if staging.is_marked_by_other(UNSTAGE)? {
        return Ok(Unmounted::NotMounted);
    }
    refuse_published(staging)?;
    let processes = Processes::for_place(staging.path());
    // A daemon closes its device with the unmount, and can then have data to send.
    let serving = processes.held();
    // The search takes nothing of the time that the daemon has for its data.
    let deadline = deadline(limit);
    let unmounted = shared::unstage(staging, limit)?;
    if !processes.wait_until_ended(&serving, deadline.saturating_duration_since(Instant::now())) {
        warn_of_loss(staging.path(), limit);
        processes.kill(serving)?;
    }
    memory::remove_group(staging.path());
    credentials::remove(staging.path());
    // The daemon can have mounted during this call.
    match shared::unstage(staging, UNMOUNT_TIME_LIMIT)? {
        Unmounted::NotMounted => Ok(unmounted),
        late => Ok(late),
    }
}

/// A daemon serves all mounts of its filesystem: it must not be ended while another mount exists.
fn refuse_published(staging: &Target) -> Result<()> {
    // By its id: the table has the path without symbolic links.
    let Some(staged) = staging.mounted()? else { return Ok(()) };
    let table = mounts()?;
    let elsewhere: Vec<String> =
        siblings(&table, &staged).iter().map(|entry| entry.mount_point.display().to_string()).collect();
    if elsewhere.is_empty() {
        return Ok(());
    }
    let reason = format!("its filesystem is still mounted at {}", elsewhere.join(", "));
    Err(Error::new(ErrorKind::Busy, UNSTAGE, reason).at(staging.path()).hint("unpublish it first"))
}
