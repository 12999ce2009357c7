//! A copy of a directory with all that is in it, and nothing that is not.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{
    AtFlags, CWD, Dir, FileType, Gid, Mode, OFlags, Stat, Timespec, Timestamps, Uid, XattrFlags,
};
use rustix::io::Errno;

use crate::copy_file::copy_contents;
use crate::{Error, ErrorKind, Result};

const COPY: &str = "copy the tree";
const DIRECTORY: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// Copies a directory to a new one, with everything in it: owners, permissions, times, extended attributes and ACLs, hard
/// links, symbolic links, sparse files; files share their blocks where the filesystem can (see
/// [`copy_file`](crate::copy_file())).
///
/// It stays on the directory's own filesystem: what is mounted below is copied as an empty directory. Symbolic links are
/// copied and never followed, also while others swap them in, so whoever may write in the directory can't make another
/// file of the node appear in the copy. Files that come and go meanwhile may be in it or not: it is no copy of one moment.
/// Nothing is synced. When it fails, what there is of the copy is left to the caller.
///
/// # Errors
/// [`InvalidInput`](ErrorKind::InvalidInput) if it is no directory; [`NoSpace`](ErrorKind::NoSpace); those of the system
/// calls, with the path.
pub fn copy_tree(from: impl AsRef<Path>, to: impl AsRef<Path>) -> Result<()> {
    let (from, to) = (from.as_ref(), to.as_ref());
    let source = rustix::fs::openat(CWD, from, DIRECTORY, Mode::empty()).map_err(at(from))?;
    let facts = rustix::fs::fstat(&source).map_err(at(from))?;
    rustix::fs::mkdirat(CWD, to, Mode::RWXU).map_err(at(to))?;
    let root = rustix::fs::openat(CWD, to, DIRECTORY, Mode::empty()).map_err(at(to))?;
    let mut copy = Copy { filesystem: facts.st_dev, root, linked: HashMap::new() };
    let into = copy.root.try_clone().map_err(|error| Error::os(COPY, to, error))?;
    copy.directory(source, &facts, &into, from, Path::new(""))
}

fn at(path: &Path) -> impl Fn(Errno) -> Error {
    move |error| Error::os(COPY, path, error)
}

struct Copy {
    filesystem: u64,
    /// The copy's own root.
    root: OwnedFd,
    /// Files of several names, by their number, and where their copy is below the root.
    linked: HashMap<u64, PathBuf>,
}

impl Copy {
    /// What is in a directory, then what is to be said of it: writing in it changes its times. `below` is its path
    /// below the root.
    fn directory(
        &mut self,
        from: OwnedFd,
        facts: &Stat,
        to: &OwnedFd,
        path: &Path,
        below: &Path,
    ) -> Result<()> {
        for entry in Dir::read_from(&from).map_err(at(path))? {
            let entry = entry.map_err(at(path))?;
            let name = OsStr::from_bytes(entry.file_name().to_bytes());
            if name == "." || name == ".." {
                continue;
            }
            let (path, below) = (path.join(name), below.join(name));
            match self.entry(from.as_fd(), to, name, &path, &below) {
                // It was deleted after the directory was read.
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                copied => copied?,
            }
        }
        describe(&from, to, facts, path)
    }

    fn entry(
        &mut self,
        from: BorrowedFd<'_>,
        to: &OwnedFd,
        name: &OsStr,
        path: &Path,
        below: &Path,
    ) -> Result<()> {
        let facts = rustix::fs::statat(from, name, AtFlags::SYMLINK_NOFOLLOW).map_err(at(path))?;
        match FileType::from_raw_mode(facts.st_mode) {
            FileType::Directory => self.subdirectory(from, to, name, path, below),
            FileType::RegularFile => self.file(from, to, name, path, below),
            FileType::Symlink => {
                let leads_to = rustix::fs::readlinkat(from, name, Vec::new()).map_err(at(path))?;
                rustix::fs::symlinkat(leads_to, to, name).map_err(at(path))?;
                describe_node(to, name, &facts).map_err(at(path))
            }
            special => {
                let mode = Mode::from_raw_mode(facts.st_mode);
                rustix::fs::mknodat(to, name, special, mode, facts.st_rdev).map_err(at(path))?;
                describe_node(to, name, &facts).map_err(at(path))?;
                rustix::fs::chmodat(to, name, mode, AtFlags::empty()).map_err(at(path))
            }
        }
    }

    fn subdirectory(
        &mut self,
        from: BorrowedFd<'_>,
        to: &OwnedFd,
        name: &OsStr,
        path: &Path,
        below: &Path,
    ) -> Result<()> {
        let source = rustix::fs::openat(from, name, DIRECTORY, Mode::empty()).map_err(at(path))?;
        let facts = rustix::fs::fstat(&source).map_err(at(path))?;
        rustix::fs::mkdirat(to, name, Mode::RWXU).map_err(at(path))?;
        if facts.st_dev != self.filesystem {
            return Ok(());
        }
        let copy = rustix::fs::openat(to, name, DIRECTORY, Mode::empty()).map_err(at(path))?;
        self.directory(source, &facts, &copy, path, below)
    }

    fn file(
        &mut self,
        from: BorrowedFd<'_>,
        to: &OwnedFd,
        name: &OsStr,
        path: &Path,
        below: &Path,
    ) -> Result<()> {
        // A pipe that took the file's place must not make this wait.
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let source = File::from(rustix::fs::openat(from, name, flags, Mode::empty()).map_err(at(path))?);
        // What was opened may not be what was looked at.
        let facts = rustix::fs::fstat(&source).map_err(at(path))?;
        if FileType::from_raw_mode(facts.st_mode) != FileType::RegularFile || facts.st_dev != self.filesystem
        {
            return Ok(());
        }
        if facts.st_nlink > 1 {
            if let Some(first) = self.linked.get(&facts.st_ino) {
                return rustix::fs::linkat(&self.root, first, to, name, AtFlags::empty()).map_err(at(path));
            }
            self.linked.insert(facts.st_ino, below.to_owned());
        }
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let copy =
            File::from(rustix::fs::openat(to, name, flags, Mode::RUSR | Mode::WUSR).map_err(at(path))?);
        copy_contents(&source, &copy).map_err(|error| Error::os(COPY, path, error))?;
        describe(&source, &copy, &facts, path)
    }
}

/// Owner, permissions, extended attributes and times, in an order in which none undoes another.
fn describe(from: impl AsFd, to: impl AsFd, facts: &Stat, path: &Path) -> Result<()> {
    let (uid, gid) = (Uid::from_raw(facts.st_uid), Gid::from_raw(facts.st_gid));
    rustix::fs::fchown(&to, Some(uid), Some(gid)).map_err(at(path))?;
    rustix::fs::fchmod(&to, Mode::from_raw_mode(facts.st_mode)).map_err(at(path))?;
    copy_attributes(&from, &to).map_err(at(path))?;
    rustix::fs::futimens(&to, &times(facts)).map_err(at(path))
}

/// The same for what can't be opened: it has no attributes that a user can set.
fn describe_node(directory: &OwnedFd, name: &OsStr, facts: &Stat) -> Result<(), Errno> {
    let flags = AtFlags::SYMLINK_NOFOLLOW;
    let (uid, gid) = (Uid::from_raw(facts.st_uid), Gid::from_raw(facts.st_gid));
    rustix::fs::chownat(directory, name, Some(uid), Some(gid), flags)?;
    rustix::fs::utimensat(directory, name, &times(facts), flags)
}

fn times(facts: &Stat) -> Timestamps {
    let time = |seconds, nanoseconds: u64| Timespec {
        tv_sec: seconds,
        tv_nsec: i64::try_from(nanoseconds).unwrap_or_default(),
    };
    Timestamps {
        last_access: time(facts.st_atime, facts.st_atime_nsec),
        last_modification: time(facts.st_mtime, facts.st_mtime_nsec),
    }
}

/// ACLs are among the attributes. A filesystem that has none has none to copy; where only the copy's has none, they are lost.
fn copy_attributes(from: impl AsFd, to: impl AsFd) -> Result<(), Errno> {
    let mut names = vec![0; 65_536];
    let length = match rustix::fs::flistxattr(&from, names.as_mut_slice()) {
        Ok(length) => length,
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => return Ok(()),
        Err(error) => return Err(error),
    };
    let mut value = vec![0; 65_536];
    for name in names[..length].split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
        let length = match rustix::fs::fgetxattr(&from, name, value.as_mut_slice()) {
            Err(Errno::NODATA) => continue,
            length => length?,
        };
        match rustix::fs::fsetxattr(&to, name, &value[..length], XattrFlags::empty()) {
            // Labels of SELinux and the like may be the policy's to give.
            Err(Errno::OPNOTSUPP | Errno::PERM | Errno::ACCESS) => {}
            set => set?,
        }
    }
    Ok(())
}
