//! Staging: from a program to a mount that answers.

use std::process::ExitStatus;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::sleep;
use std::time::{Duration, Instant};

use super::FuseDaemon;
use super::credentials;
use super::daemon::First;
use super::daemon_start_lock::{DaemonStartLock, StartInProgress};
use super::lost::{mount_lost_placeholder, unmount_if_lost};
use super::memory::{MemoryGroup, over_memory_limit, remove_group};
use super::output::Output;
use super::processes::{self, DaemonStart, Processes, warn_of_loss};
use super::watch::{AtEnd, DaemonEnd, DaemonRun, StartedDaemon, Watched, watch_existing};
use crate::error::{Error, ErrorKind, Result};
use crate::mounted::health::{MountHealth, health, health_within};
use crate::mounting::attach::Outcome;
use crate::mounting::unmount::{Detach, Unmount};
use crate::place::mark::MarkedMount;
use crate::place::target::{Created, Target};
use crate::sys::deadline::deadline;
use crate::table::details::is_fuse;
use crate::table::facts::MountState;

const STAGE: &str = "stage";
/// Time limit of one look at a mount that is starting.
const HEALTH_TIME_LIMIT: Duration = Duration::from_secs(5);

/// Stages the filesystem, for a thread that holds the lock of the place. `restarts` is how often the daemon was
/// started again.
pub(super) fn stage_locked(
    staging: &Target,
    daemon: &FuseDaemon,
    restarts: u32,
    at_end: AtEnd,
) -> Result<Outcome> {
    daemon.check()?;
    let (lock, _starting) = begin_start(staging, daemon.ready_time_limit)?;
    let created = staging.create_dir()?;
    let found = unmount_if_lost(staging)?;
    let is_restart = matches!(found, MountHealth::Dead(_));
    if is_staged(staging, daemon, found)? {
        if let Some(mounter) = &daemon.mounter {
            mounter.renew(staging, daemon)?;
            return Ok(Outcome::AlreadyMounted);
        }
        if let Some(bytes) = daemon.memory_limit {
            limit_running(staging, bytes)?;
        }
        credentials::write(staging.path(), daemon.credentials())?;
        watch_existing(staging, daemon, at_end);
        return Ok(Outcome::AlreadyMounted);
    }
    let start = DaemonStart::new(staging.path(), daemon.identity.as_deref());
    let run = DaemonRun::new(staging, daemon, restarts);
    let is_staged = Arc::clone(&run.is_staged);
    is_staged.store(false, Ordering::SeqCst);
    let started = prepare(staging, daemon.unmount_time_limit).and_then(|()| match &daemon.mounter {
        Some(mounter) => {
            let served = mounter.serve(staging, daemon, run);
            drop(lock);
            served.and_then(|ended| {
                let failure = || Ok(ended.try_recv().ok());
                let outcome = wait_until_ready(staging, daemon, failure, String::new)?;
                mounter.update(staging.path(), daemon)?;
                Ok(outcome)
            })
        }
        None => {
            let watched = start_daemon(staging, daemon, &start, run, at_end);
            drop(lock);
            watched.and_then(|watched| {
                let failure = || watched.failure(start.processes(), staging, daemon);
                let outcome = wait_until_ready(staging, daemon, failure, || watched.last_lines.text())?;
                watched.is_ready.store(true, Ordering::SeqCst);
                watched.output.set_served();
                Ok(outcome)
            })
        }
    });
    is_staged.store(started.is_ok(), Ordering::SeqCst);
    started.inspect_err(|_| {
        if let Err(left) = undo(staging, daemon, start.processes(), created, is_restart) {
            tracing::warn!(%left, "parts of a FUSE filesystem stay after a failed stage");
        }
    })
}

/// Changes the limit of a daemon that runs. What it has already can't be given to another group.
fn limit_running(staging: &Target, bytes: u64) -> Result<()> {
    match MemoryGroup::existing(staging.path()) {
        Some(group) => group.set(bytes),
        None => {
            tracing::warn!(at = %staging.path().display(), "a FUSE daemon that already runs has no memory limit");
            Ok(())
        }
    }
}

/// Waits for the end of a start by another process, with success or without.
pub(super) fn begin_start(staging: &Target, limit: Duration) -> Result<(DaemonStartLock, StartInProgress)> {
    let deadline = deadline(limit);
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let lock = DaemonStartLock::take(STAGE, staging, left)?;
        if let Some(starting) = lock.begin_start(staging) {
            return Ok((lock, starting));
        }
        drop(lock);
        if left.is_zero() {
            let reason = format!("another process has been starting its daemon for {limit:?}");
            return Err(Error::new(ErrorKind::Busy, STAGE, reason).at(staging.path()));
        }
        sleep(left.min(Duration::from_millis(20)));
    }
}

/// An existing mount must be a FUSE filesystem that answers.
fn is_staged(staging: &Target, daemon: &FuseDaemon, found: MountHealth) -> Result<bool> {
    if !staging.is_mounted()? {
        return Ok(false);
    }
    accept(staging)?;
    let own = staging.require_own(STAGE).ok().flatten();
    let is_marked = own.is_some_and(|mounts| !mounts.is_empty());
    mark_existing(staging)?;
    let health = match found {
        // It was mounted, or became visible, since then.
        MountHealth::NotMounted | MountHealth::Dead(_) => health_within(staging.path(), HEALTH_TIME_LIMIT)?,
        known => known,
    };
    match health {
        MountHealth::Healthy | MountHealth::ReadOnly => {
            accept_daemon(staging, daemon, is_marked).map(|()| true)
        }
        health => Err(Error::new(ErrorKind::Unresponsive, STAGE, health.to_string())
            .at(staging.path())
            .hint("restore its daemon; if that is not possible, unstage it")),
    }
}

/// A FUSE filesystem that answers is not always the requested one. The daemon of an older plugin that still runs
/// in another container is not visible; the mark beneath the mount shows that it is this volume's.
fn accept_daemon(staging: &Target, daemon: &FuseDaemon, is_marked: bool) -> Result<()> {
    let refuse = |reason: String| {
        let error = Error::new(ErrorKind::AlreadyMounted, STAGE, reason).at(staging.path());
        Err(error.hint("unstage it first"))
    };
    let processes = Processes::for_place(staging.path());
    let in_pod = daemon.mounter.as_ref().map(|mounter| mounter.served(staging.path())).transpose()?.flatten();
    let is_in_pod = in_pod.is_some();
    let found = in_pod.and_then(|served| served.identity).or_else(|| processes.identity());
    match (found, &daemon.identity) {
        (Some(found), Some(asked)) if found != *asked => {
            refuse(format!("the daemon serves {}, not {}", found.display(), asked.display()))
        }
        (None, _)
            if !is_in_pod
                && daemon.launcher.is_empty()
                && !is_marked
                && processes.running().is_empty()
                && !processes::can_be_hidden() =>
        {
            refuse("another program's FUSE filesystem is mounted there".to_owned())
        }
        _ => Ok(()),
    }
}

/// Ends what a killed stage has left, and marks the place. An earlier daemon that has served can still store what it has,
/// and gets this time for it.
fn prepare(staging: &Target, limit: Duration) -> Result<()> {
    let earlier = Processes::for_place(staging.path());
    let held = earlier.held();
    if held.iter().any(|process| Output::of_process(process.pid()).is_some_and(|output| output.has_served()))
        && !earlier.wait_until_ended(&held, limit)
    {
        warn_of_loss(staging.path(), limit);
    }
    earlier.kill(held)?;
    // The old daemon can have mounted before it was ended.
    unmount_without_daemon(staging)?;
    remove_group(staging.path());
    if staging.owner().is_some() {
        staging.set_mark(STAGE, &staging.open(STAGE)?.fd, MarkedMount::Fuse)?;
    }
    Ok(())
}

/// Starts the daemon as a child of this process.
fn start_daemon(
    staging: &Target,
    daemon: &FuseDaemon,
    start: &DaemonStart,
    run: DaemonRun,
    at_end: AtEnd,
) -> Result<Watched> {
    let output = Output::new(staging.path()).map_err(|error| {
        Error::os(STAGE, staging.path(), error)
            .add_reason("no file in memory could be created for the output")
    })?;
    let device = daemon.mount(staging)?;
    let child = daemon.start(start, &output, device.as_ref(), First::IsFirst)?;
    let started = StartedDaemon {
        child,
        processes: start.processes().clone(),
        output,
        secrets: daemon.secrets(),
        name: staging.path().display().to_string(),
        device: None,
        launched: if daemon.launcher.is_empty() { Duration::ZERO } else { daemon.ready_time_limit },
    };
    Ok(started.watch(move |end: &DaemonEnd| at_end(run, end)))
}

/// Marks the mount as its owner's, if the place has an owner.
fn mark_existing(staging: &Target) -> Result<()> {
    let opened = staging.open(STAGE)?;
    if opened.facts.is_mount_root { staging.mark_existing(STAGE, &opened.facts) } else { Ok(()) }
}

/// Waits until the mount answers. `failure` returns why it never will, once the program has ended.
fn wait_until_ready(
    staging: &Target,
    daemon: &FuseDaemon,
    failure: impl Fn() -> Result<Option<String>>,
    last_lines: impl Fn() -> String,
) -> Result<Outcome> {
    let deadline = deadline(daemon.ready_time_limit);
    let mut pause = Duration::from_millis(2);
    let log = if daemon.mounter.is_some() {
        "its output is in the log of its pod on this node"
    } else {
        "its output is in the log of the driver on this node"
    };
    while !is_ready(staging, deadline)? {
        if let Some(reason) = failure()? {
            return Err(Error::new(ErrorKind::ToolFailed, STAGE, reason).at(staging.path()).hint(log));
        }
        if Instant::now() > deadline {
            let limit = daemon.ready_time_limit;
            let reason = format!("its daemon did not mount and answer within {limit:?}{}", last_lines());
            return Err(Error::new(ErrorKind::Unresponsive, STAGE, reason).at(staging.path()).hint(log));
        }
        sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(50));
    }
    mark_existing(staging)?;
    Ok(Outcome::Mounted)
}

fn is_ready(staging: &Target, deadline: Instant) -> Result<bool> {
    if !staging.is_mounted()? {
        return Ok(false);
    }
    accept(staging)?;
    let left = deadline
        .saturating_duration_since(Instant::now())
        .clamp(Duration::from_millis(10), HEALTH_TIME_LIMIT);
    Ok(matches!(health_within(staging.path(), left)?, MountHealth::Healthy | MountHealth::ReadOnly))
}

impl Watched {
    /// Why the mount will not answer, if the program has ended.
    ///
    /// A program that puts itself into the background ends with success, and the process that it started has
    /// the mark. A mount of our own shows nothing.
    fn failure(
        &self,
        processes: &Processes,
        staging: &Target,
        daemon: &FuseDaemon,
    ) -> Result<Option<String>> {
        let Ok(status) = self.ended.try_recv() else { return Ok(None) };
        if status.success() {
            let is_serving =
                !processes.running().is_empty() || (daemon.device.is_none() && staging.is_mounted()?);
            if is_serving {
                return Ok(None);
            }
        }
        let over = over_memory_limit(staging.path());
        Ok(Some(ended_text(Some(status), &over, &self.last_lines.text())))
    }
}

/// How a daemon ended, for an error. `over` is about its memory limit.
pub(super) fn ended_text(status: Option<ExitStatus>, over: &str, last_lines: &str) -> String {
    match status {
        Some(status) if !status.success() => format!("its daemon ended with {status}{over}{last_lines}"),
        Some(_) => format!("its daemon ended without an error{over}{last_lines}"),
        None => format!("its daemon ended{over}{last_lines}"),
    }
}

fn accept(staging: &Target) -> Result<()> {
    match staging.mounted()? {
        Some(entry) if !is_fuse(&entry.fs_type) => {
            let reason = format!("{} is mounted there, not a FUSE filesystem", entry.fs_type);
            Err(Error::new(ErrorKind::AlreadyMounted, STAGE, reason)
                .at(staging.path())
                .hint("unmount it first"))
        }
        _ => Ok(()),
    }
}

/// Unmounts a FUSE mount whose daemon was killed. A killed process counts as ended shortly before the
/// kernel closes its files. Until then its mount does not answer, or reports an aborted connection, and is
/// not recognized as lost.
fn unmount_without_daemon(staging: &Target) -> Result<()> {
    accept(staging)?;
    let is_unresponsive = matches!(health(staging.path())?, MountHealth::Dead(_) | MountHealth::Unresponsive);
    if is_unresponsive && Processes::for_place(staging.path()).running().is_empty() {
        Unmount::new().detach(Detach::IfUnresponsive).at(staging)?;
    }
    Ok(())
}

/// Undoes a start that failed, with its own processes, and leaves what another process has started in the meantime.
fn undo(
    staging: &Target,
    daemon: &FuseDaemon,
    own: &Processes,
    created: Created,
    is_restart: bool,
) -> Result<()> {
    own.kill(Vec::new())?;
    let ended = match &daemon.mounter {
        // The mounter stays that of the place, which still is a lost volume's.
        Some(mounter) if is_restart => mounter.end_daemon(staging.path(), Duration::ZERO),
        Some(mounter) => mounter.end(staging.path(), Duration::ZERO),
        None => Ok(()),
    };
    if Processes::for_place(staging.path()).running().is_empty() {
        remove_group(staging.path());
        credentials::remove(staging.path());
    }
    let _lock = DaemonStartLock::take(STAGE, staging, HEALTH_TIME_LIMIT)?;
    unmount_without_daemon(staging)?;
    if created == Created::Created && Processes::for_place(staging.path()).running().is_empty() {
        staging.remove()?;
    }
    if is_restart && matches!(staging.state()?, MountState::NotMounted) {
        mount_lost_placeholder(staging)?;
    }
    ended
}
