//! Descriptors that no other thread's child process can inherit.

use nix::errno::Errno;
use nix::libc;
use nix::sched::{CloneFlags, unshare};

use super::descriptor_copies::Copies;
use super::features::{self, Feature};

/// Runs the closure on a thread with its own descriptor table.
///
/// Between fork and exec a child process has every descriptor of its parent, close-on-exec or not. If one of
/// them is a device that was opened exclusively, the device stays busy until the exec, for `mount` and `mkfs`
/// too, although this process has closed it. What the closure opens is in no other table. The closure must
/// close it, and can use no other descriptor: the table has only those below 3.
pub(crate) fn with_own_descriptors<T: Send>(run: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            // Copies would keep the mounts of other volumes busy.
            let _copies = if begin_empty_table().is_ok() {
                None
            } else {
                let copies = Copies::begin();
                if let Err(error) = unshare(CloneFlags::CLONE_FILES) {
                    // A filter refused it. In rare cases another caller then finds the device busy for a moment.
                    tracing::debug!(%error, "no table of descriptors of its own");
                }
                Some(copies)
            };
            run()
        });
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// Gives this thread a table with the descriptors below 3 only. No other one is copied.
fn begin_empty_table() -> nix::Result<()> {
    const CLOSE_RANGE: libc::c_long = 436;
    const UNSHARE: libc::c_uint = 1 << 1;
    if !features::has(Feature::CloseRange) {
        return Err(Errno::ENOSYS);
    }
    // SAFETY: the arguments are integers. This thread uses no descriptor of the table that it leaves.
    Errno::result(unsafe { libc::syscall(CLOSE_RANGE, 3, libc::c_uint::MAX, UNSHARE) }).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::os::fd::AsRawFd as _;

    #[test]
    fn descriptors_opened_inside_are_in_no_other_table() {
        let name = with_own_descriptors(|| {
            let directory = tempfile::tempdir().unwrap();
            let file = File::create(directory.path().join("only here")).unwrap();
            let number = file.as_raw_fd();
            let other = std::fs::read_link(format!("/proc/self/fd/{number}"));
            let own = std::fs::read_link(format!("/proc/thread-self/fd/{number}")).unwrap();
            assert!(own.ends_with("only here"));
            other.unwrap_or_default()
        });
        assert!(!name.ends_with("only here"), "{}", name.display());
    }
}
