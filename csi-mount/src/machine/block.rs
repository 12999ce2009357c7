//! Volumes that are block devices.

use std::path::{Path, PathBuf};

use super::{Kernel, VolumePlace};
use crate::flow::block::{self, MountCopies, StagePlan, Staged, VolumeUsage};
use crate::{DeviceAccess, DeviceNumber, Grown, IdMap, MountAttributes, Outcome, Removed, Result, Unmounted};

/// The steps of [`flow::block`](crate::flow::block).
#[expect(clippy::missing_errors_doc, reason = "each method names the function whose errors it has")]
pub trait BlockSteps: Send + Sync {
    /// The block device of the volume at a path; see [`device_of`](block::device_of).
    fn device_of(&self, path: &Path) -> Result<DeviceNumber>;

    /// The device inside an encrypted device; see [`opened_device`](block::opened_device).
    fn opened_device(&self, device: &Path) -> Result<Option<PathBuf>>;

    /// Stages a filesystem; see [`stage`](block::stage).
    fn stage(&self, device: &Path, staging: &VolumePlace, plan: &StagePlan) -> Result<Staged>;

    /// Opens an encrypted device that is published raw; see `block::stage_device`.
    #[cfg(feature = "luks")]
    fn stage_device(
        &self,
        device: &Path,
        staging: &VolumePlace,
        luks: &crate::Luks,
        key: &crate::LuksKey,
        access: DeviceAccess,
    ) -> Result<()>;

    /// Unstages a filesystem or device; see [`unstage_with`](block::unstage_with).
    fn unstage(&self, staging: &VolumePlace, device: Option<&Path>, copies: MountCopies)
    -> Result<Unmounted>;

    /// Publishes a staged filesystem; see [`publish_with_id_map`](block::publish_with_id_map).
    fn publish(
        &self,
        staging: &Path,
        target: &VolumePlace,
        attributes: MountAttributes,
        id_map: IdMap,
    ) -> Result<Outcome>;

    /// Publishes a device; see [`publish_device`](block::publish_device).
    fn publish_device(&self, device: &Path, target: &VolumePlace, access: DeviceAccess) -> Result<Outcome>;

    /// Unpublishes a filesystem or device; see [`unpublish`](block::unpublish).
    fn unpublish(&self, target: &VolumePlace) -> Result<Removed>;

    /// The usage of a volume, and its device; see [`usage`](block::usage).
    fn usage(&self, path: &Path) -> Result<(VolumeUsage, Option<DeviceNumber>)>;

    /// Grows a volume to its device's size; see [`expand`](block::expand).
    fn expand(&self, path: &Path) -> Result<Grown>;

    /// As [`expand`](Self::expand), for a volume that can be in an encrypted device; see
    /// `block::expand_encrypted`.
    #[cfg(feature = "luks")]
    fn expand_encrypted(&self, path: &Path, key: &crate::LuksKey) -> Result<Grown>;
}

impl BlockSteps for Kernel {
    fn device_of(&self, path: &Path) -> Result<DeviceNumber> {
        block::device_of(path)
    }

    fn opened_device(&self, device: &Path) -> Result<Option<PathBuf>> {
        block::opened_device(device)
    }

    fn stage(&self, device: &Path, staging: &VolumePlace, plan: &StagePlan) -> Result<Staged> {
        block::stage(device, &staging.target()?, plan)
    }

    #[cfg(feature = "luks")]
    fn stage_device(
        &self,
        device: &Path,
        staging: &VolumePlace,
        luks: &crate::Luks,
        key: &crate::LuksKey,
        access: DeviceAccess,
    ) -> Result<()> {
        block::stage_device(device, &staging.target()?, luks, key, access).map(drop)
    }

    fn unstage(
        &self,
        staging: &VolumePlace,
        device: Option<&Path>,
        copies: MountCopies,
    ) -> Result<Unmounted> {
        block::unstage_with(&staging.target()?, device, copies)
    }

    fn publish(
        &self,
        staging: &Path,
        target: &VolumePlace,
        attributes: MountAttributes,
        id_map: IdMap,
    ) -> Result<Outcome> {
        block::publish_with_id_map(staging, &target.target()?, attributes, id_map)
    }

    fn publish_device(&self, device: &Path, target: &VolumePlace, access: DeviceAccess) -> Result<Outcome> {
        block::publish_device(device, &target.target()?, access)
    }

    fn unpublish(&self, target: &VolumePlace) -> Result<Removed> {
        block::unpublish(&target.target()?)
    }

    fn usage(&self, path: &Path) -> Result<(VolumeUsage, Option<DeviceNumber>)> {
        block::usage(path)
    }

    fn expand(&self, path: &Path) -> Result<Grown> {
        block::expand(path)
    }

    #[cfg(feature = "luks")]
    fn expand_encrypted(&self, path: &Path, key: &crate::LuksKey) -> Result<Grown> {
        block::expand_encrypted(path, key)
    }
}
