//! A driver's own small files and directories, in places that others can write to.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::BorrowedFd;
use std::os::unix::ffi::OsStrExt;

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, RenameFlags};
use rustix::io::Errno;
use rustix::rand::GetRandomFlags;

use crate::place::target::name_of;
use crate::{Created, Error, ErrorKind, Removed, Result, Target};

const READ: &str = "read";
const WRITE: &str = "write";
const RENAME: &str = "rename";
const MODE: &str = "change the mode of";

impl Target {
    /// Reads the file, if it exists. A symbolic link is not followed, and a file of more than `limit` bytes
    /// is refused.
    ///
    /// # Errors
    /// - [`ErrorKind::InvalidInput`]: it is not a regular file.
    /// - [`ErrorKind::OutOfRange`]: it is larger than `limit`.
    pub fn read_file(&self, limit: usize) -> Result<Option<Vec<u8>>> {
        let Some(facts) = self.facts(READ)? else { return Ok(None) };
        self.require_file(READ, facts.file_type)?;
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let file = match rustix::fs::openat(self.parent(READ)?, self.name(), flags, Mode::empty()) {
            Err(Errno::NOENT) => return Ok(None),
            opened => File::from(opened.map_err(|error| self.error(READ, error))?),
        };
        let mut content = Vec::new();
        let read_limit = u64::try_from(limit).unwrap_or(u64::MAX).saturating_add(1);
        file.take(read_limit).read_to_end(&mut content).map_err(|error| self.error(READ, error))?;
        if content.len() > limit {
            let reason = format!("it has more than {limit} bytes");
            return Err(Error::new(ErrorKind::OutOfRange, READ, reason).at(self.path()));
        }
        Ok(Some(content))
    }

    /// Creates the file with this content, or replaces the existing one, atomically and on stable storage.
    ///
    /// A reader finds the old or the new content, also after a crash and while others replace the file too,
    /// for example on other nodes of a shared filesystem. The mode is 0600. A process that is killed
    /// meanwhile can leave a file `.new-…` in the same directory.
    ///
    /// # Errors
    /// - [`ErrorKind::InvalidInput`]: something other than a regular file exists there.
    /// - [`ErrorKind::NoSpace`]: the filesystem has no space left.
    pub fn replace_file(&self, content: &[u8]) -> Result<()> {
        if let Some(facts) = self.facts(WRITE)? {
            self.require_file(WRITE, facts.file_type)?;
        }
        let parent = self.parent(WRITE)?;
        let new = self.new_name()?;
        let written = write_new(parent, &new, content)
            .and_then(|()| Ok(rustix::fs::renameat(parent, &new, parent, self.name())?));
        if let Err(error) = written {
            let _ = rustix::fs::unlinkat(parent, &new, AtFlags::empty());
            return Err(self.error(WRITE, error));
        }
        self.sync_parent(WRITE)
    }

    /// Removes the file, whatever its content.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] if it is not a regular file.
    pub fn remove_file(&self) -> Result<Removed> {
        let operation = "remove";
        let Some(facts) = self.facts(operation)? else { return Ok(Removed::WasAbsent) };
        self.require_file(operation, facts.file_type)?;
        match rustix::fs::unlinkat(self.parent(operation)?, self.name(), AtFlags::empty()) {
            Ok(()) => self.sync_parent(operation).map(|()| Removed::Removed),
            Err(Errno::NOENT) => Ok(Removed::WasAbsent),
            Err(error) => Err(self.error(operation, error)),
        }
    }

    /// Returns the names in the directory, unordered. The list is empty if the directory does not exist.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] if it is not a directory.
    #[doc(alias = "readdir")]
    pub fn names(&self) -> Result<Vec<OsString>> {
        const LIST: &str = "list";
        if self.facts(LIST)?.is_none() {
            return Ok(Vec::new());
        }
        let failed = |error: Errno| self.error(LIST, error);
        let mut names = Vec::new();
        for entry in Dir::read_from(self.open_directory(LIST)?).map_err(failed)? {
            let name = OsStr::from_bytes(entry.map_err(failed)?.file_name().to_bytes()).to_owned();
            if name != "." && name != ".." {
                names.push(name);
            }
        }
        Ok(names)
    }

    /// Renames a directory or file to a target on the same mount that does not exist yet.
    ///
    /// If the filesystem cannot guarantee that (NFS has no `RENAME_NOREPLACE`), the call checks before it
    /// renames. An empty directory that appears in between is replaced; nothing that holds data is.
    ///
    /// # Errors
    /// - [`ErrorKind::Busy`]: the new name exists.
    /// - [`ErrorKind::NotFound`]: there is nothing to rename.
    #[doc(alias = "renameat2")]
    pub fn rename_to(&self, to: &Target) -> Result<()> {
        let (from, onto) = (self.parent(RENAME)?, to.parent(RENAME)?);
        let taken = || Error::new(ErrorKind::Busy, RENAME, "something exists there already").at(to.path());
        let renamed =
            match rustix::fs::renameat_with(from, self.name(), onto, to.name(), RenameFlags::NOREPLACE) {
                Err(Errno::INVAL | Errno::NOSYS) => rename_looking(self, to)?,
                renamed => renamed,
            };
        match renamed {
            Err(Errno::EXIST | Errno::NOTEMPTY) => Err(taken()),
            Err(error) => {
                Err(self.error(RENAME, error).add_reason(format_args!("to {}", to.path().display())))
            }
            Ok(()) => to.sync_parent(RENAME).and_then(|()| self.sync_parent(RENAME)),
        }
    }

    /// Sets the permissions of a directory, regardless of the umask.
    ///
    /// # Errors
    /// - [`ErrorKind::InvalidInput`]: it is not a directory.
    /// - [`ErrorKind::PermissionDenied`]: the process is not allowed to change it.
    #[doc(alias = "fchmod")]
    pub fn set_directory_mode(&self, mode: u32) -> Result<()> {
        let directory = self.open_directory(MODE)?;
        let changed = rustix::fs::fchmod(directory, Mode::from_raw_mode(mode));
        changed.map_err(|error| self.error(MODE, error))
    }

    /// Creates the directory with these permissions. An existing directory is left as it is.
    ///
    /// # Errors
    /// Those of [`create_dir`](Self::create_dir).
    pub fn create_dir_with_mode(&self, mode: u32) -> Result<Created> {
        let created = self.create_dir()?;
        if created == Created::Created {
            self.set_directory_mode(mode)?;
        }
        Ok(created)
    }

    /// A unique name: with a shared name, another writer's half-written file could be put in place.
    fn new_name(&self) -> Result<OsString> {
        let mut random = [0; 8];
        rustix::rand::getrandom(&mut random, GetRandomFlags::empty())
            .map_err(|error| self.error(WRITE, error))?;
        Ok(format!(".new-{:016x}", u64::from_ne_bytes(random)).into())
    }

    fn require_file(&self, operation: &'static str, found: FileType) -> Result<()> {
        if found == FileType::RegularFile {
            return Ok(());
        }
        let reason = format!("it is {}", name_of(found));
        Err(Error::new(ErrorKind::InvalidInput, operation, reason).at(self.path()))
    }

    /// Syncs the parent directory, so that names survive a loss of power.
    fn sync_parent(&self, operation: &'static str) -> Result<()> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let parent = rustix::fs::openat(self.parent(operation)?, ".", flags, Mode::empty());
        match parent.and_then(rustix::fs::fsync) {
            // Filesystems that have nothing to sync.
            Ok(()) | Err(Errno::INVAL) => Ok(()),
            Err(error) => Err(self.error(operation, error)),
        }
    }
}

fn write_new(directory: BorrowedFd<'_>, name: &OsStr, content: &[u8]) -> std::io::Result<()> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut file = File::from(rustix::fs::openat(directory, name, flags, Mode::RUSR | Mode::WUSR)?);
    file.write_all(content)?;
    file.sync_all()
}

/// The fallback without `RENAME_NOREPLACE`. A file is hard-linked to its new name, because a link replaces
/// nothing.
fn rename_looking(from: &Target, onto: &Target) -> Result<rustix::io::Result<()>> {
    let (directory, other) = (from.parent(RENAME)?, onto.parent(RENAME)?);
    let Some(facts) = from.facts(RENAME)? else { return Ok(Err(Errno::NOENT)) };
    if onto.facts(RENAME)?.is_some() {
        return Ok(Err(Errno::EXIST));
    }
    if facts.file_type == FileType::Directory {
        return Ok(rustix::fs::renameat(directory, from.name(), other, onto.name()));
    }
    let linked = rustix::fs::linkat(directory, from.name(), other, onto.name(), AtFlags::empty());
    Ok(linked.and_then(|()| rustix::fs::unlinkat(directory, from.name(), AtFlags::empty())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Root;

    /// As on NFS, which has no `RENAME_NOREPLACE`.
    #[test]
    fn a_rename_that_must_not_replace_replaces_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let root = Root::open(directory.path()).unwrap();
        let [from, to, taken] = ["from", "to", "taken"].map(|name| root.target(name).unwrap());
        taken.replace_file(b"theirs").unwrap();
        assert_eq!(rename_looking(&from, &to).unwrap(), Err(Errno::NOENT));
        from.replace_file(b"ours").unwrap();
        assert_eq!(rename_looking(&from, &taken).unwrap(), Err(Errno::EXIST));
        assert_eq!(rename_looking(&from, &to).unwrap(), Ok(()));
        let read = |target: &Target| target.read_file(10).unwrap();
        assert_eq!(
            [read(&from), read(&to), read(&taken)],
            [None, Some(b"ours".into()), Some(b"theirs".into())]
        );
        from.create_dir().unwrap();
        assert_eq!(rename_looking(&from, &to).unwrap(), Err(Errno::EXIST));
        to.remove_file().unwrap();
        assert_eq!(rename_looking(&from, &to).unwrap(), Ok(()));
        assert!(to.is_directory().unwrap());
    }
}
