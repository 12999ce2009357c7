//! Directories, and volumes that are directories, also those that the driver fills with files.

use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use rustix::fs::FileType;

use super::{OwnedPath, steps};
use crate::error::{Error, Result};
use crate::flow::ephemeral::{self, Change, Content, EphemeralPlan};
use crate::mounting::attach::Outcome;
use crate::mounting::bind::Bind;
use crate::mounting::id_map::IdMap;
use crate::mounting::unmount::unmount;
use crate::place::target::{Removed, Target};
use crate::sys::attributes::MountAttributes;
use crate::tree::group::{GroupChange, GroupOutcome};

steps! {
    /// The steps of volumes that are directories, and those on the directories of any volume.
    Directories as directories;

    /// Whether a path is a directory; see [`Target::is_directory`].
    pub fn is_directory(path: &Path) -> Result<bool> {
        Target::new(path)?.is_directory()
    }

    /// Whether two paths, on filesystems that answer, lead to one file or directory.
    pub fn is_same_file(one: &Path, other: &Path) -> Result<bool> {
        let identity = |path: &Path| {
            let metadata = path.metadata().map_err(|error| Error::os("look at", path, error))?;
            Ok::<_, Error>((metadata.dev(), metadata.ino()))
        };
        Ok(identity(one)? == identity(other)?)
    }

    /// Gives a volume's files to a group; see [`set_volume_ownership`](crate::set_volume_ownership).
    pub fn set_volume_ownership(root: &Path, group: u32, change: GroupChange) -> Result<GroupOutcome> {
        crate::set_volume_ownership(root, group, change)
    }

    /// Sets the permissions of a directory; see [`set_permissions`](crate::set_permissions).
    pub fn set_permissions(directory: &Path, mode: u32) -> Result<()> {
        crate::set_permissions(directory, mode)
    }

    /// Removes a directory with its content; see [`Target::remove_tree`].
    pub fn remove_tree(path: &Path) -> Result<Removed> {
        Target::new(path)?.remove_tree()
    }

    /// Binds a directory to a target, which is made if it does not exist; see [`Bind`].
    pub fn publish(
        source: &Path,
        target: &OwnedPath,
        attributes: MountAttributes,
        id_map: IdMap,
    ) -> Result<Outcome> {
        let target = target.target()?;
        target.create_for_publish(FileType::Directory)?;
        Bind::new(source).attributes(attributes).id_map(id_map).at(&target)
    }

    /// Unmounts every layer at a target, and removes it; see [`unmount`](crate::unmount()) and
    /// [`Target::remove`].
    pub fn unpublish(target: &OwnedPath) -> Result<Removed> {
        let target = target.target()?;
        unmount(&target)?;
        target.remove()
    }
}

steps! {
    /// The steps of [`flow::ephemeral`](crate::flow::ephemeral). Such a volume is unpublished as a
    /// [directory](Directories::unpublish) is.
    EphemeralVolumes as ephemeral;

    /// Mounts the content at the target directory, or changes the content of a volume that is already published
    /// there.
    ///
    /// The directory is made if it does not exist. The first publish mounts a tmpfs that already holds the
    /// content. A later publish changes that tmpfs in place, also if it is mounted read-only, and never mounts
    /// a second one. Content that is the same is not touched, so that no watcher is woken. If a version can't
    /// be written completely, the previous one stays in place.
    ///
    /// The tmpfs does not go to swap if the kernel supports that (`noswap`, Linux 6.4); on older kernels it
    /// can. A read-only mount is changed through a writable detached one (`open_tree(2)`, `mount_setattr(2)`;
    /// Linux 5.12), on older kernels through one in a private directory.
    ///
    /// # Errors
    /// - [`AlreadyMounted`](crate::ErrorKind::AlreadyMounted): something else is mounted there, or another
    ///   volume, or this one with other attributes.
    /// - [`OutOfRange`](crate::ErrorKind::OutOfRange): the content takes more than half of the volume's size
    ///   (each file takes whole pages of 4 KiB), so that two versions would not fit; see
    ///   [`EphemeralPlan::size`].
    /// - [`NoSpace`](crate::ErrorKind::NoSpace): the workload can write and has filled the volume.
    /// - [`Busy`](crate::ErrorKind::Busy): the directory has content and nothing is mounted there; another
    ///   process keeps the lock of the volume's directory, or mounts and unmounts there.
    /// - [`InvalidInput`](crate::ErrorKind::InvalidInput): the target is a symbolic link or not a directory, or
    ///   the plan's name is invalid: empty, with a NUL, or longer than 200 bytes.
    pub fn publish(target: &OwnedPath, content: &Content, plan: &EphemeralPlan) -> Result<Change> {
        ephemeral::publish(&target.target()?, content, plan)
    }
}
