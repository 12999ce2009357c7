//! Work that may wait for a server without end, on a thread that is given up in time.
//!
//! Invariant: at most one such thread for each key, waiting or given up.

use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, PoisonError, mpsc};
use std::thread;
use std::time::Duration;

use crate::{Error, ErrorKind, Result};

static WAITING: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());

/// Runs the work and gives back what it made, if that is in time. What is made later is dropped there.
///
/// The thread is in the caller's mount namespace, being its child.
pub(super) fn within<T: Send + 'static>(
    key: &str,
    limit: Duration,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T> {
    const WAIT: &str = "wait for the server of";
    let late = |reason: String| {
        Error::new(ErrorKind::Unresponsive, WAIT, reason).mend("see whether the server can be reached")
    };
    if !waiting().insert(key.to_owned()) {
        return Err(late("an earlier mount of it still waits for the server".to_owned()));
    }
    let turn = Turn(key.to_owned());
    let (sender, receiver) = mpsc::channel();
    let spawned = thread::Builder::new().name("shared-mount".to_owned()).spawn(move || {
        let made = work();
        // Over before the answer is seen, so that who has it can ask again.
        drop(turn);
        // Nobody receives it when it is late: it is dropped, and a mount that has no place is gone with that.
        let _ = sender.send(made);
    });
    spawned.map_err(|error| Error::new(ErrorKind::Io, WAIT, format!("no thread: {error}")))?;
    receiver.recv_timeout(limit).map_err(|error| match error {
        mpsc::RecvTimeoutError::Timeout => late(format!("it did not answer within {limit:?}")),
        mpsc::RecvTimeoutError::Disconnected => {
            Error::new(ErrorKind::Io, WAIT, "the thread that mounts it has panicked")
        }
    })
}

/// The one thread of its key.
struct Turn(String);

impl Drop for Turn {
    fn drop(&mut self) {
        waiting().remove(&self.0);
    }
}

fn waiting() -> MutexGuard<'static, BTreeSet<String>> {
    WAITING.lock().unwrap_or_else(PoisonError::into_inner)
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
    fn a_panic_is_an_error_and_ends_the_turn() {
        let panicked = within("server:/c", Duration::from_secs(60), || panic!("as the test asked"));
        assert_eq!(panicked.unwrap_err().kind(), ErrorKind::Io);
        within("server:/c", Duration::from_secs(60), || ()).unwrap();
    }
}
