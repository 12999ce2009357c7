//! Hard links in the copy of a tree: which file of the copy is which file of the source.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, Mode, OFlags, RenameFlags, Stat};
use rustix::io::Errno;
use rustix::rand::{GetRandomFlags, getrandom};

use crate::error::{Error, Result};
use crate::table::facts;
use crate::tree::remove::remove;

/// The copies of files that have several names.
///
/// Each is found by one more link, in a directory of the copy's top, whose name is the source's device and
/// inode. So the memory does not grow with the number of links, and no link is too deep in the tree. The
/// directory has a random name, exists from the first such file on, and is removed at the end.
pub(super) struct Links {
    top: OwnedFd,
    anchors: Option<(OsString, OwnedFd)>,
}

impl Links {
    /// For a copy with this top directory.
    pub(super) fn new(top: OwnedFd) -> Self {
        Self { top, anchors: None }
    }

    /// Links the copy of this file to one more name. False if there is none that can be linked: the file then
    /// gets another copy.
    pub(super) fn link(&self, file: &Stat, to: BorrowedFd<'_>, name: &OsStr) -> rustix::io::Result<bool> {
        let Some((_, anchors)) = &self.anchors else { return Ok(false) };
        let anchor = anchor_of(file);
        match rustix::fs::linkat(anchors, &anchor, to, name, AtFlags::empty()) {
            Ok(()) => Ok(true),
            // The file has as many names as the filesystem allows. The anchor becomes the last one.
            Err(Errno::MLINK) => {
                let renamed = rustix::fs::renameat_with(anchors, &anchor, to, name, RenameFlags::NOREPLACE);
                Ok(renamed.is_ok())
            }
            // Not copied yet; or a server without hard links.
            Err(Errno::NOENT | Errno::OPNOTSUPP | Errno::PERM) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Notes the first copy of a file, so that its other names become links to it.
    pub(super) fn add(&mut self, file: &Stat, to: BorrowedFd<'_>, name: &OsStr) -> rustix::io::Result<()> {
        let anchors = match &self.anchors {
            Some((_, anchors)) => anchors,
            None => &self.anchors.insert(make_directory(self.top.as_fd())?).1,
        };
        match rustix::fs::linkat(to, name, anchors, anchor_of(file), AtFlags::empty()) {
            // It was copied before, but could not be linked; or a server without hard links.
            Err(Errno::EXIST | Errno::OPNOTSUPP | Errno::PERM | Errno::MLINK) => Ok(()),
            linked => linked,
        }
    }

    /// Removes the directory with the links.
    ///
    /// # Errors
    /// Those of [`remove_tree`](crate::Target::remove_tree).
    pub(super) fn remove(&mut self, path: &Path) -> Result<()> {
        let Some((name, _)) = self.anchors.take() else { return Ok(()) };
        let failed = |error: io::Error| Error::os("remove the links of the copy in", path, error);
        let mount = facts::from_fd(&self.top).map_err(failed)?.mount;
        remove(&self.top, &name, mount, &path.join(&name)).map(drop)
    }
}

fn anchor_of(file: &Stat) -> String {
    format!("{:x}-{:x}", file.st_dev, file.st_ino)
}

fn make_directory(top: BorrowedFd<'_>) -> rustix::io::Result<(OsString, OwnedFd)> {
    let mut random = [0; 8];
    getrandom(&mut random, GetRandomFlags::empty())?;
    let name = OsString::from(format!(".csi-mount-links-{:016x}", u64::from_ne_bytes(random)));
    rustix::fs::mkdirat(top, &name, Mode::RWXU)?;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let directory = rustix::fs::openat(top, &name, flags, Mode::empty())?;
    Ok((name, directory))
}
