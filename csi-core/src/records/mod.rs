//! A driver's records, kept durably: one file for each, in one directory.
//!
//! `file_name.rs` is how an id becomes a file's name, `lock.rs` keeps a second process away, `spare.rs` is a change on
//! a full disk. It imports errors, and the encoding of ids.

mod file_name;
mod lock;
mod spare;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ffi::CStr;
use std::fmt;
use std::fs::{DirBuilder, File};
use std::io::{Read as _, Write as _};
use std::marker::PhantomData;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{AtFlags, Dir, FileType, FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::error::{Error, IoContext as _, Reason, Result};
pub use lock::DirectoryLock;

/// The beginning of the names of files that are being written.
const NEW: &str = ".new-";

/// A durable store of a driver's records: what it must know again after a restart about its volumes, snapshots
/// or nodes.
///
/// Each record is one JSON file in one directory, with mode 0600, named after its id. A change is on the disk
/// when the method returns, and a process that is killed, or a power failure, at any moment leaves either the
/// old record or the new one. A file that is not a record of the store, or is that of another id, is reported by its
/// path, and never changed or deleted.
///
/// All methods block: call them in [`blocking`](crate::blocking()). Clones are cheap, and use the same
/// directory. The framework runs one operation at a time on a volume, so a driver that reads, changes and
/// writes the record of the request's own volume needs no lock of its own.
///
/// ```
/// use csi_core::controller::CreateRecord;
/// use csi_core::records::Records;
/// use csi_core::{Error, Result, VolumeId};
/// use serde::{Deserialize, Serialize};
///
/// #[derive(Serialize, Deserialize)]
/// struct Lun {
///     target: String,
///     number: u32,
/// }
///
/// # fn main() -> Result<()> {
/// # let directory = tempfile::tempdir()?;
/// # let directory = directory.path().join("volumes");
/// let luns: Records<Lun> = Records::open(&directory)?; // for example /var/lib/san.csi.example.org/volumes
///
/// let id = VolumeId::new("pvc-1")?;
/// luns.put(&id, &Lun { target: "a".to_owned(), number: 7 })?;
/// assert_eq!(luns.get(&id)?.unwrap().number, 7);
///
/// let found = luns.list()?;
/// for error in &found.unreadable {
///     eprintln!("{error}"); // /var/lib/…/pvc-2.json: is not a record of this driver: …
/// }
/// assert_eq!(found.records["pvc-1"].target, "a");
/// luns.remove(&id)?;
/// # Ok(()) }
/// ```
///
/// # On a full disk
/// What gives space back needs none: a record is removed, and a record that exists is replaced by one of at most 4 KiB.
/// For that the directory has a spare file of this size, `.spare`, from its first record on. A new record needs space,
/// and so does every change on a filesystem that writes nothing in place (btrfs). A record that does not change is not
/// written.
///
/// # Ids and file names
/// An id is any text of 1 to 186 bytes, such as every id and name of the spec but long [node
/// ids](crate::types::NodeId). `/`, `%`, control characters, and a `.` or `=` at the beginning are
/// percent-encoded. An id that becomes too long by that is written as `=` and base64. So each id has one
/// file, and each file one id. The filesystem must tell upper from lower case.
pub struct Records<T> {
    directory: Arc<Directory>,
    records: PhantomData<fn(T) -> T>,
}

/// The content of a file. The id shows a copy of another record.
#[derive(Serialize, Deserialize)]
struct Stored<'a, T> {
    id: Cow<'a, str>,
    record: T,
}

#[derive(Debug)]
struct Directory {
    fd: OwnedFd,
    path: PathBuf,
    /// The lock of a store that this process alone uses.
    _lock: Option<DirectoryLock>,
}

/// What [`Records::list`] found.
#[derive(Debug)]
#[non_exhaustive]
pub struct RecordList<T> {
    /// The records, by id.
    pub records: BTreeMap<String, T>,
    /// An error for each file that is not a readable record; it names the path. Such a file can be the record
    /// of an object that exists. Do not delete what it could describe.
    pub unreadable: Vec<Error>,
}

impl<T> Records<T> {
    /// The size limit of a record's JSON in bytes.
    const MAX_BYTES: usize = 1 << 20;

    /// Opens the store in this directory for this process alone, and creates the directory with mode 0700 if
    /// it does not exist. Files that a killed process had not finished are removed.
    ///
    /// It waits up to ten seconds for a process that ends and still has the store open.
    ///
    /// # Errors
    /// - [`Error::Unhealthy`]: another process uses the store.
    /// - [`Error::NoSpace`] for a full disk, and [`Error::Internal`] for other failures; both name the path.
    pub fn open(directory: impl AsRef<Path>) -> Result<Self> {
        let path = directory.as_ref();
        DirBuilder::new().recursive(true).mode(0o700).create(path).at("create", path)?;
        let lock = DirectoryLock::acquire(path)?;
        let this = Self::new(&File::open(path).at("open", path)?, path, Some(lock))?;
        this.remove_unfinished()?;
        Ok(this)
    }

    /// Uses an open directory, which other processes can use at the same time: a directory on a server, or one
    /// that was reached by a safe path. `path` is for messages.
    ///
    /// The last writer of a record wins. Files that killed processes had not finished stay until
    /// [`remove_unfinished`](Self::remove_unfinished); their names begin with `.new-`.
    ///
    /// # Errors
    /// [`Error::Internal`] when the directory can't be read.
    pub fn in_directory(directory: impl AsFd, path: impl Into<PathBuf>) -> Result<Self> {
        Self::new(&directory, path, None)
    }

    fn new(directory: &impl AsFd, path: impl Into<PathBuf>, lock: Option<DirectoryLock>) -> Result<Self> {
        let path = path.into();
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let fd = rustix::fs::openat(directory, ".", flags, Mode::empty()).at("open", &path)?;
        Ok(Self { directory: Arc::new(Directory { fd, path, _lock: lock }), records: PhantomData })
    }

    /// Removes the files that killed processes had not finished, also where other processes write at the same time:
    /// a writer keeps its file locked (`flock(2)`). On a filesystem without such locks they stay.
    ///
    /// # Errors
    /// [`Error::Internal`] when the directory can't be read, or such a file can't be removed.
    pub fn remove_unfinished(&self) -> Result<()> {
        let names = self.directory.names()?;
        names
            .iter()
            .filter(|name| name.starts_with(NEW))
            .try_for_each(|name| self.directory.unlink_unlocked(name))
    }

    /// The directory of the store.
    pub fn path(&self) -> &Path {
        &self.directory.path
    }

    /// Returns the ids of all records, also of unreadable ones, unordered.
    ///
    /// # Errors
    /// [`Error::Internal`] when the directory can't be read.
    pub fn ids(&self) -> Result<Vec<String>> {
        Ok(self.directory.names()?.iter().filter_map(|name| file_name::decode(name)).collect())
    }

    /// Removes a record, and returns whether it existed. The content of its file does not matter.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for an id that is empty or too long; [`Error::Internal`] for a failure of the
    /// disk.
    pub fn remove(&self, id: impl AsRef<str>) -> Result<bool> {
        let removed = self.directory.unlink(&file_name::encode(id.as_ref())?)?;
        self.directory.sync()?;
        Ok(removed)
    }
}

impl<T: DeserializeOwned> Records<T> {
    /// Returns the record with this id, or `None` if it does not exist.
    ///
    /// # Errors
    /// [`Error::Internal`] naming the file, for a file that is not a record of this type and id, is larger than
    /// 1 MiB, or can't be read. The object of the record can exist.
    pub fn get(&self, id: impl AsRef<str>) -> Result<Option<T>> {
        let id = id.as_ref();
        let name = file_name::encode(id)?;
        let Some(content) = self.directory.read(&name, Self::MAX_BYTES)? else { return Ok(None) };
        let stored: Stored<'_, T> = serde_json::from_slice(&content).map_err(|error| {
            Error::Internal(Reason::because(unreadable(&self.file(&name), &error.to_string()), error))
        })?;
        if stored.id != id {
            let why = format!("it is the record of {:?}", stored.id);
            return Err(Error::Internal(unreadable(&self.file(&name), &why).into()));
        }
        Ok(Some(stored.record))
    }

    /// Reads all records. A file that is not a readable record does not hide the others. Files whose names
    /// begin with a dot are not looked at.
    ///
    /// # Errors
    /// [`Error::Internal`] when the directory can't be read.
    pub fn list(&self) -> Result<RecordList<T>> {
        let mut list = RecordList { records: BTreeMap::new(), unreadable: Vec::new() };
        for name in self.directory.names()?.iter().filter(|name| !name.starts_with('.')) {
            let Some(id) = file_name::decode(name) else {
                let text = format!("{}: is not the name of a record", self.file(name).display());
                list.unreadable.push(Error::Internal(text.into()));
                continue;
            };
            match self.get(&id) {
                Ok(Some(record)) => drop(list.records.insert(id, record)),
                // It was removed meanwhile.
                Ok(None) => {}
                Err(error) => list.unreadable.push(error),
            }
        }
        Ok(list)
    }

    /// The file of a record, for messages.
    #[cfg(all(feature = "mount", target_os = "linux"))]
    pub(crate) fn file_of(&self, id: impl AsRef<str>) -> Result<PathBuf> {
        Ok(self.file(&file_name::encode(id.as_ref())?))
    }

    fn file(&self, name: &str) -> PathBuf {
        self.directory.path.join(name)
    }
}

impl<T: Serialize> Records<T> {
    /// Creates the record of this id, or replaces it.
    ///
    /// # Errors
    /// - [`Error::InvalidArgument`]: the id is empty or too long.
    /// - [`Error::NoSpace`]: the disk is full, and the record is new or has more than 4 KiB. The old record stays.
    /// - [`Error::Internal`]: another failure of the disk, or a record of more than
    ///   1 MiB. Usually the old record stays; after a failed sync of the directory the
    ///   new one can be visible.
    pub fn put(&self, id: impl AsRef<str>, record: &T) -> Result<()> {
        let (name, content) = Self::encoded(id.as_ref(), record)?;
        let directory = &*self.directory;
        if directory.has(&name, &content) {
            return directory.sync();
        }
        match directory.write(&name, &content, Directory::rename) {
            Err(full @ Error::NoSpace(_)) => {
                directory.replace_in_spare(&name, &content)?.ok_or(full)?;
            }
            written => written?,
        }
        directory.sync()
    }

    /// Creates the record of this id, if none exists, and returns whether it did. Of several processes that
    /// create one record, one succeeds. The filesystem must have hard links.
    ///
    /// # Errors
    /// Those of [`put`](Self::put).
    pub fn create(&self, id: impl AsRef<str>, record: &T) -> Result<bool> {
        let (name, content) = Self::encoded(id.as_ref(), record)?;
        let created = self.directory.write(&name, &content, Directory::link)?;
        self.directory.sync()?;
        Ok(created)
    }

    /// The name and the content of a record's file.
    fn encoded(id: &str, record: &T) -> Result<(String, Vec<u8>)> {
        let name = file_name::encode(id)?;
        let stored = Stored { id: Cow::Borrowed(id), record };
        let content = serde_json::to_vec_pretty(&stored).map_err(Error::internal)?;
        if content.len() > Self::MAX_BYTES {
            let size = content.len();
            let limit = Self::MAX_BYTES;
            let text = format!("the record of {id} has {size} bytes, and the limit is {limit}");
            return Err(Error::Internal(text.into()));
        }
        Ok((name, content))
    }
}

/// The steps of a change. A process can be killed between any two of them.
impl Directory {
    /// Whether the file is there with this content.
    fn has(&self, name: &str, content: &[u8]) -> bool {
        self.read(name, content.len()).is_ok_and(|found| found.is_some_and(|found| found == content))
    }

    /// Writes a new file, and gives it its place.
    fn write<R>(
        &self,
        name: &str,
        content: &[u8],
        place: impl FnOnce(&Self, &str, &str) -> Result<R>,
    ) -> Result<R> {
        self.reserve();
        let (new, file) = self.create_new()?;
        let placed = self.fill(&new, &file, content).and_then(|()| place(self, &new, name));
        if placed.is_err() {
            // On a full disk, the unfinished file would keep space that is needed.
            let _ = self.unlink(&new);
        }
        placed
    }

    /// Creates a file with a name that nobody else uses.
    fn create_new(&self) -> Result<(String, File)> {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        step("create");
        loop {
            let number = NUMBER.fetch_add(1, Ordering::Relaxed);
            let name = format!("{NEW}{}-{number}", std::process::id());
            match rustix::fs::openat(&self.fd, &*name, flags, Mode::RUSR | Mode::WUSR) {
                // A killed process, or one of another node, had this number.
                Err(Errno::EXIST) => {}
                opened => {
                    let file = opened.at("create", self.path.join(&name))?;
                    // Another process can take it for unfinished until it is locked, and remove it.
                    if lock_new(&file) != Locked::ByOther && self.is_at(&file, &name)? {
                        return Ok((name, File::from(file)));
                    }
                }
            }
        }
    }

    /// Removes a file that no process is writing.
    fn unlink_unlocked(&self, name: &str) -> Result<()> {
        // For writing: some filesystems lock nothing else exclusively.
        let flags = OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let file = match rustix::fs::openat(&self.fd, name, flags, Mode::empty()) {
            // It is none of ours, or is gone.
            Err(Errno::NOENT | Errno::LOOP | Errno::ISDIR | Errno::NXIO) => return Ok(()),
            opened => opened.at("open", self.path.join(name))?,
        };
        match lock_new(&file) {
            Locked::ByUs if self.is_at(&file, name)? => self.unlink(name).map(drop),
            _ => Ok(()),
        }
    }

    /// Whether this open file has this name now.
    fn is_at(&self, file: &impl AsFd, name: &str) -> Result<bool> {
        let path = self.path.join(name);
        let own = rustix::fs::fstat(file).at("look at", &path)?;
        match rustix::fs::statat(&self.fd, name, AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT) => Ok(false),
            found => found.at("look at", &path).map(|found| found.st_ino == own.st_ino),
        }
    }

    fn fill(&self, name: &str, mut file: &File, content: &[u8]) -> Result<()> {
        step("write");
        file.write_all(content).at("write", self.path.join(name))?;
        step("sync file");
        file.sync_all().at("sync", self.path.join(name))
    }

    fn rename(&self, from: &str, to: &str) -> Result<()> {
        step("rename");
        rustix::fs::renameat(&self.fd, from, &self.fd, to).at("rename to", self.path.join(to))
    }

    /// Gives the file its name, unless the name is taken.
    fn link(&self, from: &str, to: &str) -> Result<bool> {
        step("link");
        let linked = match rustix::fs::linkat(&self.fd, from, &self.fd, to, AtFlags::empty()) {
            Err(Errno::EXIST) => false,
            linked => linked.at("link to", self.path.join(to)).map(|()| true)?,
        };
        self.unlink(from)?;
        Ok(linked)
    }

    /// Removes the file, and returns whether it existed.
    fn unlink(&self, name: &str) -> Result<bool> {
        step("unlink");
        match rustix::fs::unlinkat(&self.fd, name, AtFlags::empty()) {
            Err(Errno::NOENT) => Ok(false),
            removed => removed.at("remove", self.path.join(name)).map(|()| true),
        }
    }

    /// Makes the names durable.
    fn sync(&self) -> Result<()> {
        step("sync directory");
        match rustix::fs::fsync(&self.fd) {
            // Filesystems that have nothing to sync.
            Err(Errno::INVAL) => Ok(()),
            synced => synced.at("sync", &self.path),
        }
    }

    fn read(&self, name: &str, limit: usize) -> Result<Option<Vec<u8>>> {
        // NONBLOCK: a pipe that somebody put there has no end.
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let path = self.path.join(name);
        let refuse = |why: &str| Err(Error::Internal(unreadable(&path, why).into()));
        let file = match rustix::fs::openat(&self.fd, name, flags, Mode::empty()) {
            Err(Errno::NOENT) => return Ok(None),
            // A symbolic link, or a socket.
            Err(Errno::LOOP | Errno::NXIO) => return refuse("it is not a file"),
            opened => opened.at("read", &path)?,
        };
        let found = rustix::fs::fstat(&file).at("read", &path)?;
        if FileType::from_raw_mode(found.st_mode) != FileType::RegularFile {
            return refuse("it is not a file");
        }
        let file = File::from(file);
        let mut content = Vec::new();
        (&file).take(limit as u64 + 1).read_to_end(&mut content).at("read", &path)?;
        // It was replaced meanwhile, and can be the spare file that somebody writes into.
        if !self.is_at(&file, name)? {
            return self.read(name, limit);
        }
        if content.len() > limit {
            return refuse(&format!("it has more than {limit} bytes"));
        }
        Ok(Some(content))
    }

    /// The names in the directory. A name that is not UTF-8 is not ours, and is returned as it prints.
    fn names(&self) -> Result<Vec<String>> {
        let names = Dir::read_from(&self.fd).and_then(|entries| {
            let name = |name: &CStr| match name.to_str() {
                Ok(text) => text.to_owned(),
                Err(_) => format!("{} (not UTF-8)", name.to_string_lossy()),
            };
            let names = entries.map(|entry| Ok(name(entry?.file_name())));
            names.collect::<Result<Vec<_>, Errno>>()
        });
        let names = names.at("list", &self.path)?;
        Ok(names.into_iter().filter(|name| name != "." && name != "..").collect())
    }
}

#[derive(PartialEq, Eq)]
enum Locked {
    ByUs,
    ByOther,
    Unsupported,
}

/// Locks a file that is being written, or was. The lock ends with the process.
fn lock_new(file: &OwnedFd) -> Locked {
    loop {
        return match rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Locked::ByUs,
            Err(Errno::INTR) => continue,
            Err(Errno::WOULDBLOCK) => Locked::ByOther,
            Err(_) => Locked::Unsupported,
        };
    }
}

/// The message about a record that can't be read, with its repair.
pub(crate) fn unreadable(file: &Path, why: &str) -> String {
    let file = file.display();
    format!(
        "{file}: is not a record of this driver: {why}; restore the file, or remove it when nothing of its object is left"
    )
}

impl<T> Clone for Records<T> {
    fn clone(&self) -> Self {
        Self { directory: Arc::clone(&self.directory), records: PhantomData }
    }
}

impl<T> fmt::Debug for Records<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Records").field(&self.directory.path).finish()
    }
}

#[cfg(not(test))]
fn step(_: &'static str) {}

#[cfg(test)]
use tests::step;

#[cfg(test)]
mod tests;
