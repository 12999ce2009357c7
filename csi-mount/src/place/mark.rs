//! The mark of a place's owner, on the directory or file beneath a mount: it outlives processes and reboots.
//!
//! The mark is an extended attribute of the place itself: `trusted.csi-mount.owner`, or
//! `user.csi-mount.owner` if the process is not privileged in the initial user namespace. It names the
//! driver, the volume, and what was mounted. It is written before the mount, so every mount of ours has one;
//! `rmdir` removes it with the place. A filesystem without extended attributes holds no mark. There, a mount
//! is known only by what its owner says about the volume ([`Evidence`](crate::Evidence)).

use std::io;
use std::os::fd::OwnedFd;

use rustix::fs::{FileType, XattrFlags, getxattr, removexattr, setxattr};
use rustix::io::Errno;
use rustix::mount::{OpenTreeFlags, open_tree};

use crate::detached::prepared::{self, Prepared};
use crate::error::{Error, ErrorKind, Result};
use crate::path::lookup;
use crate::place::owner::OwnerId;
use crate::place::target::Target;
use crate::sys::attributes::MountAttributes;
use crate::sys::descriptor::path_of;
use crate::sys::features::{self, Feature};
use crate::sys::ids::DeviceNumber;
use crate::sys::mount_api::Depth;
use crate::table::facts::{self, Facts};

const NAMES: [&str; 2] = ["trusted.csi-mount.owner", "user.csi-mount.owner"];
const NEVER_WRITTEN: [&str; 2] = ["trusted.csi-mount.none", "user.csi-mount.none"];
const VERSION: &str = "1";
/// The size limit of a mark. From an orchestrator, a driver's name has at most 63 bytes and a volume id 128.
const MAX_MARK_BYTES: usize = 1024;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MarkedMount {
    NotYet,
    /// A file or directory: the number of its filesystem and its inode number.
    Root(DeviceNumber, u64),
    /// A FUSE filesystem, which its daemon mounts.
    Fuse,
}

impl MarkedMount {
    pub(crate) fn from_facts(facts: &Facts) -> Self {
        Self::Root(facts.device, facts.inode)
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Mark {
    pub(crate) owner: OwnerId,
    pub(crate) mounted: MarkedMount,
}

impl Mark {
    fn encode(&self) -> Vec<u8> {
        let mounted = match self.mounted {
            MarkedMount::NotYet => "nothing".to_owned(),
            MarkedMount::Fuse => "fuse".to_owned(),
            MarkedMount::Root(device, inode) => format!("{device} {inode}"),
        };
        format!("{VERSION}\0{}\0{}\0{mounted}", self.owner.driver, self.owner.volume).into_bytes()
    }

    /// None for a mark of another version: it proves nothing.
    fn decode(bytes: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(bytes).ok()?;
        let (version, rest) = text.split_once('\0')?;
        let (driver, rest) = rest.split_once('\0')?;
        let (volume, mounted) = rest.rsplit_once('\0')?;
        let mounted = match mounted {
            "nothing" => MarkedMount::NotYet,
            "fuse" => MarkedMount::Fuse,
            root => {
                let (device, inode) = root.split_once(' ')?;
                let (major, minor) = device.split_once(':')?;
                let device = DeviceNumber { major: major.parse().ok()?, minor: minor.parse().ok()? };
                MarkedMount::Root(device, inode.parse().ok()?)
            }
        };
        let owner = OwnerId::new(driver, volume);
        (version == VERSION).then_some(Self { owner, mounted })
    }

    /// Reads the mark of a file or directory that is opened with `O_PATH`.
    fn read(place: &OwnedFd) -> io::Result<Option<Self>> {
        for name in NAMES {
            let mut buffer = vec![0; MAX_MARK_BYTES];
            match getxattr(path_of(place), name, &mut buffer[..]) {
                Ok(length) => return Ok(Self::decode(&buffer[..length])),
                Err(Errno::NODATA | Errno::OPNOTSUPP | Errno::PERM | Errno::ACCESS) => {}
                // Marks of this crate are shorter.
                Err(Errno::RANGE) => return Ok(None),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(None)
    }

    /// Writes the mark. On a filesystem that supports no marks it writes nothing.
    fn write(&self, place: &OwnedFd) -> io::Result<()> {
        for name in NAMES {
            match setxattr(path_of(place), name, &self.encode(), XattrFlags::empty()) {
                Err(Errno::OPNOTSUPP | Errno::PERM | Errno::ACCESS | Errno::ROFS) => {}
                written => return Ok(written?),
            }
        }
        tracing::debug!("the filesystem of a volume's path cannot store the owner's mark");
        Ok(())
    }
}

/// Opens the file or directory of the target itself, beneath whatever is mounted on it.
fn open_covered(target: &Target, operation: &'static str) -> io::Result<(Option<Prepared>, OwnedFd)> {
    let parent = target.parent(operation).map_err(io::Error::other)?;
    let place = lookup::open_at(parent, target.name())?;
    if facts::from_fd(&place)?.mount == target.directory()?.mount {
        return Ok((None, place));
    }
    drop(place);
    // A detached copy of the parent's mount alone: it does not contain what is mounted on the target.
    let above = if features::has(Feature::FsContext) {
        let flags =
            OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_EMPTY_PATH;
        Prepared::Detached(open_tree(parent, c"", flags)?)
    } else {
        let parent = parent.try_clone_to_owned()?;
        let none = MountAttributes::empty();
        prepared::bind(target.path(), &parent, Depth::Single, none, FileType::Directory)
            .map_err(io::Error::other)?
    };
    let place = lookup::open_at(above.fd(), target.name())?;
    Ok((Some(above), place))
}

impl Target {
    /// Reads the mark of the place, whatever is mounted on it.
    ///
    /// None if there is no mark or it cannot be read, for example beneath a mount without CAP_SYS_ADMIN.
    pub(crate) fn mark(&self, operation: &'static str) -> Result<Option<Mark>> {
        if !self.has_parent() {
            return Ok(None);
        }
        match open_covered(self, operation) {
            Ok((_above, place)) => Mark::read(&place).map_err(|error| self.error(operation, error)),
            Err(error) if lookup::is_absent(&error) => Ok(None),
            Err(error) => {
                tracing::debug!(%error, place = %self.path().display(), "the path beneath a mount cannot \
                    be read");
                Ok(None)
            }
        }
    }

    /// See [`Mounts::marked_owner`](crate::Mounts::marked_owner).
    pub(crate) fn marked_owner(&self) -> Result<Option<OwnerId>> {
        Ok(self.mark("read the owner of")?.map(|mark| mark.owner))
    }

    /// Marks the bare place as its owner's, before `mounted` is mounted there.
    pub(crate) fn set_mark(
        &self,
        operation: &'static str,
        place: &OwnedFd,
        mounted: MarkedMount,
    ) -> Result<()> {
        let Some(owner) = self.owner() else { return Ok(()) };
        let mark = Mark { owner: owner.id.clone(), mounted };
        mark.write(place).map_err(|error| self.error(operation, error))
    }

    /// Marks the place beneath the mounts that are there as its owner's.
    pub(crate) fn mark_covered(&self, operation: &'static str, mounted: MarkedMount) -> Result<()> {
        if self.owner().is_none() {
            return Ok(());
        }
        let (_above, place) = open_covered(self, operation).map_err(|error| self.error(operation, error))?;
        self.set_mark(operation, &place, mounted)
    }

    /// Marks a new place as its owner's, so that another process can remove it if this one is killed.
    pub(crate) fn mark_new(&self, operation: &'static str) -> Result<()> {
        self.set_made_here();
        if self.owner().is_none() {
            return Ok(());
        }
        let place = lookup::open_at(self.parent(operation)?, self.name());
        let place = place.map_err(|error| self.error(operation, error))?;
        self.set_mark(operation, &place, MarkedMount::NotYet)
    }

    /// Marks the place beneath an existing mount as its owner's. Refuses a place that has the mark of another
    /// volume.
    pub(crate) fn mark_existing(&self, operation: &'static str, mounted: &Facts) -> Result<()> {
        let Some(owner) = self.owner() else { return Ok(()) };
        let new_mark = Mark { owner: owner.id.clone(), mounted: MarkedMount::from_facts(mounted) };
        let (_above, place) = match open_covered(self, operation) {
            Ok(found) => found,
            // Without a mark, the mount stays known by evidence alone.
            Err(error) => {
                tracing::debug!(%error, place = %self.path().display(), "the path beneath a mount cannot \
                    be marked");
                return Ok(());
            }
        };
        let found = Mark::read(&place).map_err(|error| self.error(operation, error))?;
        match found {
            Some(found) if !found.owner.is_same(&owner.id) => {
                let reason = format!("{} is mounted there, not {}", found.owner, owner.id);
                Err(Error::new(ErrorKind::AlreadyMounted, operation, reason).at(self.path()))
            }
            // A FUSE filesystem can be on top of another one that has lost its daemon.
            Some(found) if [new_mark.mounted, MarkedMount::Fuse].contains(&found.mounted) => Ok(()),
            _ => new_mark.write(&place).map_err(|error| self.error(operation, error)),
        }
    }

    /// Removes the owner's mark from the bare place, for a staging directory, which is not removed.
    pub(crate) fn unmark(&self, operation: &'static str) -> Result<()> {
        let (Some(owner), Some(mark)) = (self.owner(), self.mark(operation)?) else { return Ok(()) };
        if !mark.owner.is_same(&owner.id) {
            return Ok(());
        }
        if let Ok((None, place)) = open_covered(self, operation) {
            for name in NAMES {
                // A failure is harmless: the next stage overwrites the mark.
                let _ = removexattr(path_of(&place), name);
            }
        }
        Ok(())
    }

    /// Whether the place has the mark of another volume.
    pub(crate) fn is_marked_by_other(&self, operation: &'static str) -> Result<bool> {
        let Some(owner) = self.owner() else { return Ok(false) };
        Ok(self.mark(operation)?.is_some_and(|mark| !mark.owner.is_same(&owner.id)))
    }

    /// Whether the place has a mark, or can get one.
    pub(crate) fn is_markable(&self, operation: &'static str) -> bool {
        let Ok((_above, place)) = open_covered(self, operation) else { return false };
        // Replacing an attribute that never exists writes nothing, and shows whether a write is possible.
        let could_write = |name| setxattr(path_of(&place), name, b"", XattrFlags::REPLACE);
        let is_marked = Mark::read(&place).is_ok_and(|mark| mark.is_some());
        is_marked || NEVER_WRITTEN.iter().any(|name| could_write(*name) == Err(Errno::NODATA))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_says_what_was_written_and_nothing_of_another_version() {
        for mounted in [
            MarkedMount::NotYet,
            MarkedMount::Fuse,
            MarkedMount::Root(DeviceNumber { major: 259, minor: 7 }, u64::MAX),
        ] {
            let owner = OwnerId::new("a.example.org", "v\0 1");
            let mark = Mark { owner, mounted };
            assert_eq!(Mark::decode(&mark.encode()), Some(mark));
        }
        for other in ["", "1", "2\0a\0v\0nothing", "1\0a\0v\08:1", "1\0a\0v\0root", "1\0nothing"] {
            assert_eq!(Mark::decode(other.as_bytes()), None, "{other:?}");
        }
    }
}
