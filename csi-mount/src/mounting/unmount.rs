//! Unmounting: every layer, by a path that can't lead elsewhere, and looked at afterwards.

use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::mount::UnmountFlags;

use crate::bounded::in_flight::{self, Ending, Subject, Unanswered};
use crate::detached::scratch;
use crate::mounted::health;
use crate::mounted::stats::STATS_TIMEOUT;
use crate::mounted::users;
use crate::place::target_lock::{Purpose, TargetLock};
use crate::sys::child::Question;
use crate::table::details::Details;
use crate::table::siblings::siblings;
use crate::{Error, ErrorKind, MountState, Result, Target, mounts};

const UNMOUNT: &str = "unmount";

/// How long a busy mount is tried again: a program that was just started holds the parent's files for a moment.
const PATIENCE: Duration = Duration::from_millis(300);

/// How long an unmount may take to write what is not written yet, unless said otherwise: 20 seconds.
pub const UNMOUNT_TIME_LIMIT: Duration = Duration::from_secs(20);

/// How often an unmount waits for the filesystem or the kernel at most: the plain unmount, its health, the force, the
/// plain unmount again, the detaching.
const STEPS: u32 = 5;

/// What an unmount found and did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unmounted {
    /// Nothing was mounted there.
    NotMounted,
    /// All that was mounted there is unmounted.
    Unmounted {
        /// How many mounts were on top of each other.
        layers: u32,
    },
    /// Taken out of sight, but still in use by somebody: the filesystem and its device are not free.
    Detached,
}

/// When a mount that can't be unmounted may be taken out of sight instead (`MNT_DETACH`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Detach {
    /// Never: a busy mount is an error.
    #[default]
    Never,
    /// When its server or daemon is proven not to answer, or to be gone: never for a block device's filesystem. If this
    /// is its only mount it is first unmounted by force, which ends all that waits for the server. If it is mounted
    /// elsewhere too, this mount alone goes.
    IfUnresponsive,
    /// When it is busy, for whatever reason.
    IfBusy,
}

/// An unmount to be done.
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
    timeout: Duration,
    finishing: Duration,
}

impl Default for Unmount {
    fn default() -> Self {
        Self { detach: Detach::default(), timeout: STATS_TIMEOUT, finishing: UNMOUNT_TIME_LIMIT }
    }
}

impl Unmount {
    /// An unmount that never detaches.
    pub fn new() -> Self {
        Self::default()
    }

    /// When to detach instead.
    pub fn detach(mut self, detach: Detach) -> Self {
        self.detach = detach;
        self
    }

    /// How long a filesystem has to answer before it counts as dead, and then a forced unmount to return:
    /// [`STATS_TIMEOUT`] unless said otherwise.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// How long it may take, once nothing is mounted any more, until all is written that was not: [`UNMOUNT_TIME_LIMIT`]
    /// unless said otherwise. It counts for a filesystem with a server or a daemon; the kernel lets no caller go from the
    /// unmount of a local one before it is over.
    pub fn finish_within(mut self, limit: Duration) -> Self {
        self.finishing = limit;
        self
    }

    /// Unmounts all that is mounted at the target, and sees that nothing is mounted there then. Of a target with an
    /// [`Owner`](crate::Owner) every layer has to be the owner's, before the first is unmounted.
    ///
    /// Mounts below the target are not touched: they make it busy. The directory stays; see
    /// [`Target::remove`].
    ///
    /// A filesystem with a server or daemon behind it is unmounted by a child process, as that can hang, too. While one that
    /// is off the tree of mounts [finishes](Self::finish_within), it is not done, and neither is the next call at this
    /// target, by this process. One that does not finish in time goes on if nothing is to be detached, which is an error;
    /// else it is given up and counts as [`Detached`](Unmounted::Detached).
    ///
    /// # Errors
    /// [`ErrorKind::NotOwned`] naming what is not known to be the owner's: nothing was unmounted;
    /// [`ErrorKind::Protected`] for a directory of the system;
    /// [`ErrorKind::Busy`] when it is in use, naming who uses it as far as can be seen (see
    /// [`mount_users`](crate::mount_users)); [`ErrorKind::Unresponsive`] when the filesystem keeps the unmount
    /// waiting, or has not finished, and is not to be detached: ask again; [`ErrorKind::PermissionDenied`] without CAP_SYS_ADMIN. Layers above
    /// the failing one stay unmounted.
    pub fn at(self, target: &Target) -> Result<Unmounted> {
        let mut layers = 0;
        let mut is_detached = false;
        scratch::sweep();
        target.refuse_system(UNMOUNT)?;
        let own = target.require_own(UNMOUNT)?;
        while let MountState::Mounted(top) = target.state()? {
            if own.as_ref().is_some_and(|own| !own.contains(&top.id)) {
                // It came since, and is looked at from the start by the next call.
                let reason = "something else is mounted and unmounted there at the same time";
                return Err(Error::new(ErrorKind::Busy, UNMOUNT, reason).at(target.path()));
            }
            // Who waited for somebody else's unmount finds it done. Trying together, each would keep the others waiting
            // for longer than the filesystem may take, and take them for its silence.
            let limit = STEPS * self.timeout + 2 * PATIENCE + self.finishing;
            let _permit = in_flight::wait_for_others(Subject::Unmounting(top.id), limit);
            if target.state()?.mount_point() != Some(top) {
                continue;
            }
            let attempt = match self.patiently(target)? {
                Attempt::Busy | Attempt::Silent => self.escalate(target)?,
                attempt => attempt,
            };
            match attempt {
                Attempt::Done => layers += 1,
                Attempt::Lingering if self.detach == Detach::Never => return Err(unfinished(target)),
                Attempt::Lingering => is_detached = true,
                Attempt::Nothing | Attempt::Busy | Attempt::Silent => {}
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

    /// Whether what earlier calls have left unfinished is done, and was not given up.
    fn is_finished(self, target: &Target) -> Result<bool> {
        let place = target.place();
        if in_flight::is_ended_within(&place, self.finishing) {
            return Ok(true);
        }
        match self.detach {
            Detach::Never => Err(unfinished(target)),
            Detach::IfUnresponsive | Detach::IfBusy => {
                in_flight::give_up_endings(&place);
                Ok(false)
            }
        }
    }

    /// What is done about a mount that does not go: nothing, or only what cannot lose the data of a living
    /// filesystem.
    fn escalate(self, target: &Target) -> Result<Attempt> {
        match self.detach {
            Detach::Never => return Err(stays(target, self.timeout)),
            Detach::IfBusy => {}
            Detach::IfUnresponsive => {
                let Some((health, details)) = health::look(target, self.timeout)? else {
                    return Ok(Attempt::Nothing);
                };
                if !health.has_lost_its_server(&details) {
                    return Err(stays(target, self.timeout));
                }
                tracing::warn!(target = %target.path().display(), %health, "a mount whose server is gone is taken off");
                // Force ends the filesystem, and not only this mount of it: what others were using by another, and what
                // they wrote that is not sent yet, may come back with the server.
                if !is_mounted_elsewhere(&details)? {
                    // What comes of it is looked at next: it makes the filesystem give up its requests, so that what
                    // waited for it has an error now, and lets go of it.
                    self.once(target, UnmountFlags::FORCE)?;
                    // There is nobody to write to.
                    match self.finish_within(Duration::ZERO).patiently(target)? {
                        Attempt::Busy | Attempt::Silent => {}
                        // It went with the force or now.
                        Attempt::Done | Attempt::Nothing => return Ok(Attempt::Done),
                        Attempt::Lingering => return Ok(Attempt::Lingering),
                    }
                }
            }
        }
        match self.once(target, UnmountFlags::DETACH)? {
            Attempt::Busy | Attempt::Silent => Err(stays(target, self.timeout)),
            Attempt::Done | Attempt::Lingering | Attempt::Nothing => Ok(Attempt::Lingering),
        }
    }

    /// Tries again for a while when it is busy, unless with something that does not go away by waiting.
    fn patiently(self, target: &Target) -> Result<Attempt> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let attempt = self.once(target, UnmountFlags::empty())?;
            if attempt != Attempt::Busy || Instant::now() > deadline || has_mounts_below(target)? {
                return Ok(attempt);
            }
            sleep(Duration::from_millis(10));
        }
    }

    fn once(self, target: &Target, flags: UnmountFlags) -> Result<Attempt> {
        let lock = TargetLock::take(target, Purpose::Mount);
        // Open, it would be busy.
        let (mount, is_remote) = {
            let seen = match target.look(UNMOUNT) {
                // Nothing is there, or a symbolic link since.
                Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::InvalidInput) => {
                    return Ok(Attempt::Nothing);
                }
                seen => seen?,
            };
            let details = Details::of(&seen.fd, UNMOUNT, target.path())?;
            (seen.facts.mount, details.is_some_and(|details| details.is_remote()))
        };
        let flags = flags | UnmountFlags::NOFOLLOW;
        if !is_remote {
            let path = target.kernel_path(UNMOUNT)?;
            return outcome(target, rustix::mount::unmount(&path, flags));
        }
        drop(lock);
        let name =
            in_flight::c_string(target.name().as_ref()).map_err(|error| target.error(UNMOUNT, error))?;
        let question = Question::Unmount(target.parent(UNMOUNT)?, &name, flags.bits().cast_signed());
        // A server that did not answer is waited for no longer by taking the mount out of sight.
        let is_plain = flags == UnmountFlags::NOFOLLOW;
        let ending = Ending {
            limit: if is_plain { self.finishing } else { Duration::ZERO },
            is_killed: self.detach != Detach::Never,
        };
        let is_off = || -> Result<bool> {
            let top = target.state()?.mount_point();
            Ok(top.is_none_or(|top| top.id != mount))
        };
        let place = (mount, target.place());
        match in_flight::unmount(place, question, self.timeout, ending, || is_off().unwrap_or(false)) {
            Ok(answer) if answer.error == 0 => Ok(Attempt::Done),
            Ok(answer) => outcome(target, Err(Errno::from_raw_os_error(answer.error as i32))),
            Err(failed @ (Unanswered::Failed(_) | Unanswered::Crowded)) => {
                Err(target.error(UNMOUNT, std::io::Error::from(failed)))
            }
            // Off the tree at once; what is left to do waits for the server.
            Err(Unanswered::Late(_) | Unanswered::Stuck) => {
                Ok(if is_off()? { Attempt::Lingering } else { Attempt::Silent })
            }
        }
    }
}

/// Unmounts all that is mounted at the target; short for `Unmount::new().at(target)`.
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
/// As [`Unmount::at`].
pub fn unmount(target: &Target) -> Result<Unmounted> {
    Unmount::new().at(target)
}

/// What one system call did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Attempt {
    Done,
    /// Out of sight, and not finished.
    Lingering,
    /// Somebody else unmounted it first.
    Nothing,
    Busy,
    /// The call did not return, and it is mounted still.
    Silent,
}

/// What became of the mount that was to be taken off.
fn outcome(target: &Target, result: rustix::io::Result<()>) -> Result<Attempt> {
    match result {
        Ok(()) => Ok(Attempt::Done),
        Err(Errno::INVAL | Errno::NOENT) if is_locked(target)? => Err(target
            .error(UNMOUNT, Errno::INVAL)
            .as_kind(ErrorKind::PermissionDenied)
            .mend("it was made in another user namespace; unmount it there")),
        // Somebody was faster, and may have mounted again since.
        Err(Errno::INVAL | Errno::NOENT) => Ok(Attempt::Nothing),
        Err(Errno::BUSY) => Ok(Attempt::Busy),
        Err(error @ Errno::PERM) => Err(target.error(UNMOUNT, error).mend("the process needs CAP_SYS_ADMIN")),
        Err(error) => Err(target.error(UNMOUNT, error)),
    }
}

/// Whether the kernel refuses to take off what is mounted there: locked by a more privileged namespace. Another mount may
/// have come and gone meanwhile, even with the same number; one that is held open is the same before and after.
fn is_locked(target: &Target) -> Result<bool> {
    let held = match target.look(UNMOUNT) {
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::InvalidInput) => {
            return Ok(false);
        }
        held => held?,
    };
    if !held.facts.is_mount_root {
        return Ok(false);
    }
    // Held, it is busy: nothing is unmounted by this.
    let refused = rustix::mount::unmount(target.kernel_path(UNMOUNT)?, UnmountFlags::NOFOLLOW);
    let is_there = target.state()?.mount_point().is_some_and(|top| top.id == held.facts.mount);
    Ok(refused == Err(Errno::INVAL) && is_there)
}

/// Whether its filesystem is mounted at another place, too.
fn is_mounted_elsewhere(details: &Details) -> Result<bool> {
    let table = mounts()?;
    Ok(match table.iter().find(|entry| entry.id == details.id) {
        Some(own) => !siblings(&table, own).is_empty(),
        // It is not in sight of our root; the others may be.
        None => table.iter().any(|entry| entry.device == details.device),
    })
}

fn has_mounts_below(target: &Target) -> Result<bool> {
    match target.look(UNMOUNT) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
        seen => Ok(!users::mounts_below(&seen?)?.is_empty()),
    }
}

fn unfinished(target: &Target) -> Error {
    let reason = "nothing is mounted there any more, and its filesystem has still something to write or does not answer";
    Error::new(ErrorKind::Unresponsive, UNMOUNT, reason)
        .at(target.path())
        .mend("ask again: it is done once that is over")
}

/// Why a mount is still there: because its filesystem keeps silent, or because of those who use it.
fn stays(target: &Target, timeout: Duration) -> Error {
    let error = target.error(UNMOUNT, Errno::BUSY);
    let found = health::look(target, timeout).ok().flatten();
    let health = found.filter(|(health, details)| health.has_lost_its_server(details));
    let users = users::mount_users(target).unwrap_or_default();
    let users: Vec<_> = users.iter().map(ToString::to_string).collect();
    let error = match (health, users.is_empty()) {
        (Some((health, _)), _) => {
            return error.because(health).mend("have it detached when it does not answer");
        }
        (None, true) => {
            return error.mend("look on the host for processes that use it, none is seen from here");
        }
        (None, false) => error.because(format_args!("{}", users.join(", "))),
    };
    error.mend("end what uses it")
}

#[cfg(test)]
mod needs_root {
    use rustix::mount::MountFlags;

    use super::*;
    use crate::testing::private_mount_namespace;

    #[test]
    fn a_link_put_there_after_the_look_leads_nowhere() {
        let directory = tempfile::tempdir().unwrap();
        private_mount_namespace(|| {
            let mounted = Target::new(directory.path().join("mounted")).unwrap();
            mounted.create_dir().unwrap();
            rustix::mount::mount("volume", mounted.path(), "tmpfs", MountFlags::empty(), c"").unwrap();
            let link = Target::new(directory.path().join("link")).unwrap();
            std::os::unix::fs::symlink(mounted.path(), link.path()).unwrap();
            assert_eq!(Unmount::new().once(&link, UnmountFlags::empty()).unwrap(), Attempt::Nothing);
            assert!(matches!(mounted.state().unwrap(), MountState::Mounted(_)));
        });
    }
}
