//! The answer to Probe: whether the data directory existed at the last check.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use csi_core::{Error, Result};

/// The time between two checks.
const INTERVAL: Duration = Duration::from_secs(1);
/// The directory counts as unhealthy if a check takes longer than this.
const LIMIT: Duration = Duration::from_secs(10);

/// Checks the directory each second on one thread. A caller gets the last result without a system call or a
/// thread, even while the filesystem hangs.
#[derive(Debug)]
pub(crate) struct DataWatch(Arc<Mutex<Look>>);

#[derive(Debug)]
struct Look {
    at: Instant,
    /// What was wrong, if anything.
    wrong: Option<String>,
}

impl DataWatch {
    /// Starts the thread, which ends soon after the watch is dropped.
    pub(crate) fn start(data: &Path) -> Self {
        let last = Arc::new(Mutex::new(Look::at(data)));
        let weak = Arc::downgrade(&last);
        let data = data.to_owned();
        // If no thread can be created, the result gets old, and Probe reports that.
        let _ = std::thread::Builder::new().name("data-watch".to_owned()).spawn(move || watch(&weak, &data));
        Self(last)
    }

    /// Returns the result of the last check.
    ///
    /// # Errors
    /// [`Error::Unhealthy`] when the directory was missing at the last check, or did not answer for
    /// [`LIMIT`].
    pub(crate) fn check(&self) -> Result<()> {
        let last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let silent = last.at.elapsed();
        match &last.wrong {
            Some(wrong) => Err(Error::Unhealthy(wrong.clone().into())),
            None if silent > LIMIT => {
                let seconds = silent.as_secs();
                Err(Error::Unhealthy(format!("no answer from the data directory for {seconds} s").into()))
            }
            None => Ok(()),
        }
    }
}

fn watch(last: &Weak<Mutex<Look>>, data: &Path) {
    loop {
        std::thread::sleep(INTERVAL);
        // The `Arc` is not held while the filesystem is queried.
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
            Ok(_) => Some(format!("{} is no longer a directory", data.display())),
            Err(error) => Some(format!("look at {}: {error}", data.display())),
        };
        Self { at: Instant::now(), wrong }
    }
}
