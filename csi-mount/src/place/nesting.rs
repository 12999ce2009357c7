//! Whether of two directories one is inside the other, by whatever names they are reached.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::OFlags;

use crate::DeviceNumber;
use crate::path::lookup;
use crate::sys::mount_api::{self, StatMountBasic};
use crate::table::facts;
use crate::table::facts::Facts;
use crate::table::mountinfo;

/// How the target of a bind lies to its source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Nesting {
    Apart,
    /// The target is somewhere below the source.
    Inside,
    /// The source is somewhere below the target.
    Holds,
}

/// A directory, and its mount.
pub(crate) struct Place<'a> {
    on_mount: BorrowedFd<'a>,
    facts: &'a Facts,
    mount: Option<StatMountBasic>,
}

impl<'a> Place<'a> {
    /// A directory, a descriptor that is open on its mount, and what the kernel told of that.
    pub(crate) fn new(on_mount: BorrowedFd<'a>, facts: &'a Facts, mount: Option<StatMountBasic>) -> Self {
        Self { on_mount, facts, mount }
    }

    /// Whether the filesystem's device is the directory's own, which a btrfs has none of.
    fn is_of_its_device(&self) -> bool {
        let DeviceNumber { major, minor } = self.facts.device;
        self.mount.is_some_and(|mount| mount.device == (major, minor))
    }

    /// Whether it is known to have no directory in it, and so nothing below it.
    fn has_no_directories(&self) -> bool {
        /// Those whose directories have two links, and one more for each directory in them: ext2, ext3 and ext4, XFS, tmpfs.
        /// Others say 1, or what they like.
        const COUNTING: [u64; 3] = [0xef53, 0x5846_5342, 0x0102_1994];
        self.mount.is_some_and(|mount| COUNTING.contains(&mount.magic)) && self.facts.links == 2
    }

    /// Whether nothing of this filesystem is anywhere on the way up from here, as the mounts on the way tell.
    fn is_outside(&self, device: DeviceNumber) -> bool {
        let mut mount = self.mount;
        while let Some(here) = mount {
            if here.device == (device.major, device.minor) {
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

/// How the target, in this directory, lies to the source.
///
/// What the kernel knows of both mostly tells at once that they are apart. Else the way up from each is walked, the only one
/// that has no aliases.
pub(crate) fn nesting(source: &Place<'_>, target: &Place<'_>, parent: &Facts) -> io::Result<Nesting> {
    let cannot_hold = target.has_no_directories();
    let cannot_be_inside =
        || source.has_no_directories() || source.is_of_its_device() && target.is_outside(source.facts.device);
    if cannot_hold && cannot_be_inside() {
        return Ok(Nesting::Apart);
    }
    let above_target = ancestry(target.on_mount, *parent, |_| false)?;
    if above_target.iter().any(|facts| facts.is_same_file(source.facts)) {
        return Ok(Nesting::Inside);
    }
    if cannot_hold {
        return Ok(Nesting::Apart);
    }
    // From where the two ways up meet they are one, and that part is known.
    let is_known = |facts: &Facts| above_target.iter().any(|known| is_same_place(known, facts));
    let above_source = match directory_of_remote_mount(source)? {
        None => ancestry(source.on_mount, *source.facts, is_known)?,
        Some(above) => ancestry(above.as_fd(), facts::from_fd(&above)?, is_known)?,
    };
    let meet =
        above_source.last().and_then(|last| above_target.iter().position(|known| is_same_place(known, last)));
    let rest = above_target.iter().skip(meet.unwrap_or(above_target.len()));
    let holds = above_source.iter().chain(rest).any(|facts| facts.is_same_file(target.facts));
    Ok(if holds { Nesting::Holds } else { Nesting::Apart })
}

/// The directory that a mount is in, if the source is the root of one that has a server: even the way up out of it is for
/// the server to allow (NFS of version 3).
fn directory_of_remote_mount(source: &Place<'_>) -> io::Result<Option<OwnedFd>> {
    let facts = source.facts;
    if !facts.is_mount_root || facts.device.major != 0 || !lookup::is_remote(source.on_mount) {
        return Ok(None);
    }
    let entry = mountinfo::mount_by_id(facts.mount).map_err(io::Error::other)?;
    let place = entry.map(|entry| entry.mount_point);
    let Some(directory) = place.as_deref().and_then(Path::parent) else { return Ok(None) };
    lookup::open_path(directory, OFlags::DIRECTORY).map(Some)
}

/// The directory itself and all above it, up to the root or to the first that is known.
pub(crate) fn ancestry(
    directory: BorrowedFd<'_>,
    facts: Facts,
    is_known: impl Fn(&Facts) -> bool,
) -> io::Result<Vec<Facts>> {
    let mut way = vec![facts];
    let (mut facts, mut fd) = (facts, None::<OwnedFd>);
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

/// Whether both are one directory of one mount, above which there can be no difference.
pub(crate) fn is_same_place(one: &Facts, other: &Facts) -> bool {
    (one.device, one.inode, one.mount) == (other.device, other.inode, other.mount)
}
