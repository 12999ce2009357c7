//! Directories, and volumes that are directories, also those that the driver fills with files.

use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use rustix::fs::FileType;

use super::{OwnedPath, steps};
use crate::error::{Error, Result};
use crate::flow::ephemeral::{self, Change, Content, EphemeralPlan};
use crate::mounted::stats::Stats;
use crate::mounting::attach::Outcome;
use crate::mounting::bind::Bind;
use crate::mounting::id_map::IdMap;
use crate::mounting::unmount::unmount;
use crate::place::target::{Removed, Target};
use crate::quota::{self, DirectoryLimit};
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

    /// Makes a directory that can hold so much and no more, and returns its limit. A directory that has a limit stays as
    /// it is, and its limit is returned.
    ///
    /// The limit is that of a project (project quotas of ext4, Linux 4.5, and XFS): a write above it fails with `EDQUOT`
    /// or, on XFS, `ENOSPC`, and `statfs(2)` in the directory shows it. It is no reservation: the filesystem can be full
    /// before. Files can neither be linked nor renamed into the directory from outside (`EXDEV`).
    ///
    /// A process with `CAP_SYS_RESOURCE`, as in a privileged container, is not bound by limits on ext4. Outside a user
    /// namespace the owner of a file can give it to another project (`FS_IOC_FSSETXATTR`); a pod is held to its limit
    /// against its will only with `hostUsers: false`.
    ///
    /// The directory gets the mode 0777 minus the umask. Its project id, from 0x40000000 upwards, is one that nothing on
    /// the filesystem has (`quotactl(2)`, `ioctl_xfs_fsgetxattr(2)`). The limit is on the disk when the call returns. A
    /// call that was interrupted is continued by the next one. Before Linux 5.14 (`quotactl_fd(2)`) the node of the
    /// filesystem's device is needed.
    ///
    /// # Errors
    /// - [`Unsupported`](crate::ErrorKind::Unsupported): the filesystem enforces no limits; the error says how to
    ///   change that. Nothing is made. Also for a directory with files and without a limit.
    /// - [`InvalidInput`](crate::ErrorKind::InvalidInput): a limit of 0.
    /// - [`NotFound`](crate::ErrorKind::NotFound): the parent directory does not exist.
    /// - [`Busy`](crate::ErrorKind::Busy): something is mounted there, or another process keeps the lock of the parent
    ///   directory for a minute.
    pub fn create(path: &Path, limit: DirectoryLimit) -> Result<DirectoryLimit> {
        quota::create(path, limit)
    }

    /// Whether directories below this one can be limited: the errors are those of [`create`](Self::create).
    pub fn check_limits(path: &Path) -> Result<()> {
        quota::check(path)
    }

    /// The limit of a directory, also while its filesystem is mounted so that it only counts. `None` if it has none.
    ///
    /// # Errors
    /// [`Unsupported`](crate::ErrorKind::Unsupported): it has a project, and the filesystem's quotas are off.
    pub fn limit(path: &Path) -> Result<Option<DirectoryLimit>> {
        quota::limit(path)
    }

    /// Gives a directory that was made with a limit another one, larger or smaller, also while it is used. The new
    /// limit is on the disk when the call returns.
    ///
    /// # Errors
    /// - [`OutOfRange`](crate::ErrorKind::OutOfRange): the directory holds more than that.
    /// - [`NotOwned`](crate::ErrorKind::NotOwned): it belongs to a project of another program or person.
    /// - [`Unsupported`](crate::ErrorKind::Unsupported): it was made without a limit; or as [`create`](Self::create).
    pub fn set_limit(path: &Path, limit: DirectoryLimit) -> Result<()> {
        quota::set_limit(path, limit)
    }

    /// What a directory with a limit uses of it, as the quota counts it. `None` if it has no limit, or its filesystem does
    /// not enforce limits now.
    ///
    /// Before Linux 6.13 `statfs(2)` there says that more is free than the filesystem has.
    pub fn usage(path: &Path) -> Result<Option<Stats>> {
        quota::usage(path)
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
