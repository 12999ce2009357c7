//! Unmounting: every layer, by a path that can't lead elsewhere, and looked at afterwards.

use std::ffi::CString;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::thread::sleep;
use std::time::{Duration, Instant};

use nix::libc;
use rustix::io::Errno;
use rustix::mount::UnmountFlags;

use crate::details::Details;
use crate::lookup;
use crate::mountinfo;
use crate::stats::{STATS_TIMEOUT, stats_within};
use crate::sys::child::{self, Question};
use crate::{Error, ErrorKind, MountState, Result, Target};

const UNMOUNT: &str = "unmount";

/// How long a busy mount is tried again: a program that was just started holds the parent's files for a moment.
const PATIENCE: Duration = Duration::from_millis(300);
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
    /// When its filesystem is proven not to answer, or to have lost its daemon. One with a network behind it is
    /// first unmounted by force.
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
}

impl Default for Unmount {
    fn default() -> Self {
        Self { detach: Detach::default(), timeout: STATS_TIMEOUT }
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

    /// Unmounts all that is mounted at the target, and sees that nothing is mounted there then.
    ///
    /// Mounts below the target are not touched: they make it busy. The directory stays; see
    /// [`Target::remove`].
    ///
    /// # Errors
    /// [`ErrorKind::Busy`] when it is in use, naming a mount below it if that is why;
    /// [`ErrorKind::PermissionDenied`] without CAP_SYS_ADMIN. Layers above the failing one stay unmounted.
    pub fn at(self, target: &Target) -> Result<Unmounted> {
        let mut layers = 0;
        let mut is_detached = false;
        while let MountState::Mounted(_) = target.state()? {
            match unmount_busy(target, UnmountFlags::empty())? {
                Attempt::Done => layers += 1,
                Attempt::Nothing => {}
                Attempt::Busy => match self.escalate(target)? {
                    Unmounted::Detached => is_detached = true,
                    _ => layers += 1,
                },
            }
        }
        Ok(match layers {
            _ if is_detached => Unmounted::Detached,
            0 => Unmounted::NotMounted,
            layers => Unmounted::Unmounted { layers },
        })
    }

    /// What is done about a busy mount: nothing, or only what cannot lose the data of a living filesystem.
    fn escalate(self, target: &Target) -> Result<Unmounted> {
        match self.detach {
            Detach::Never => return Err(busy(target)),
            Detach::IfBusy => {}
            Detach::IfUnresponsive => {
                if !is_unresponsive(target, self.timeout)? {
                    return Err(busy(target));
                }
                force(target, self.timeout)?;
                // What waited for the filesystem has an error now, and lets go of it.
                if unmount_busy(target, UnmountFlags::empty())? != Attempt::Busy {
                    return Ok(Unmounted::Unmounted { layers: 1 });
                }
            }
        }
        match unmount_once(target, UnmountFlags::DETACH)? {
            Attempt::Busy => Err(busy(target)),
            Attempt::Done | Attempt::Nothing => Ok(Unmounted::Detached),
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
    /// Somebody else unmounted it first.
    Nothing,
    Busy,
}

fn unmount_once(target: &Target, flags: UnmountFlags) -> Result<Attempt> {
    let path = target.kernel_path(UNMOUNT)?;
    match rustix::mount::unmount(&path, flags | UnmountFlags::NOFOLLOW) {
        Ok(()) => Ok(Attempt::Done),
        Err(Errno::INVAL | Errno::NOENT) => match target.state()? {
            // A mount that the kernel refuses to take off: one locked by a more privileged namespace.
            MountState::Mounted(_) => Err(target
                .error(UNMOUNT, Errno::INVAL)
                .as_kind(ErrorKind::PermissionDenied)
                .mend("it was made in another user namespace; unmount it there")),
            MountState::Absent | MountState::NotMounted => Ok(Attempt::Nothing),
        },
        Err(Errno::BUSY) => Ok(Attempt::Busy),
        Err(error @ Errno::PERM) => Err(target.error(UNMOUNT, error).mend("the process needs CAP_SYS_ADMIN")),
        Err(error) => Err(target.error(UNMOUNT, error)),
    }
}

fn unmount_busy(target: &Target, flags: UnmountFlags) -> Result<Attempt> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let attempt = unmount_once(target, flags)?;
        // A mount below does not go away by waiting.
        if attempt != Attempt::Busy || Instant::now() > deadline || mounts_below(target)?.is_some() {
            return Ok(attempt);
        }
        sleep(Duration::from_millis(10));
    }
}

fn busy(target: &Target) -> Error {
    let error = target.error(UNMOUNT, Errno::BUSY);
    match mounts_below(target) {
        Ok(Some(below)) => error.because(format_args!("{below} is mounted below it")),
        _ => error.mend("end the processes that use it"),
    }
}

/// The path of a mount that is mounted on this one.
fn mounts_below(target: &Target) -> Result<Option<String>> {
    let MountState::Mounted(top) = target.state()? else { return Ok(None) };
    let below = mountinfo::mounts()?.into_iter().find(|entry| entry.parent == top.id);
    Ok(below.map(|entry| entry.mount_point.display().to_string()))
}

/// Whether the filesystem proves dead: no answer in time, or the kernel's word that its daemon is gone.
fn is_unresponsive(target: &Target, timeout: Duration) -> Result<bool> {
    match stats_within(target.path(), timeout) {
        Ok(_) => Ok(false),
        Err(error) if error.kind() == ErrorKind::Unresponsive => Ok(true),
        Err(error) => Err(error),
    }
}

/// Makes a filesystem with a network or a daemon behind it give up its requests. Others don't know force.
fn force(target: &Target, timeout: Duration) -> Result<()> {
    let seen = target.look(UNMOUNT)?;
    let fs_type = Details::of(&seen.fd, UNMOUNT, target.path())?.map(|details| details.fs_type);
    // Open, it would be busy.
    drop(seen);
    if !fs_type.is_some_and(|fs_type| has_peer(&fs_type)) {
        return Ok(());
    }
    // The child closes its parent's descriptors, so it goes by where the parent directory is now.
    let os = |error: io::Error| target.error(UNMOUNT, error);
    let parent = std::fs::read_link(lookup::path_of(target.parent(UNMOUNT)?)).map_err(os)?;
    let path = parent.join(target.path().file_name().unwrap_or_default());
    let path = CString::new(path.as_os_str().as_bytes()).map_err(|error| os(error.into()))?;
    match child::ask(Question::Unmount(&path, libc::MNT_FORCE | libc::UMOUNT_NOFOLLOW), timeout) {
        // Whether it is unmounted, or busy still, is looked at by the caller.
        Ok(_) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::TimedOut => {
            tracing::warn!(target = %target.path().display(), "a forced unmount did not return");
            Ok(())
        }
        Err(error) => Err(os(error)),
    }
}

/// Whether a filesystem depends on a server or a daemon that can be gone.
fn has_peer(fs_type: &str) -> bool {
    let base = fs_type.split('.').next().unwrap_or(fs_type);
    matches!(
        base,
        "nfs" | "nfs4" | "cifs" | "smb3" | "ceph" | "9p" | "fuse" | "fuseblk" | "virtiofs" | "afs" | "lustre"
    )
}

#[cfg(test)]
mod tests {
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
            assert_eq!(unmount_once(&link, UnmountFlags::empty()).unwrap(), Attempt::Nothing);
            assert!(matches!(mounted.state().unwrap(), MountState::Mounted(_)));
        });
    }
}
