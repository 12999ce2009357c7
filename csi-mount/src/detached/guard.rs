//! A mount in no place that anybody sees, and how it goes.

use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use crate::detached::prepared::Prepared;

/// How long a server may take to let a mount go before nobody waits for it any more.
const LEAVE: Duration = Duration::from_secs(5);

/// A mount that was never put anywhere. The last descriptor that is open on it unmounts it.
#[derive(Debug)]
pub(crate) struct Unseen(Option<Prepared>);

impl Unseen {
    pub(crate) fn new(mount: Prepared) -> Self {
        Self(Some(mount))
    }
}

impl Drop for Unseen {
    /// Closed by a thread: to take leave of a server that does not answer can take any time.
    fn drop(&mut self) {
        let Some(mount) = self.0.take() else { return };
        let (gone, told) = mpsc::channel::<()>();
        let close = move || {
            drop(mount);
            drop(gone);
        };
        match thread::Builder::new().name("unmount".to_owned()).spawn(close) {
            Ok(_) => {
                if told.recv_timeout(LEAVE) == Err(mpsc::RecvTimeoutError::Timeout) {
                    tracing::warn!("a server does not let go of a mount, which nobody waits for any more");
                }
            }
            // The closure has closed it, on this thread.
            Err(error) => tracing::debug!(%error, "no thread to unmount with"),
        }
    }
}
