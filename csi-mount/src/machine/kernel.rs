//! The real machine: each step calls the function that its documentation names.

use std::ffi::OsString;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::{LoopPath, Machine, VolumePlace};
use crate::flow::block::{MountCopies, StagePlan, Staged, VolumeUsage};
use crate::flow::ephemeral::{Change, Content, EphemeralPlan};
use crate::flow::fuse::FuseDaemon;
use crate::flow::shared::SharedSource;
use crate::flow::{block, ephemeral, fuse, shared};
use crate::{
    Bind, BlockDevice, DeviceAccess, DeviceNumber, DeviceUse, Error, GroupChange, GroupOutcome, Grown, IdMap,
    LoopDevice, LoopOptions, MountAttributes, MountEntry, MountHealth, MountState, NodeNeed, Outcome,
    OwnerId, ProtectedPaths, Removed, Result, SelfCheck, Stats, Target, Unmounted, unmount,
};

/// The kernel, in the mount namespace of the calling thread.
#[derive(Debug, Clone, Copy, Default)]
pub struct Kernel;

impl Machine for Kernel {
    fn mounts(&self) -> Result<Vec<MountEntry>> {
        crate::mounts()
    }

    fn mount_state(&self, path: &Path) -> Result<MountState> {
        crate::mount_state(path)
    }

    fn health(&self, path: &Path) -> Result<MountHealth> {
        crate::health(path)
    }

    fn health_of_filesystem(&self, path: &Path) -> Result<MountHealth> {
        crate::health_of_filesystem(path)
    }

    fn stats(&self, path: &Path) -> Result<Stats> {
        crate::stats(path)
    }

    fn marked_owner(&self, path: &Path) -> Result<Option<OwnerId>> {
        Target::new(path)?.marked_owner()
    }

    fn refuse_foreign(&self, place: &VolumePlace) -> Result<()> {
        place.target()?.refuse_foreign()
    }

    fn check_protected(&self, protected: &ProtectedPaths, path: &Path) -> Result<()> {
        protected.check(path)
    }

    fn self_check(&self, roots: &[PathBuf], needs: &[NodeNeed]) -> SelfCheck {
        crate::self_check(roots, needs)
    }

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

    fn remove_tree(&self, path: &Path) -> Result<Removed> {
        Target::new(path)?.remove_tree()
    }

    fn directory_publish(
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

    fn directory_unpublish(&self, target: &VolumePlace) -> Result<Removed> {
        let target = target.target()?;
        unmount(&target)?;
        target.remove()
    }

    fn device_number(&self, device: &Path) -> Result<DeviceNumber> {
        Ok(BlockDevice::open(device)?.number())
    }

    fn device_use(&self, device: &Path) -> Result<DeviceUse> {
        BlockDevice::open(device)?.in_use()
    }

    fn device_of(&self, path: &Path) -> Result<DeviceNumber> {
        block::device_of(path)
    }

    fn opened_device(&self, device: &Path) -> Result<Option<PathBuf>> {
        block::opened_device(device)
    }

    fn loop_attach(&self, backing: &Path, options: &LoopOptions) -> Result<LoopPath> {
        let device = LoopDevice::attach_or_find(backing, options)?;
        Ok(LoopPath::new(device.path(), device.number()))
    }

    fn loop_devices(&self, backing: &Path) -> Result<Vec<LoopPath>> {
        let found = LoopDevice::find(backing)?;
        Ok(found.iter().map(|device| LoopPath::new(device.path(), device.number())).collect())
    }

    fn loop_refresh(&self, backing: &Path) -> Result<()> {
        LoopDevice::find(backing)?.iter().try_for_each(LoopDevice::refresh_size)
    }

    fn loop_detach(&self, backing: &Path) -> Result<usize> {
        LoopDevice::detach_all(backing)
    }

    fn block_stage(&self, device: &Path, staging: &VolumePlace, plan: &StagePlan) -> Result<Staged> {
        block::stage(device, &staging.target()?, plan)
    }

    #[cfg(feature = "luks")]
    fn block_stage_device(
        &self,
        device: &Path,
        staging: &VolumePlace,
        luks: &crate::Luks,
        key: &crate::LuksKey,
        access: DeviceAccess,
    ) -> Result<()> {
        block::stage_device(device, &staging.target()?, luks, key, access).map(drop)
    }

    fn block_unstage(
        &self,
        staging: &VolumePlace,
        device: Option<&Path>,
        copies: MountCopies,
    ) -> Result<Unmounted> {
        block::unstage_with(&staging.target()?, device, copies)
    }

    fn block_publish(
        &self,
        staging: &Path,
        target: &VolumePlace,
        attributes: MountAttributes,
        id_map: IdMap,
    ) -> Result<Outcome> {
        block::publish_with_id_map(staging, &target.target()?, attributes, id_map)
    }

    fn block_publish_device(
        &self,
        device: &Path,
        target: &VolumePlace,
        access: DeviceAccess,
    ) -> Result<Outcome> {
        block::publish_device(device, &target.target()?, access)
    }

    fn block_unpublish(&self, target: &VolumePlace) -> Result<Removed> {
        block::unpublish(&target.target()?)
    }

    fn block_usage(&self, path: &Path) -> Result<(VolumeUsage, Option<DeviceNumber>)> {
        block::usage(path)
    }

    fn block_expand(&self, path: &Path) -> Result<Grown> {
        block::expand(path)
    }

    #[cfg(feature = "luks")]
    fn block_expand_encrypted(&self, path: &Path, key: &crate::LuksKey) -> Result<Grown> {
        block::expand_encrypted(path, key)
    }

    fn shared_mount(
        &self,
        place: &VolumePlace,
        source: &SharedSource,
        attributes: MountAttributes,
    ) -> Result<Outcome> {
        shared::publish_directly(&place.target()?, source, attributes)
    }

    fn shared_publish(
        &self,
        staging: &Path,
        target: &VolumePlace,
        attributes: MountAttributes,
    ) -> Result<Outcome> {
        shared::publish(staging, &target.target()?, attributes)
    }

    fn shared_unpublish(&self, target: &VolumePlace, limit: Duration) -> Result<Removed> {
        shared::unpublish_within(&target.target()?, limit)
    }

    fn shared_unstage(&self, staging: &VolumePlace, limit: Duration) -> Result<Unmounted> {
        shared::unstage_within(&staging.target()?, limit)
    }

    fn fuse_stage(&self, staging: &VolumePlace, daemon: &FuseDaemon) -> Result<Outcome> {
        fuse::stage(&staging.target()?, daemon)
    }

    fn fuse_is_lost(&self, path: &Path) -> Result<bool> {
        fuse::is_lost(path)
    }

    fn fuse_identity(&self, path: &Path) -> Option<OsString> {
        fuse::identity_at(path)
    }

    fn fuse_publish(
        &self,
        staging: &Path,
        target: &VolumePlace,
        attributes: MountAttributes,
    ) -> Result<Outcome> {
        fuse::publish(staging, &target.target()?, attributes)
    }

    fn fuse_unpublish(&self, target: &VolumePlace) -> Result<Removed> {
        fuse::unpublish(&target.target()?)
    }

    fn fuse_unstage(&self, staging: &VolumePlace, limit: Duration) -> Result<Unmounted> {
        fuse::unstage_within(&staging.target()?, limit)
    }

    fn ephemeral_publish(
        &self,
        target: &VolumePlace,
        content: &Content,
        plan: &EphemeralPlan,
    ) -> Result<Change> {
        ephemeral::publish(&target.target()?, content, plan)
    }
}
