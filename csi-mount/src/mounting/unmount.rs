//! Unmounting all layers of a target, by a path that cannot be redirected, with a check afterwards.

use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::mount::UnmountFlags;

use crate::bounded::in_flight::{self, FinishPolicy, Subject, Unanswered};
use crate::detached::scratch;
use crate::error::{Error, ErrorKind, Result};
use crate::mounted::stats::STATS_TIME_LIMIT;
use crate::mounted::{health, users};
use crate::place::target::Target;
use crate::place::target_lock::{Purpose, TargetLock};
use crate::sys::child::ChildCall;
use crate::sys::ids::MountId;
use crate::table::details::Details;
use crate::table::facts::MountState;
use crate::table::mountinfo::{mounts, siblings};

const UNMOUNT: &str = "unmount";

/// How long a busy mount is retried: another process that only looks at it, or was just killed, keeps it busy
/// for a moment, which is longer on a busy node.
const BUSY_RETRY_LIMIT: Duration = Duration::from_secs(1);

/// How long children of this process that still have copies of its descriptors are waited for before that.
const DESCRIPTOR_TIME_LIMIT: Duration = Duration::from_secs(5);

/// How long an unmount can take by default to write back pending data.
pub const UNMOUNT_TIME_LIMIT: Duration = Duration::from_secs(20);

/// The largest number of waits for the filesystem or the kernel in one unmount: plain unmount, health, forced
/// unmount, plain unmount again, detach.
const MAX_WAITS: u32 = 5;

/// What an unmount did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Unmounted {
    /// Nothing was mounted there.
    NotMounted,
    /// Everything that was mounted there is unmounted.
    Unmounted {
        /// How many mounts were on top of each other.
        layers: u32,
    },
    /// The mount is detached but still in use: the filesystem and its device are not free.
    Detached,
}

/// When a mount that cannot be unmounted is detached instead (`MNT_DETACH`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Detach {
    /// Never: a busy mount is an error.
    #[default]
    Never,
    /// If its server or daemon is proven to be gone or not to answer. Never for a filesystem on a block
    /// device.
    ///
    /// If this is the only mount of the filesystem, a forced unmount comes first, which fails all requests
    /// that wait for the server. If the filesystem is mounted elsewhere too, only this mount is detached.
    IfUnresponsive,
    /// If it is busy, for any reason.
    IfBusy,
}

/// Builder for an unmount; [`at`](Self::at) does it.
///
/// ```no_run
/// # fn main() -> csi_mount::Result<()> {
/// use csi_mount::{Detach, Target, Unmount};
///
/// let target = Target::new("/var/lib/kubelet/pods/uid/volumes/data/mount")?;
/// Unmount::new().detach(Detach::IfUnresponsive).at(&target)?;
/// target.remove()?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Copy)]
#[must_use = "nothing is unmounted before `at`"]
#[doc(alias = "umount2")]
pub struct Unmount {
    detach: Detach,
    answer_limit: Duration,
    finish_limit: Duration,
    /// The layer that stays, with those beneath it.
    down_to: Option<MountId>,
}

impl Default for Unmount {
    fn default() -> Self {
        Self {
            detach: Detach::default(),
            answer_limit: STATS_TIME_LIMIT,
            finish_limit: UNMOUNT_TIME_LIMIT,
            down_to: None,
        }
    }
}

impl Unmount {
    /// An unmount that never detaches.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets when to detach instead.
    pub fn detach(mut self, detach: Detach) -> Self {
        self.detach = detach;
        self
    }

    /// Sets how long the filesystem has to answer before it counts as dead, and how long a forced unmount
    /// then has to return.
    ///
    /// The default is five seconds.
    pub fn answer_time_limit(mut self, limit: Duration) -> Self {
        self.answer_limit = limit;
        self
    }

    /// Sets how long pending data can take to be written back after the mount is gone.
    ///
    /// The default is [`UNMOUNT_TIME_LIMIT`]. It applies to a filesystem with a server or a daemon; for a
    /// local one the unmount in the kernel returns only when all is written.
    pub fn finish_time_limit(mut self, limit: Duration) -> Self {
        self.finish_limit = limit;
        self
    }

    /// Unmounts only what is on top of this mount.
    pub(crate) fn down_to(mut self, layer: MountId) -> Self {
        self.down_to = Some(layer);
        self
    }

    /// Unmounts everything that is mounted at the target, and checks that nothing is mounted there
    /// afterwards.
    ///
    /// If the target has an [`Owner`](crate::Owner), every layer must be the owner's before the first one is
    /// unmounted. Mounts below the target are not touched: they make it busy. The directory stays; see
    /// [`Target::remove`].
    ///
    /// A child process unmounts a filesystem with a server or daemon, because that can hang. After the mount
    /// is gone, the call and the next call of this process at the same target wait until the filesystem has
    /// [finished](Self::finish_time_limit). If it does not finish in time, it depends on [`Detach`]: with
    /// [`Detach::Never`] the call fails and the filesystem continues to finish; otherwise it is abandoned and
    /// counts as [`Detached`](Unmounted::Detached).
    ///
    /// # Errors
    /// Layers above the failing one stay unmounted.
    /// - [`ErrorKind::NotOwned`]: a mount is not known to be the owner's; the message names it. Nothing was
    ///   unmounted.
    /// - [`ErrorKind::Protected`]: the target is a directory of the system.
    /// - [`ErrorKind::Busy`]: the mount is in use; the message names up to eight visible users. A driver in a
    ///   container needs `hostPID` to see the processes of pods, and before Linux 5.8 none is seen. Or, for a
    ///   target with an owner, another mount appeared at the target during the call.
    /// - [`ErrorKind::Unresponsive`]: the filesystem delays the unmount, or has not finished, and is not to
    ///   be detached. Retry.
    /// - [`ErrorKind::PermissionDenied`]: CAP_SYS_ADMIN is missing.
    pub fn at(self, target: &Target) -> Result<Unmounted> {
        let mut layers = 0;
        let mut is_detached = false;
        scratch::remove_abandoned();
        target.refuse_system(UNMOUNT)?;
        let own = target.require_own(UNMOUNT)?;
        while let MountState::Mounted(top) = target.state()?
            && Some(top.id) != self.down_to
        {
            if own.as_ref().is_some_and(|own| !own.contains(&top.id)) {
                // It was mounted since. The next call checks it from the start.
                let reason = "another process mounts and unmounts there at the same time";
                return Err(Error::new(ErrorKind::Busy, UNMOUNT, reason).at(target.path()));
            }
            // A caller that waits for another caller's unmount finds it done. If several tried at once, each
            // would delay the others for longer than the filesystem has to answer, and the delay would look
            // like a dead filesystem.
            let answers = self.answer_limit.saturating_mul(MAX_WAITS);
            let others = 2 * (BUSY_RETRY_LIMIT + DESCRIPTOR_TIME_LIMIT);
            let limit = answers.saturating_add(others).saturating_add(self.finish_limit);
            let _permit = in_flight::wait_for_others(Subject::Unmounting(top.id), limit);
            if target.state()?.mount_point() != Some(top) {
                continue;
            }
            let attempt = match self.retry_while_busy(target)? {
                Attempt::Busy | Attempt::Unanswered => self.force_or_detach(target)?,
                attempt => attempt,
            };
            match attempt {
                Attempt::Done => layers += 1,
                Attempt::Unfinished if self.detach == Detach::Never => return Err(unfinished_error(target)),
                Attempt::Unfinished => is_detached = true,
                Attempt::AlreadyGone | Attempt::Busy | Attempt::Unanswered => {}
            }
        }
        if layers > 0 || is_detached {
            target.set_made_here();
        }
        is_detached |= !self.is_finished(target)?;
        Ok(match layers {
            _ if is_detached => Unmounted::Detached,
            0 => Unmounted::NotMounted,
            layers => Unmounted::Unmounted { layers },
        })
    }

    /// Whether the filesystems that earlier calls left unfinished are finished, and none was abandoned.
    fn is_finished(self, target: &Target) -> Result<bool> {
        let place = target.place();
        if in_flight::has_finished_within(&place, self.finish_limit) {
            return Ok(true);
        }
        match self.detach {
            Detach::Never => Err(unfinished_error(target)),
            Detach::IfUnresponsive | Detach::IfBusy => {
                in_flight::kill_unfinished(&place);
                Ok(false)
            }
        }
    }

    /// Handles a mount that stays: returns an error, or does only what cannot lose data of a living
    /// filesystem.
    fn force_or_detach(self, target: &Target) -> Result<Attempt> {
        match self.detach {
            Detach::Never => return Err(still_mounted_error(target, self.answer_limit)),
            Detach::IfBusy => {}
            Detach::IfUnresponsive => {
                let Some((health, details)) = health::health_and_details(target, self.answer_limit)? else {
                    return Ok(Attempt::AlreadyGone);
                };
                if !health.has_lost_server(&details) {
                    return Err(still_mounted_error(target, self.answer_limit));
                }
                tracing::warn!(target = %target.path().display(), %health, "unmounting a mount that has \
                    lost its server");
                // Force ends the whole filesystem, not only this mount. Users of another mount of it, and
                // their data that is not sent yet, can recover when the server comes back.
                if !is_mounted_elsewhere(&details)? {
                    // The result is checked by the next attempt. Force makes the filesystem fail its
                    // requests, so processes that waited for it get an error and release it.
                    self.unmount_once(target, UnmountFlags::FORCE)?;
                    // No server is left to write to.
                    match self.finish_time_limit(Duration::ZERO).retry_while_busy(target)? {
                        Attempt::Busy | Attempt::Unanswered => {}
                        // The forced unmount or this attempt unmounted it.
                        Attempt::Done | Attempt::AlreadyGone => return Ok(Attempt::Done),
                        Attempt::Unfinished => return Ok(Attempt::Unfinished),
                    }
                }
            }
        }
        match self.unmount_once(target, UnmountFlags::DETACH)? {
            Attempt::Busy | Attempt::Unanswered => Err(still_mounted_error(target, self.answer_limit)),
            Attempt::Done | Attempt::Unfinished | Attempt::AlreadyGone => Ok(Attempt::Unfinished),
        }
    }

    /// Retries for a while if the mount is busy, unless mounts below it make it busy, which waiting does not
    /// change.
    fn retry_while_busy(self, target: &Target) -> Result<Attempt> {
        let deadline = Instant::now() + BUSY_RETRY_LIMIT;
        loop {
            let attempt = self.unmount_once(target, UnmountFlags::empty())?;
            if attempt != Attempt::Busy || Instant::now() > deadline || has_mounts_below(target)? {
                return Ok(attempt);
            }
            sleep(Duration::from_millis(10));
        }
    }

    fn unmount_once(self, target: &Target, flags: UnmountFlags) -> Result<Attempt> {
        let lock = TargetLock::take(target, Purpose::Mount);
        // An open descriptor would make the mount busy, so it is closed in this block.
        let (mount, is_remote) = {
            let opened = match target.open(UNMOUNT) {
                // Nothing exists there, or it is a symbolic link since.
                Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::InvalidInput) => {
                    return Ok(Attempt::AlreadyGone);
                }
                opened => opened?,
            };
            let details = Details::from_fd(&opened.fd, UNMOUNT, target.path())?;
            (opened.facts.mount, details.is_some_and(|details| details.is_remote()))
        };
        let flags = flags | UnmountFlags::NOFOLLOW;
        let once = || {
            if is_remote {
                return self.unmount_in_child(target, flags, mount);
            }
            attempt_from(target, rustix::mount::unmount(target.kernel_path(UNMOUNT)?, flags))
        };
        let _lock = (!is_remote).then_some(lock);
        match once()? {
            // A child that was forked since has no copy of what is closed: this is enough, and nothing is opened
            // in between.
            Attempt::Busy => {
                in_flight::wait_for_descriptors(DESCRIPTOR_TIME_LIMIT);
                once()
            }
            attempt => Ok(attempt),
        }
    }

    fn unmount_in_child(self, target: &Target, flags: UnmountFlags, mount: MountId) -> Result<Attempt> {
        let name =
            in_flight::c_string(target.name().as_ref()).map_err(|error| target.error(UNMOUNT, error))?;
        let question = ChildCall::Unmount(target.parent(UNMOUNT)?, &name, flags);
        // A detach does not wait again for a server that did not answer.
        let is_plain = flags == UnmountFlags::NOFOLLOW;
        let policy = FinishPolicy {
            limit: if is_plain { self.finish_limit } else { Duration::ZERO },
            kills_child: self.detach != Detach::Never,
        };
        let is_detached_now = || -> Result<bool> {
            let top = target.state()?.mount_point();
            Ok(top.is_none_or(|top| top.id != mount))
        };
        let place = (mount, target.place());
        match in_flight::unmount(place, question, self.answer_limit, policy, || {
            is_detached_now().unwrap_or(false)
        }) {
            Ok(answer) if answer.error == 0 => Ok(Attempt::Done),
            Ok(answer) => attempt_from(target, Err(Errno::from_raw_os_error(answer.error as i32))),
            Err(failed @ (Unanswered::Failed(_) | Unanswered::QueueTooLong)) => {
                Err(target.error(UNMOUNT, std::io::Error::from(failed)))
            }
            // The mount leaves the tree at once; the remaining work waits for the server.
            Err(Unanswered::TimedOut(_) | Unanswered::Stuck | Unanswered::Silent) => {
                Ok(if is_detached_now()? { Attempt::Unfinished } else { Attempt::Unanswered })
            }
        }
    }
}

/// Unmounts everything that is mounted at the target; short for `Unmount::new().at(target)`.
///
/// ```no_run
/// # fn main() -> csi_mount::Result<()> {
/// use csi_mount::{Target, Unmounted, unmount};
///
/// let target = Target::new("/mnt/volume")?;
/// unmount(&target)?;
/// assert_eq!(unmount(&target)?, Unmounted::NotMounted);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// Those of [`Unmount::at`].
pub fn unmount(target: &Target) -> Result<Unmounted> {
    Unmount::new().at(target)
}

/// What one system call did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Attempt {
    Done,
    /// The mount is gone from the tree, but its filesystem is not finished.
    Unfinished,
    /// Another process unmounted it first.
    AlreadyGone,
    Busy,
    /// The call did not return, and the mount still exists.
    Unanswered,
}

/// The outcome of one unmount call.
fn attempt_from(target: &Target, result: rustix::io::Result<()>) -> Result<Attempt> {
    match result {
        Ok(()) => Ok(Attempt::Done),
        Err(Errno::INVAL | Errno::NOENT) if is_locked(target)? => Err(target
            .error(UNMOUNT, Errno::INVAL)
            .with_kind(ErrorKind::PermissionDenied)
            .hint("it was made in another user namespace; unmount it there")),
        // Another process unmounted it first, and possibly mounted again since.
        Err(Errno::INVAL | Errno::NOENT) => Ok(Attempt::AlreadyGone),
        Err(Errno::BUSY) => Ok(Attempt::Busy),
        Err(error @ Errno::PERM) => Err(target.error(UNMOUNT, error).hint("the process needs CAP_SYS_ADMIN")),
        Err(error) => Err(target.error(UNMOUNT, error)),
    }
}

/// Whether the kernel refuses the unmount because a more privileged namespace locked the mount.
///
/// Another mount can come and go meanwhile, even with the same number. A mount that is held open stays the
/// same before and after.
fn is_locked(target: &Target) -> Result<bool> {
    let held = match target.open(UNMOUNT) {
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::InvalidInput) => {
            return Ok(false);
        }
        held => held?,
    };
    if !held.facts.is_mount_root {
        return Ok(false);
    }
    // The open descriptor keeps it busy, so this call unmounts nothing.
    let refused = rustix::mount::unmount(target.kernel_path(UNMOUNT)?, UnmountFlags::NOFOLLOW);
    let is_there = target.state()?.mount_point().is_some_and(|top| top.id == held.facts.mount);
    Ok(refused == Err(Errno::INVAL) && is_there)
}

/// Whether its filesystem is also mounted at another place.
fn is_mounted_elsewhere(details: &Details) -> Result<bool> {
    let table = mounts()?;
    Ok(match table.iter().find(|entry| entry.id == details.id) {
        Some(own) => !siblings(&table, own).is_empty(),
        // Our root does not show this mount, but other mounts of the filesystem can be visible.
        None => table.iter().any(|entry| entry.device == details.device),
    })
}

fn has_mounts_below(target: &Target) -> Result<bool> {
    match target.open(UNMOUNT) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
        opened => Ok(!users::mounts_below(&opened?)?.is_empty()),
    }
}

fn unfinished_error(target: &Target) -> Error {
    let reason = "the mount is gone, but its filesystem still has data to write or does not answer";
    Error::new(ErrorKind::Unresponsive, UNMOUNT, reason)
        .at(target.path())
        .hint("unmount it again; that succeeds when the filesystem has finished")
}

/// The error for a mount that stays: its filesystem does not answer, or it is in use.
fn still_mounted_error(target: &Target, answer_limit: Duration) -> Error {
    let error = target.error(UNMOUNT, Errno::BUSY);
    let found = health::health_and_details(target, answer_limit).ok().flatten();
    let health = found.filter(|(health, details)| health.has_lost_server(details));
    let users = users::mount_users(target).unwrap_or_default();
    let users: Vec<_> = users.iter().map(ToString::to_string).collect();
    let error = match (health, users.is_empty()) {
        (Some((health, _)), _) => {
            return error
                .add_reason(health)
                .hint("allow to detach it (Detach::IfUnresponsive) if its unwritten data is not needed");
        }
        (None, true) => {
            return error.hint("find the processes that use it on the host; none is visible from here");
        }
        (None, false) => error.add_reason(format_args!("{}", users.join(", "))),
    };
    error.hint("stop what uses it")
}

#[cfg(test)]
mod needs_root {
    use std::os::fd::AsFd as _;
    use std::sync::Arc;

    use rustix::mount::MountFlags;

    use super::*;
    use crate::sys::descriptor_copies;
    use crate::testing::private_mount_namespace;

    /// A process with much memory takes milliseconds to fork, and its child has the descriptors all that time.
    #[test]
    fn children_that_have_copies_of_descriptors_keep_no_mount_busy() {
        let directory = tempfile::tempdir().unwrap();
        private_mount_namespace(|| {
            let memory = vec![1_u8; 256 << 20];
            let root = std::fs::File::open("/").unwrap();
            let ask = |number| {
                let subject = Subject::Usage(MountId(u64::MAX - number));
                let limit = UNMOUNT_TIME_LIMIT;
                in_flight::ask(subject, ChildCall::Usage(root.as_fd()), limit).unwrap();
            };
            let query = || ask(100);
            let other = || ask(101);
            let program = || {
                let mut sleep = std::process::Command::new("sleep");
                descriptor_copies::spawn(sleep.arg("0")).unwrap().wait().unwrap();
            };
            let forks: [&(dyn Fn() + Sync); 3] = [&query, &other, &program];
            std::thread::scope(|scope| {
                let running = Arc::new(());
                for fork in forks {
                    let is_running = Arc::downgrade(&running);
                    scope.spawn(move || {
                        while is_running.strong_count() > 0 {
                            fork();
                        }
                    });
                }
                let target = Target::new(directory.path()).unwrap();
                let attempt = || {
                    rustix::mount::mount("volume", target.path(), "tmpfs", MountFlags::empty(), c"").unwrap();
                    Unmount::new().unmount_once(&target, UnmountFlags::empty()).unwrap()
                };
                let attempts: Vec<_> = (0..300).map(|_| attempt()).collect();
                drop(running);
                let busy = attempts.iter().filter(|attempt| **attempt != Attempt::Done).count();
                assert_eq!(busy, 0, "of {}", attempts.len());
            });
            drop(memory);
        });
    }

    #[test]
    fn a_link_that_replaces_the_target_is_not_followed() {
        let directory = tempfile::tempdir().unwrap();
        private_mount_namespace(|| {
            let mounted = Target::new(directory.path().join("mounted")).unwrap();
            mounted.create_dir().unwrap();
            rustix::mount::mount("volume", mounted.path(), "tmpfs", MountFlags::empty(), c"").unwrap();
            let link = Target::new(directory.path().join("link")).unwrap();
            std::os::unix::fs::symlink(mounted.path(), link.path()).unwrap();
            assert_eq!(
                Unmount::new().unmount_once(&link, UnmountFlags::empty()).unwrap(),
                Attempt::AlreadyGone
            );
            assert!(matches!(mounted.state().unwrap(), MountState::Mounted(_)));
        });
    }
}
