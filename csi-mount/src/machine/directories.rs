//! Directories, and volumes that are directories.

use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use super::{Kernel, VolumePlace};
use crate::{
    Bind, Error, GroupChange, GroupOutcome, IdMap, MountAttributes, Outcome, Removed, Result, Target, unmount,
};

/// The steps of volumes that are directories, and those on the directories of any volume.
#[expect(clippy::missing_errors_doc, reason = "each method names the function whose errors it has")]
pub trait DirectorySteps: Send + Sync {
    /// Whether a path is a directory; see [`Target::is_directory`].
    fn is_directory(&self, path: &Path) -> Result<bool>;

    /// Whether two paths, on filesystems that answer, lead to one file or directory.
    fn is_same_file(&self, one: &Path, other: &Path) -> Result<bool>;

    /// Gives a volume's files to a group; see [`give_to_group`](crate::give_to_group).
    fn give_to_group(&self, root: &Path, group: u32, change: GroupChange) -> Result<GroupOutcome>;

    /// Sets the permissions of a directory; see [`set_permissions`](crate::set_permissions).
    fn set_permissions(&self, directory: &Path, mode: u32) -> Result<()>;

    /// Removes a directory with its content; see [`Target::remove_tree`].
    fn remove_tree(&self, path: &Path) -> Result<Removed>;

    /// Binds a directory to a target, which is made if it does not exist; see [`Bind`].
    fn publish(
        &self,
        source: &Path,
        target: &VolumePlace,
        attributes: MountAttributes,
        id_map: IdMap,
    ) -> Result<Outcome>;

    /// Unmounts every layer at a target, and removes it; see [`unmount`](crate::unmount()) and
    /// [`Target::remove`].
    fn unpublish(&self, target: &VolumePlace) -> Result<Removed>;
}

impl DirectorySteps for Kernel {
    fn is_directory(&self, path: &Path) -> Result<bool> {
        Target::new(path)?.is_directory()
    }

    fn is_same_file(&self, one: &Path, other: &Path) -> Result<bool> {
        let identity = |path: &Path| {
            let metadata = path.metadata().map_err(|error| Error::os("look at", path, error))?;
            Ok::<_, Error>((metadata.dev(), metadata.ino()))
        };
        Ok(identity(one)? == identity(other)?)
    }

    fn give_to_group(&self, root: &Path, group: u32, change: GroupChange) -> Result<GroupOutcome> {
        crate::give_to_group(root, group, change)
    }

    fn set_permissions(&self, directory: &Path, mode: u32) -> Result<()> {
        crate::set_permissions(directory, mode)
    }

    fn remove_tree(&self, path: &Path) -> Result<Removed> {
        Target::new(path)?.remove_tree()
    }

    fn publish(
        &self,
        source: &Path,
        target: &VolumePlace,
        attributes: MountAttributes,
        id_map: IdMap,
    ) -> Result<Outcome> {
        let target = target.target()?;
        target.create_dir()?;
        Bind::new(source).attributes(attributes).id_map(id_map).at(&target)
    }

    fn unpublish(&self, target: &VolumePlace) -> Result<Removed> {
        let target = target.target()?;
        unmount(&target)?;
        target.remove()
    }
}
