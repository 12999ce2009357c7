//! Starting the daemon of a staged filesystem again, and binding the filesystem to its targets again.

use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::Duration;

use super::start::stage_locked;
use super::watch::watch_existing;
use super::{FuseDaemon, START_TIME_LIMIT, device, is_lost, publish};

use crate::place::target_lock::{Purpose, TargetLock};
use crate::table::siblings::siblings;
use crate::{
    Error, ErrorKind, MountAttributes, MountEntry, MountOptions, Owner, OwnerId, Result, Target, mounts,
};

const RECOVER: &str = "recover";
/// The pause before a daemon is started again, if it has died soon after its start; it doubles each time.
const PAUSES: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(60)];

/// A FUSE filesystem whose daemon is gone: see [`lost_mounts`].
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct LostMount {
    /// Where it is mounted.
    pub path: PathBuf,
    /// The volume that the place is marked as, if it is.
    pub owner: Option<OwnerId>,
}

/// Lists the FUSE filesystems of this mount namespace whose daemon is gone, staged or published, for the
/// start of a plugin.
///
/// # Errors
/// Those of [`mounts`](crate::mounts()). A mount whose state can't be found out is left out.
pub fn lost_mounts() -> Result<Vec<LostMount>> {
    let lost = |entry: MountEntry| {
        if !is_fuse(&entry) || !is_lost(&entry.mount_point).unwrap_or(false) {
            return None;
        }
        let owner = Target::new(&entry.mount_point).and_then(|target| target.marked_owner()).ok().flatten();
        Some(LostMount { path: entry.mount_point, owner })
    };
    Ok(mounts()?.into_iter().filter_map(lost).collect())
}

fn is_fuse(entry: &MountEntry) -> bool {
    entry.fs_type == "fuse" || entry.fs_type.starts_with("fuse.")
}

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
/// ([`Target::owned_by`]). A process that uses the filesystem through an old mount, for example a container
/// that does not receive mounts from the host (`mountPropagation: HostToContainer`), keeps the dead one until
/// it is started again.
///
/// # Errors
/// Those of [`stage`](super::stage) and [`publish`](super::publish()). All targets are tried, and the first
/// error is returned. After a failed start the place still counts as one that has lost its daemon, so that
/// the call can be repeated.
pub fn recover(staging: &Target, daemon: &FuseDaemon) -> Result<Recovered> {
    recover_again(staging, daemon, 0)
}

fn recover_again(staging: &Target, daemon: &FuseDaemon, restarts: u32) -> Result<Recovered> {
    // An unstage takes the same lock: no daemon is started for a place that was unstaged in the meantime.
    let Some(_lock) = TargetLock::take_within(staging, Purpose::StartDaemon, START_TIME_LIMIT) else {
        let reason = "another thread is starting or ending its daemon";
        return Err(Error::new(ErrorKind::Busy, RECOVER, reason).at(staging.path()));
    };
    let table = mounts()?;
    let staged = table.iter().rev().find(|entry| entry.mount_point == staging.path());
    let Some(staged) = staged.filter(|entry| is_fuse(entry)) else { return Ok(Recovered::NotLost) };
    if !is_lost(staging.path())? {
        watch_existing(staging, daemon);
        return Ok(Recovered::NotLost);
    }
    let targets = lost_targets(&table, staged, staging);
    stage_locked(staging, daemon, restarts)?;
    let mut failed = None;
    let mut bound = Vec::new();
    for (path, attributes) in targets {
        let target = Target::new(&path).map(|target| match staging.owner() {
            Some(owner) => target.owned_by(owner.clone()),
            None => target,
        });
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
        entry.mount_point != staging.path() && !of_filesystem.iter().any(|known| known.id == entry.id)
    };
    let left = table.iter().filter(is_other).filter(|entry| is_fuse(entry) && is_marked(entry));
    let left = left.filter(|entry| is_lost(&entry.mount_point).unwrap_or(false));
    let all = of_filesystem.iter().copied().chain(left);
    // Only the whole filesystem is bound by this flow.
    let whole = all.filter(|entry| entry.root == staged.root);
    whole.map(|entry| (entry.mount_point.clone(), entry.attributes)).collect()
}

/// Starts a daemon that has died until it runs, or until its place is unstaged.
pub(super) fn keep_trying(
    staging: &Path,
    owner: Option<&Owner>,
    daemon: &FuseDaemon,
    lived: Duration,
    restarts: u32,
) {
    let mut restarts = if lived > PAUSES[1] { 0 } else { restarts };
    loop {
        sleep(PAUSES[0].saturating_mul(1 << restarts.min(6)).min(PAUSES[1]));
        restarts += 1;
        let recovered = Target::new(staging).and_then(|target| {
            let target = match owner {
                Some(owner) => target.owned_by(owner.clone()),
                None => target,
            };
            recover_again(&target, daemon, restarts)
        });
        match recovered {
            Ok(recovered) => {
                tracing::info!(?recovered, at = %staging.display(), "a FUSE daemon that has died was looked \
                    after");
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

/// Mounts a FUSE filesystem without a daemon, so that a staged place whose daemon could not be started again
/// still counts as lost and not as unstaged.
pub(super) fn stay_lost(staging: &Target) -> Result<()> {
    device::mount(RECOVER, Path::new("daemon-is-gone"), &MountOptions::new(), staging).map(drop)
}
