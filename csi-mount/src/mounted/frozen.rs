//! Whether a mounted filesystem is frozen.

use std::fs;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use crate::bounded::in_flight::{self, Subject, Unanswered};
use crate::sys::child::ChildCall;
use crate::table::details::Details;

/// How long a filesystem can be frozen before it counts as frozen: a device snapshot freezes it for a moment.
const MAX_SNAPSHOT_FREEZE: Duration = Duration::from_millis(500);

/// Whether the mounted filesystem of a block device is frozen.
///
/// The kernel has no query for it: `FIFREEZE` would freeze, and `FITHAW` would thaw. So a child process asks
/// for write access and writes nothing. On a frozen filesystem the child waits in the kernel, which reports
/// what it waits for. Until the filesystem is thawed, the child keeps the mount busy. A filesystem that was
/// read-only when it was frozen does not block the child, so it is not recognized as frozen.
pub(crate) fn is_frozen(root: BorrowedFd<'_>, details: &Details) -> bool {
    let is_on_device = details.device.major != 0 || details.fs_type == "btrfs";
    if details.is_remote() || details.is_shut_down || !is_on_device {
        return false;
    }
    let subject = Subject::Frozen(details.id);
    match in_flight::ask(subject.clone(), ChildCall::WaitForThaw(root), MAX_SNAPSHOT_FREEZE) {
        Ok(_) => false,
        Err(Unanswered::Failed(error)) => {
            tracing::warn!(%error, "a filesystem counts as not frozen, because no child process could \
                                    check it");
            false
        }
        Err(Unanswered::TimedOut(_) | Unanswered::Stuck | Unanswered::Silent | Unanswered::QueueTooLong) => {
            in_flight::stuck_child(&subject).is_some_and(|process| {
                waits_for_thaw(|file| {
                    fs::read_to_string(format!("/proc/{process}/{file}")).unwrap_or_default()
                })
            })
        }
    }
}

/// `read` reads a file of the process in `/proc`.
fn waits_for_thaw(read: impl Fn(&str) -> String) -> bool {
    let before = read("wchan");
    let stack = read("stack");
    let stat = read("stat");
    let after = read("wchan");
    // A process that was killed can end between two of these readings, and its stack is then empty.
    [before, after].iter().all(|wchan| is_wait_for_thaw(wchan, &stack, &stat))
}

/// A process waits for a thaw in `percpu_rwsem_wait`, before Linux 5.7 in `__percpu_down_read`. A killed
/// process that exits waits there too, while another process is moved to another control group
/// (`exit_signals`).
///
/// Before 5.16 `wchan` is 0 on many kernels. `stack`, which needs privileges, also shows where a woken
/// process continues.
fn is_wait_for_thaw(wchan: &str, stack: &str, stat: &str) -> bool {
    let is_exiting = stack.contains("do_exit");
    let is_running = stat.rsplit(')').next().is_none_or(|fields| fields.trim_start().starts_with('R'));
    !is_exiting && (wchan.contains("percpu") || stack.contains("percpu") && !is_running)
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    const ASKING: &str = "[<0>] percpu_rwsem_wait+0x116/0x140\n[<0>] __percpu_down_read+0x77/0xb0\n\
        [<0>] mnt_want_write+0x62/0x80\n[<0>] do_rmdir+0x8c/0x170\n[<0>] __x64_sys_unlinkat+0x3a/0x70\n";
    const EXITING: &str = "[<0>] percpu_rwsem_wait+0x116/0x140\n[<0>] __percpu_down_read+0x77/0xb0\n\
        [<0>] exit_signals+0x1b2/0x1d0\n[<0>] do_exit+0x9c/0xa90\n[<0>] do_group_exit+0x30/0x80\n";

    #[test]
    fn only_the_question_waits_for_a_thaw() {
        let waiting = "7 (csi) D 1 7";
        let running = "7 (R) R 1 7";
        assert!(is_wait_for_thaw("percpu_rwsem_wait", ASKING, waiting));
        assert!(is_wait_for_thaw("percpu_rwsem_wait", "", waiting), "without privileges");
        assert!(is_wait_for_thaw("0", ASKING, waiting), "on an older kernel");
        assert!(!is_wait_for_thaw("0", ASKING, running), "it was woken");
        assert!(!is_wait_for_thaw("percpu_rwsem_wait", EXITING, waiting), "it was killed and exits");
        assert!(!is_wait_for_thaw("0", "", waiting));
    }

    #[test]
    fn a_killed_process_that_ends_between_two_readings_did_not_wait_for_a_thaw() {
        for readings in 0..=4 {
            let reads = Cell::new(0);
            let read = |file: &str| {
                reads.set(reads.get() + 1);
                let has_ended = reads.get() > readings;
                let text = match file {
                    "wchan" if has_ended => "0",
                    "wchan" => "percpu_rwsem_wait",
                    "stack" if has_ended => "",
                    "stack" => EXITING,
                    _ if has_ended => "7 (csi) Z 1 7",
                    _ => "7 (csi) D 1 7",
                };
                text.to_owned()
            };
            assert!(!waits_for_thaw(read), "it ended after {readings} readings");
        }
    }
}
