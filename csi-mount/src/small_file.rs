//! A driver's own files and directories in a place that others can write to as well.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::ffi::OsStrExt;

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, RenameFlags};
use rustix::io::Errno;

use crate::target::name_of;
use crate::{Created, Error, ErrorKind, Removed, Result, Target};

const READ: &str = "read";
const WRITE: &str = "write";
const RENAME: &str = "rename";
const MODE: &str = "change the mode of";

impl Target {
    /// What is in the file, if it is there; a symbolic link is not followed, and no more than `most` bytes are read.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] when it is no regular file; [`ErrorKind::OutOfRange`] when it is larger.
    pub fn read_file(&self, most: usize) -> Result<Option<Vec<u8>>> {
        let Some(facts) = self.facts(READ)? else { return Ok(None) };
        self.require_file(READ, facts.file_type)?;
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let file = match rustix::fs::openat(self.parent(READ)?, self.name(), flags, Mode::empty()) {
            Err(Errno::NOENT) => return Ok(None),
            opened => File::from(opened.map_err(|error| self.error(READ, error))?),
        };
        let mut content = Vec::new();
        let limit = u64::try_from(most).unwrap_or(u64::MAX).saturating_add(1);
        file.take(limit).read_to_end(&mut content).map_err(|error| self.error(READ, error))?;
        if content.len() > most {
            let reason = format!("it has more than {most} bytes");
            return Err(Error::new(ErrorKind::OutOfRange, READ, reason).at(self.path()));
        }
        Ok(Some(content))
    }

    /// Makes the file with this content, or replaces the one that is there, in one step and on stable storage: whoever
    /// reads it finds the one or the other, also after a crash. Mode 0600.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] when something else than a regular file is there; [`ErrorKind::NoSpace`].
    pub fn replace_file(&self, content: &[u8]) -> Result<()> {
        if let Some(facts) = self.facts(WRITE)? {
            self.require_file(WRITE, facts.file_type)?;
        }
        let mut name = OsString::from(".");
        name.push(self.name());
        name.push(".new");
        let parent = self.parent(WRITE)?;
        let failed = |error: Errno| self.error(WRITE, error);
        // What a crash left.
        match rustix::fs::unlinkat(parent, &name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(error) => return Err(failed(error)),
        }
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = rustix::fs::openat(parent, &name, flags, Mode::RUSR | Mode::WUSR).map_err(failed)?;
        let mut file = File::from(file);
        let written = file.write_all(content).and_then(|()| file.sync_all());
        written.map_err(|error| self.error(WRITE, error))?;
        rustix::fs::renameat(parent, &name, parent, self.name()).map_err(failed)?;
        self.sync_parent(WRITE)
    }

    /// Removes the file, whatever is in it.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] when it is no regular file.
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

    /// The names of what is in the directory, in no order. None at all where it is not there.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] when it is no directory.
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

    /// Gives a directory or file another place on the same mount, where nothing is yet.
    ///
    /// Where the filesystem can't make sure of that by itself (NFS has no `RENAME_NOREPLACE`), it is looked at first; an
    /// empty directory that comes in between is replaced, and nothing that holds data is.
    ///
    /// # Errors
    /// [`ErrorKind::Busy`] when something is there; [`ErrorKind::NotFound`] when there is nothing to rename.
    #[doc(alias = "renameat2")]
    pub fn rename_to(&self, to: &Target) -> Result<()> {
        let (from, onto) = (self.parent(RENAME)?, to.parent(RENAME)?);
        let taken = || Error::new(ErrorKind::Busy, RENAME, "something is there already").at(to.path());
        let renamed =
            match rustix::fs::renameat_with(from, self.name(), onto, to.name(), RenameFlags::NOREPLACE) {
                Err(Errno::INVAL | Errno::NOSYS) => {
                    if to.facts(RENAME)?.is_some() {
                        return Err(taken());
                    }
                    rustix::fs::renameat(from, self.name(), onto, to.name())
                }
                renamed => renamed,
            };
        match renamed {
            Err(Errno::EXIST | Errno::NOTEMPTY) => Err(taken()),
            Err(error) => Err(self.error(RENAME, error).because(format_args!("to {}", to.path().display()))),
            Ok(()) => to.sync_parent(RENAME).and_then(|()| self.sync_parent(RENAME)),
        }
    }

    /// Gives a directory its permissions, whatever the umask is.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] when it is no directory; [`ErrorKind::PermissionDenied`].
    #[doc(alias = "fchmod")]
    pub fn set_directory_mode(&self, mode: u32) -> Result<()> {
        let directory = self.open_directory(MODE)?;
        let changed = rustix::fs::fchmod(directory, Mode::from_raw_mode(mode));
        changed.map_err(|error| self.error(MODE, error))
    }

    /// Makes the directory with these permissions. One that is there is kept as it is.
    ///
    /// # Errors
    /// As for [`create_dir`](Self::create_dir).
    pub fn create_dir_with_mode(&self, mode: u32) -> Result<Created> {
        let created = self.create_dir()?;
        if created == Created::Created {
            self.set_directory_mode(mode)?;
        }
        Ok(created)
    }

    fn require_file(&self, operation: &'static str, found: FileType) -> Result<()> {
        if found == FileType::RegularFile {
            return Ok(());
        }
        let reason = format!("it is {}", name_of(found));
        Err(Error::new(ErrorKind::InvalidInput, operation, reason).at(self.path()))
    }

    /// So that names outlive a loss of power.
    fn sync_parent(&self, operation: &'static str) -> Result<()> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let parent = rustix::fs::openat(self.parent(operation)?, ".", flags, Mode::empty());
        match parent.and_then(rustix::fs::fsync) {
            // Filesystems that have nothing to do.
            Ok(()) | Err(Errno::INVAL) => Ok(()),
            Err(error) => Err(self.error(operation, error)),
        }
    }
}
