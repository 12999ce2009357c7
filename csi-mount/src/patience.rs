//! Work that may wait for a server without end, on a thread that is given up in time.
//!
//! Invariant: at most one such thread for each key, waiting or given up.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use crate::{Error, ErrorKind, Result};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Work {
    /// Its caller waits for it.
    AwaitedFor,
    /// Its caller has gone; it ends when the server lets it.
    GivenUp,
}

static WORKING: Mutex<BTreeMap<String, Work>> = Mutex::new(BTreeMap::new());
static CHANGED: Condvar = Condvar::new();

const WAIT: &str = "wait for the server of";

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

/// Runs the work and gives back what it made, if that is in time. What is made later is dropped there.
///
/// Of several callers with one key one works at a time, and the others wait; behind one that was given up they fail at
/// once. The thread is in the caller's mount namespace, being its child.
pub(crate) fn within<T: Send + 'static>(
    key: &str,
    limit: Duration,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T> {
    let deadline = Instant::now() + limit;
    let turn = Turn::take(key, deadline, limit)?;
    let (sender, receiver) = mpsc::channel();
    let spawned = thread::Builder::new().name("mount".to_owned()).spawn(move || {
        let made = work();
        // Over before the answer is seen, so that who has it can ask again.
        drop(turn);
        // Nobody receives it when it is late: it is dropped, and a mount that has no place is gone with that.
        let _ = sender.send(made);
    });
    spawned.map_err(|error| Error::new(ErrorKind::Io, WAIT, format!("no thread: {error}")))?;
    match receiver.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
        Ok(made) => Ok(made),
        Err(mpsc::RecvTimeoutError::Timeout) => {
            give_up(key);
            Err(late(limit))
        }
        Err(mpsc::RecvTimeoutError::Disconnected) => {
            Err(Error::new(ErrorKind::Io, WAIT, "the thread that mounts it has panicked"))
        }
    }
}

fn late(limit: Duration) -> Error {
    unresponsive(format!("it did not answer within {limit:?}"))
}

fn unresponsive(reason: String) -> Error {
    Error::new(ErrorKind::Unresponsive, WAIT, reason).mend("see whether the server can be reached")
}

/// If it has not ended in this very moment.
fn give_up(key: &str) {
    if let Some(work) = working().get_mut(key) {
        *work = Work::GivenUp;
    }
    CHANGED.notify_all();
}

/// The one thread of its key.
struct Turn(String);

impl Turn {
    fn take(key: &str, deadline: Instant, limit: Duration) -> Result<Self> {
        let mut table = working();
        loop {
            match table.get(key) {
                None => {
                    table.insert(key.to_owned(), Work::AwaitedFor);
                    return Ok(Self(key.to_owned()));
                }
                Some(Work::GivenUp) => {
                    return Err(unresponsive("an earlier mount of it still waits for the server".to_owned()));
                }
                Some(Work::AwaitedFor) => {}
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(late(limit));
            }
            table = CHANGED.wait_timeout(table, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        working().remove(&self.0);
        CHANGED.notify_all();
    }
}

fn working() -> MutexGuard<'static, BTreeMap<String, Work>> {
    WORKING.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::time::Instant;

    #[test]
    fn one_thread_waits_and_what_is_late_is_dropped() {
        let (go, gate) = mpsc::channel::<()>();
        let made = Arc::new(());
        let late = within("server:/a", Duration::from_millis(20), {
            let made = Arc::clone(&made);
            move || {
                let _ = gate.recv();
                made
            }
        });
        assert_eq!(late.unwrap_err().kind(), ErrorKind::Unresponsive);
        let start = Instant::now();
        for _ in 0..1000 {
            let error = within("server:/a", Duration::from_secs(60), || ()).unwrap_err();
            assert!(error.to_string().contains("still waits"), "{error}");
        }
        assert!(start.elapsed() < Duration::from_secs(30));
        within("server:/b", Duration::from_secs(60), || ()).unwrap();

        go.send(()).unwrap();
        let end = Instant::now() + Duration::from_secs(30);
        while Arc::strong_count(&made) > 1 || within("server:/a", Duration::from_secs(60), || ()).is_err() {
            assert!(Instant::now() < end, "the thread is not over");
            thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn a_thread_is_patient_for_a_while() {
        let inside =
            patiently(|| (patiently(is_patient), is_patient(), thread::spawn(is_patient).join().unwrap()));
        assert_eq!((inside, is_patient()), ((true, true, false), false));
        let panicked = std::panic::catch_unwind(|| patiently(|| panic!("as the test asked")));
        assert!(panicked.is_err() && !is_patient());
    }

    #[test]
    fn callers_with_one_key_wait_for_each_other() {
        let busy = Arc::new(std::sync::atomic::AtomicU32::new(0));
        thread::scope(|scope| {
            for _ in 0..8 {
                let busy = Arc::clone(&busy);
                scope.spawn(move || {
                    let work = move || {
                        use std::sync::atomic::Ordering::SeqCst;
                        let others = busy.fetch_add(1, SeqCst);
                        thread::sleep(Duration::from_millis(2));
                        busy.fetch_sub(1, SeqCst);
                        others
                    };
                    assert_eq!(
                        within("server:/d", Duration::from_secs(60), work).unwrap(),
                        0,
                        "one at a time"
                    );
                });
            }
        });
    }

    #[test]
    fn a_panic_is_an_error_and_ends_the_turn() {
        let panicked = within("server:/c", Duration::from_secs(60), || panic!("as the test asked"));
        assert_eq!(panicked.unwrap_err().kind(), ErrorKind::Io);
        within("server:/c", Duration::from_secs(60), || ()).unwrap();
    }
}
