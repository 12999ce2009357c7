//! What is asked about mounts and places, and about the node.

use std::path::{Path, PathBuf};

use super::{OwnedPath, steps};
use crate::error::Result;
use crate::mounted::health::{MountHealth, health, health_of_filesystem};
use crate::mounted::stats::{Stats, stats};
use crate::place::owner::OwnerId;
use crate::place::protected::ProtectedPaths;
use crate::place::target::{Target, mount_state};
use crate::preflight::{self, NodeNeed, Preflight};
use crate::table::facts::MountState;
use crate::table::mountinfo::MountEntry;

steps! {
    /// What a node plugin asks about mounts, and about the node.
    Mounts as mounts;

    /// The mount table; see [`mounts`](crate::mounts).
    pub fn table() -> Result<Vec<MountEntry>> {
        crate::mounts()
    }

    /// Returns what is mounted at an absolute path. A symbolic link as the last component is not followed.
    ///
    /// It never asks the filesystem there, so it returns on a mount whose daemon or server is dead. It uses one
    /// `openat2(2)` with `RESOLVE_CACHED` and one `statx(2)` with `AT_STATX_DONT_SYNC`; before Linux 5.8
    /// `/proc/self/fdinfo` instead of `statx`.
    ///
    /// ```
    /// # fn main() -> csi_mount::Result<()> {
    /// use csi_mount::{Host, MountState};
    ///
    /// let host = Host::kernel();
    /// assert!(matches!(host.mounts().state("/proc".as_ref())?, MountState::Mounted(_)));
    /// assert_eq!(host.mounts().state("/no/such/path".as_ref())?, MountState::Absent);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// An error never counts as "not mounted".
    /// - [`InvalidInput`](crate::ErrorKind::InvalidInput): the path can never work.
    /// - [`PermissionDenied`](crate::ErrorKind::PermissionDenied): an ancestor cannot be searched.
    pub fn state(path: &Path) -> Result<MountState> {
        mount_state(path)
    }

    /// Returns the health of the mount at an absolute path; waits at most five seconds for the
    /// filesystem.
    ///
    /// The cost does not grow with the number of mounts (`statmount(2)`; before Linux 6.13 the mount table is
    /// read) or with the content of the filesystem. As with [`stats`](Self::stats), a child process asks the
    /// filesystem, or the calling thread if that cannot hang. A child process always checks whether the
    /// filesystem of a block device is frozen, which takes a fraction of a millisecond. If no child can be
    /// started, the filesystem counts as not frozen. A symbolic link as the last component of the path is not
    /// followed.
    ///
    /// ```
    /// # fn main() -> csi_mount::Result<()> {
    /// use csi_mount::{Host, MountHealth};
    ///
    /// let host = Host::kernel();
    /// assert_eq!(host.mounts().health("/proc".as_ref())?, MountHealth::Healthy);
    /// assert_eq!(host.mounts().health("/no/such/path".as_ref())?, MountHealth::NotMounted);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// An unhealthy mount is not an error.
    /// - [`InvalidInput`](crate::ErrorKind::InvalidInput): the path can never work.
    /// - [`PermissionDenied`](crate::ErrorKind::PermissionDenied): an ancestor cannot be searched.
    /// - [`Unresponsive`](crate::ErrorKind::Unresponsive): the filesystem of an ancestor does not answer.
    pub fn health(path: &Path) -> Result<MountHealth> {
        health(path)
    }

    /// Returns the health of the filesystem that contains an absolute path, which need not be a mount point.
    ///
    /// It works as [`health`](Self::health), but follows symbolic links and never returns [`MountHealth::NotMounted`].
    ///
    /// # Errors
    /// Those of [`health`](Self::health), and [`NotFound`](crate::ErrorKind::NotFound) if the path does not exist.
    pub fn health_of_filesystem(path: &Path) -> Result<MountHealth> {
        health_of_filesystem(path)
    }

    /// Returns the usage of the filesystem at an absolute path; waits at most five seconds.
    ///
    /// `statfs(2)` on a filesystem with a dead daemon or server does not return and cannot always be interrupted.
    /// So a child process makes the call, and is killed at the time limit. Only ext4, XFS and tmpfs need no
    /// child, because they answer from memory; this needs Linux 6.13 and no project quotas.
    ///
    /// At most one query per mount runs at a time. A second caller waits for its turn. While the queries before
    /// it are answered, that can take longer than the limit. It fails at once while an earlier child cannot be
    /// killed.
    ///
    /// ```
    /// # fn main() -> csi_mount::Result<()> {
    /// let stats = csi_mount::Host::kernel().mounts().stats("/".as_ref())?;
    /// assert!(stats.bytes.available <= stats.bytes.total);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// - [`Unresponsive`](crate::ErrorKind::Unresponsive): no answer in time, or the filesystem's daemon is gone.
    /// - [`Busy`](crate::ErrorKind::Busy): so many callers ask a slow filesystem that the turn does not come
    ///   within 30 seconds plus the limit.
    /// - [`NotFound`](crate::ErrorKind::NotFound): the path does not exist.
    /// - [`InvalidInput`](crate::ErrorKind::InvalidInput): the path can never work.
    pub fn stats(path: &Path) -> Result<Stats> {
        stats(path)
    }

    /// The volume in the mark of the place, whatever is mounted on it. None without a mark.
    ///
    /// # Errors
    /// Those of `getxattr(2)`.
    pub fn marked_owner(path: &Path) -> Result<Option<OwnerId>> {
        Target::new(path)?.marked_owner()
    }

    /// Refuses a place with a mount that is not known to be its owner's.
    ///
    /// On a filesystem that supports no marks, the owner of a mount without [`Evidence`](crate::Evidence) is unknown, and it
    /// is not refused.
    ///
    /// # Errors
    /// [`NotOwned`](crate::ErrorKind::NotOwned), naming what is mounted there.
    pub fn refuse_foreign(place: &OwnedPath) -> Result<()> {
        place.target()?.refuse_foreign()
    }

    /// Marks what is mounted at the target as its owner's: a mount that an earlier driver made for the volume. The
    /// caller vouches for it.
    ///
    /// Returns whether a mark was written. Nothing is, if nothing is mounted there, or the mount has the owner's mark
    /// already.
    ///
    /// # Errors
    /// - [`AlreadyMounted`](crate::ErrorKind::AlreadyMounted): the place has the mark of another volume.
    /// - [`NotOwned`](crate::ErrorKind::NotOwned): mounts of different directories lie on each other there.
    /// - [`Unsupported`](crate::ErrorKind::Unsupported): the filesystem of the path stores no marks.
    pub fn adopt(place: &OwnedPath) -> Result<bool> {
        place.target()?.adopt()
    }

    /// Returns whether the filesystem mounted at a path has lost its daemon.
    ///
    /// # Errors
    /// Those of [`health`](Self::health).
    pub fn has_lost_daemon(path: &Path) -> Result<bool> {
        crate::flow::fuse::is_lost(path)
    }

    /// Refuses a protected absolute path.
    ///
    /// It compares the text, and also the file that the path leads to, through any symbolic link or bind
    /// mount. It waits no longer than five seconds for a filesystem that can hang. A protected directory that
    /// does not exist or does not answer is compared by its text only.
    ///
    /// # Errors
    /// - [`Protected`](crate::ErrorKind::Protected): the path is protected; the message names the protected directory.
    /// - [`InvalidInput`](crate::ErrorKind::InvalidInput): the path can never work.
    /// - [`Unresponsive`](crate::ErrorKind::Unresponsive): a directory above the path does not answer.
    pub fn check_protected(protected: &ProtectedPaths, path: &Path) -> Result<()> {
        protected.check(path)
    }

    /// Checks whether the node has what volumes need, and changes nothing.
    ///
    /// Checks what every driver needs: mount propagation at the directories of the volumes' paths, the
    /// capabilities of the process, the system calls of the kernel, `/proc` and `/dev`; and what this driver
    /// needs besides.
    pub fn preflight(roots: &[PathBuf], needs: &[NodeNeed]) -> Preflight {
        preflight::preflight(roots, needs)
    }
}
