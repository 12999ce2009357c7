//! Objects that exist completely or not at all, even if this process is killed at any moment.
//!
//! An object is a directory, `ROOT/<id>`, with its record, `record.json`, and its content. It is created in
//! `ROOT/.new` and renamed when all of it is on the disk. A deletion first renames it into `ROOT/.old`.
//! Opening the store empties both directories. A record is kept by [`Records`], so it
//! is the old or the new one.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{self, Read as _};
use std::ops::Bound;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use csi_core::mount::Target;
use csi_core::records::Records;
use csi_core::{Error, IoContext as _, Result};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::kind::Kind;

/// The id of the one record in an object's directory.
const RECORD: &str = "record";
const NEW: &str = ".new";
const OLD: &str = ".old";

/// The record of an object.
pub(crate) trait Record: Serialize + DeserializeOwned + Clone + Send + Sync + 'static {
    /// The name in the object's create request, if it has one. Names are unique in a store.
    fn name(&self) -> Option<&str> {
        None
    }
}

/// The objects of one kind, on the disk and in memory. Memory is valid because only this process writes.
#[derive(Debug)]
pub(crate) struct Store<T> {
    root: PathBuf,
    entries: RwLock<Entries<T>>,
    /// Objects that are no longer visible, but whose content could not be removed completely.
    half_deleted: Mutex<BTreeMap<String, Arc<T>>>,
}

#[derive(Debug)]
struct Entries<T> {
    by_id: BTreeMap<String, Arc<Entry<T>>>,
    by_name: HashMap<String, String>,
    /// Objects on the disk whose records could not be read when the store was opened, and why.
    unreadable: BTreeMap<String, String>,
    /// Objects whose deletion could not be completed when the store was opened.
    undeleted: BTreeSet<String>,
}

impl<T> Default for Entries<T> {
    fn default() -> Self {
        Self {
            by_id: BTreeMap::new(),
            by_name: HashMap::new(),
            unreadable: BTreeMap::new(),
            undeleted: BTreeSet::new(),
        }
    }
}

/// A record on the disk. The id shows a record that is not its object's.
#[derive(Serialize, Deserialize)]
struct Stored<T> {
    #[serde(default)]
    id: Option<String>,
    #[serde(flatten)]
    record: T,
}

#[derive(Debug)]
struct Entry<T> {
    /// Held during a change of the record, from reading it until the new one is on the disk.
    update_lock: Mutex<()>,
    record: RwLock<Arc<T>>,
}

/// An object on the disk that is not visible in the store yet. Dropping it deletes it.
#[derive(Debug)]
pub(crate) struct NewObject<T> {
    id: String,
    record: T,
    place: PathBuf,
    /// Whether it has its name in the store, so that dropping it keeps it.
    kept: bool,
}

impl<T: Record> Store<T> {
    /// Opens the store of a directory. Half created or half deleted objects are removed.
    ///
    /// # Errors
    /// Those of the disk. An unreadable record is not an error: its object stays on the disk, invisible.
    pub(crate) fn open(root: PathBuf) -> Result<Self> {
        let mut entries = Entries::default();
        for name in [NEW, OLD] {
            let directory = root.join(name);
            // Access to the content is controlled where it is published, so this directory is private.
            fs::DirBuilder::new().recursive(true).mode(0o700).create(&directory).at("create", &directory)?;
            for entry in fs::read_dir(&directory).at("list", &directory)? {
                let entry = entry.at("list", &directory)?;
                if !remove_directory(&entry.path()) && name == OLD {
                    entries.undeleted.extend(entry.file_name().into_string().ok());
                }
            }
        }
        for entry in fs::read_dir(&root).at("list", &root)? {
            let name = entry.at("list", &root)?.file_name();
            let Some(id) = name.to_str().filter(|id| !id.starts_with('.')) else { continue };
            let place = root.join(id);
            match read_record::<T>(&place) {
                Ok(Some(record)) => entries.insert(id.to_owned(), record),
                Ok(None) => {}
                Err(why) => {
                    tracing::error!(
                        "{} is ignored, because its record can't be read: {why}",
                        place.display()
                    );
                    entries.unreadable.insert(id.to_owned(), why.to_string());
                }
            }
            if let Ok(directory) = File::open(&place)
                && place.is_dir()
            {
                record_in::<T>(Ok(directory), &place)?.remove_unfinished()?;
            }
        }
        Ok(Self { root, entries: RwLock::new(entries), half_deleted: Mutex::default() })
    }

    /// A store of a directory that another process writes to. Only its [places](Self::place) are known.
    pub(crate) fn of_another_process(root: PathBuf) -> Self {
        Self { root, entries: RwLock::default(), half_deleted: Mutex::default() }
    }

    /// The path of the object, whether it exists or not.
    pub(crate) fn place(&self, id: &str) -> PathBuf {
        self.root.join(id)
    }

    /// Returns the object, or `None` if it does not exist or its record can't be read. [`find`](Self::find)
    /// tells these apart.
    pub(crate) fn get(&self, id: &str) -> Option<Arc<T>> {
        self.read().by_id.get(id).map(|entry| entry.record())
    }

    /// Returns the object; `None` only if it does not exist. Use this where its absence matters: an object
    /// that could not be deleted completely still exists.
    ///
    /// # Errors
    /// When it is on the disk, but its record could not be read, or its deletion not be completed, when the
    /// store was opened.
    pub(crate) fn find(&self, id: &str) -> Result<Option<Arc<T>>> {
        let entries = self.read();
        if let Some(entry) = entries.by_id.get(id) {
            return Ok(Some(entry.record()));
        }
        if let Some(why) = entries.unreadable.get(id) {
            return Err(Error::Internal(format!("{why}. Then start the driver again").into()));
        }
        if entries.undeleted.contains(id) {
            let old = self.root.join(OLD).join(id);
            let text = format!("{} can't be removed: remove it, and start the driver again", old.display());
            return Err(Error::Internal(text.into()));
        }
        Ok(self.half_deleted().get(id).cloned())
    }

    /// Returns the object of this name; `None` only if there is none.
    ///
    /// # Errors
    /// When none is found, and the record of an object could not be read: it can be the one.
    pub(crate) fn by_name(&self, name: &str) -> Result<Option<(String, Arc<T>)>> {
        let entries = self.read();
        let found = entries.by_name.get(name).and_then(|id| entries.by_id.get_key_value(id));
        match (found, entries.unreadable.values().next()) {
            (Some((id, entry)), _) => Ok(Some((id.clone(), entry.record()))),
            (None, Some(why)) => {
                let text = format!("it can be the record of {name}: {why}. Then start the driver again");
                Err(Error::Internal(text.into()))
            }
            (None, None) => Ok(None),
        }
    }

    /// Calls `visit` with the objects in the range, in the order of their ids.
    pub(crate) fn visit<R>(
        &self,
        range: (Bound<&str>, Bound<&str>),
        visit: impl FnOnce(&mut dyn Iterator<Item = (&str, Arc<T>)>) -> R,
    ) -> R {
        let entries = self.read();
        let mut found = entries.by_id.range::<str, _>(range).map(|(id, entry)| (id.as_str(), entry.record()));
        visit(&mut found)
    }

    /// All objects, in the order of their ids.
    pub(crate) fn all(&self) -> Vec<(String, Arc<T>)> {
        self.from(None)
    }

    /// The objects whose ids are not less than `id`.
    pub(crate) fn from(&self, id: Option<&str>) -> Vec<(String, Arc<T>)> {
        let range = (id.map_or(Bound::Unbounded, Bound::Included), Bound::Unbounded);
        self.visit(range, |found| found.map(|(id, record)| (id.to_owned(), record)).collect())
    }

    /// Creates an object on the disk; `fill` writes the content into its directory. It becomes visible when
    /// it is [committed](Self::commit).
    pub(crate) fn make(
        &self,
        id: String,
        record: T,
        fill: impl FnOnce(&Path) -> Result<()>,
    ) -> Result<NewObject<T>> {
        let made = NewObject { place: self.root.join(NEW).join(&id), id, record, kept: false };
        fs::create_dir(&made.place).at("create", &made.place)?;
        fill(&made.place)?;
        write_record(&made.place, &made.id, made.record.clone())?;
        Ok(made)
    }

    /// Moves an object to its final place on the disk, where a later process finds it.
    pub(crate) fn move_to_place(&self, made: &mut NewObject<T>) -> Result<()> {
        let place = self.place(&made.id);
        fs::rename(&made.place, &place).at("rename to", &place)?;
        made.place = place;
        sync(&self.root)
    }

    /// Makes an object in its final place visible in this store.
    pub(crate) fn make_visible(&self, mut made: NewObject<T>) {
        made.kept = true;
        self.write().insert(made.id.clone(), made.record.clone());
    }

    /// Settles and shows an object.
    pub(crate) fn commit(&self, mut made: NewObject<T>) -> Result<()> {
        self.move_to_place(&mut made)?;
        self.make_visible(made);
        Ok(())
    }

    /// Takes over an object that a store of this process's former name left at `from`.
    pub(crate) fn take_over(&self, from: &Path, id: &str) -> Result<()> {
        let Some(record) = read_record(from)? else { return Ok(()) };
        self.commit(NewObject { id: id.to_owned(), record, place: from.to_owned(), kept: true })
    }

    /// Changes the record, on the disk and then in memory. If `change` fails, nothing changes. Returns `None`
    /// if the object does not exist.
    ///
    /// # Errors
    /// Those of `change`, of [`find`](Self::find) and of the disk.
    pub(crate) fn update<R>(&self, id: &str, change: impl FnOnce(&mut T) -> Result<R>) -> Result<Option<R>> {
        self.find(id)?;
        let Some(entry) = self.read().by_id.get(id).cloned() else { return Ok(None) };
        let _update_lock = entry.update_lock.lock().unwrap_or_else(PoisonError::into_inner);
        let mut record = T::clone(&entry.record());
        let answer = change(&mut record)?;
        write_record(&self.place(id), id, record.clone())?;
        *entry.record.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(record);
        Ok(Some(answer))
    }

    /// Deletes the object, which is no longer visible afterwards. If its content can't be removed completely,
    /// the same call tries it again.
    pub(crate) fn remove(&self, id: &str) -> Result<()> {
        // An object whose record can't be read is deleted too.
        let record = match self.find(id) {
            Ok(None) => return Ok(()),
            Ok(found) => found,
            Err(_) => None,
        };
        let gone = self.root.join(OLD).join(id);
        // From before, of an object with the same id.
        remove_tree(&gone)?;
        match fs::rename(self.place(id), &gone) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            renamed => renamed.at("rename", self.place(id))?,
        }
        sync(&self.root)?;
        self.write().forget(id);
        if let Err(error) = remove_tree(&gone) {
            match record {
                Some(record) => self.keep_half_deleted(id, record),
                None => {
                    self.write().undeleted.insert(id.to_owned());
                }
            }
            return Err(error);
        }
        self.half_deleted().remove(id);
        Ok(())
    }

    /// Lets [`find`](Self::find) return an object that is removed, because something that belongs to it is
    /// left.
    pub(crate) fn keep_half_deleted(&self, id: &str, record: Arc<T>) {
        self.half_deleted().insert(id.to_owned(), record);
    }

    fn half_deleted(&self) -> MutexGuard<'_, BTreeMap<String, Arc<T>>> {
        self.half_deleted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn read(&self) -> RwLockReadGuard<'_, Entries<T>> {
        self.entries.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Entries<T>> {
        self.entries.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T: Record> Entries<T> {
    fn insert(&mut self, id: String, record: T) {
        if let Some(name) = record.name() {
            self.by_name.insert(name.to_owned(), id.clone());
        }
        let entry = Entry { update_lock: Mutex::default(), record: RwLock::new(Arc::new(record)) };
        self.by_id.insert(id, Arc::new(entry));
    }

    fn forget(&mut self, id: &str) {
        self.unreadable.remove(id);
        self.undeleted.remove(id);
        if let Some(name) = self.by_id.remove(id).and_then(|entry| entry.record().name().map(str::to_owned)) {
            self.by_name.remove(&name);
        }
    }
}

impl<T> Entry<T> {
    fn record(&self) -> Arc<T> {
        Arc::clone(&self.record.read().unwrap_or_else(PoisonError::into_inner))
    }
}

impl<T> NewObject<T> {
    /// The current path of the object.
    pub(crate) fn place(&self) -> &Path {
        &self.place
    }
}

impl<T> Drop for NewObject<T> {
    fn drop(&mut self) {
        if !self.kept {
            remove_directory(&self.place);
        }
    }
}

/// Reads the record of the object at a place from the disk, for a process that does not write there; `None` if there
/// is no object.
///
/// # Errors
/// When the record of an existing object can't be read, or is another object's.
pub(crate) fn read_record<T: Record>(place: &Path) -> Result<Option<T>> {
    let records = match File::open(place) {
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            return Ok(None);
        }
        Ok(_) if !place.is_dir() => {
            let text = format!("{}: is not the directory of an object; move it away", place.display());
            return Err(Error::Internal(text.into()));
        }
        directory => record_in::<T>(directory, place)?,
    };
    let refuse = |why: String| {
        let file = place.join("record.json");
        let text = format!("{}: {why}; restore the file", file.display());
        Err(Error::Internal(text.into()))
    };
    let id = place.file_name().and_then(|name| name.to_str());
    match records.get(RECORD)? {
        Some(Stored { id: Some(other), .. }) if Some(&*other) != id => {
            refuse(format!("is the record of {other}"))
        }
        Some(stored) => Ok(Some(stored.record)),
        // Not if it was deleted meanwhile.
        None if place.try_exists().at("look for", place)? => refuse("does not exist".to_owned()),
        None => Ok(None),
    }
}

fn write_record<T: Record>(place: &Path, id: &str, record: T) -> Result<()> {
    record_in(File::open(place), place)?.put(RECORD, &Stored { id: Some(id.to_owned()), record })
}

fn record_in<T: Record>(directory: io::Result<File>, place: &Path) -> Result<Records<Stored<T>>> {
    Records::in_directory(directory.at("open", place)?, place)
}

/// Returns 128 random bits as text that is valid as a file name. An id does not contain the object's name:
/// the name can be used again after a deletion, and late calls for the old object must not affect the new.
pub(crate) fn new_id() -> Result<String> {
    const RANDOM: &str = "/dev/urandom";
    let mut bytes = [0; 16];
    File::open(RANDOM).at("open", RANDOM)?.read_exact(&mut bytes).at("read", RANDOM)?;
    Ok(bytes.iter().fold(String::with_capacity(32), |mut text, byte| {
        // Writing to a String can't fail.
        let _ = write!(text, "{byte:02x}");
        text
    }))
}

/// Syncs a file, or the names in a directory, to the disk.
pub(crate) fn sync(path: &Path) -> Result<()> {
    File::open(path).at("open", path)?.sync_all().at("sync", path)
}

/// Deletes a directory that is no longer visible. Mounts in it are left alone. False if it stays.
fn remove_directory(directory: &Path) -> bool {
    let removed = remove_tree(directory);
    if let Err(error) = &removed {
        tracing::warn!("can't be removed before the next start: {error}");
    }
    removed.is_ok()
}

/// The content first: a directory gives the limit of its size back if it is the top of what is removed.
fn remove_tree(place: &Path) -> Result<()> {
    for directory in [&Kind::Directory.content(place), place] {
        Target::new(directory)?.remove_tree()?;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
