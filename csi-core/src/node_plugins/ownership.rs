//! The volumes' paths on this node and their owners: only what is known to be the volume's is unmounted and
//! removed.

use std::path::Path;
use std::sync::Arc;

use csi_mount::{ErrorKind, Evidence, Host, Outcome, OwnedPath, Owner};

use crate::call::request::PluginContext;
use crate::error::{Error, Reason, Result};
use crate::node::{
    NodePublishVolumeRequest, NodeStageVolumeRequest, NodeUnpublishVolumeRequest, NodeUnstageVolumeRequest,
};
use crate::types::VolumeId;

type Plugin<'a> = Option<&'a Arc<PluginContext>>;

/// The request's volume as the owner of its paths.
pub(super) fn owner(id: &VolumeId, plugin: Plugin<'_>) -> Owner {
    let driver = plugin.map_or("", |plugin| &plugin.driver);
    let roots = plugin.map_or(&[][..], |plugin| &plugin.volume_roots);
    Owner::new(driver, id.as_str()).roots(roots)
}

/// The owner, with the driver's evidence about the volume; no evidence means that the volume no longer
/// exists.
pub(super) fn owner_known_by(id: &VolumeId, plugin: Plugin<'_>, evidence: Option<Evidence>) -> Owner {
    match evidence {
        Some(evidence) => owner(id, plugin).evidence(evidence),
        None => owner(id, plugin).volume_is_gone(),
    }
}

impl NodeStageVolumeRequest {
    /// Returns the staging path with the volume as its owner, for the steps of the
    /// [`host`](crate::TypedRequest::host).
    pub fn owned_staging(&self) -> OwnedPath {
        OwnedPath::new(&*self.staging_target_path, owner(&self.volume_id, self.plugin()))
    }
}

impl NodePublishVolumeRequest {
    /// Returns the target path with the volume as its owner, for the steps of the
    /// [`host`](crate::TypedRequest::host).
    pub fn owned_target(&self) -> OwnedPath {
        OwnedPath::new(&*self.target_path, owner(&self.volume_id, self.plugin()))
    }
}

impl NodeUnpublishVolumeRequest {
    /// Returns the target path with the volume as its owner, for the steps of the
    /// [`host`](crate::TypedRequest::host).
    pub fn owned_target(&self) -> OwnedPath {
        OwnedPath::new(&*self.target_path, self.owner())
    }

    pub(super) fn owner(&self) -> Owner {
        owner(&self.volume_id, self.plugin())
    }
}

impl NodeUnstageVolumeRequest {
    /// Returns the staging path with the volume as its owner, for the steps of the
    /// [`host`](crate::TypedRequest::host).
    pub fn owned_staging(&self) -> OwnedPath {
        OwnedPath::new(&*self.staging_target_path, owner(&self.volume_id, self.plugin()))
    }
}

/// Whether the path is marked as another volume's.
fn belongs_to_another(host: &Host, path: &Path, owner: &Owner) -> Result<bool> {
    Ok(host.mounts().marked_owner(path)?.is_some_and(|found| !owner.has_id(&found)))
}

/// For a publish: FAILED_PRECONDITION if another volume is staged at the staging path, or a mount there
/// belongs to no volume of this driver.
pub(super) fn refuse_to_publish(host: &Host, staging: &Path, id: &VolumeId, owner: &Owner) -> Result<()> {
    if belongs_to_another(host, staging, owner)? {
        return Err(another_is_staged(staging, id));
    }
    match host.mounts().refuse_foreign(&OwnedPath::new(staging, owner.clone())) {
        Err(error) if error.kind() == ErrorKind::NotOwned => Err(Error::NotStaged(Reason::from_error(error))),
        known => Ok(known?),
    }
}

/// The result of a publish from a staging path: FAILED_PRECONDITION if nothing is staged there.
pub(super) fn published_from_staging(published: csi_mount::Result<Outcome>) -> Result<()> {
    match published {
        Ok(_) => Ok(()),
        Err(error) if error.kind() == ErrorKind::NotFound => Err(Error::NotStaged(Reason::from_error(error))),
        Err(error) => Err(error.into()),
    }
}

/// For stats and health: NOT_FOUND if the path belongs to another volume.
pub(super) fn refuse_stats_of_another(
    host: &Host,
    path: &Path,
    id: &VolumeId,
    plugin: Plugin<'_>,
) -> Result<()> {
    if path.is_absolute() && belongs_to_another(host, path, &owner(id, plugin))? {
        return Err(Error::VolumeNotFound(id.clone()));
    }
    Ok(())
}

/// The error when a volume is to be published from a path at which another volume is staged.
pub(super) fn another_is_staged(staging: &Path, id: &VolumeId) -> Error {
    let place = staging.display();
    Error::NotStaged(format!("what is staged at {place} is another volume than {id}").into())
}
