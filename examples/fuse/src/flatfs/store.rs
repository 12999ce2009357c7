//! The files, by node number.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{FileExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::PathBuf;
use std::time::UNIX_EPOCH;

use super::answer::Errno;

/// The node number of the directory itself, fixed by the protocol.
pub(crate) const ROOT: u64 = 1;

type Result<T> = std::result::Result<T, Errno>;

/// The directory, and the names of its files by node number. A number is made from what stays the same as long as
/// the file exists, so a later process gives the same numbers. A new file of the same name has another number.
#[derive(Debug)]
pub struct Store {
    directory: PathBuf,
    names: HashMap<u64, OsString>,
}

/// The attributes of a file; times are in seconds and nanoseconds.
pub(crate) struct Attributes {
    pub(crate) node: u64,
    pub(crate) size: u64,
    pub(crate) blocks: u64,
    pub(crate) accessed: (u64, u32),
    pub(crate) modified: (u64, u32),
    pub(crate) changed: (u64, u32),
    pub(crate) mode: u32,
    pub(crate) user: u32,
    pub(crate) group: u32,
}

/// The usage of the filesystem that holds the store.
pub(crate) struct Usage {
    pub(crate) blocks: u64,
    pub(crate) free: u64,
    pub(crate) available: u64,
    pub(crate) files: u64,
    pub(crate) files_free: u64,
    pub(crate) block_size: u32,
}

impl Store {
    /// The files of a directory, for a filesystem that is new.
    pub fn new(directory: PathBuf) -> Self {
        Self { directory, names: HashMap::new() }
    }

    /// The files of a directory, for a filesystem that another process has served: the kernel knows them by the numbers that
    /// it gave.
    ///
    /// # Errors
    /// The directory can't be read.
    pub fn continued(directory: PathBuf) -> io::Result<Self> {
        let mut store = Self::new(directory);
        for entry in fs::read_dir(&store.directory)? {
            // One that is removed meanwhile needs no number.
            let _ = store.number(&entry?.file_name());
        }
        Ok(store)
    }

    fn path(&self, node: u64) -> Result<PathBuf> {
        match self.names.get(&node) {
            _ if node == ROOT => Ok(self.directory.clone()),
            Some(name) => Ok(self.directory.join(name)),
            None => Err(Errno::NOT_FOUND),
        }
    }

    fn number(&mut self, name: &OsStr) -> Result<u64> {
        let found = self.directory.join(name).symlink_metadata()?;
        let made =
            found.created().ok().and_then(|time| time.duration_since(UNIX_EPOCH).ok()).unwrap_or_default();
        let parts = [name.as_bytes(), &found.ino().to_ne_bytes(), &made.as_nanos().to_ne_bytes()];
        // FNV-1a, which is the same in every process. The kernel keeps 0 and the root's number for itself.
        let hash = parts.concat().iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
        });
        let number = hash.max(ROOT + 1);
        self.names.insert(number, name.to_owned());
        Ok(number)
    }

    pub(crate) fn attributes(&self, node: u64) -> Result<Attributes> {
        let found = self.path(node)?.symlink_metadata()?;
        // The store holds something other than a file.
        if node != ROOT && !found.is_file() {
            return Err(Errno::NOT_FOUND);
        }
        let time = |seconds: i64, nanoseconds: i64| (seconds.cast_unsigned(), nanoseconds as u32);
        Ok(Attributes {
            node,
            size: found.size(),
            blocks: found.blocks(),
            accessed: time(found.atime(), found.atime_nsec()),
            modified: time(found.mtime(), found.mtime_nsec()),
            changed: time(found.ctime(), found.ctime_nsec()),
            mode: found.mode(),
            user: found.uid(),
            group: found.gid(),
        })
    }

    pub(crate) fn look_up(&mut self, name: &OsStr) -> Result<Attributes> {
        let node = self.number(name)?;
        self.attributes(node)
    }

    /// If the request is repeated, an earlier process can have done it.
    pub(crate) fn create(&mut self, name: &OsStr, is_repeated: bool) -> Result<Attributes> {
        let mut options = OpenOptions::new();
        options.write(true).create_new(!is_repeated).create(true).mode(0o644);
        // Not a file elsewhere, to which a symbolic link of this name leads.
        options.custom_flags(rustix::fs::OFlags::NOFOLLOW.bits().cast_signed());
        options.open(self.directory.join(name))?;
        self.look_up(name)
    }

    /// If the request is repeated, an earlier process can have done it.
    pub(crate) fn remove(&mut self, name: &OsStr, is_repeated: bool) -> Result<()> {
        match fs::remove_file(self.directory.join(name)) {
            Err(error) if !(is_repeated && error.kind() == io::ErrorKind::NotFound) => {
                return Err(error.into());
            }
            _ => {}
        }
        self.names.retain(|_, known| known != name);
        Ok(())
    }

    pub(crate) fn resize(&self, node: u64, size: Option<u64>) -> Result<Attributes> {
        if let Some(size) = size {
            self.open(node)?.set_len(size)?;
        }
        self.attributes(node)
    }

    /// Opens the file, and does not follow a symbolic link.
    fn open(&self, node: u64) -> Result<File> {
        let not_followed = rustix::fs::OFlags::NOFOLLOW.bits().cast_signed();
        let mut options = OpenOptions::new();
        options.read(true).write(true).custom_flags(not_followed);
        Ok(options.open(self.path(node)?)?)
    }

    pub(crate) fn read(&self, node: u64, offset: u64, length: usize) -> Result<Vec<u8>> {
        let file = self.open(node)?;
        let mut bytes = vec![0; length];
        let mut read = 0;
        while read < length {
            match file.read_at(&mut bytes[read..], offset + read as u64) {
                Ok(0) => break,
                Ok(count) => read += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
        bytes.truncate(read);
        Ok(bytes)
    }

    pub(crate) fn write(&self, node: u64, offset: u64, bytes: &[u8]) -> Result<usize> {
        self.open(node)?.write_all_at(bytes, offset)?;
        Ok(bytes.len())
    }

    pub(crate) fn sync(&self, node: u64) -> Result<()> {
        Ok(self.open(node)?.sync_all()?)
    }

    pub(crate) fn list(&mut self) -> Result<Vec<(u64, OsString)>> {
        let mut names = Vec::new();
        for entry in fs::read_dir(&self.directory)? {
            let entry = entry?;
            if entry.file_type()?.is_file() {
                names.push(entry.file_name());
            }
        }
        // The order is stable, so that the next READDIR continues where the last one stopped.
        names.sort();
        let own = [".", ".."].map(|name| (ROOT, name.into()));
        // A file that is removed meanwhile is left out.
        let files: Vec<_> =
            names.into_iter().filter_map(|name| Some((self.number(&name).ok()?, name))).collect();
        Ok(own.into_iter().chain(files).collect())
    }

    pub(crate) fn usage(&self) -> Result<Usage> {
        let found = rustix::fs::statvfs(&self.directory).map_err(io::Error::from)?;
        Ok(Usage {
            blocks: found.f_blocks,
            free: found.f_bfree,
            available: found.f_bavail,
            files: found.f_files,
            files_free: found.f_ffree,
            block_size: found.f_frsize as u32,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_an_earlier_process_has_done_is_done() {
        let directory = tempfile::tempdir().unwrap();
        let mut store = Store::new(directory.path().to_owned());
        let name = OsStr::new("file");
        let made = store.create(name, false).unwrap().node;
        assert!(store.create(name, false).is_err(), "it exists");
        assert_eq!(store.create(name, true).unwrap().node, made);
        store.remove(name, false).unwrap();
        assert!(store.remove(name, false).is_err(), "it is gone");
        store.remove(name, true).unwrap();
    }
}
