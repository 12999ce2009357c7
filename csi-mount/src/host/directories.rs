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
use crate::tree::group::{self, GroupChange, GroupOutcome};

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

    /// Gives a directory and everything in it to a group, with the permissions that the kubelet sets for
    /// `fsGroup`.
    ///
    /// The group can read and write files and enter directories, and new files in them belong to the group.
    ///
    /// The walk uses open directories from the root on and never leaves its mount. Symbolic links get the group
    /// themselves and are not followed, and mounts below are left alone, even if another process swaps them in
    /// meanwhile. The memory grows only with the depth of the tree, and few directories are open. After an
    /// interruption the next call continues: the root is changed last, and files that are right are not written
    /// again.
    ///
    /// A file that can't be changed does not keep the volume from being used, as with the kubelet: the log names
    /// the first such file and says how many there are. Only the root must have the group.
    ///
    /// The time grows with the number of files; [`IdMap`](crate::IdMap) takes no time per file. See
    /// `fchownat(2)`.
    ///
    /// # Errors
    /// - [`Unsupported`](crate::ErrorKind::Unsupported): the filesystem has a server or daemon, which decides about owners and can
    ///   hang.
    /// - [`ReadOnly`](crate::ErrorKind::ReadOnly): the mount is read-only.
    /// - [`NotFound`](crate::ErrorKind::NotFound): the directory does not exist.
    /// - [`Busy`](crate::ErrorKind::Busy): a directory was moved away during the walk. The next call continues.
    pub fn set_volume_ownership(root: &Path, group: u32, change: GroupChange) -> Result<GroupOutcome> {
        group::set_volume_ownership(root, group, change)
    }

    /// Sets the permissions of a directory, with setuid, setgid and sticky (`0o2770`), if it has others. What is
    /// in it stays as it is.
    ///
    /// A child process asks the filesystem, and is killed at a time limit of 30 seconds: the server or daemon of
    /// a filesystem might not answer. See `chmod(2)`.
    ///
    /// # Errors
    /// - [`PermissionDenied`](crate::ErrorKind::PermissionDenied),
    ///   [`Unsupported`](crate::ErrorKind::Unsupported): the server or daemon does not let this process change
    ///   them, or nobody.
    /// - [`ReadOnly`](crate::ErrorKind::ReadOnly): the mount is read-only.
    /// - [`Unresponsive`](crate::ErrorKind::Unresponsive): no answer in time.
    /// - [`NotFound`](crate::ErrorKind::NotFound): the directory does not exist.
    pub fn set_permissions(directory: &Path, mode: u32) -> Result<()> {
        group::set_permissions(directory, mode)
    }

    /// Makes a directory that can hold so much and no more, and returns its limit. A directory that has a limit stays as
    /// it is, and its limit is returned.
    ///
    /// On ext4 (Linux 4.5) and XFS the limit is that of a project (project quotas): a write above it fails with `EDQUOT`
    /// or, on XFS, `ENOSPC`, and `statfs(2)` in the directory shows it. On btrfs the directory is a subvolume, and the
    /// limit that of its quota group, of full or simple quotas: a write above it fails with `EDQUOT`, `statfs(2)` shows
    /// the whole filesystem, and [`inodes`](DirectoryLimit::inodes) can't be limited. A limit is no reservation: the
    /// filesystem can be full before. Files can neither be linked nor renamed into the directory from outside (`EXDEV`).
    ///
    /// A process with `CAP_SYS_RESOURCE`, as in a privileged container, is not bound by limits on ext4. Outside a user
    /// namespace the owner of a file can give it to another project (`FS_IOC_FSSETXATTR`); a pod is held to its limit
    /// against its will only with `hostUsers: false`. On btrfs any pod can make a subvolume in its volume, which has no
    /// limit.
    ///
    /// The directory gets the mode 0777 minus the umask. Its project id, from 0x40000000 upwards, is one that nothing on
    /// the filesystem has (`quotactl(2)`, `ioctl_xfs_fsgetxattr(2)`). The limit is on the disk when the call returns. A
    /// call that was interrupted is continued by the next one. Before Linux 5.14 (`quotactl_fd(2)`) the node of the
    /// filesystem's device is needed, but for btrfs.
    ///
    /// # Errors
    /// - [`Unsupported`](crate::ErrorKind::Unsupported): the filesystem enforces no limits; the error says how to
    ///   change that. Nothing is made. Also for a directory with files and without a limit, on btrfs for one that is no
    ///   subvolume, and for another number of inodes than that of [`DirectoryLimit::new`].
    /// - [`InvalidInput`](crate::ErrorKind::InvalidInput): a limit of 0.
    /// - [`NotFound`](crate::ErrorKind::NotFound): the parent directory does not exist.
    /// - [`Busy`](crate::ErrorKind::Busy): something is mounted there, another process keeps the lock of the parent
    ///   directory for a minute, or a btrfs has to count again before it enforces limits.
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
    /// Before Linux 6.13 `statfs(2)` there says that more is free than the filesystem has. On btrfs the usage is that of
    /// the last commit, which is at most 30 seconds ago (mount option `commit`), and has no inodes.
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
