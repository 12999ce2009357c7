//! Work on a share: mounted for it alone, and given up where the server does not answer.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use csi_core::mount::flow::shared::SharedSource;
use csi_core::mount::{Root, allow_blocking};
use csi_core::{Error, Result, blocking};
use tokio::sync::oneshot;

use crate::holds::Holds;
use crate::share::Share;

/// How the root directory of a share is opened: a mount that nobody sees, or in tests a directory of this machine.
pub type Open = Arc<dyn Fn(&SharedSource) -> Result<Root> + Send + Sync>;

/// How often it may fail to say that it is there until the work is given up.
const CHANCES: u32 = 2;

/// Where work on shares is done.
#[derive(Clone)]
pub(crate) struct Desk {
    open: Open,
    /// How long a server may keep silent.
    patience: Duration,
    /// What is worked on: a volume whose work was given up is held until that has really ended.
    pub(crate) holds: Holds,
    /// One for each share, held while something gets its place in it.
    places: Arc<Mutex<HashMap<String, Arc<Mutex<()>>>>>,
}

impl Desk {
    pub(crate) fn new(open: Open, patience: Duration) -> Self {
        Self { open, patience, holds: Holds::default(), places: Arc::default() }
    }

    /// The share, mounted where nobody sees it.
    pub(crate) async fn share(&self, share: &Share) -> Result<Arc<Opened>> {
        let (open, source) = (Arc::clone(&self.open), share.at_work()?.time_limit(self.patience));
        blocking(move || Ok(Arc::new(Opened::of(open(&source)?)))).await
    }

    /// The share for as long as the work takes, which is on the volume or snapshot of this id, and copies that of the source.
    ///
    /// Whatever else is to be done to these is refused until the work has ended, also where nobody waits for it any more;
    /// but others may copy the source.
    pub(crate) async fn work<T: Send + 'static>(
        &self,
        share: &Share,
        id: &str,
        source: Option<&str>,
        work: impl FnOnce(&Root) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let held = self.holds.take(id, source)?;
        let root = self.share(share).await?;
        let worked = Arc::clone(&root);
        let result = self.answer(share, &root, move || {
            let result = work(worked.root()?);
            drop((worked, held));
            result
        });
        let result = result.await;
        let leave = move || {
            Opened::close(root);
            Ok(())
        };
        blocking(leave).await?;
        result
    }

    /// What is found out or done on a share, which may take hours, as a copy does. It is given up when the server has
    /// kept silent for too long.
    pub(crate) async fn answer<T: Send + 'static>(
        &self,
        share: &Share,
        root: &Arc<Opened>,
        work: impl FnOnce() -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let (done, mut outcome) = oneshot::channel();
        let span = tracing::Span::current();
        // No thread of the runtime's, which would wait for it before the process ends.
        std::thread::Builder::new().name("share".to_owned()).spawn(move || {
            let _ = done.send(span.in_scope(|| allow_blocking(work)));
        })?;
        // To wait, and to ask whether the server is there, take turns.
        let (turn, mut silent) = (self.patience / (2 * CHANCES), 0);
        while silent < CHANCES {
            match tokio::time::timeout(turn, &mut outcome).await {
                Ok(Ok(result)) => return result,
                Ok(Err(_)) => return Err(Error::internal_message("the work on the share has panicked")),
                Err(_) => {}
            }
            let asked = Arc::clone(root);
            let answer = blocking(move || Ok(asked.root()?.stats_within(turn)?)).await;
            silent = if answer.is_ok() { 0 } else { silent + 1 };
        }
        Err(Error::Unavailable(format!("{share} does not answer; see to its server")))
    }

    /// Held while something gets its place in the share, so that two do not take the same.
    pub(crate) fn places_of(&self, share: &Share) -> Arc<Mutex<()>> {
        Arc::clone(locked(&self.places).entry(share.to_string()).or_default())
    }
}

/// A share that is open. To take leave of its server may take a while, so no thread that serves calls does it.
pub(crate) struct Opened(Option<Root>);

impl Opened {
    pub(crate) fn of(root: Root) -> Self {
        Self(Some(root))
    }

    pub(crate) fn root(&self) -> Result<&Root> {
        self.0.as_ref().ok_or_else(|| Error::internal_message("the share is closed"))
    }

    /// Closes it now, on a thread that may wait, unless others use it.
    fn close(this: Arc<Self>) {
        if let Ok(mut opened) = Arc::try_unwrap(this) {
            opened.0.take();
        }
    }
}

impl Drop for Opened {
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
        let desk = Desk::new(Arc::new(move |_| Ok(Root::open(&path)?)), Duration::from_secs(600));
        let share = Share::new("192.0.2.7", "/export").unwrap();
        let ((begun, told), (go_on, wait)) = (oneshot::channel(), mpsc::channel::<()>());
        let copy = desk.work(&share, "snapshot", Some("volume"), move |_| {
            begun.send(()).unwrap();
            let _ = wait.recv();
            Ok(())
        });
        tokio::select! {
            done = copy => panic!("{done:?}"),
            told = told => told.unwrap(),
        }
        for id in ["volume", "snapshot"] {
            let refused = desk.work(&share, id, None, |_| Ok(())).await;
            assert!(matches!(refused, Err(Error::Pending(_))), "{id}: {refused:?}");
        }
        desk.work(&share, "clone", Some("volume"), |_| Ok(())).await.unwrap();
        drop(go_on);
        while desk.work(&share, "volume", None, |_| Ok(())).await.is_err() {
            tokio::task::yield_now().await;
        }
    }
}
