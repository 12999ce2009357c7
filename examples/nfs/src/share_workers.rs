//! Work on a share: on a private mount of it, and given up if the server does not answer.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use csi_core::mount::flow::shared::SharedSource;
use csi_core::mount::{Root, allow_blocking};
use csi_core::{Error, Result, blocking};
use tokio::sync::oneshot;

use crate::locks::VolumeLocks;
use crate::share::Share;

/// How the root directory of a share is opened: as a detached mount, or in tests as a local directory.
pub type Open = Arc<dyn Fn(&SharedSource) -> Result<Root> + Send + Sync>;

/// After how many consecutive failed checks of the server the work is given up.
const MAX_SILENT_CHECKS: u32 = 2;

/// Runs all work on shares.
#[derive(Clone)]
pub(crate) struct ShareWorkers {
    open: Open,
    /// How long a server is allowed to stay silent.
    timeout: Duration,
    /// The volumes and snapshots in use. Work that was given up still locks its volume until it really ends.
    pub(crate) locks: VolumeLocks,
    /// One lock for each share, held while a volume gets its place in the share.
    places: Arc<Mutex<HashMap<String, Arc<Mutex<()>>>>>,
}

impl ShareWorkers {
    pub(crate) fn new(open: Open, timeout: Duration) -> Self {
        Self { open, timeout, locks: VolumeLocks::default(), places: Arc::default() }
    }

    /// Opens the share on a detached mount.
    pub(crate) async fn share(&self, share: &Share) -> Result<Arc<OpenShare>> {
        let open = Arc::clone(&self.open);
        let source = share.at_work()?.time_limit(self.timeout);
        blocking(move || Ok(Arc::new(OpenShare::of(open(&source)?)))).await
    }

    /// Opens the share and runs `work` on the volume or snapshot `id`, which can be copied from `source`.
    ///
    /// Other work on `id`, and changes of `source`, are refused until this work ends, even after its caller
    /// has given up. Other copies of `source` are allowed.
    pub(crate) async fn work<T: Send + 'static>(
        &self,
        share: &Share,
        id: &str,
        source: Option<&str>,
        work: impl FnOnce(&Root) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let held = self.locks.lock(id, source)?;
        let root = self.share(share).await?;
        let worked = Arc::clone(&root);
        let result = self.answer(share, &root, move || {
            let result = work(worked.root()?);
            drop((worked, held));
            result
        });
        let result = result.await;
        let leave = move || {
            OpenShare::close(root);
            Ok(())
        };
        blocking(leave).await?;
        result
    }

    /// Runs `work` on a share. The work can take hours, as a copy does. It is given up if the server stays
    /// silent for too long.
    pub(crate) async fn answer<T: Send + 'static>(
        &self,
        share: &Share,
        root: &Arc<OpenShare>,
        work: impl FnOnce() -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let (done, mut outcome) = oneshot::channel();
        let span = tracing::Span::current();
        // Not a thread of the runtime: the process would wait for that before it exits.
        std::thread::Builder::new().name("share".to_owned()).spawn(move || {
            let _ = done.send(span.in_scope(|| allow_blocking(work)));
        })?;
        // Waiting for the work and checking the server alternate.
        let turn = self.timeout / (2 * MAX_SILENT_CHECKS);
        let mut silent = 0;
        while silent < MAX_SILENT_CHECKS {
            match tokio::time::timeout(turn, &mut outcome).await {
                Ok(Ok(result)) => return result,
                Ok(Err(_)) => return Err(Error::Internal("the operation on the share panicked".into())),
                Err(_) => {}
            }
            let asked = Arc::clone(root);
            let answer = blocking(move || Ok(asked.root()?.stats_within(turn)?)).await;
            silent = if answer.is_ok() { 0 } else { silent + 1 };
        }
        Err(Error::Unavailable(format!("{share} does not answer; check its server").into()))
    }

    /// The lock of a share's places: two volumes must not take the same place.
    pub(crate) fn places_of(&self, share: &Share) -> Arc<Mutex<()>> {
        Arc::clone(locked(&self.places).entry(share.to_string()).or_default())
    }
}

/// An open share. Closing it can take long, because the unmount asks the server, so no thread that serves
/// calls closes it.
pub(crate) struct OpenShare(Option<Root>);

impl OpenShare {
    pub(crate) fn of(root: Root) -> Self {
        Self(Some(root))
    }

    pub(crate) fn root(&self) -> Result<&Root> {
        self.0.as_ref().ok_or_else(|| Error::Internal("the share is closed".into()))
    }

    /// Closes the share now, unless others use it. Runs on a thread that is allowed to block.
    fn close(this: Arc<Self>) {
        if let Ok(mut opened) = Arc::try_unwrap(this) {
            opened.0.take();
        }
    }
}

impl Drop for OpenShare {
    fn drop(&mut self) {
        if let (Some(root), Ok(runtime)) = (self.0.take(), tokio::runtime::Handle::try_current()) {
            drop(runtime.spawn_blocking(move || drop(root)));
        }
    }
}

pub(crate) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[tokio::test]
    async fn work_that_nobody_waits_for_keeps_others_from_its_volume_and_from_its_source() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().to_owned();
        let workers = ShareWorkers::new(Arc::new(move |_| Ok(Root::open(&path)?)), Duration::from_secs(600));
        let share = Share::new("192.0.2.7", "/export").unwrap();
        let ((begun, told), (go_on, wait)) = (oneshot::channel(), mpsc::channel::<()>());
        let copy = workers.work(&share, "snapshot", Some("volume"), move |_| {
            begun.send(()).unwrap();
            let _ = wait.recv();
            Ok(())
        });
        tokio::select! {
            done = copy => panic!("{done:?}"),
            told = told => told.unwrap(),
        }
        for id in ["volume", "snapshot"] {
            let refused = workers.work(&share, id, None, |_| Ok(())).await;
            assert!(matches!(refused, Err(Error::Pending(_))), "{id}: {refused:?}");
        }
        workers.work(&share, "clone", Some("volume"), |_| Ok(())).await.unwrap();
        drop(go_on);
        while workers.work(&share, "volume", None, |_| Ok(())).await.is_err() {
            tokio::task::yield_now().await;
        }
    }
}
