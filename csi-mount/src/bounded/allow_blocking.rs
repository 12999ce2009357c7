//! Threads that are allowed to wait for a server.

use std::cell::Cell;

thread_local! {
    static MAY_BLOCK: Cell<bool> = const { Cell::new(false) };
}

/// Runs `work` with permission to block this thread until a filesystem's server answers.
///
/// Outside of `work`, this crate asks a filesystem that can hang through a child process, one query at a
/// time, and stops waiting at a time limit. Within `work`, this thread makes the system calls itself. That is
/// faster, because no process is started for each name. If the server does not answer and the mount options
/// set no timeout, it waits forever. Do not wait for this thread without a limit of your own.
///
/// ```
/// # fn main() -> csi_mount::Result<()> {
/// let root = csi_mount::Root::open("/tmp")?;
/// let is_there = csi_mount::allow_blocking(|| root.target("volume")?.is_directory())?;
/// # let _ = is_there;
/// # Ok(())
/// # }
/// ```
pub fn allow_blocking<T>(work: impl FnOnce() -> T) -> T {
    struct Before(bool);
    impl Drop for Before {
        fn drop(&mut self) {
            MAY_BLOCK.set(self.0);
        }
    }
    let _before = Before(MAY_BLOCK.replace(true));
    work()
}

pub(crate) fn may_block() -> bool {
    MAY_BLOCK.get()
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn a_thread_may_block_for_a_while() {
        let other = || thread::spawn(may_block).join().unwrap();
        let inside = allow_blocking(|| (allow_blocking(may_block), may_block(), other()));
        assert_eq!((inside, may_block()), ((true, true, false), false));
        let panicked = std::panic::catch_unwind(|| allow_blocking(|| panic!("as the test asked")));
        assert!(panicked.is_err() && !may_block());
    }
}
