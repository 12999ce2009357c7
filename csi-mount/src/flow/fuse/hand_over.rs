//! A mount that outlives its daemon: this process keeps the device open and gives it to the next daemon.
//!
//! While nobody serves a device that is open somewhere, every request waits, where it would otherwise fail with
//! `ENOTCONN`. So the device is kept only from the death of a daemon until the next one answers, or has failed to.

use std::fs::{self, File};
use std::io::Write as _;
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};

use super::output::Output;
use super::processes::{DaemonStart, Processes};
use super::start::{begin_start, wait_until_ready};
use super::watch::watch_started;
use super::{FuseDaemon, START_TIME_LIMIT};

use crate::place::target_lock::{Purpose, TargetLock};
use crate::{Error, ErrorKind, MountState, Result, Target};

const HAND_OVER: &str = "hand over the device of";
/// The variable by which a program knows that the device had a daemon before.
pub(super) const CONTINUES: &str = "CSI_MOUNT_FUSE_CONTINUES";

/// What became of the device of a daemon that has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum HandOver {
    Continued,
    /// The volume was unstaged, or has another daemon already.
    NotNeeded,
}

/// Starts a daemon that continues the mount. The device is closed if that is not possible; then the mount is lost.
pub(super) fn hand_over(staging: &Target, daemon: &FuseDaemon, device: OwnedFd) -> Result<HandOver> {
    // This is the end of each daemon whose volume is unstaged: nobody has to wait for the lock then.
    if !is_mounted(staging)? {
        return Ok(HandOver::NotNeeded);
    }
    // An unstage takes the same lock.
    let Some(_lock) = TargetLock::take_within(staging, Purpose::StartDaemon, START_TIME_LIMIT) else {
        let reason = "another thread is starting or ending its daemon";
        return Err(Error::new(ErrorKind::Busy, HAND_OVER, reason).at(staging.path()));
    };
    let (lock, _starting) = begin_start(staging, START_TIME_LIMIT)?;
    let is_served = !Processes::for_place(staging.path()).running().is_empty();
    if is_served || !is_mounted(staging)? {
        return Ok(HandOver::NotNeeded);
    }
    repeat_requests(&device, staging)?;
    let start = DaemonStart::new(staging.path(), daemon.identity.as_deref());
    let output = Output::new().map_err(|error| Error::os(HAND_OVER, staging.path(), error))?;
    let child = daemon.continued(&start, &output, &device)?;
    drop(lock);
    let watched =
        watch_started((child, Some(device)), &output, (staging, daemon), start.processes().clone(), 1);
    wait_until_ready(staging, daemon, &watched, start.processes())
        .inspect_err(|_| drop(start.processes().kill(staging.path())))
        .map(|_| HandOver::Continued)
}

fn is_mounted(staging: &Target) -> Result<bool> {
    Ok(matches!(staging.state()?, MountState::Mounted(_)))
}

/// Asks the kernel to send the requests again that the earlier daemon had received and not answered
/// (`FUSE_NOTIFY_RESEND`, Linux 6.9). Without that their callers would wait for ever.
fn repeat_requests(device: &OwnedFd, staging: &Target) -> Result<()> {
    const RESEND: i32 = 7;
    let failed = |error: std::io::Error| {
        let error = Error::os(HAND_OVER, staging.path(), error);
        error.add_reason("this kernel does not send requests again (Linux 6.9)")
    };
    // `struct fuse_out_header`: the length, the notification, and no request.
    let mut message = 16_u32.to_ne_bytes().to_vec();
    message.extend(RESEND.to_ne_bytes());
    message.extend([0; 8]);
    let device = device.try_clone().map_err(failed)?;
    File::from(device).write_all(&message).map_err(failed)
}

/// The device of a daemon that an earlier process started: the one that its argument names (Linux 5.6).
pub(super) fn device_of(pid: i32) -> Option<OwnedFd> {
    let arguments = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    let arguments = String::from_utf8_lossy(&arguments).into_owned();
    let number: i32 =
        arguments.split('\0').find_map(|argument| argument.strip_prefix("/dev/fd/")?.parse().ok())?;
    let link = fs::read_link(format!("/proc/{pid}/fd/{number}")).ok()?;
    if link != Path::new("/dev/fuse") {
        return None;
    }
    let process = pidfd_open(Pid::from_raw(pid)?, PidfdFlags::empty()).ok()?;
    pidfd_getfd(process, number, PidfdGetfdFlags::empty()).ok()
}
