//! Work on a thread that may wait for a server.

use std::cell::Cell;

thread_local! {
    static IS_PATIENT: Cell<bool> = const { Cell::new(false) };
}

/// Does work on a filesystem on a thread that may wait for its server as long as that takes.
///
/// This crate looks at a filesystem that may hang through a child process, one question at a time, and gives up in time.
/// Within `work`, on this thread, it asks by itself: without a process for each name, and without end where the server
/// does not answer and the mount's options do not set one. See to it that nobody waits for the thread itself for longer
/// than he wants.
///
/// ```
/// # fn main() -> csi_mount::Result<()> {
/// let root = csi_mount::Root::open("/tmp")?;
/// let is_there = csi_mount::patiently(|| root.target("volume")?.is_directory())?;
/// # let _ = is_there;
/// # Ok(())
/// # }
/// ```
pub fn patiently<T>(work: impl FnOnce() -> T) -> T {
    struct Before(bool);
    impl Drop for Before {
        fn drop(&mut self) {
            IS_PATIENT.set(self.0);
        }
    }
    let _before = Before(IS_PATIENT.replace(true));
    work()
}

/// Whether this thread may wait.
pub(crate) fn is_patient() -> bool {
    IS_PATIENT.get()
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn a_thread_is_patient_for_a_while() {
        let other = || thread::spawn(is_patient).join().unwrap();
        let inside = patiently(|| (patiently(is_patient), is_patient(), other()));
        assert_eq!((inside, is_patient()), ((true, true, false), false));
        let panicked = std::panic::catch_unwind(|| patiently(|| panic!("as the test asked")));
        assert!(panicked.is_err() && !is_patient());
    }
}
