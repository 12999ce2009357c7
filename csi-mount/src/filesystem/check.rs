//! Checks an unmounted filesystem with the program of its own package.

use std::os::unix::process::ExitStatusExt as _;
use std::time::Duration;

use crate::device::block_device::BlockDevice;
use crate::device::users::{self, Tolerated};
use crate::error::{Error, ErrorKind, Result};
use crate::filesystem::kind::Filesystem;
use crate::filesystem::tool::{Bounds, OpenFile, Output, Tool, ToolInput};
use crate::sys::memory;

/// How long a check can take by default: 6 hours. A large damaged filesystem needs time, and half a repair
/// is useless.
pub(crate) const CHECK_TIME_LIMIT: Duration = Duration::from_secs(6 * 3600);

const CHECK: &str = "check the filesystem on";

/// Limits on the time and memory of a [`check`]. A check that exceeds one is killed, and the filesystem has
/// to be checked again.
///
/// ```
/// use csi_mount::CheckLimits;
/// use std::time::Duration;
///
/// let limits = CheckLimits::default().time(Duration::from_secs(600)).memory(512 << 20);
/// assert_eq!(limits, CheckLimits::from(Duration::from_secs(600)).memory(512 << 20));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub struct CheckLimits {
    time: Duration,
    memory: Option<u64>,
}

impl Default for CheckLimits {
    /// Six hours, and half of the memory that this process can have: half of the smallest limit
    /// among its control groups and the node.
    fn default() -> Self {
        Self { time: CHECK_TIME_LIMIT, memory: None }
    }
}

impl From<Duration> for CheckLimits {
    fn from(time: Duration) -> Self {
        Self::default().time(time)
    }
}

impl CheckLimits {
    /// Sets the time limit.
    pub fn time(mut self, limit: Duration) -> Self {
        self.time = limit;
        self
    }

    /// Sets the memory limit in bytes. It is checked about twenty times a second, so it can be exceeded for
    /// a moment.
    pub fn memory(mut self, bytes: u64) -> Self {
        self.memory = Some(bytes);
        self
    }

    fn memory_given(self) -> u64 {
        self.memory.unwrap_or_else(memory::program_memory_limit)
    }
}

/// What a [`check`] is allowed to change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum CheckPolicy {
    /// Nothing: only report.
    #[default]
    ReportOnly,
    /// Repair what can be repaired without loss, as at boot (`e2fsck -p`). ext4 only: XFS and btrfs do that
    /// when they are mounted.
    Preen,
}

/// The result of a [`check`] that left a sound filesystem.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum CheckReport {
    /// There were no errors.
    Clean,
    /// There were errors, and they were repaired.
    Repaired,
}

/// Checks the filesystem on a device that is mounted nowhere.
///
/// The limits are [`CheckLimits`], whose default is meant for a server, or a [`Duration`] for the time alone.
/// A check can be cut short by a limit, by the kernel when memory runs out, or by a crash. It never counts
/// as clean then, and the next call repeats it: `e2fsck` clears the flag that requires a check last.
pub fn check(
    device: &BlockDevice,
    filesystem: Filesystem,
    policy: CheckPolicy,
    limits: impl Into<CheckLimits>,
) -> Result<CheckReport> {
    let (program, arguments): (_, &[&str]) = match (filesystem, policy) {
        (Filesystem::Ext4, CheckPolicy::ReportOnly) => ("e2fsck", &["-f", "-n"]),
        (Filesystem::Ext4, CheckPolicy::Preen) => ("e2fsck", &["-f", "-p"]),
        (Filesystem::Xfs, CheckPolicy::ReportOnly) => ("xfs_repair", &["-n"]),
        (Filesystem::Btrfs, CheckPolicy::ReportOnly) => ("btrfs", &["check", "--readonly"]),
        (Filesystem::Xfs | Filesystem::Btrfs, CheckPolicy::Preen) => {
            let reason = format!("the kernel repairs {filesystem} when it is mounted");
            return Err(Error::new(ErrorKind::Unsupported, CHECK, reason).at(device.path()));
        }
    };
    device.verify()?;
    users::refuse(device, CHECK, Tolerated::Readers)?;
    let tool = Tool { program, package: filesystem.package() };
    let output = run_within(tool, arguments, device, limits.into())?;
    let failed = || tool.failed(device.path(), &output);
    match verdict(filesystem, output.status.code()) {
        Verdict::Clean => Ok(CheckReport::Clean),
        Verdict::Repaired => Ok(CheckReport::Repaired),
        Verdict::Damaged => Err(damaged(failed(), program)),
        Verdict::Failed if output.text.contains("unsupported feature") => Err(failed()
            .with_kind(ErrorKind::Unsupported)
            .hint(format!("install a newer {} on the node", tool.package))),
        // The superblock is wrong.
        Verdict::Failed if output.text.contains("alternate superblock") => Err(damaged(failed(), program)),
        Verdict::Failed => Err(failed()),
    }
}

fn damaged(failed: Error, program: &str) -> Error {
    failed
        .with_kind(ErrorKind::Damaged)
        .hint(format!("unmount it everywhere, copy the device, and repair it with {program}"))
}

/// Runs a program on the filesystem of an open device, within these limits. The program gets the
/// descriptor, so it does not matter if the path changes in the meantime.
pub(crate) fn run_within(
    tool: Tool,
    arguments: &[&str],
    device: &BlockDevice,
    limits: CheckLimits,
) -> Result<Output> {
    let given = limits.memory_given();
    let more = |error: Error| {
        let is_memory = error.kind() == ErrorKind::OutOfMemory;
        let error = error.at(device.path());
        if is_memory {
            error.hint("give it more memory (CheckLimits::memory), or give the container more")
        } else {
            error
        }
    };
    let file = OpenFile::from_device(device);
    let path = file.path();
    let line: Vec<&str> = arguments.iter().copied().chain([&*path]).collect();
    let bounds = Bounds { time: limits.time, memory: Some(given) };
    let on = ToolInput { file: Some(file), ..ToolInput::default() };
    let output = tool.run_with_input(&line, on, bounds, |_| Ok(())).map_err(more)?;
    if was_ended_for_memory(&output) {
        return Err(more(
            tool.out_of_memory(given)
                .add_reason("it was killed, possibly because the kernel had no free memory"),
        ));
    }
    Ok(output)
}

/// No other process kills it, and it was offered to the kernel's OOM killer as the first candidate.
fn was_ended_for_memory(output: &Output) -> bool {
    output.status.signal() == Some(nix::libc::SIGKILL)
}

#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    Clean,
    Repaired,
    Damaged,
    Failed,
}

/// Interprets an exit status: that of `e2fsck` is a set of bits, that of the others a number.
fn verdict(filesystem: Filesystem, code: Option<i32>) -> Verdict {
    const CORRECTED: i32 = 1;
    const REBOOT: i32 = 2;
    const UNCORRECTED: i32 = 4;
    match (filesystem, code) {
        (_, None) => Verdict::Failed,
        (_, Some(0)) => Verdict::Clean,
        (Filesystem::Ext4, Some(bits)) if bits & !(CORRECTED | REBOOT | UNCORRECTED) != 0 => Verdict::Failed,
        (Filesystem::Ext4, Some(bits)) if bits & UNCORRECTED != 0 => Verdict::Damaged,
        // The reboot bit is about a mounted root filesystem; an unmounted device needs no reboot.
        (Filesystem::Ext4, Some(_)) => Verdict::Repaired,
        (Filesystem::Xfs | Filesystem::Btrfs, Some(1)) => Verdict::Damaged,
        (Filesystem::Xfs | Filesystem::Btrfs, Some(_)) => Verdict::Failed,
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
