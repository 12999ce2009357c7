//! A mount that outlives its daemon: this process keeps the device open and gives it to the next daemon.
//!
//! While nobody serves a device that is open somewhere, every request waits, where it would otherwise fail with
//! `ENOTCONN`. So the device is kept only from the death of a daemon until the next one answers, or has failed to.

use std::os::fd::OwnedFd;

use super::FuseDaemon;
use super::daemon_start_lock::{START_TIME_LIMIT, lock_threads};
use super::device::repeat_requests;
use super::output::Output;
use super::processes::{DaemonStart, Processes};
use super::start::{begin_start, wait_until_ready};
use super::watch::{AtEnd, DaemonRun, watch_started};
use crate::error::{Error, Result};
use crate::place::target::Target;

const HAND_OVER: &str = "hand over the device of";

/// What became of the device of a daemon that has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum HandOver {
    Continued,
    /// The volume was unstaged, or has another daemon already.
    NotNeeded,
}

/// Starts a daemon that continues the mount. The device is closed if that is not possible; then the mount is lost.
pub(super) fn hand_over(
    staging: &Target,
    daemon: &FuseDaemon,
    device: OwnedFd,
    at_end: AtEnd,
) -> Result<HandOver> {
    // This is the end of each daemon whose volume is unstaged: nobody has to wait for the lock then.
    if !staging.is_mounted()? {
        return Ok(HandOver::NotNeeded);
    }
    // An unstage takes the same lock.
    let _lock = lock_threads(HAND_OVER, staging, START_TIME_LIMIT)?;
    let (lock, _starting) = begin_start(staging, START_TIME_LIMIT)?;
    let is_served = !Processes::for_place(staging.path()).running().is_empty();
    if is_served || !staging.is_mounted()? {
        return Ok(HandOver::NotNeeded);
    }
    repeat_requests(HAND_OVER, &device, staging)?;
    let start = DaemonStart::new(staging.path(), daemon.identity.as_deref());
    let output = Output::new(staging.path()).map_err(|error| Error::os(HAND_OVER, staging.path(), error))?;
    let child = daemon.continued(&start, &output, &device)?;
    drop(lock);
    let run = DaemonRun::new(staging, daemon, Some(device), 1);
    let watched = watch_started(run, child, &output, daemon, start.processes().clone(), at_end);
    wait_until_ready(staging, daemon, &watched, start.processes())
        .inspect_err(|_| drop(start.processes().kill(Vec::new())))
        .map(|_| HandOver::Continued)
}
