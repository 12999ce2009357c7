//! A change on a full disk: the record goes into the blocks of a spare file, and the two exchange their names.

use std::fs::File;
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, Mode, OFlags, RenameFlags, renameat_with};
use rustix::io::Errno;

use super::{Directory, Locked, lock_new, step};
use crate::error::{IoContext as _, Result};

const SPARE: &str = ".spare";
/// In bytes: a record of this size can be replaced.
const SIZE: usize = 4096;
/// How long another writer can have the file.
const LIMIT: Duration = Duration::from_secs(10);

impl Directory {
    /// Makes the spare file, if there is none. Without it a change on a full disk fails as it did.
    pub(super) fn reserve(&self) {
        let there = rustix::fs::statat(&self.fd, SPARE, AtFlags::SYMLINK_NOFOLLOW);
        if there.is_ok_and(|there| there.st_size >= SIZE as i64) {
            return;
        }
        let made = self.create_new().and_then(|(new, file)| {
            let filled = self.fill(&new, &file, &[0; SIZE]).and_then(|()| self.rename(&new, SPARE));
            if filled.is_err() {
                let _ = self.unlink(&new);
            }
            filled
        });
        if let Err(error) = made {
            tracing::debug!(%error, "no spare file for a full disk");
        }
    }

    /// Writes the content into the blocks of the spare file, and exchanges that with the file of this name, which is the
    /// spare file then. None if there is no such file, or no spare file, or its blocks are too few.
    pub(super) fn replace_in_spare(&self, name: &str, content: &[u8]) -> Result<Option<()>> {
        let end = Instant::now() + LIMIT;
        let flags = OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let spare = loop {
            let Ok(spare) = rustix::fs::openat(&self.fd, SPARE, flags, Mode::empty()) else {
                return Ok(None);
            };
            match lock_new(&spare) {
                Locked::ByOther if Instant::now() < end => std::thread::sleep(Duration::from_millis(5)),
                Locked::ByOther => return Ok(None),
                // Another writer can have exchanged it meanwhile.
                _ if !self.is_at(&spare, SPARE)? => {}
                _ => break File::from(spare),
            }
        };
        if content.len() > SIZE || self.fill(SPARE, &spare, content).is_err() {
            return Ok(None);
        }
        spare
            .set_len(content.len() as u64)
            .and_then(|()| spare.sync_all())
            .at("sync", self.path.join(SPARE))?;
        step("exchange");
        let exchanged = match renameat_with(&self.fd, SPARE, &self.fd, name, RenameFlags::EXCHANGE) {
            Err(Errno::NOENT) => return Ok(None),
            // Not by every filesystem: the old file's blocks are free then.
            Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => self.rename(SPARE, name),
            exchanged => exchanged.at("exchange with", self.path.join(name)),
        };
        exchanged.map(Some)
    }
}
