//! The files, by node number.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::PathBuf;

use crate::answer::Errno;

/// The node number of the directory itself, fixed by the protocol.
pub(crate) const ROOT: u64 = 1;

type Result<T> = std::result::Result<T, Errno>;

/// The directory, and the node number of each of its files. A number is never reused.
pub(crate) struct Store {
    directory: PathBuf,
    names: HashMap<u64, OsString>,
    numbers: HashMap<OsString, u64>,
    next: u64,
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
    pub(crate) fn new(directory: PathBuf) -> Self {
        Self { directory, names: HashMap::new(), numbers: HashMap::new(), next: ROOT + 1 }
    }

    fn path(&self, node: u64) -> Result<PathBuf> {
        match self.names.get(&node) {
            _ if node == ROOT => Ok(self.directory.clone()),
            Some(name) => Ok(self.directory.join(name)),
            None => Err(Errno::NOT_FOUND),
        }
    }

    fn number(&mut self, name: &OsStr) -> u64 {
        if let Some(number) = self.numbers.get(name) {
            return *number;
        }
        let number = self.next;
        self.next += 1;
        self.names.insert(number, name.to_owned());
        self.numbers.insert(name.to_owned(), number);
        number
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
        let node = self.number(name);
        self.attributes(node).inspect_err(|_| self.forget(name))
    }

    pub(crate) fn create(&mut self, name: &OsStr) -> Result<Attributes> {
        OpenOptions::new().write(true).create_new(true).mode(0o644).open(self.directory.join(name))?;
        self.look_up(name)
    }

    pub(crate) fn remove(&mut self, name: &OsStr) -> Result<()> {
        fs::remove_file(self.directory.join(name))?;
        self.forget(name);
        Ok(())
    }

    fn forget(&mut self, name: &OsStr) {
        if let Some(number) = self.numbers.remove(name) {
            self.names.remove(&number);
        }
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
        let (file, mut bytes, mut read) = (self.open(node)?, vec![0; length], 0);
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
        let files = names.into_iter().map(|name| (self.number(&name), name));
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
