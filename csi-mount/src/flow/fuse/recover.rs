//! Starting the daemon of a staged filesystem again, and binding the filesystem to its targets again.

use std::collections::BTreeSet;
use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::thread::sleep;
use std::time::{Duration, Instant};

use super::FuseDaemon;
use super::daemon_start_lock::{START_TIME_LIMIT, lock_threads};
use super::lost::is_lost;
use super::memory::over_memory_limit;
use super::mounter::Mounter;
use super::processes::Processes;
use super::publish::publish;
use super::start::stage_locked;
use super::watch::{DaemonEnd, DaemonRun, watch_existing};
use crate::error::Result;
use crate::place::owner::Owner;
use crate::place::target::Target;
use crate::sys::attributes::MountAttributes;
use crate::table::details::is_fuse;
use crate::table::mountinfo::{MountEntry, mounts, siblings};

const RECOVER: &str = "recover";
/// The pause before a daemon is started again, if it has died soon after its start; it doubles each time.
const PAUSES: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(60)];
/// How long after its daemon's end a mount can take to be unmounted or to report it.
const END_TIME_LIMIT: Duration = Duration::from_secs(20);

/// What [`recover`] did.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Recovered {
    /// Nothing: no FUSE filesystem that has lost its daemon is mounted there. The output of a daemon that an
    /// earlier process started is now copied into the log of this one.
    NotLost,
    /// The daemon was started again, and the filesystem was bound again at these targets.
    Restarted {
        /// The targets.
        targets: Vec<PathBuf>,
    },
}

/// Starts the daemon of a staged filesystem again if it is gone, and binds the filesystem again at each
/// target that it was bound at, with the attributes that the target had.
///
/// A target is found by its filesystem, and by its mark if the staging directory has an owner
/// ([`OwnedPath`](crate::OwnedPath)). A process that uses the filesystem through an old mount, for example a container
/// that does not receive mounts from the host (`mountPropagation: HostToContainer`), keeps the dead one until
/// it is started again.
pub fn recover(staging: &Target, daemon: &FuseDaemon) -> Result<Recovered> {
    let _lock = lock_threads(RECOVER, staging, START_TIME_LIMIT)?;
    let recovered = recover_lost(staging, daemon, 0)?;
    if recovered == Recovered::NotLost && staging.mounted()?.is_some_and(|entry| is_fuse(&entry.fs_type)) {
        match &daemon.mounter {
            Some(mounter) => mounter.renew(staging, daemon)?,
            None => watch_existing(staging, daemon, after_end),
        }
    }
    Ok(recovered)
}

/// For a thread that holds the lock of the place. An unstage takes it too: no daemon is started for a place that was
/// unstaged in the meantime. A daemon that runs stays as it is: a later stage can have given it newer credentials.
fn recover_lost(staging: &Target, daemon: &FuseDaemon, restarts: u32) -> Result<Recovered> {
    let table = mounts()?;
    // By its id: the table has the path without symbolic links.
    let Some(staged) = staging.mounted()?.filter(|entry| is_fuse(&entry.fs_type)) else {
        return Ok(Recovered::NotLost);
    };
    if !is_lost(staging.path())? {
        return Ok(Recovered::NotLost);
    }
    let targets = lost_targets(&table, &staged, staging);
    stage_locked(staging, daemon, restarts, after_end)?;
    let mut failed = None;
    let mut bound = Vec::new();
    for (path, attributes) in targets {
        let target = target_at(&path, staging.owner());
        match target.and_then(|target| publish(staging.path(), &target, attributes)) {
            Ok(_) => bound.push(path),
            Err(error) => {
                tracing::warn!(%error, "a target keeps a mount that has lost its daemon");
                failed.get_or_insert(error);
            }
        }
    }
    match failed {
        Some(error) => Err(error),
        None => Ok(Recovered::Restarted { targets: bound }),
    }
}

/// Follows all daemons of a mounter again, for the start of a driver: it then keeps the devices of their mounts, so
/// that they outlive the mounter too ([`FuseDaemon::continue_when_lost`]). A daemon whose place is no longer mounted is
/// waited for, for at most `limit`, the time limit of the driver's unstage, and then killed.
///
/// All daemons are looked at at the same time. Each can take the time limit of some messages, and `limit`.
///
/// A daemon that is lost later is not started again by [`FuseDaemon::restart_when_lost`] before its next stage.
///
/// # Errors
/// [`ErrorKind::NotFound`](crate::ErrorKind::NotFound): no mounter answers. All its daemons are tried, and the first
/// error is returned.
pub fn resume(mounter: &Mounter, limit: Duration) -> Result<()> {
    let places = mounter.places()?;
    std::thread::scope(|scope| {
        let resume = |place: &Path| resume_place(mounter, place, limit);
        let all: Vec<_> = places.iter().map(|place| scope.spawn(move || resume(place))).collect();
        // A panic is this thread's too.
        let results = all.into_iter().map(|one| one.join().unwrap_or_else(|panic| resume_unwind(panic)));
        results.fold(Ok(()), Result::and)
    })
}

fn resume_place(mounter: &Mounter, place: &Path, limit: Duration) -> Result<()> {
    let staging = Target::new(place)?;
    // What a stage starts meanwhile must not be ended.
    let _lock = lock_threads(RECOVER, &staging, START_TIME_LIMIT)?;
    if staging.mounted()?.is_some_and(|entry| is_fuse(&entry.fs_type)) {
        return mounter.resume(&staging);
    }
    tracing::info!(at = %place.display(), "waiting for the end of a FUSE daemon that has no mount");
    mounter.end(place, limit)
}

fn target_at(path: &Path, owner: Option<&Owner>) -> Result<Target> {
    let target = Target::new(path)?;
    Ok(match owner {
        Some(owner) => target.owned_by(owner.clone()),
        None => target,
    })
}

/// The targets of the filesystem, and those that an interrupted call has left with an older one.
fn lost_targets(
    table: &[MountEntry],
    staged: &MountEntry,
    staging: &Target,
) -> Vec<(PathBuf, MountAttributes)> {
    let is_marked = |entry: &MountEntry| {
        let Some(owner) = staging.owner() else { return false };
        let marked = Target::new(&entry.mount_point).and_then(|target| target.marked_owner());
        marked.is_ok_and(|marked| marked.is_some_and(|marked| owner.has_id(&marked)))
    };
    let of_filesystem = siblings(table, staged);
    let is_other = |entry: &&MountEntry| {
        entry.mount_point != staged.mount_point && !of_filesystem.iter().any(|known| known.id == entry.id)
    };
    let left = table.iter().filter(is_other).filter(|entry| is_fuse(&entry.fs_type) && is_marked(entry));
    let left = left.filter(|entry| is_lost(&entry.mount_point).unwrap_or(false));
    let all = of_filesystem.iter().copied().chain(left);
    // Only the whole filesystem is bound by this flow.
    // A mount that an interrupted call has left is of an older filesystem.
    let whole = all.filter(|entry| entry.root == staged.root && !entry.is_root_deleted());
    // A target can have one filesystem on top of another.
    let mut seen = BTreeSet::new();
    let targets = whole.filter(|entry| seen.insert(&entry.mount_point));
    targets.map(|entry| (entry.mount_point.clone(), entry.attributes)).collect()
}

/// What follows the end of a daemon that this process watches. One that ends although its filesystem is mounted
/// has died, and is started again if the driver asks for it.
pub(super) fn after_end(run: DaemonRun, end: &DaemonEnd) {
    if !has_died(&run.staging) {
        return;
    }
    let over = over_memory_limit(&run.staging);
    let how = end.how();
    let last_lines = &end.last_lines;
    tracing::warn!(at = %run.staging.display(), "a FUSE daemon has died, and its volume is lost until it \
        is started again{how}{over}{last_lines}");
    if let Some(daemon) = &run.again {
        keep_trying(&run, daemon, end.lived);
    }
}

/// Whether the filesystem is still mounted and has no daemon. An unmount that is in progress is waited for, and so are
/// other processes of the daemon, which can end a moment later.
///
/// The mount of a later daemon is not looked at: each look makes it busy for a moment.
pub(super) fn has_died(staging: &Path) -> bool {
    let deadline = Instant::now() + END_TIME_LIMIT;
    let of_place = Processes::for_place(staging);
    let is_mounted = || Target::new(staging).and_then(|target| target.is_mounted());
    while is_mounted().unwrap_or(false) {
        if of_place.running().is_empty() && is_lost(staging).unwrap_or(false) {
            return true;
        }
        if Instant::now() > deadline {
            return false;
        }
        sleep(Duration::from_millis(100));
    }
    false
}

/// Starts a daemon that has died until it runs, or until its place is unstaged.
fn keep_trying(run: &DaemonRun, daemon: &FuseDaemon, lived: Duration) {
    let staging = run.staging.as_path();
    let mut restarts = if lived > PAUSES[1] { 0 } else { run.restarts };
    loop {
        sleep(PAUSES[0].saturating_mul(1 << restarts.min(6)).min(PAUSES[1]));
        restarts += 1;
        let target = target_at(staging, run.owner.as_ref());
        let recovered = target.and_then(|target| {
            let _lock = lock_threads(RECOVER, &target, START_TIME_LIMIT)?;
            if run.is_staged.load(Ordering::SeqCst) {
                recover_lost(&target, daemon, restarts)
            } else {
                Ok(Recovered::NotLost)
            }
        });
        match recovered {
            Ok(recovered) => {
                // Another process, which can end before this one, has started it.
                if recovered == Recovered::NotLost
                    && daemon.mounter.is_none()
                    && let Ok(target) = target_at(staging, run.owner.as_ref())
                {
                    watch_existing(&target, daemon, after_end);
                }
                tracing::info!(?recovered, at = %staging.display(), "the FUSE daemon died; recovery has \
                    finished");
                return;
            }
            Err(error) => tracing::warn!(%error, "a FUSE daemon that has died could not be started again"),
        }
        // The daemon runs and a target failed: only the caller's next publish can help.
        if !is_lost(staging).unwrap_or(true) {
            return;
        }
    }
}
