//! The owner of a place: a mark on the directory or file beneath a mount, which outlives processes and
//! reboots.
//!
//! The mark is an extended attribute of the place itself: `trusted.csi-mount.owner`, or
//! `user.csi-mount.owner` if the process is not privileged in the initial user namespace. It names the
//! driver, the volume, and what was mounted. It is written before the mount, so every mount of ours has one;
//! `rmdir` removes it with the place. A filesystem without extended attributes holds no mark. There, a mount
//! is known only by what its owner says about the volume ([`Evidence`]).

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{FileType, XattrFlags, getxattr, removexattr, setxattr};
use rustix::io::Errno;
use rustix::mount::{OpenTreeFlags, open_tree};

use crate::detached::prepared::Prepared;
use crate::detached::scratch;
use crate::path::lookup;
use crate::place::target::OpenTarget;
use crate::sys::fd_path::path_of;
use crate::sys::features::{self, Feature};
use crate::sys::mount_api::Depth;
use crate::table::details::Details;
use crate::table::facts::{self, Facts};
use crate::{DeviceNumber, Error, ErrorKind, MountAttributes, MountId, Result, Target, mounts};

const NAMES: [&str; 2] = ["trusted.csi-mount.owner", "user.csi-mount.owner"];
const NEVER_WRITTEN: [&str; 2] = ["trusted.csi-mount.none", "user.csi-mount.none"];
const VERSION: &str = "1";
/// The size limit of a mark. From an orchestrator, a driver's name has at most 63 bytes and a volume id 128.
const MAX_MARK_BYTES: usize = 1024;

/// The volume that a target or staging directory belongs to, and the driver of that volume.
///
/// Mounting on a [`Target`] with an owner marks the place. Later steps with a target of the same owner, also
/// in other processes, unmount and remove only what has this mark or is known by [`Evidence`] of the volume.
///
/// ```no_run
/// # fn main() -> csi_mount::Result<()> {
/// use csi_mount::flow::block::{publish, unpublish};
/// use csi_mount::{ErrorKind, MountAttributes, Owner, Target};
///
/// let path = "/var/lib/kubelet/pods/1/volumes/kubernetes.io~csi/vol-1/mount";
/// let owned_by = |volume| Ok::<_, csi_mount::Error>(Target::new(path)?.owned_by(Owner::new("block.example.org", volume)));
///
/// publish("/var/lib/kubelet/staging", &owned_by("vol-1")?, MountAttributes::empty())?;
/// assert_eq!(unpublish(&owned_by("vol-2")?).unwrap_err().kind(), ErrorKind::NotOwned);
/// unpublish(&owned_by("vol-1")?)?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
#[must_use]
pub struct Owner {
    pub(crate) id: OwnerId,
    pub(crate) roots: Vec<PathBuf>,
    pub(crate) evidence: Vec<Evidence>,
    pub(crate) is_gone: bool,
}

/// The names that identify an [`Owner`].
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct OwnerId {
    /// The driver's name. If it is empty, marks of the volume by any driver match.
    pub driver: String,
    /// The volume's id.
    pub volume: String,
}

/// What proves that a mount without a mark belongs to a volume.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Evidence {
    /// The mounted filesystem is on this device, or the mounted file is this device's node.
    Device(DeviceNumber),
    /// The root of the mount is this directory.
    Directory(PathBuf),
    /// The mount has this type and source.
    Source {
        /// The type of filesystem: `tmpfs`.
        fs_type: String,
        /// The source, as the mount table shows it.
        source: String,
    },
}

impl Owner {
    /// The owner for this volume of the driver with this name.
    pub fn new(driver: impl Into<String>, volume: impl Into<String>) -> Self {
        let id = OwnerId::new(driver, volume);
        Self { id, roots: Vec::new(), evidence: Vec::new(), is_gone: false }
    }

    /// Adds directories that contain only targets and staging directories.
    ///
    /// An empty place in them is removed even without a mark: either the process that made it was killed
    /// before it wrote the mark, or the orchestrator made it.
    pub fn roots(mut self, roots: impl IntoIterator<Item = impl Into<PathBuf>>) -> Self {
        self.roots.extend(roots.into_iter().map(Into::into));
        self
    }

    /// Says that the volume no longer exists. Mounts marked as its own are then unmounted in
    /// [`roots`](Self::roots) only.
    pub fn volume_is_gone(mut self) -> Self {
        self.is_gone = true;
        self
    }

    /// Adds evidence that identifies a mount of the volume at a place without a mark.
    pub fn evidence(mut self, evidence: Evidence) -> Self {
        self.evidence.push(evidence);
        self
    }

    /// Whether a mark is this owner's. A mark without a driver's name matches any driver.
    pub fn has_id(&self, other: &OwnerId) -> bool {
        self.id.is_same(other)
    }

    pub(crate) fn volume(&self) -> &str {
        &self.id.volume
    }

    pub(crate) fn has_root_above(&self, target: &Target) -> bool {
        let resolved = |path: &Path, flags| {
            let fd = lookup::open_path(path, flags).ok()?;
            rustix::fs::readlink(path_of(&fd), Vec::new()).ok()
        };
        let Ok(parent) = target.parent("look at") else { return false };
        let Ok(place) = rustix::fs::readlink(path_of(parent), Vec::new()) else { return false };
        let place = PathBuf::from(String::from_utf8_lossy(place.as_bytes()).into_owned());
        self.roots.iter().any(|root| {
            let root = resolved(root, rustix::fs::OFlags::DIRECTORY);
            root.is_some_and(|root| place.starts_with(String::from_utf8_lossy(root.as_bytes()).as_ref()))
        })
    }
}

impl OwnerId {
    /// The volume with this id of the driver with this name.
    pub fn new(driver: impl Into<String>, volume: impl Into<String>) -> Self {
        Self { driver: driver.into(), volume: volume.into() }
    }

    /// Whether both name the same volume. A side without a driver's name matches any driver.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        let is_same_driver = self.driver == other.driver || self.driver.is_empty() || other.driver.is_empty();
        is_same_driver && self.volume == other.volume
    }
}

/// For example `volume vol-1 of driver.example.org`.
impl std::fmt::Display for OwnerId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "volume {}", self.volume)?;
        if self.driver.is_empty() { Ok(()) } else { write!(f, " of {}", self.driver) }
    }
}

/// What a mark says is mounted on its place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MarkedMount {
    /// Nothing yet.
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
        scratch::bind(target.path(), &parent, Depth::Single, none, FileType::Directory)
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

    /// The volume in the mark of the place, whatever is mounted on it. None without a mark.
    ///
    /// # Errors
    /// Those of `getxattr(2)`.
    pub fn marked_owner(&self) -> Result<Option<OwnerId>> {
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
            Some(found) if found.mounted == new_mark.mounted => Ok(()),
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

    /// Refuses a place with a mount that is not known to be its owner's.
    ///
    /// On a filesystem that supports no marks, the owner of a mount without [`Evidence`] is unknown, and it
    /// is not refused.
    ///
    /// # Errors
    /// [`ErrorKind::NotOwned`], naming what is mounted there.
    pub fn refuse_foreign(&self) -> Result<()> {
        const OPERATION: &str = "use";
        match self.require_own(OPERATION) {
            Err(error) if error.kind() == ErrorKind::NotOwned && !self.is_markable(OPERATION) => Ok(()),
            known => known.map(drop),
        }
    }

    /// Whether the place has a mark, or can get one.
    fn is_markable(&self, operation: &'static str) -> bool {
        let Ok((_above, place)) = open_covered(self, operation) else { return false };
        // Replacing an attribute that never exists writes nothing, and shows whether a write is possible.
        let could_write = |name| setxattr(path_of(&place), name, b"", XattrFlags::REPLACE);
        let is_marked = Mark::read(&place).is_ok_and(|mark| mark.is_some());
        is_marked || NEVER_WRITTEN.iter().any(|name| could_write(*name) == Err(Errno::NODATA))
    }

    /// Every mount at the target, if each is known to be its owner's. None if the target has no owner.
    ///
    /// # Errors
    /// [`ErrorKind::NotOwned`], naming the first mount that is not.
    pub(crate) fn require_own(&self, operation: &'static str) -> Result<Option<Vec<MountId>>> {
        let Some(owner) = self.owner() else { return Ok(None) };
        if self.state()?.mount_point().is_none() {
            return Ok(Some(Vec::new()));
        }
        let mark = self.mark(operation)?;
        let opened = match self.open(operation) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Some(Vec::new())),
            opened => opened?,
        };
        let Some(top) =
            Details::from_fd(&opened.fd, operation, self.path())?.filter(|_| opened.facts.is_mount_root)
        else {
            return Ok(Some(Vec::new()));
        };
        if let Some(found) = mark.as_ref().filter(|found| !found.owner.is_same(&owner.id)) {
            return Err(self.refuse_mount(operation, &top, &format!("the path belongs to {}", found.owner)));
        }
        let is_proven = match &mark {
            Some(mark) => is_marked(mark.mounted, &opened, &top),
            None => owner.evidence.iter().any(|evidence| proves(evidence, &opened, &top)),
        };
        if !is_proven {
            let why = match mark {
                Some(_) => "it is not what was mounted for the volume",
                None => "the path has no volume's mark",
            };
            return Err(self.refuse_mount(operation, &top, why));
        }
        if owner.is_gone && !owner.has_root_above(self) {
            let why = "the volume no longer exists, and the path is not in a directory where its mounts \
                       are still unmounted";
            return Err(self.refuse_mount(operation, &top, why));
        }
        self.layers(operation, &opened, &top).map(Some)
    }

    /// The proven mount and the mounts beneath it. Each of them must have the same root directory.
    fn layers(&self, operation: &'static str, opened: &OpenTarget, top: &Details) -> Result<Vec<MountId>> {
        let mut layers = vec![top.id];
        if top.parent == opened.directory.mount {
            return Ok(layers);
        }
        let table = mounts()?;
        let entry = |id: MountId| table.iter().find(|entry| entry.id == id);
        let proven = entry(top.id);
        let mut next = top.parent;
        while next != opened.directory.mount {
            let (Some(proven), Some(layer)) = (proven, entry(next)) else { break };
            if (layer.device, &layer.root, &layer.fs_type) != (proven.device, &proven.root, &proven.fs_type) {
                let layer = Details::from(layer.clone());
                return Err(self.refuse_mount(operation, &layer, "it lies beneath the volume's own mount"));
            }
            layers.push(next);
            next = layer.parent;
        }
        Ok(layers)
    }

    pub(crate) fn refuse_mount(&self, operation: &'static str, found: &Details, why: &str) -> Error {
        let owner = self.owner().map_or_else(String::new, |owner| owner.id.to_string());
        let reason = format!("{found} is not known to belong to {owner}: {why}");
        Error::new(ErrorKind::NotOwned, operation, reason)
            .at(self.path())
            .hint("find out what it is; if it is not needed, unmount it by hand")
    }
}

/// Whether the topmost mount is the one that the mark names.
fn is_marked(mounted: MarkedMount, opened: &OpenTarget, top: &Details) -> bool {
    match mounted {
        MarkedMount::NotYet => false,
        MarkedMount::Fuse => top.fs_type == "fuse" || top.fs_type.starts_with("fuse."),
        // A filesystem that shut down does not report even the inode number of its root.
        MarkedMount::Root(device, _) if opened.facts.is_broken() => top.is_on(device),
        MarkedMount::Root(device, inode) => (device, inode) == (opened.facts.device, opened.facts.inode),
    }
}

fn proves(evidence: &Evidence, opened: &OpenTarget, top: &Details) -> bool {
    match evidence {
        Evidence::Device(number) if opened.facts.file_type == FileType::BlockDevice => {
            opened.facts.node == *number
        }
        Evidence::Device(number) => top.is_on(*number),
        Evidence::Directory(path) => {
            let found = lookup::open_path(path, rustix::fs::OFlags::DIRECTORY).and_then(facts::from_fd);
            found.is_ok_and(|found| found.is_same_file(&opened.facts))
        }
        Evidence::Source { fs_type, source } => top.fs_type == *fs_type && top.source == **source,
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

    #[test]
    fn a_mark_without_a_driver_matches_any_driver() {
        let id = |driver: &str, volume: &str| OwnerId::new(driver, volume);
        assert!(id("a", "v").is_same(&id("a", "v")) && id("", "v").is_same(&id("a", "v")));
        assert!(!id("a", "v").is_same(&id("b", "v")) && !id("a", "v").is_same(&id("a", "w")));
        assert_eq!(id("a", "v").to_string(), "volume v of a");
    }
}
