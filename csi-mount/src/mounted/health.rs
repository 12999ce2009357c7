//! The health of a mounted filesystem, checked without a risk to hang the caller.

use std::fmt;
use std::fs;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::Path;
use std::time::Duration;

use nix::libc;
use rustix::fs::OFlags;

use crate::error::{Error, ErrorKind, Result};
use crate::mounted::frozen;
use crate::mounted::stats::{self, STATS_TIME_LIMIT};
use crate::path::{lookup, paths};
use crate::place::target::{OpenTarget, Target};
use crate::sys::attributes::MountAttributes;
use crate::sys::child::ChildCall;
use crate::sys::ids::DeviceNumber;
use crate::table::details::Details;

const OPERATION: &str = "check the health of the mount at";
/// The block devices that the kernel has, by number.
const BLOCK_DEVICES: &str = "/sys/dev/block";

/// The health of a mount, from the answers of the kernel and the filesystem.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum MountHealth {
    /// Nothing is mounted there.
    NotMounted,
    /// The filesystem answers.
    Healthy,
    /// The filesystem refuses writes although the mount allows them: an error of the device made it
    /// read-only.
    ///
    /// A mount that is itself read-only is healthy, because it does not ask for writes.
    ReadOnly,
    /// The filesystem is frozen: by [`Frozen`](crate::Frozen), by fsfreeze(8), or by a snapshot of its device
    /// that takes longer than half a second. Until it is thawed, writers wait and its device stays in use.
    Frozen,
    /// The filesystem did not answer in time: its daemon or server hangs, or the network to it is down.
    Unresponsive,
    /// The kernel reports with this error number that the filesystem will not work again: `ENOTCONN` for a
    /// daemon that is gone, `ESTALE` or `EHOSTDOWN` for a server, `EIO` for a filesystem that shut down,
    /// `ENODEV` for one whose block device was removed.
    Dead(i32),
}

impl MountHealth {
    /// Whether it is proven that the mount has lost its daemon or server.
    pub(crate) fn has_lost_server(self, details: &Details) -> bool {
        match self {
            // A filesystem on a block device has no server. It is as slow as its device. If it shut down, it
            // still has its device and must be unmounted in order.
            Self::Unresponsive | Self::Dead(_) => details.is_remote(),
            Self::NotMounted | Self::Healthy | Self::ReadOnly | Self::Frozen => false,
        }
    }
}

/// The text for a message: `the filesystem does not answer`.
impl fmt::Display for MountHealth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotMounted => f.write_str("nothing is mounted"),
            Self::Healthy => f.write_str("the filesystem answers"),
            Self::ReadOnly => {
                f.write_str("the filesystem turned read-only, possibly after an error of its device")
            }
            Self::Frozen => f.write_str("the filesystem is frozen: writes wait until it is thawed"),
            Self::Unresponsive => f.write_str("the filesystem does not answer"),
            Self::Dead(number) => {
                write!(f, "the filesystem is dead: {}", io::Error::from_raw_os_error(*number))
            }
        }
    }
}

/// See [`Mounts::health`](crate::Mounts::health).
pub fn health(path: impl AsRef<Path>) -> Result<MountHealth> {
    health_within(path, STATS_TIME_LIMIT)
}

/// As [`health`], with another time limit.
pub fn health_within(path: impl AsRef<Path>, limit: Duration) -> Result<MountHealth> {
    let target = Target::new(path)?;
    match health_and_details(&target, limit)? {
        None => Ok(MountHealth::NotMounted),
        Some((MountHealth::Healthy, _)) if is_frozen_at(&target)? => Ok(MountHealth::Frozen),
        Some((health, _)) => Ok(health),
    }
}

pub(crate) fn is_frozen_at(target: &Target) -> Result<bool> {
    let mounted = target.open_mounted(OPERATION)?;
    Ok(mounted.is_some_and(|(opened, details)| frozen::is_frozen(opened.fd.as_fd(), &details)))
}

/// See [`Mounts::health_of_filesystem`](crate::Mounts::health_of_filesystem).
pub(crate) fn health_of_filesystem(path: impl AsRef<Path>) -> Result<MountHealth> {
    let path = paths::absolute(OPERATION, path.as_ref())?;
    let fd = match lookup::open_path(&path, OFlags::empty()) {
        // A filesystem along the path does not answer, or is gone.
        Err(error) => match error.raw_os_error() {
            _ if error.kind() == io::ErrorKind::TimedOut => return Ok(MountHealth::Unresponsive),
            Some(number) if is_fatal(number) => return Ok(MountHealth::Dead(number)),
            _ => return Err(Error::os(OPERATION, path, error)),
        },
        Ok(fd) => fd,
    };
    match Details::from_fd(&fd, OPERATION, &path)? {
        Some(details) => health_of_mount(&fd, &details, &path, STATS_TIME_LIMIT),
        None => Err(Error::new(ErrorKind::Busy, OPERATION, "it was unmounted during the call").at(path)),
    }
}

/// Refuses an existing mount that is dead, or that has a server or daemon that does not answer.
///
/// Costs nothing for a local filesystem that has not shut down.
pub(crate) fn require(
    operation: &'static str,
    target: &Target,
    opened: &OpenTarget,
    details: &Details,
) -> Result<()> {
    if !details.is_remote() && !details.is_shut_down && !opened.facts.is_broken() {
        return Ok(());
    }
    let health = health_of_mount(&opened.fd, details, target.path(), STATS_TIME_LIMIT)?;
    refuse_unresponsive(operation, target.path(), health)
}

/// Refuses the filesystem at this path if it is dead or does not answer: each step would fail with an error of its own
/// that does not say so.
pub(crate) fn require_answer(operation: &'static str, path: &Path) -> Result<()> {
    refuse_unresponsive(operation, path, health_of_filesystem(path)?)
}

/// Refuses an existing mount with this health if it is dead or does not answer.
pub(crate) fn refuse_unresponsive(operation: &'static str, path: &Path, health: MountHealth) -> Result<()> {
    match health {
        health @ (MountHealth::Unresponsive | MountHealth::Dead(_)) => {
            let reason = format!("the mount exists, but {health}");
            Err(Error::new(ErrorKind::Unresponsive, operation, reason).at(path).hint(
                "restore its device, server or daemon; if that is not possible, unmount it and mount it \
                 again",
            ))
        }
        _ => Ok(()),
    }
}

/// The health and the details of what is mounted at the target. None if nothing is mounted.
pub(crate) fn health_and_details(target: &Target, limit: Duration) -> Result<Option<(MountHealth, Details)>> {
    let Some((opened, details)) = target.open_mounted(OPERATION)? else { return Ok(None) };
    let health = health_of_mount(&opened.fd, &details, target.path(), limit)?;
    Ok(Some((health, details)))
}

fn health_of_mount(fd: &OwnedFd, details: &Details, path: &Path, limit: Duration) -> Result<MountHealth> {
    if details.is_shut_down {
        return Ok(MountHealth::Dead(libc::EIO));
    }
    // Older kernels answer from memory until a read or write fails.
    if has_lost(Path::new(BLOCK_DEVICES), details.device) {
        return Ok(MountHealth::Dead(libc::ENODEV));
    }
    let answer = match stats::ask(ChildCall::Health, OPERATION, path, fd, Some(details), limit) {
        Err(error) if error.kind() == ErrorKind::Unresponsive => return Ok(MountHealth::Unresponsive),
        answer => answer?,
    };
    let error = [answer.error, answer.stat_error].into_iter().find(|number| *number != 0);
    match error.map(|number| number as i32) {
        Some(number) if is_fatal(number) => Ok(MountHealth::Dead(number)),
        Some(number) => Err(Error::os(OPERATION, path, io::Error::from_raw_os_error(number))),
        None if details.is_super_read_only && !details.attributes.contains(MountAttributes::RDONLY) => {
            Ok(MountHealth::ReadOnly)
        }
        None => Ok(MountHealth::Healthy),
    }
}

/// Whether the kernel no longer has the block device of a mounted filesystem. Not for a filesystem without
/// one, nor where sysfs is not mounted.
fn has_lost(block_devices: &Path, number: DeviceNumber) -> bool {
    let is_missing = |error: io::Error| error.kind() == io::ErrorKind::NotFound;
    number.major != 0
        && fs::symlink_metadata(block_devices.join(number.to_string())).is_err_and(is_missing)
        && block_devices.is_dir()
}

/// Whether this error means that the filesystem has lost its device, daemon or server.
fn is_fatal(number: i32) -> bool {
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
    fn a_removed_device_is_known_by_its_number() {
        let place = tempfile::tempdir().unwrap();
        fs::write(place.path().join("8:0"), "").unwrap();
        let number = |major, minor| DeviceNumber { major, minor };
        assert!(has_lost(place.path(), number(8, 1)));
        assert!(!has_lost(place.path(), number(8, 0)));
        assert!(!has_lost(place.path(), number(0, 52)), "a filesystem without a block device");
        assert!(!has_lost(&place.path().join("missing"), number(8, 1)), "no sysfs");
    }

    #[test]
    fn only_a_filesystem_with_a_server_can_lose_it() {
        for (fs_type, has_server) in [("btrfs", false), ("vfat", false), ("nfs4", true), ("fuse.sshfs", true)]
        {
            let line = format!("31 20 0:52 / /target rw - {fs_type} source rw\n");
            let details: Details =
                crate::table::mountinfo::parse_mountinfo(line.as_bytes()).unwrap().remove(0).into();
            for unwell in [MountHealth::Unresponsive, MountHealth::Dead(libc::EIO)] {
                assert_eq!(unwell.has_lost_server(&details), has_server, "{fs_type}: {unwell}");
            }
            assert!(!MountHealth::Healthy.has_lost_server(&details));
        }
    }
}
