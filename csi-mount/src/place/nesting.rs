//! Whether one of two directories is inside the other, whatever names lead to them.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::OFlags;

use crate::path::lookup;
use crate::sys::ids::DeviceNumber;
use crate::sys::mount_api::{self, StatMountBasic};
use crate::table::facts::{self, Facts};
use crate::table::mountinfo;

/// The relation of the target of a bind to its source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Nesting {
    Separate,
    /// The target is somewhere below the source.
    Inside,
    /// The source is somewhere below the target.
    Contains,
}

pub(crate) struct MountedDirectory<'a> {
    on_mount: BorrowedFd<'a>,
    facts: &'a Facts,
    mount: Option<StatMountBasic>,
}

impl<'a> MountedDirectory<'a> {
    /// Takes a directory, a descriptor that is open on its mount, and what the kernel reports about that
    /// mount.
    pub(crate) fn new(on_mount: BorrowedFd<'a>, facts: &'a Facts, mount: Option<StatMountBasic>) -> Self {
        Self { on_mount, facts, mount }
    }

    /// Whether the directory's device number is that of its filesystem. On btrfs it is not.
    fn is_of_its_device(&self) -> bool {
        self.mount.is_some_and(|mount| mount.device == self.facts.device)
    }

    /// Whether it is known to contain no directory, so that nothing is below it.
    fn has_no_directories(&self) -> bool {
        /// Filesystems whose directories have two links plus one for each subdirectory: ext2, ext3 and ext4,
        /// XFS, tmpfs. Others report 1 or an arbitrary number.
        const LINK_COUNTING: [u64; 3] = [0xef53, 0x5846_5342, 0x0102_1994];
        self.mount.is_some_and(|mount| LINK_COUNTING.contains(&mount.magic)) && self.facts.links == 2
    }

    /// Whether no mount between here and the root is of this filesystem.
    fn is_outside(&self, device: DeviceNumber) -> bool {
        let mut mount = self.mount;
        while let Some(here) = mount {
            if here.device == device {
                return false;
            }
            if here.parent == here.id {
                return true;
            }
            mount = mount_api::statmount_basic(here.unique_parent).ok();
        }
        false
    }
}

/// The relation of the target, in this directory, to the source.
///
/// What the kernel reports about both mostly proves at once that they are apart. Otherwise the ancestors of
/// each are walked, because only the upward path has no aliases.
pub(crate) fn nesting(
    source: &MountedDirectory<'_>,
    target: &MountedDirectory<'_>,
    parent: &Facts,
) -> io::Result<Nesting> {
    let cannot_contain = target.has_no_directories();
    let cannot_be_inside =
        || source.has_no_directories() || source.is_of_its_device() && target.is_outside(source.facts.device);
    if cannot_contain && cannot_be_inside() {
        return Ok(Nesting::Separate);
    }
    let above_target = ancestry(target.on_mount, *parent, |_| false)?;
    if above_target.iter().any(|facts| facts.is_same_file(source.facts)) {
        return Ok(Nesting::Inside);
    }
    if cannot_contain {
        return Ok(Nesting::Separate);
    }
    // Above the point where the two upward paths meet they are the same, and that part is known.
    let is_known = |facts: &Facts| above_target.iter().any(|known| is_same_place(known, facts));
    let above_source = match directory_of_remote_mount(source)? {
        None => ancestry(source.on_mount, *source.facts, is_known)?,
        Some(above) => ancestry(above.as_fd(), facts::from_fd(&above)?, is_known)?,
    };
    let common_length =
        above_source.last().and_then(|last| above_target.iter().position(|known| is_same_place(known, last)));
    let rest = above_target.iter().skip(common_length.unwrap_or(above_target.len()));
    let holds = above_source.iter().chain(rest).any(|facts| facts.is_same_file(target.facts));
    Ok(if holds { Nesting::Contains } else { Nesting::Separate })
}

/// The directory that contains a mount, if the source is the root of a mount with a server. On NFS version 3
/// the server must allow even the step up out of the mount.
fn directory_of_remote_mount(source: &MountedDirectory<'_>) -> io::Result<Option<OwnedFd>> {
    let facts = source.facts;
    if !facts.is_mount_root || facts.device.major != 0 || !lookup::is_remote(source.on_mount) {
        return Ok(None);
    }
    let entry = mountinfo::mount_by_id(facts.mount).map_err(io::Error::other)?;
    let place = entry.map(|entry| entry.mount_point);
    let Some(directory) = place.as_deref().and_then(Path::parent) else { return Ok(None) };
    lookup::open_path(directory, OFlags::DIRECTORY).map(Some)
}

/// The directory itself and all its ancestors, up to the root or to the first known one.
pub(crate) fn ancestry(
    directory: BorrowedFd<'_>,
    facts: Facts,
    is_known: impl Fn(&Facts) -> bool,
) -> io::Result<Vec<Facts>> {
    let mut way = vec![facts];
    let mut facts = facts;
    let mut fd = None::<OwnedFd>;
    while !is_known(&facts) {
        let here = fd.as_ref().map_or(directory, AsFd::as_fd);
        let up = lookup::open_at(here, "..".as_ref())?;
        let above = facts::from_fd(&up)?;
        // Only the root is its own parent.
        if is_same_place(&above, &facts) {
            break;
        }
        way.push(above);
        (facts, fd) = (above, Some(up));
    }
    Ok(way)
}

/// Whether both are the same directory on the same mount, so that all their ancestors are the same.
pub(crate) fn is_same_place(one: &Facts, other: &Facts) -> bool {
    (one.device, one.inode, one.mount) == (other.device, other.inode, other.mount)
}
