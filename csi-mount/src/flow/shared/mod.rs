//! Node flow for filesystems that a server shares: NFS, CephFS, SMB and similar.
//!
//! | step | a driver that stages | a driver that does not |
//! |---|---|---|
//! | stage | [`stage`]: mount once for the node | |
//! | publish | [`publish`]: bind the staged filesystem | [`publish_directly`]: mount at the target |
//! | stats | [`stats`](crate::stats()), [`health`](crate::health()) | the same |
//! | unpublish | [`unpublish`] | [`unpublish`] |
//! | unstage | [`unstage`] | |
//!
//! No step waits for a server without a limit, and no step leaves a mount that can't be removed. A
//! filesystem that does not answer is unmounted by force if this is its last mount, and detached
//! (`MNT_DETACH`) if force does not help. While the filesystem has other mounts on the node, only this
//! mount is removed and the others stay as they are.
//!
//! The kernel mounts directly, without a helper program: a password is an option that only the kernel gets.
//! For NFS and SMB the flow finds the values that a helper would find ([`SharedSource::nfs`],
//! [`SharedSource::smb`]). CephFS has its monitors in its source ([`SharedSource::ceph`]). For other filesystems
//! the driver provides what a helper would find.
//!
//! The toolkit's tests run this flow against NFS servers, v3 and v4.2, Samba and a Ceph cluster, on kernels that have a
//! client. Elsewhere they use tmpfs, overlay and ext4 for the mounting, and, in place of a server, FUSE filesystems
//! whose daemon hangs or is gone.
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

mod address;
mod ceph;
mod kernel_log;
mod nfs;
mod smb;
mod source;

use std::path::Path;
use std::time::Duration;

use super::lost::{require_staged, unmount_if_lost};
use super::remove_created;
use crate::detached::prepared::Prepared;
use crate::mounted::health;
use crate::mounting::attach;
use crate::mounting::mount::MOUNT;
use crate::{
    Bind, Detach, Mount, MountAttributes, MountHealth, Outcome, Removed, Result, Root, Target,
    UNMOUNT_TIME_LIMIT, Unmount, Unmounted,
};

use kernel_log::KernelLog;
pub use source::SharedSource;

const PUBLISH: &str = "publish";

/// Mounts the shared filesystem at the staging directory, which is made if it does not exist.
///
/// An existing mount counts as done only if it is of this source, has the same attributes, and answers. A
/// mount whose server is gone for good (`ENOTCONN`, `ESTALE`) is unmounted, and the filesystem is mounted
/// again.
///
/// A child process mounts and waits for the server. It is killed after [`SharedSource::time_limit`]. Other
/// mounts of the same source wait until it ends; while a child that could not be killed still exists, they
/// fail at once.
///
/// # Errors
///
/// - [`AlreadyMounted`](crate::ErrorKind::AlreadyMounted): something else is mounted there, or with other
///   attributes.
/// - [`Unresponsive`](crate::ErrorKind::Unresponsive): the server does not answer, for the new or the
///   existing mount.
/// - Those of [`Mount::at`].
pub fn stage(staging: &Target, source: &SharedSource) -> Result<Outcome> {
    let created = staging.create_dir()?;
    mount(staging, source).inspect_err(|_| remove_created(created, staging))
}

/// Mounts the shared filesystem at the target directory, for a driver that does not stage.
///
/// These attributes are added to those of the source's options. Otherwise it works as [`stage`].
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
    let health = unmount_if_lost(target)?;
    attach::mount_once(
        MOUNT,
        target,
        |_, found| {
            source.accept(target, found)?;
            match health {
                // The health check has already waited for it: don't wait again.
                MountHealth::Unresponsive => health::refuse_unresponsive(MOUNT, target, health),
                _ => Ok(()),
            }
        },
        |opened| {
            attach::attach(MOUNT, prepared(source, target)?, target, &opened, source.options.attributes())
        },
    )
}

fn prepared(source: &SharedSource, target: &Target) -> Result<Prepared> {
    let options = smb::complete(source, nfs::complete(source)?)?;
    let log = KernelLog::from_now();
    Mount::new(&source.fs_type, &source.source)
        .options(&options)
        .time_limit(source.time_limit)
        .prepared(target)
        .map_err(|error| match source.fs_type.as_str() {
            ceph::CEPH => ceph::explained(source, error, log),
            _ => smb::explained(source, error, log),
        })
}

/// Mounts the shared filesystem detached and returns its root directory, for work of the driver itself.
///
/// Use it, for example, to make and delete the directories that are volumes. The mount is in no mount tree.
/// It ends when the [`Root`] and the last [`Target`] from it are dropped, also when the process is killed.
/// (Before Linux 5.2 it is in a private directory of this process's mount namespace.) The wait for the
/// server is limited as in [`stage`]. Later operations below the root wait for the server as the mount
/// options say: mount NFS `soft`.
///
/// # Errors
///
/// Those of [`Mount::at`].
pub fn open(source: &SharedSource) -> Result<Root> {
    // Only for error messages: the mount has no path.
    let nowhere = Target::new("/proc/unseen")?;
    let mount = prepared(source, &nowhere).map_err(|error| error.at(&source.source))?;
    Root::from_mount(mount, source.source.clone().into())
}

/// Binds the staged filesystem to the target directory, with these attributes added to those of the staged
/// mount.
///
/// The directory is made if it does not exist. An old bind of a filesystem whose server is gone for good,
/// made before the filesystem was staged again, is replaced.
///
/// # Errors
///
/// [`NotFound`](crate::ErrorKind::NotFound) if nothing is staged,
/// [`Unresponsive`](crate::ErrorKind::Unresponsive) if the staged filesystem does not answer, and those of
/// [`Bind::at`] and [`Target::create_dir`].
pub fn publish(staging: impl AsRef<Path>, target: &Target, attributes: MountAttributes) -> Result<Outcome> {
    let staging = staging.as_ref();
    require_staged(PUBLISH, staging, attributes)?;
    let created = target.create_dir()?;
    unmount_if_lost(target)
        .and_then(|_| Bind::new(staging).attributes(attributes).at(target))
        .inspect_err(|_| remove_created(created, target))
}

/// Undoes [`publish`] and [`publish_directly`], also while the server does not answer, and removes the
/// directory.
///
/// # Errors
///
/// [`Busy`](crate::ErrorKind::Busy) while something uses a filesystem that answers; those of
/// [`Unmount::at`] and [`Target::remove`].
pub fn unpublish(target: &Target) -> Result<Removed> {
    unpublish_within(target, UNMOUNT_TIME_LIMIT)
}

/// As [`unpublish`], with another time limit for unwritten data; see [`unstage_within`].
///
/// # Errors
///
/// As for [`unpublish`].
pub fn unpublish_within(target: &Target, limit: Duration) -> Result<Removed> {
    Unmount::new().detach(Detach::IfUnresponsive).finish_time_limit(limit).at(target)?;
    target.remove()
}

/// Undoes [`stage`], also while the server does not answer. The directory stays: it belongs to the
/// orchestrator.
///
/// Unwritten data is waited for as long as [`UNMOUNT_TIME_LIMIT`].
///
/// # Errors
///
/// [`Busy`](crate::ErrorKind::Busy) while something uses a filesystem that answers; those of
/// [`Unmount::at`].
pub fn unstage(staging: &Target) -> Result<Unmounted> {
    unstage_within(staging, UNMOUNT_TIME_LIMIT)
}

/// As [`unstage`], with another time limit for unwritten data, for servers to which much data is written
/// late.
///
/// Data that the server does not accept within this time is lost, and the filesystem is
/// [`Detached`](Unmounted::Detached): a slow server can't be told apart from one that is gone.
///
/// # Errors
///
/// As for [`unstage`].
pub fn unstage_within(staging: &Target, limit: Duration) -> Result<Unmounted> {
    let unmounted = Unmount::new().detach(Detach::IfUnresponsive).finish_time_limit(limit).at(staging)?;
    staging.unmark("unstage")?;
    Ok(unmounted)
}
