//! Versions of a volume's content: writing the next one next to the current one, and exchanging them in one
//! step.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::fs::{
    AtFlags, Dir, FileType, Gid, Mode, OFlags, fchmod, fchown, fstat, mkdirat, openat, readlinkat, renameat,
    symlinkat, unlinkat,
};
use rustix::io::Errno;

use super::{Content, content};
use crate::error::{Error, ErrorKind, Result};
use crate::place::target::Target;
use crate::sys::descriptor::{Locked, reopen_directory};

const WRITE: &str = "write the content of";
/// The link to the current version, and the temporary name of its successor.
const DATA: &str = "..data";
const DATA_NEXT: &str = "..data_tmp";
const DIRECTORY_MODE: u32 = 0o755;
/// How long another writer can take.
const LOCK_TIME_LIMIT: Duration = Duration::from_secs(5);

/// What a publish did to the content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// The content was written.
    Written,
    /// The content was already the same, and nothing was touched.
    Unchanged,
}

/// Makes the directory show this content. At every moment it shows the old content or the new one, never a
/// mixture.
///
/// `root` is the volume's own directory, on a writable mount.
pub(super) fn write(root: impl AsFd, path: &Path, content: &Content, group: Option<u32>) -> Result<Change> {
    let failed = |error: Errno| Error::os(WRITE, path, error);
    let root = reopen_directory(root).map_err(failed)?;
    let root = lock(root, path)?;
    let volume = Volume { root, path, content, group: group.map(Gid::from_raw) };
    let current = volume.current();
    // Removes versions older than the current one, and what a killed writer left.
    volume.remove_old_versions(current.as_deref())?;
    let change = match current {
        Some(current) if volume.is_same(&current) => {
            volume.link_names().map_err(failed)?;
            Change::Unchanged
        }
        // The current version stays until the next publish, for readers that are on their way into it.
        _ => {
            let next = volume.write_version()?;
            volume.link_names().map_err(failed)?;
            volume.exchange(&next).map_err(failed)?;
            Change::Written
        }
    };
    volume.remove_old_names().map_err(failed)?;
    Ok(change)
}

/// Lets one writer run at a time. A workload can take this lock too, so the wait has a limit.
fn lock(root: OwnedFd, path: &Path) -> Result<Locked<OwnedFd>> {
    match Locked::within(root, LOCK_TIME_LIMIT) {
        Ok(locked) => Ok(locked),
        Err(Errno::WOULDBLOCK) => {
            let reason =
                format!("another process keeps its directory locked for more than {LOCK_TIME_LIMIT:?}");
            Err(Error::new(ErrorKind::Busy, WRITE, reason).at(path))
        }
        Err(error) => Err(Error::os(WRITE, path, error)),
    }
}

struct Volume<'a> {
    root: Locked<OwnedFd>,
    path: &'a Path,
    content: &'a Content,
    group: Option<Gid>,
}

impl Volume<'_> {
    /// The directory that `..data` leads to. If the workload can write to the volume, it can be anything.
    fn current(&self) -> Option<OsString> {
        let name = OsString::from_vec(readlinkat(&self.root, DATA, Vec::new()).ok()?.into_bytes());
        is_version(&name).then_some(name)
    }

    /// Whether that version is this content, file by file.
    fn is_same(&self, version: &OsStr) -> bool {
        let mut count = 0;
        let Ok(directory) = open_directory(&self.root, version) else { return false };
        self.holds_only_content(&directory, Path::new(""), &mut count).unwrap_or(false)
            && count == self.content.len()
    }

    fn holds_only_content(
        &self,
        directory: &OwnedFd,
        at: &Path,
        count: &mut usize,
    ) -> rustix::io::Result<bool> {
        for name in names(directory)? {
            let path = at.join(&name);
            let is_as_asked = match self.content.of(&path) {
                Some(file) => {
                    *count += 1;
                    self.is_file(directory, &name, file)?
                }
                None => self.holds_only_content(&open_directory(directory, &name)?, &path, count)?,
            };
            if !is_as_asked {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn is_file(&self, directory: &OwnedFd, name: &OsStr, file: &content::File) -> rustix::io::Result<bool> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let fd = openat(directory, name, flags, Mode::empty())?;
        let found = fstat(&fd)?;
        let is_alike = FileType::from_raw_mode(found.st_mode) == FileType::RegularFile
            && found.st_mode & 0o7777 == file.mode
            && found.st_size as u64 == file.bytes.len() as u64
            && self.group.is_none_or(|group| found.st_gid == group.as_raw());
        let mut bytes = Vec::new();
        // Limits the read, in case the file grows in the meantime.
        let limit = file.bytes.len() as u64 + 1;
        Ok(is_alike && File::from(fd).take(limit).read_to_end(&mut bytes).is_ok() && bytes == file.bytes)
    }

    /// Writes all files into a new directory that no link leads to yet. An unfinished directory is removed.
    fn write_version(&self) -> Result<OsString> {
        let failed = |error: Errno| Error::os(WRITE, self.path, error);
        let name = self.new_directory().map_err(failed)?;
        let written = open_directory(&self.root, &name).map_err(failed).and_then(|directory| {
            self.content.files().try_for_each(|(path, file)| {
                let written = self.write_file(&directory, path, file);
                written.map_err(|error| Error::os(WRITE, self.path.join(path), error))
            })
        });
        if written.is_err()
            && let Err(left) = self.remove(&name)
        {
            tracing::warn!(%left, "an incomplete version stays after a failed write");
        }
        written.map(|()| name)
    }

    /// Makes a directory that is named by the time, as the kubelet does.
    fn new_directory(&self) -> rustix::io::Result<OsString> {
        loop {
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            let name = OsString::from(format!("..{}.{:09}", now.as_secs(), now.subsec_nanos()));
            match mkdirat(&self.root, &name, Mode::from_raw_mode(0o700)) {
                Ok(()) => {
                    self.finish(&open_directory(&self.root, &name)?, DIRECTORY_MODE)?;
                    return Ok(name);
                }
                Err(Errno::EXIST) => {}
                Err(error) => return Err(error),
            }
        }
    }

    fn write_file(&self, version: &OwnedFd, path: &Path, file: &content::File) -> rustix::io::Result<()> {
        let mut directory = version.try_clone().map_err(|error| errno_of(&error))?;
        for name in path.parent().into_iter().flat_map(Path::components) {
            let name = name.as_os_str();
            match mkdirat(&directory, name, Mode::from_raw_mode(0o700)) {
                Ok(()) => self.finish(&open_directory(&directory, name)?, DIRECTORY_MODE)?,
                Err(Errno::EXIST) => {}
                Err(error) => return Err(error),
            }
            directory = open_directory(&directory, name)?;
        }
        let name = path.file_name().unwrap_or_default();
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mut opened = File::from(openat(&directory, name, flags, Mode::from_raw_mode(0o600))?);
        opened.write_all(&file.bytes).map_err(|error| errno_of(&error))?;
        self.finish(&opened, file.mode)
    }

    /// Sets the mode, independent of the umask, and the group.
    fn finish(&self, fd: impl AsFd, mode: u32) -> rustix::io::Result<()> {
        if self.group.is_some() {
            fchown(&fd, None, self.group)?;
        }
        fchmod(&fd, Mode::from_raw_mode(mode))
    }

    /// Makes each name a link through `..data`. This is done before the exchange, so that a new version is
    /// complete from its first moment. Until then a new name leads nowhere.
    fn link_names(&self) -> rustix::io::Result<()> {
        for name in self.top_names() {
            let to = Path::new(DATA).join(name);
            if self.link_at(name).as_deref() != Some(to.as_path()) {
                self.put_link(&to, name)?;
            }
        }
        Ok(())
    }

    fn exchange(&self, version: &OsStr) -> rustix::io::Result<()> {
        self.put_link(Path::new(version), DATA.as_ref())
    }

    /// Makes a symbolic link that replaces what has its name, in one step.
    fn put_link(&self, to: &Path, name: &OsStr) -> rustix::io::Result<()> {
        match unlinkat(&self.root, DATA_NEXT, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(error) => return Err(error),
        }
        symlinkat(to, &self.root, DATA_NEXT)?;
        renameat(&self.root, DATA_NEXT, &self.root, name)
    }

    fn link_at(&self, name: &OsStr) -> Option<PathBuf> {
        let to = readlinkat(&self.root, name, Vec::new()).ok()?;
        Some(OsString::from_vec(to.into_bytes()).into())
    }

    fn top_names(&self) -> BTreeSet<&OsStr> {
        self.content.paths().filter_map(|path| Some(path.components().next()?.as_os_str())).collect()
    }

    fn remove_old_versions(&self, current: Option<&OsStr>) -> Result<()> {
        let names = names(&self.root).map_err(|error| Error::os(WRITE, self.path, error))?;
        let old = names.iter().filter(|name| is_version(name) && Some(name.as_os_str()) != current);
        old.into_iter().try_for_each(|name| self.remove(name))
    }

    /// Removes our links that no longer lead anywhere.
    fn remove_old_names(&self) -> rustix::io::Result<()> {
        let kept = self.top_names();
        for name in names(&self.root)? {
            let is_ours = || self.link_at(&name).is_some_and(|to| to.starts_with(DATA));
            if name == DATA_NEXT || !kept.contains(name.as_os_str()) && is_ours() {
                unlinkat(&self.root, &name, AtFlags::empty())?;
            }
        }
        Ok(())
    }

    fn remove(&self, version: &OsStr) -> Result<()> {
        // A version is a directory. A workload can make a link with such a name, which leads anywhere.
        if unlinkat(&self.root, version, AtFlags::empty()).is_ok() {
            return Ok(());
        }
        let root = || self.root.as_fd().try_clone_to_owned();
        Target::below(self.path.join(version), |_| root())?.remove_tree().map(drop)
    }
}

/// `..1763685819.123456789`
fn is_version(name: &OsStr) -> bool {
    let Some(time) = name.as_bytes().strip_prefix(b"..") else { return false };
    !time.is_empty() && time.iter().all(|byte| byte.is_ascii_digit() || *byte == b'.')
}

fn open_directory(at: impl AsFd, name: &OsStr) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    openat(at, name, flags, Mode::empty())
}

fn names(directory: impl AsFd) -> rustix::io::Result<Vec<OsString>> {
    let mut names = Vec::new();
    for entry in Dir::read_from(directory)? {
        let name = OsStr::from_bytes(entry?.file_name().to_bytes()).to_owned();
        if name != "." && name != ".." {
            names.push(name);
        }
    }
    Ok(names)
}

fn errno_of(error: &std::io::Error) -> Errno {
    Errno::from_io_error(error).unwrap_or(Errno::IO)
}
