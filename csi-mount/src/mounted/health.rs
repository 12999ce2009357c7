//! Whether a mounted filesystem still works, asked in a way that can't hang the asker.

use std::fmt;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::Path;
use std::time::Duration;

use nix::libc;
use rustix::fs::OFlags;

use crate::mounted::freeze;
use crate::mounted::stats::{self, STATS_TIMEOUT};
use crate::path::lookup;
use crate::path::paths;
use crate::place::target::Seen;
use crate::sys::child::Question;
use crate::table::details::Details;
use crate::{Error, ErrorKind, MountAttributes, MountState, Result, Target};

const OPERATION: &str = "look after the mount at";

/// How a mount is, from what the kernel and the filesystem answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum MountHealth {
    /// Nothing is mounted there.
    NotMounted,
    /// The filesystem answers.
    Healthy,
    /// The filesystem refuses writes, though the mount allows them: an error of the device made it read-only.
    ///
    /// A mount that is itself read-only is healthy, since nobody asked to write through it.
    ReadOnly,
    /// The filesystem is frozen ([`Frozen`](crate::Frozen), fsfreeze(8), a snapshot of its device that takes longer than half a
    /// second): whoever writes waits until it is thawed, and its device is not free before.
    Frozen,
    /// The filesystem did not answer in time: its daemon or server hangs, or the way to it is cut.
    Unresponsive,
    /// The kernel says that the filesystem will not work again, with this error number: `ENOTCONN` of a daemon
    /// that is gone, `ESTALE` or `EHOSTDOWN` of a server, `EIO` of a filesystem that shut down.
    Dead(i32),
}

impl MountHealth {
    /// Whether reading and, where the mount allows it, writing can be expected to work.
    pub fn is_healthy(self) -> bool {
        self == Self::Healthy
    }

    /// Whether there is proof that a daemon or server is not there for the mount.
    pub(crate) fn has_lost_its_server(self, details: &Details) -> bool {
        match self {
            // A block device's filesystem has none. It is as slow as its device, and one that shut down has that still:
            // it is to be let go of in order.
            Self::Unresponsive | Self::Dead(_) => details.is_remote(),
            Self::NotMounted | Self::Healthy | Self::ReadOnly | Self::Frozen => false,
        }
    }
}

/// In words, for a message: `the filesystem does not answer`.
impl fmt::Display for MountHealth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotMounted => f.write_str("nothing is mounted"),
            Self::Healthy => f.write_str("the filesystem answers"),
            Self::ReadOnly => f.write_str("the filesystem turned read-only, as after an error of its device"),
            Self::Frozen => f.write_str("the filesystem is frozen: writes wait until it is thawed"),
            Self::Unresponsive => f.write_str("the filesystem does not answer"),
            Self::Dead(number) => {
                write!(f, "the filesystem is dead: {}", io::Error::from_raw_os_error(*number))
            }
        }
    }
}

/// How the mount at an absolute path is; waits [`STATS_TIMEOUT`] at most for the filesystem.
///
/// The cost does not grow with the number of mounts (`statmount(2)`; before Linux 6.13 the mount table is read)
/// nor with what is in the filesystem. Who asks the filesystem is as for [`stats`](crate::stats()): a child process, or nobody
/// else where that can't hang. Whether a block device's filesystem is frozen is always asked by a child process, which takes a
/// fraction of a millisecond; where none can be started, it counts as not frozen.
/// The last component of the path is not followed when it is a symbolic link.
///
/// ```
/// # fn main() -> csi_mount::Result<()> {
/// use csi_mount::{MountHealth, health};
///
/// assert_eq!(health("/proc")?, MountHealth::Healthy);
/// assert_eq!(health("/no/such/path")?, MountHealth::NotMounted);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// [`ErrorKind::InvalidInput`] for a path that can never work; [`ErrorKind::PermissionDenied`] when an ancestor
/// can't be searched; [`ErrorKind::Unresponsive`] when it is an ancestor's filesystem that does not answer. A
/// mount that is not well is no error.
pub fn health(path: impl AsRef<Path>) -> Result<MountHealth> {
    health_within(path, STATS_TIMEOUT)
}

/// As [`health`], with another limit of time.
///
/// # Errors
/// As [`health`].
pub fn health_within(path: impl AsRef<Path>, limit: Duration) -> Result<MountHealth> {
    let target = Target::new(path)?;
    match look(&target, limit)? {
        None => Ok(MountHealth::NotMounted),
        Some((MountHealth::Healthy, _)) if is_frozen_at(&target)? => Ok(MountHealth::Frozen),
        Some((health, _)) => Ok(health),
    }
}

/// Whether the filesystem that is mounted at the target is frozen.
pub(crate) fn is_frozen_at(target: &Target) -> Result<bool> {
    let seen = match target.look(OPERATION) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(false),
        seen => seen?,
    };
    match Details::of(&seen.fd, OPERATION, target.path())? {
        Some(details) if seen.facts.is_mount_root => Ok(freeze::is_frozen(seen.fd.as_fd(), &details)),
        _ => Ok(false),
    }
}

/// The health of the filesystem that an absolute path is in, a mount's root or not, as [`health`] tells it; symbolic
/// links are followed. Never [`MountHealth::NotMounted`].
///
/// # Errors
/// As [`health`], and [`ErrorKind::NotFound`] when nothing is at the path.
pub fn health_of_filesystem(path: impl AsRef<Path>) -> Result<MountHealth> {
    let path = paths::absolute(OPERATION, path.as_ref())?;
    let fd = match lookup::open_path(&path, OFlags::empty()) {
        // What the way leads through does not answer, or is gone.
        Err(error) => match error.raw_os_error() {
            _ if error.kind() == io::ErrorKind::TimedOut => return Ok(MountHealth::Unresponsive),
            Some(number) if is_deadly(number) => return Ok(MountHealth::Dead(number)),
            _ => return Err(Error::os(OPERATION, path, error)),
        },
        Ok(fd) => fd,
    };
    match Details::of(&fd, OPERATION, &path)? {
        Some(details) => of(&fd, &details, &path, STATS_TIMEOUT),
        None => Err(Error::new(ErrorKind::Busy, OPERATION, "it was unmounted meanwhile").at(path)),
    }
}

/// Refuses a mount that is there already, but of no use: dead, or with a server or daemon that does not answer. Costs
/// nothing where there is neither.
pub(crate) fn require(
    operation: &'static str,
    target: &Target,
    seen: &Seen,
    details: &Details,
) -> Result<()> {
    if !details.is_remote() && !details.is_shut_down && !seen.facts.is_broken() {
        return Ok(());
    }
    refuse_unwell(operation, target, of(&seen.fd, details, target.path(), STATS_TIMEOUT)?)
}

/// Refuses what is mounted and of no use.
pub(crate) fn refuse_unwell(operation: &'static str, target: &Target, health: MountHealth) -> Result<()> {
    match health {
        unwell @ (MountHealth::Unresponsive | MountHealth::Dead(_)) => {
            let reason = format!("it is mounted there, but {unwell}");
            Err(Error::new(ErrorKind::Unresponsive, operation, reason).at(target.path()).mend(
                "see to its device, server or daemon; where that is gone for good, unmount it and mount it anew",
            ))
        }
        _ => Ok(()),
    }
}

/// The health of what is mounted at the target, and what it is. None when nothing is.
pub(crate) fn look(target: &Target, limit: Duration) -> Result<Option<(MountHealth, Details)>> {
    if !matches!(target.state()?, MountState::Mounted(_)) {
        return Ok(None);
    }
    let seen = match target.look(OPERATION) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        seen => seen?,
    };
    // None: unmounted since.
    let Some(details) = Details::of(&seen.fd, OPERATION, target.path())? else { return Ok(None) };
    if !seen.facts.is_mount_root {
        return Ok(None);
    }
    let health = of(&seen.fd, &details, target.path(), limit)?;
    Ok(Some((health, details)))
}

fn of(fd: &OwnedFd, details: &Details, path: &Path, limit: Duration) -> Result<MountHealth> {
    if details.is_shut_down {
        return Ok(MountHealth::Dead(libc::EIO));
    }
    let answer = match stats::ask(Question::Health, OPERATION, path, fd, Some(details), limit) {
        Err(error) if error.kind() == ErrorKind::Unresponsive => return Ok(MountHealth::Unresponsive),
        answer => answer?,
    };
    let error = [answer.error, answer.stat_error].into_iter().find(|number| *number != 0);
    match error.map(|number| number as i32) {
        Some(number) if is_deadly(number) => Ok(MountHealth::Dead(number)),
        Some(number) => Err(Error::os(OPERATION, path, io::Error::from_raw_os_error(number))),
        None if details.is_super_read_only && !details.attributes.contains(MountAttributes::RDONLY) => {
            Ok(MountHealth::ReadOnly)
        }
        None => Ok(MountHealth::Healthy),
    }
}

/// Whether a filesystem that gives this error has lost what it lives on.
fn is_deadly(number: i32) -> bool {
    matches!(
        number,
        libc::EIO
            | libc::ENODEV
            | libc::ENXIO
            | libc::ENOTCONN
            | libc::ESTALE
            | libc::EHOSTDOWN
            | libc::EHOSTUNREACH
            | libc::ENETUNREACH
            | libc::ENETDOWN
            | libc::ECONNREFUSED
            | libc::ECONNRESET
            | libc::ECONNABORTED
            | libc::ETIMEDOUT
            | libc::ESHUTDOWN
            | libc::EREMOTEIO
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_has_a_server_can_have_lost_it() {
        for (fs_type, has_server) in [("btrfs", false), ("vfat", false), ("nfs4", true), ("fuse.sshfs", true)]
        {
            let line = format!("31 20 0:52 / /target rw - {fs_type} source rw\n");
            let details: Details = crate::parse_mountinfo(line.as_bytes()).unwrap().remove(0).into();
            for unwell in [MountHealth::Unresponsive, MountHealth::Dead(libc::EIO)] {
                assert_eq!(unwell.has_lost_its_server(&details), has_server, "{fs_type}: {unwell}");
            }
            assert!(!MountHealth::Healthy.has_lost_its_server(&details));
        }
    }
}
