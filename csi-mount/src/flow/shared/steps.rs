//! The steps of a shared filesystem.

use std::path::Path;
use std::time::Duration;

use rustix::fs::FileType;

use super::kernel_log::KernelLog;
use super::{SharedSource, ceph, nfs, smb};
use crate::detached::prepared::Prepared;
use crate::error::Result;
use crate::flow::{remove_created, require_staged, unmount_if_lost};
use crate::mounted::health::{self, MountHealth};
use crate::mounting::MOUNT;
use crate::mounting::attach::{self, Outcome};
use crate::mounting::bind::Bind;
use crate::mounting::mount::Mount;
use crate::mounting::unmount::{Detach, Unmount, Unmounted};
use crate::place::root::Root;
use crate::place::target::{Removed, Target};
use crate::sys::attributes::MountAttributes;

const PUBLISH: &str = "publish";

/// See [`SharedVolumes::stage`](crate::SharedVolumes::stage).
pub fn stage(staging: &Target, source: &SharedSource) -> Result<Outcome> {
    let created = staging.create_dir()?;
    mount(staging, source).inspect_err(|_| remove_created(created, staging))
}

/// See [`SharedVolumes::publish_directly`](crate::SharedVolumes::publish_directly).
pub fn publish_directly(
    target: &Target,
    source: &SharedSource,
    attributes: MountAttributes,
) -> Result<Outcome> {
    let created = target.create_for_publish(FileType::Directory)?;
    mount(target, &source.clone().with_attributes(attributes))
        .inspect_err(|_| remove_created(created, target))
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
                MountHealth::Unresponsive => health::refuse_unresponsive(MOUNT, target.path(), health),
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
            fs_type if nfs::is_nfs(fs_type) => nfs::explained(error),
            _ => smb::explained(source, error, log),
        })
}

/// Mounts the shared filesystem detached and returns its root directory, for work of the driver itself.
///
/// Use it, for example, to make and delete the directories that are volumes. The mount is in no mount tree.
/// It ends when the [`Root`] and the last [`Target`] from it are dropped, also when the process is killed.
/// (Before Linux 5.2 it is in a private directory of this process's mount namespace.) The wait for the
/// server is limited as in [`SharedVolumes::stage`](crate::SharedVolumes::stage). Later operations below the root wait for the server as the mount
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

/// See [`SharedVolumes::publish`](crate::SharedVolumes::publish).
pub fn publish(staging: impl AsRef<Path>, target: &Target, attributes: MountAttributes) -> Result<Outcome> {
    let staging = staging.as_ref();
    require_staged(PUBLISH, staging, attributes)?;
    let created = target.create_for_publish(FileType::Directory)?;
    unmount_if_lost(target)
        .and_then(|_| Bind::new(staging).attributes(attributes).at(target))
        .inspect_err(|_| remove_created(created, target))
}

/// See [`SharedVolumes::unpublish`](crate::SharedVolumes::unpublish).
pub(crate) fn unpublish(target: &Target, limit: Duration) -> Result<Removed> {
    Unmount::new().detach(Detach::IfUnresponsive).finish_time_limit(limit).at(target)?;
    target.remove()
}

/// See [`SharedVolumes::unstage`](crate::SharedVolumes::unstage).
pub fn unstage(staging: &Target, limit: Duration) -> Result<Unmounted> {
    let unmounted = Unmount::new().detach(Detach::IfUnresponsive).finish_time_limit(limit).at(staging)?;
    staging.unmark("unstage")?;
    Ok(unmounted)
}
