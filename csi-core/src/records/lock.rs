//! Keeps a second process away from a directory.

use std::fs::File;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use crate::error::{Error, IoContext as _, Result};

/// How long to wait for another process to release the lock.
const TIME_LIMIT: Duration = Duration::from_secs(10);

/// Keeps other processes that ask for the same lock away from a directory, until it is dropped or the process
/// ends. [`Records::open`](crate::records::Records::open) takes one.
///
/// It is the kernel's lock (`flock(2)`) of the file `.lock` in the directory.
#[derive(Debug)]
pub struct DirectoryLock {
    file: File,
}

impl DirectoryLock {
    /// Takes the lock of an existing directory. It waits up to ten seconds for a process that ends, so call
    /// it before the plugin serves calls, or in [`blocking`](crate::blocking()).
    ///
    /// # Errors
    /// [`Error::Unhealthy`] when another process keeps the lock, and [`Error::Internal`] naming the path when
    /// the file can't be created.
    pub fn acquire(directory: impl AsRef<Path>) -> Result<Self> {
        Self::acquire_within(directory.as_ref(), TIME_LIMIT)
    }

    pub(super) fn acquire_within(directory: &Path, limit: Duration) -> Result<Self> {
        let path = directory.join(".lock");
        File::options().create(true).truncate(false).write(true).open(&path).at("create", &path)?;
        // A descriptor open for writing would prevent a read-only remount of the filesystem.
        let file = File::open(&path).at("open", &path)?;
        let end = Instant::now() + limit;
        loop {
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Err(Errno::WOULDBLOCK | Errno::INTR) if Instant::now() < end => {
                    std::thread::sleep(Duration::from_millis(20));
                }
                Err(Errno::WOULDBLOCK) => {
                    let text = format!("another process uses {}: stop it first", directory.display());
                    return Err(Error::Unhealthy(text.into()));
                }
                locked => return locked.at("lock", &path).map(|()| Self { file }),
            }
        }
    }
}

impl Drop for DirectoryLock {
    /// Closing the file is not enough: a child that another thread is forking has a copy of it for a moment.
    fn drop(&mut self) {
        let _ = flock(&self.file, FlockOperation::Unlock);
    }
}
