//! What Probe answers: whether the data directory was there when it was looked at last.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use csi_core::{Error, Result};

/// How long from one look to the next.
const INTERVAL: Duration = Duration::from_secs(1);
/// After how long without an answer the filesystem counts as one that does not answer.
const LIMIT: Duration = Duration::from_secs(10);

/// A thread looks at the directory each second; whoever asks gets what it saw last, without a system call and without a
/// thread of its own, also while the filesystem hangs.
#[derive(Debug)]
pub(crate) struct DataWatch(Arc<Mutex<Look>>);

#[derive(Debug)]
struct Look {
    at: Instant,
    /// What was wrong.
    wrong: Option<String>,
}

impl DataWatch {
    /// Starts the thread, which ends soon after the watch is dropped.
    pub(crate) fn start(data: &Path) -> Self {
        let last = Arc::new(Mutex::new(Look::at(data)));
        let (weak, data) = (Arc::downgrade(&last), data.to_owned());
        // Where no thread can be had, the look gets old, and that is what Probe answers.
        let _ = std::thread::Builder::new().name("data-watch".to_owned()).spawn(move || watch(&weak, &data));
        Self(last)
    }

    /// # Errors
    /// [`Error::Unhealthy`] when the directory was gone at the last look, or did not answer for some time.
    pub(crate) fn check(&self) -> Result<()> {
        let last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let silent = last.at.elapsed();
        match &last.wrong {
            Some(wrong) => Err(Error::Unhealthy(wrong.clone())),
            None if silent > LIMIT => {
                let seconds = silent.as_secs();
                Err(Error::Unhealthy(format!("the data directory has not answered for {seconds} s")))
            }
            None => Ok(()),
        }
    }
}

fn watch(last: &Weak<Mutex<Look>>, data: &Path) {
    loop {
        std::thread::sleep(INTERVAL);
        // Not held while the filesystem is asked.
        if last.strong_count() == 0 {
            return;
        }
        let look = Look::at(data);
        let Some(last) = last.upgrade() else { return };
        *last.lock().unwrap_or_else(PoisonError::into_inner) = look;
    }
}

impl Look {
    fn at(data: &Path) -> Self {
        let wrong = match data.metadata() {
            Ok(found) if found.is_dir() => None,
            Ok(_) => Some(format!("{} is no directory any more", data.display())),
            Err(error) => Some(format!("look at {}: {error}", data.display())),
        };
        Self { at: Instant::now(), wrong }
    }
}
