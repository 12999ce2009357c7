//! What the callers don't say again in later calls: a record for each volume, and a lock.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use csi_core::records::Records;
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, fcntl};
use nix::libc;
use serde::{Deserialize, Serialize};

use crate::config::Config;

/// The record of a volume. It is written before the calls to the driver that it describes.
#[derive(Default, Serialize, Deserialize)]
pub(crate) struct Volume {
    /// The name of the PersistentVolume, or of the volume in its pod: `detach` has nothing else.
    pub(crate) name: String,
    /// The nodes to which this machine attached it.
    pub(crate) nodes: BTreeSet<String>,
    /// From `mountdevice`: `mount` does not receive it.
    pub(crate) publish_context: BTreeMap<String, String>,
    /// The directories where it is published: `unmount` has nothing else.
    pub(crate) targets: BTreeSet<PathBuf>,
    /// The size that `expandfs` asked for before the volume was staged.
    pub(crate) expand_to: Option<i64>,
}

/// The records, by volume id.
pub(crate) struct Volumes {
    records: Records<Volume>,
    timeout: Duration,
}

/// No other command works on the volume, until this is dropped or the process ends.
pub(crate) struct VolumeLock {
    file: File,
}

impl Drop for VolumeLock {
    /// Closing the file is not enough: a child that another thread is forking has a copy of it for a moment.
    fn drop(&mut self) {
        let _ = fcntl(&self.file, FcntlArg::F_OFD_SETLK(&range(libc::F_UNLCK, 0, 0)));
    }
}

impl Volumes {
    pub(crate) fn open(config: &Config) -> Result<Self, String> {
        let path = &config.records;
        let at =
            |error| format!("{}: {error}; `records` in {} names it", path.display(), config.file.display());
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(at)?;
        let records = Records::in_directory(File::open(path).map_err(at)?, path).map_err(text)?;
        Ok(Self { records, timeout: config.timeout })
    }

    /// Removes what killed commands did not finish to write.
    pub(crate) fn remove_unfinished(&self) -> Result<(), String> {
        self.records.remove_unfinished().map_err(text)
    }

    /// Waits for other commands on this volume. Volumes with equal hashes wait for each other too.
    pub(crate) async fn lock(&self, id: &str) -> Result<VolumeLock, String> {
        let hash = id.bytes().fold(0u32, |hash, byte| hash.wrapping_mul(31).wrapping_add(byte.into()));
        let file = self.lock_file()?;
        let lock = tokio::task::spawn_blocking(move || {
            loop {
                match fcntl(&file, FcntlArg::F_OFD_SETLKW(&range(libc::F_WRLCK, i64::from(hash) + 1, 1))) {
                    Err(Errno::EINTR) => {}
                    locked => return locked.map(|_| VolumeLock { file }),
                }
            }
        });
        match tokio::time::timeout(self.timeout, lock).await {
            Ok(Ok(locked)) => locked.map_err(|error| format!("lock of the volume {id}: {error}")),
            Ok(Err(error)) => Err(format!("lock of the volume {id}: {error}")),
            Err(_) => Err(format!("another command on the volume {id} runs for over {:?}", self.timeout)),
        }
    }

    pub(crate) fn get(&self, id: &str) -> Result<Volume, String> {
        Ok(self.records.get(id).map_err(text)?.unwrap_or_default())
    }

    /// Writes the record, or removes it if it says nothing.
    pub(crate) fn save(&self, id: &str, volume: &Volume) -> Result<(), String> {
        let Volume { name: _, nodes, publish_context, targets, expand_to } = volume;
        if nodes.is_empty() && publish_context.is_empty() && targets.is_empty() && expand_to.is_none() {
            return self.records.remove(id).map(drop).map_err(text);
        }
        self.records.put(id, volume).map_err(text)
    }

    /// The ids of the volumes with such a record. A record that can't be read could be the one, if none is found.
    pub(crate) fn find(&self, is_it: impl Fn(&Volume) -> bool) -> Result<Vec<String>, String> {
        let list = self.records.list().map_err(text)?;
        let found: Vec<String> =
            list.records.into_iter().filter(|(_, volume)| is_it(volume)).map(|(id, _)| id).collect();
        match list.unreadable.into_iter().next() {
            Some(error) if found.is_empty() => Err(text(error)),
            _ => Ok(found),
        }
    }

    pub(crate) fn path(&self) -> &Path {
        self.records.path()
    }

    fn lock_file(&self) -> Result<File, String> {
        let path = self.records.path().join(".volumes.lock");
        let file = File::options().create(true).truncate(false).write(true).open(&path);
        file.map_err(|error| format!("{}: {error}", path.display()))
    }
}

fn text(error: csi_core::Error) -> String {
    error.to_string()
}

/// Bytes of the lock file; length 0 is all of it. The locks belong to the open file, so a killed process keeps
/// none.
fn range(kind: libc::c_int, start: i64, length: i64) -> libc::flock {
    libc::flock { l_type: kind as _, l_whence: libc::SEEK_SET as _, l_start: start, l_len: length, l_pid: 0 }
}
