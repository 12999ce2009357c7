//! Closing a mount that was never attached.

use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use crate::detached::prepared::Prepared;

/// How long to wait for a server to release a mount.
const CLOSE_TIME_LIMIT: Duration = Duration::from_secs(5);

/// A mount that is attached nowhere. It is unmounted when its last descriptor is closed.
#[derive(Debug)]
pub(crate) struct DetachedMount(Option<Prepared>);

impl DetachedMount {
    pub(crate) fn new(mount: Prepared) -> Self {
        Self(Some(mount))
    }
}

impl Drop for DetachedMount {
    /// A separate thread closes it, because unmounting a filesystem whose server does not answer can take any
    /// time.
    fn drop(&mut self) {
        let Some(mount) = self.0.take() else { return };
        let (closing, closed) = mpsc::channel::<()>();
        let close = move || {
            drop(mount);
            drop(closing);
        };
        match thread::Builder::new().name("unmount".to_owned()).spawn(close) {
            Ok(_) => {
                if closed.recv_timeout(CLOSE_TIME_LIMIT) == Err(mpsc::RecvTimeoutError::Timeout) {
                    tracing::warn!("a server does not release a mount; it is unmounted in the background");
                }
            }
            // The failed spawn dropped the closure, which closed the mount on this thread.
            Err(error) => tracing::debug!(%error, "no thread could be started to unmount with"),
        }
    }
}
