//! The node's part for filesystems that a server shares: NFS, CephFS, SMB and their kind.
//!
//! | step | a driver that stages | a driver that does not |
//! |---|---|---|
//! | stage | [`stage`]: mount once for the node | |
//! | publish | [`publish`]: bind the staged filesystem | [`publish_directly`]: mount at the target |
//! | stats | [`stats`](crate::stats()), [`health`](crate::health()) | the same |
//! | unpublish | [`unpublish`] | [`unpublish`] |
//! | unstage | [`unstage`] | |
//!
//! No step waits for a server without end, and none leaves a mount that can't be taken away: what does not answer is
//! unmounted by force if it is the last mount of its filesystem, and taken out of sight if that does not help. While others
//! on the node have it mounted, one mount goes and theirs stay as they are.
//!
//! The kernel mounts, and no helper program: a password is an option that goes to the kernel alone. What a helper would
//! have found out is found out for NFS ([`SharedSource::nfs`]), and for the others it is for the driver to say: SMB needs
//! `ip=` and a source `//server/share`, CephFS its monitors in the source or in `mon_addr=`. What can't be had so needs a
//! driver's own way.
//!
//! The toolkit's tests run this against NFS servers, v3 and v4.2, on kernels that have a client; elsewhere with tmpfs,
//! overlay and ext4 for the mounting, and FUSE filesystems whose daemon hangs or is gone for the server. They do not run
//! it against servers of SMB or Ceph.
//!
//! ```no_run
//! use csi_mount::flow::shared::{SharedSource, publish, stage, unpublish, unstage};
//! use csi_mount::{MountAttributes, MountOptions, Target};
//!
//! let staging = Target::new("/var/lib/kubelet/plugins/kubernetes.io/csi/nfs.example.org/vol-1/globalmount")?;
//! let target = Target::new("/var/lib/kubelet/pods/1/volumes/kubernetes.io~csi/vol-1/mount")?;
//!
//! let options = MountOptions::parse(["nfsvers=4.1", "softreval"])?;
//! stage(&staging, &SharedSource::nfs("nfs.example.org", "/export")?.options(options))?;
//! publish(staging.path(), &target, MountAttributes::RDONLY)?;
//!
//! unpublish(&target)?;
//! unstage(&staging)?;
//! # Ok::<(), csi_mount::Error>(())
//! ```

mod nfs;
mod source;

use std::path::Path;
use std::time::Duration;

use super::lost::{require_staged, take_off_lost};
use crate::detached::prepared::Prepared;
use crate::mounted::health;
use crate::mounting::attach;
use crate::mounting::mount::MOUNT;
use crate::{
    Bind, Created, Detach, Mount, MountAttributes, MountHealth, Outcome, Removed, Result, Root, Target,
    UNMOUNT_TIME_LIMIT, Unmount, Unmounted,
};

pub use source::{SHARED_MOUNT_TIME_LIMIT, SharedSource};

const PUBLISH: &str = "publish";

/// Mounts the shared filesystem at the staging directory, which is made if it is not there.
///
/// What is mounted there counts as done only if it is of this source, with the same attributes, and answers. A mount
/// whose server is gone for good (`ENOTCONN`, `ESTALE`) is taken off and the filesystem is mounted anew.
///
/// The server is waited for as long as [`SharedSource::time_limit`] says, by a process that is killed then. Others of the
/// same source wait for their turn, and fail at once while one that could not be killed is still there.
///
/// # Errors
///
/// - [`AlreadyMounted`](crate::ErrorKind::AlreadyMounted): something else is mounted there, or with other attributes.
/// - [`Unresponsive`](crate::ErrorKind::Unresponsive): the server does not answer, to this mount or to the one that is there.
/// - Those of [`Mount::at`].
pub fn stage(staging: &Target, source: &SharedSource) -> Result<Outcome> {
    let created = staging.create_dir()?;
    mount(staging, source).inspect_err(|_| take_back(created, staging))
}

/// Mounts the shared filesystem at the target directory, with these attributes besides those of its options, for a driver
/// that does not stage. Otherwise as [`stage`].
///
/// # Errors
///
/// As for [`stage`].
pub fn publish_directly(
    target: &Target,
    source: &SharedSource,
    attributes: MountAttributes,
) -> Result<Outcome> {
    stage(target, &source.clone().with_attributes(attributes))
}

fn mount(target: &Target, source: &SharedSource) -> Result<Outcome> {
    let health = take_off_lost(target)?;
    attach::mount_once(
        MOUNT,
        target,
        |_, found| {
            source.accept(target, found)?;
            match health {
                // It is not waited for once more.
                MountHealth::Unresponsive => health::refuse_unwell(MOUNT, target, health),
                _ => Ok(()),
            }
        },
        |seen| attach::attach(MOUNT, prepared(source, target)?, target, &seen, source.options.attributes()),
    )
}

fn prepared(source: &SharedSource, target: &Target) -> Result<Prepared> {
    let options = nfs::complete(source)?;
    Mount::new(&source.fs_type, &source.source)
        .options(&options)
        .time_limit(source.time_limit)
        .prepared(target)
}

/// Mounts the shared filesystem where nobody sees it, and gives its root directory: for work of a driver's own in it, as
/// making and deleting the directories that are volumes.
///
/// The mount is in no tree of mounts and goes with the last of the [`Root`] and the [`Target`]s from it, also when the
/// process is killed. (Before Linux 5.2 it is in a private place of this process's mount namespace.) The server is
/// waited for as in [`stage`]. What is done below the root afterwards waits for the server as the mount's options say:
/// mount NFS `soft`.
///
/// # Errors
///
/// Those of [`Mount::at`].
pub fn open(source: &SharedSource) -> Result<Root> {
    // For messages: the mount has no place.
    let nowhere = Target::new("/proc/unseen")?;
    let mount = prepared(source, &nowhere).map_err(|error| error.at(&source.source))?;
    Root::of_mount(mount, source.source.clone().into())
}

/// Binds the staged filesystem to the target directory, with these attributes added to those of the staged mount.
///
/// The directory is made if it is not there. A bind of a filesystem whose server is gone for good, from before it was
/// staged anew, is taken off and replaced.
///
/// # Errors
///
/// [`NotFound`](crate::ErrorKind::NotFound) if nothing is staged, [`Unresponsive`](crate::ErrorKind::Unresponsive) if what is staged does
/// not answer, and those of [`Bind::at`] and [`Target::create_dir`].
pub fn publish(staging: impl AsRef<Path>, target: &Target, attributes: MountAttributes) -> Result<Outcome> {
    let staging = staging.as_ref();
    require_staged(PUBLISH, staging, attributes)?;
    let created = target.create_dir()?;
    take_off_lost(target)
        .and_then(|_| Bind::new(staging).attributes(attributes).at(target))
        .inspect_err(|_| take_back(created, target))
}

/// Removes what a failed step has made.
fn take_back(created: Created, target: &Target) {
    if created == Created::Created
        && let Err(left) = target.remove()
    {
        tracing::warn!(%left, "a directory that nothing could be mounted on is left");
    }
}

/// Undoes [`publish`] and [`publish_directly`], also while the server does not answer, and removes the directory.
///
/// # Errors
///
/// [`Busy`](crate::ErrorKind::Busy) while something uses a filesystem that answers; those of [`Unmount::at`] and
/// [`Target::remove`].
pub fn unpublish(target: &Target) -> Result<Removed> {
    unpublish_within(target, UNMOUNT_TIME_LIMIT)
}

/// As [`unpublish`], with another time for what is to be written; see [`unstage_within`].
///
/// # Errors
///
/// As for [`unpublish`].
pub fn unpublish_within(target: &Target, finishing: Duration) -> Result<Removed> {
    Unmount::new().detach(Detach::IfUnresponsive).finish_within(finishing).at(target)?;
    target.remove()
}

/// Undoes [`stage`], also while the server does not answer. The directory stays: it is the orchestrator's.
///
/// What is not written yet is waited for as long as [`UNMOUNT_TIME_LIMIT`] says.
///
/// # Errors
///
/// [`Busy`](crate::ErrorKind::Busy) while something uses a filesystem that answers; those of [`Unmount::at`].
pub fn unstage(staging: &Target) -> Result<Unmounted> {
    unstage_within(staging, UNMOUNT_TIME_LIMIT)
}

/// As [`unstage`], with another time for what is to be written: for servers to which much is written late. What a server does
/// not take in this time is lost, and it is [`Detached`](Unmounted::Detached): nobody can tell one that is slow from one that
/// is gone.
///
/// # Errors
///
/// As for [`unstage`].
pub fn unstage_within(staging: &Target, finishing: Duration) -> Result<Unmounted> {
    let unmounted = Unmount::new().detach(Detach::IfUnresponsive).finish_within(finishing).at(staging)?;
    staging.unmark("unstage")?;
    Ok(unmounted)
}
