//! The volumes' paths on this node and their owners: only what is known to be the volume's is unmounted and
//! removed.

use std::path::Path;
use std::sync::Arc;

use csi_mount::{ErrorKind, Evidence, Machine, Outcome, Owner, Target, VolumePlace};

use crate::call::request::PluginContext;
use crate::node::{
    NodePublishVolumeRequest, NodeStageVolumeRequest, NodeUnpublishVolumeRequest, NodeUnstageVolumeRequest,
};
use crate::{Error, Reason, Result, VolumeId, machine};

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
    /// Returns the staging path as this volume's place, for the verbs of [`machine`](crate::machine()).
    pub fn place(&self) -> VolumePlace {
        VolumePlace::new(&*self.staging_target_path, owner(&self.volume_id, self.plugin()))
    }

    /// Returns the staging path as this volume's target: what is mounted there is marked as the volume's.
    ///
    /// # Errors
    /// Those of [`Target::new`].
    pub fn staging(&self) -> Result<Target> {
        Ok(Target::new(&self.staging_target_path)?.owned_by(owner(&self.volume_id, self.plugin())))
    }
}

impl NodePublishVolumeRequest {
    /// Returns the target path as this volume's place, for the verbs of [`machine`](crate::machine()).
    pub fn place(&self) -> VolumePlace {
        VolumePlace::new(&*self.target_path, owner(&self.volume_id, self.plugin()))
    }

    /// Returns the target path as this volume's target: what is mounted there is marked as the volume's.
    ///
    /// # Errors
    /// Those of [`Target::new`].
    pub fn target(&self) -> Result<Target> {
        Ok(Target::new(&self.target_path)?.owned_by(owner(&self.volume_id, self.plugin())))
    }
}

impl NodeUnpublishVolumeRequest {
    /// Returns the target path as this volume's place, for the verbs of [`machine`](crate::machine()).
    pub fn place(&self) -> VolumePlace {
        VolumePlace::new(&*self.target_path, self.owner())
    }

    /// Returns the target path as this volume's target: only what is marked as the volume's is unmounted
    /// and removed. Mounts without a mark need more evidence: [`Target::owned_by`] with an [`Owner`] that
    /// says how to recognise the volume.
    ///
    /// # Errors
    /// Those of [`Target::new`].
    pub fn target(&self) -> Result<Target> {
        Ok(Target::new(&self.target_path)?.owned_by(self.owner()))
    }

    /// Returns the owner that stands for this volume of this plugin.
    pub fn owner(&self) -> Owner {
        owner(&self.volume_id, self.plugin())
    }
}

impl NodeUnstageVolumeRequest {
    /// Returns the staging path as this volume's place, for the verbs of [`machine`](crate::machine()).
    pub fn place(&self) -> VolumePlace {
        VolumePlace::new(&*self.staging_target_path, self.owner())
    }

    /// Returns the staging path as this volume's target: only what is marked as the volume's is unmounted.
    ///
    /// # Errors
    /// Those of [`Target::new`].
    pub fn staging(&self) -> Result<Target> {
        Ok(Target::new(&self.staging_target_path)?.owned_by(self.owner()))
    }

    /// Returns the owner that stands for this volume of this plugin.
    pub fn owner(&self) -> Owner {
        owner(&self.volume_id, self.plugin())
    }
}

/// Whether the path is marked as another volume's.
fn belongs_to_another(path: &Path, owner: &Owner) -> Result<bool> {
    Ok(machine().mounts().marked_owner(path)?.is_some_and(|found| !owner.has_id(&found)))
}

/// For a publish: FAILED_PRECONDITION if another volume is staged at the staging path, or a mount there
/// belongs to no volume of this driver.
pub(super) fn refuse_to_publish(staging: &Path, id: &VolumeId, owner: &Owner) -> Result<()> {
    if belongs_to_another(staging, owner)? {
        return Err(another_is_staged(staging, id));
    }
    match machine().mounts().refuse_foreign(&VolumePlace::new(staging, owner.clone())) {
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
pub(super) fn refuse_stats_of_another(path: &Path, id: &VolumeId, plugin: Plugin<'_>) -> Result<()> {
    match path.is_absolute() && belongs_to_another(path, &owner(id, plugin))? {
        true => Err(Error::VolumeNotFound(id.clone())),
        false => Ok(()),
    }
}

/// The error when a volume is to be published from a path at which another volume is staged.
pub(super) fn another_is_staged(staging: &Path, id: &VolumeId) -> Error {
    let place = staging.display();
    Error::NotStaged(format!("what is staged at {place} is another volume than {id}").into())
}
