//! Checks an unmounted filesystem with the program of its own package.

use std::path::Path;
use std::time::Duration;

use crate::tool::Tool;
use crate::{BlockDevice, DeviceUse, Error, ErrorKind, Filesystem, Result, mounts};

/// How long a check may take: 6 hours, as a large damaged filesystem needs time and half a repair helps nobody.
pub const CHECK_TIME_LIMIT: Duration = Duration::from_secs(6 * 3600);

const CHECK: &str = "check the filesystem on";

/// What a [`check`] may change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum CheckPolicy {
    /// Only look.
    #[default]
    ReportOnly,
    /// Mend what can be mended without loss, as at boot (`e2fsck -p`). ext4 only: XFS and btrfs do that when they
    /// are mounted.
    Preen,
}

/// The end of a [`check`] that left a sound filesystem.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum CheckReport {
    /// Nothing was wrong.
    Clean,
    /// Something was, and was mended.
    Repaired,
}

/// Checks the filesystem on a device that is mounted nowhere.
///
/// # Errors
///
/// - [`Damaged`](ErrorKind::Damaged): something is wrong that this policy does not mend.
/// - [`Busy`](ErrorKind::Busy): the device is mounted, in any namespace. It was not looked at.
/// - [`Unsupported`](ErrorKind::Unsupported): preen of XFS or btrfs.
/// - [`MissingTool`](ErrorKind::MissingTool), [`ToolFailed`](ErrorKind::ToolFailed),
///   [`Unresponsive`](ErrorKind::Unresponsive).
pub fn check(device: &BlockDevice, filesystem: Filesystem, policy: CheckPolicy) -> Result<CheckReport> {
    check_within(device, filesystem, policy, CHECK_TIME_LIMIT)
}

/// As [`check`], but killed after `limit`.
///
/// # Errors
///
/// As [`check`].
pub fn check_within(
    device: &BlockDevice,
    filesystem: Filesystem,
    policy: CheckPolicy,
    limit: Duration,
) -> Result<CheckReport> {
    let (program, arguments): (_, &[&str]) = match (filesystem, policy) {
        (Filesystem::Ext4, CheckPolicy::ReportOnly) => ("e2fsck", &["-f", "-n"]),
        (Filesystem::Ext4, CheckPolicy::Preen) => ("e2fsck", &["-f", "-p"]),
        (Filesystem::Xfs, CheckPolicy::ReportOnly) => ("xfs_repair", &["-n"]),
        (Filesystem::Btrfs, CheckPolicy::ReportOnly) => ("btrfs", &["check", "--readonly"]),
        (Filesystem::Xfs | Filesystem::Btrfs, CheckPolicy::Preen) => {
            let reason = format!("{filesystem} is preened by the kernel, when it is mounted");
            return Err(Error::new(ErrorKind::Unsupported, CHECK, reason).at(device.path()));
        }
    };
    device.verify()?;
    refuse_in_use(device, CHECK)?;
    let tool = Tool { program, package: filesystem.package() };
    let mut line = arguments.to_vec();
    line.push(utf8(device.path(), CHECK)?);
    let output = tool.run(&line, limit).map_err(|error| error.at(device.path()))?;
    match verdict(filesystem, output.status.code()) {
        Verdict::Clean => Ok(CheckReport::Clean),
        Verdict::Repaired => Ok(CheckReport::Repaired),
        Verdict::Damaged => Err(tool
            .failed(device.path(), &output)
            .as_kind(ErrorKind::Damaged)
            .mend(format!("unmount it everywhere and repair it with {program}"))),
        Verdict::Failed => Err(tool.failed(device.path(), &output)),
    }
}

pub(crate) fn refuse_in_use(device: &BlockDevice, operation: &'static str) -> Result<()> {
    match device.in_use()? {
        DeviceUse::Free => Ok(()),
        DeviceUse::InUse => {
            let error = Error::new(ErrorKind::Busy, operation, used_by(device)).at(device.path());
            Err(error.mend("unmount it in every namespace"))
        }
    }
}

/// Who uses a device, as far as it can be seen from here.
fn used_by(device: &BlockDevice) -> String {
    let here = mounts().unwrap_or_default().into_iter();
    let here = here.filter(|entry| entry.device == device.number());
    let here: Vec<String> = here.map(|entry| entry.mount_point.display().to_string()).collect();
    let holders = device.holders().unwrap_or_default();
    match (here.as_slice(), holders.as_slice()) {
        ([], []) => "the device is in use: in another mount namespace, or opened exclusively".to_owned(),
        ([], _) => format!("the device is in use by {}", holders.join(", ")),
        _ => format!("the device is mounted at {}", here.join(", ")),
    }
}

pub(crate) fn utf8<'p>(path: &'p Path, operation: &'static str) -> Result<&'p str> {
    path.to_str()
        .ok_or_else(|| Error::new(ErrorKind::InvalidInput, operation, "the path is not UTF-8").at(path))
}

#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    Clean,
    Repaired,
    Damaged,
    Failed,
}

/// What an exit status means: `e2fsck`'s is a set of bits, the others' a number.
fn verdict(filesystem: Filesystem, code: Option<i32>) -> Verdict {
    const CORRECTED: i32 = 1;
    const REBOOT: i32 = 2;
    const UNCORRECTED: i32 = 4;
    match (filesystem, code) {
        (_, Some(0)) => Verdict::Clean,
        (Filesystem::Ext4, Some(bits)) if bits & !(CORRECTED | REBOOT | UNCORRECTED) != 0 => Verdict::Failed,
        (Filesystem::Ext4, Some(bits)) if bits & UNCORRECTED != 0 => Verdict::Damaged,
        // The reboot is for a root filesystem that was mounted; an unmounted device needs none.
        (Filesystem::Ext4, Some(_)) => Verdict::Repaired,
        (Filesystem::Xfs | Filesystem::Btrfs, Some(1)) => Verdict::Damaged,
        _ => Verdict::Failed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exit_statuses_are_read_bit_by_bit() {
        for (code, expected) in [
            (Some(0), Verdict::Clean),
            (Some(1), Verdict::Repaired),
            (Some(3), Verdict::Repaired),
            (Some(4), Verdict::Damaged),
            (Some(5), Verdict::Damaged),
            (Some(8), Verdict::Failed),
            (Some(12), Verdict::Failed),
            (Some(128), Verdict::Failed),
            (None, Verdict::Failed),
        ] {
            assert_eq!(verdict(Filesystem::Ext4, code), expected, "{code:?}");
        }
        assert_eq!(verdict(Filesystem::Xfs, Some(1)), Verdict::Damaged);
        assert_eq!(verdict(Filesystem::Xfs, Some(2)), Verdict::Failed);
    }
}
