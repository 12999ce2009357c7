//! Work on a share: mounted for it alone, and given up where the server does not answer.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use csi_core::mount::flow::shared::SharedSource;
use csi_core::mount::{Root, patiently};
use csi_core::{Error, Result, blocking};
use tokio::sync::oneshot;

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
    /// What is worked on: a volume whose work was given up is in it until that has really ended.
    at_work: Arc<Mutex<BTreeSet<String>>>,
    /// One for each share, held while something gets its place in it.
    places: Arc<Mutex<HashMap<String, Arc<Mutex<()>>>>>,
}

impl Desk {
    pub(crate) fn new(open: Open, patience: Duration) -> Self {
        Self { open, patience, at_work: Arc::default(), places: Arc::default() }
    }

    /// The share, mounted where nobody sees it.
    pub(crate) async fn share(&self, share: &Share) -> Result<Arc<Opened>> {
        let (open, source) = (Arc::clone(&self.open), share.at_work()?.time_limit(self.patience));
        blocking(move || Ok(Arc::new(Opened(Some(open(&source)?))))).await
    }

    /// The share for as long as the work takes, which is of the volume or snapshot of this id.
    ///
    /// Whatever else is to be done to the same is refused until the work has ended, also where nobody waits for it any more.
    pub(crate) async fn work<T: Send + 'static>(
        &self,
        share: &Share,
        id: &str,
        work: impl FnOnce(&Root) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let turn = Turn::take(&self.at_work, id)?;
        let root = self.share(share).await?;
        let worked = Arc::clone(&root);
        let result = self.answer(share, &root, move || {
            let result = work(worked.root()?);
            drop((worked, turn));
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
            let _ = done.send(span.in_scope(|| patiently(work)));
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

/// The only work on a volume.
struct Turn(Arc<Mutex<BTreeSet<String>>>, String);

impl Turn {
    fn take(at_work: &Arc<Mutex<BTreeSet<String>>>, id: &str) -> Result<Self> {
        if !locked(at_work).insert(id.to_owned()) {
            let text = "an earlier operation on it still waits for the server of its share";
            return Err(Error::Pending(text.to_owned()));
        }
        Ok(Self(Arc::clone(at_work), id.to_owned()))
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        locked(&self.0).remove(&self.1);
    }
}
