//! The journal: a file that lists what a run has created, so that a run that died can be cleaned up. One run
//! at a time holds it. It is trusted only if no other user could have written it, because everything that it
//! lists is deleted.

use std::fs::{File, OpenOptions};
use std::io::{Error, ErrorKind, Read as _, Result, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, OFlags, flock};

/// The names and contents are private to their owner.
const MODE: u32 = 0o600;

/// A journal, locked for this run while it is held.
#[derive(Debug)]
pub(crate) struct Journal {
    path: PathBuf,
    _lock: File,
}

impl Journal {
    /// Locks the journal.
    ///
    /// # Errors
    /// `WouldBlock` while another run holds it; other kinds if it can't be opened, or can be another user's.
    pub(crate) fn take(path: PathBuf) -> Result<Self> {
        let lock_path = sibling(&path, "lock");
        loop {
            let lock = refuse_link().read(true).write(true).create(true).mode(MODE).open(&lock_path);
            let lock = lock.map_err(|error| named(&lock_path, &error))?;
            is_ours(&lock_path, &lock)?;
            flock(&lock, FlockOperation::NonBlockingLockExclusive).map_err(|error| match error.into() {
                error if Error::kind(&error) == ErrorKind::WouldBlock => error,
                error => named(&lock_path, &error),
            })?;
            // The last holder can have removed the lock file meanwhile, and another process created a new
            // one.
            let there = std::fs::symlink_metadata(&lock_path);
            if there.is_ok_and(|there| lock.metadata().is_ok_and(|mine| mine.ino() == there.ino())) {
                return Ok(Self { path, _lock: lock });
            }
        }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the content, or nothing if the file does not exist.
    ///
    /// # Errors
    /// When it can't be read, or could belong to another user.
    pub(crate) fn read(&self) -> Result<String> {
        let mut file = match refuse_link().read(true).open(&self.path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(String::new()),
            file => file.map_err(|error| named(&self.path, &error))?,
        };
        is_ours(&self.path, &file)?;
        let mut text = String::new();
        file.read_to_string(&mut text).map_err(|error| named(&self.path, &error))?;
        Ok(text)
    }

    /// Replaces the content atomically. Empty content removes the file.
    ///
    /// # Errors
    /// When it can't be written.
    pub(crate) fn write(&self, text: &str) -> Result<()> {
        let gone = |path: &Path| match std::fs::remove_file(path) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(named(path, &error)),
            _ => Ok(()),
        };
        let next = sibling(&self.path, "next");
        gone(&next)?;
        if text.is_empty() {
            return gone(&self.path);
        }
        let written = OpenOptions::new().write(true).create_new(true).mode(MODE).open(&next);
        let written = written.and_then(|mut file| file.write_all(text.as_bytes()));
        written.and_then(|()| std::fs::rename(&next, &self.path)).map_err(|error| named(&next, &error))
    }
}

impl Drop for Journal {
    /// The next holder checks whether the lock file still exists.
    fn drop(&mut self) {
        let _ = std::fs::remove_file(sibling(&self.path, "lock"));
    }
}

/// Opens the named file itself: no symbolic link, and nothing on which open(2) blocks, such as a FIFO.
fn refuse_link() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.custom_flags((OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed());
    options
}

fn sibling(path: &Path, ending: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".");
    name.push(ending);
    name.into()
}

fn is_ours(path: &Path, file: &File) -> Result<()> {
    let found = file.metadata()?;
    let is_mine = found.uid() == rustix::process::geteuid().as_raw() && found.mode() & 0o022 == 0;
    if found.is_file() && is_mine {
        return Ok(());
    }
    let words = "other users can write to this file, and --clean-up would delete what it lists: check it, \
                 and remove it";
    Err(named(path, &Error::new(ErrorKind::PermissionDenied, words)))
}

fn named(path: &Path, error: &Error) -> Error {
    Error::new(error.kind(), format!("{}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn it_is_one_runs_at_a_time_and_for_its_owner() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("journal");
        let journal = Journal::take(path.clone()).unwrap();
        assert_eq!(Journal::take(path.clone()).unwrap_err().kind(), ErrorKind::WouldBlock);
        assert_eq!(journal.read().unwrap(), "");
        journal.write("a line\n").unwrap();
        assert_eq!(path.metadata().unwrap().mode() & 0o777, 0o600);
        drop(journal);
        assert_eq!(std::fs::read_dir(place.path()).unwrap().count(), 1, "the journal alone");
        let journal = Journal::take(path.clone()).unwrap();
        assert_eq!(journal.read().unwrap(), "a line\n");
        journal.write("").unwrap();
        drop(journal);
        assert_eq!(std::fs::read_dir(place.path()).unwrap().count(), 0);
    }

    #[test]
    fn what_others_could_have_written_is_not_believed() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("journal");
        std::fs::write(&path, "a line\n").unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o666)).unwrap();
        let error = Journal::take(path.clone()).unwrap().read().unwrap_err();
        assert!(error.to_string().contains("other users"), "{error}");
        std::fs::rename(&path, place.path().join("elsewhere")).unwrap();
        std::os::unix::fs::symlink(place.path().join("elsewhere"), &path).unwrap();
        Journal::take(path.clone()).unwrap().read().unwrap_err();
        std::os::unix::fs::symlink(place.path().join("elsewhere"), sibling(&path, "lock")).unwrap();
        Journal::take(path).unwrap_err();
    }

    #[test]
    fn what_can_not_be_written_is_told() {
        let place = tempfile::tempdir().unwrap();
        let journal = Journal::take(place.path().join("journal")).unwrap();
        std::fs::create_dir(place.path().join("journal.next")).unwrap();
        assert!(journal.write("a line\n").unwrap_err().to_string().contains("journal.next"));
    }
}
