//! The node as a driver's node plugin sees it, at the height of a volume's steps: the kernel, or a simulated
//! node in a test.
//!
//! [`Machine`] is the seam, [`Kernel`] its real implementation, which calls [`flow`](crate::flow). With the
//! feature `testing`, `testing::SimulatedNode` is the other one. It imports every folder but `testing`.

mod kernel;

use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::flow::block::{MountCopies, StagePlan, Staged, VolumeUsage};
use crate::flow::ephemeral::{Change, Content, EphemeralPlan};
use crate::flow::fuse::FuseDaemon;
use crate::flow::shared::SharedSource;
use crate::{
    DeviceAccess, DeviceNumber, DeviceUse, GroupChange, GroupOutcome, Grown, IdMap, LoopOptions,
    MountAttributes, MountEntry, MountHealth, MountState, NodeNeed, Outcome, Owner, OwnerId, ProtectedPaths,
    Removed, Result, SelfCheck, Stats, Target, Unmounted,
};

pub use kernel::Kernel;

/// A path on a node, and the volume that owns what is mounted there.
#[derive(Debug, Clone)]
#[must_use]
pub struct VolumePlace {
    path: PathBuf,
    owner: Owner,
}

impl VolumePlace {
    /// The place of this owner's volume at an absolute path.
    pub fn new(path: impl Into<PathBuf>, owner: Owner) -> Self {
        Self { path: path.into(), owner }
    }

    /// The path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The owner of what is mounted there.
    pub fn owner(&self) -> &Owner {
        &self.owner
    }

    /// The place as the kernel's target, which is opened now.
    ///
    /// # Errors
    /// Those of [`Target::new`].
    pub fn target(&self) -> Result<Target> {
        Ok(Target::new(&self.path)?.owned_by(self.owner.clone()))
    }
}

/// A loop device, as [`Machine::loop_devices`] returns it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct LoopPath {
    /// The path of its device node.
    pub path: PathBuf,
    /// Its device number.
    pub number: DeviceNumber,
}

impl LoopPath {
    /// The loop device with this node and number.
    pub fn new(path: impl Into<PathBuf>, number: DeviceNumber) -> Self {
        Self { path: path.into(), number }
    }
}

/// What the node plugins of a driver do on a node: the steps of each flow, and what is asked about mounts and
/// devices.
///
/// [`Kernel`] does it. `testing::SimulatedNode` (feature `testing`) keeps devices, mounts and files in memory
/// and fails on demand. Both answer with the same [kinds](crate::ErrorKind) of errors; the same tests run on
/// both. Every method can block its thread, but not without limit.
///
/// ```
/// use csi_mount::{IdMap, Kernel, Machine, MountAttributes, Owner, Result, VolumePlace};
///
/// fn publish(machine: &dyn Machine, volume: &str) -> Result<()> {
///     let place = VolumePlace::new("/pods/1/mount", Owner::new("dirs.example.org", volume));
///     let source = std::path::Path::new("/srv/volumes").join(volume);
///     machine.directory_publish(&source, &place, MountAttributes::RDONLY, IdMap::new()).map(drop)
/// }
/// # let _: (fn(&dyn Machine, &str) -> Result<()>, Kernel) = (publish, Kernel);
/// ```
///
/// # Errors
/// Each method has the errors of the function that it names.
#[expect(clippy::missing_errors_doc, reason = "each method names the function whose errors it has")]
pub trait Machine: fmt::Debug + Send + Sync + 'static {
    /// The mount table; see [`mounts`](crate::mounts).
    fn mounts(&self) -> Result<Vec<MountEntry>>;

    /// What is mounted at a path; see [`mount_state`](crate::mount_state).
    fn mount_state(&self, path: &Path) -> Result<MountState>;

    /// The health of the mount at a path; see [`health`](crate::health()).
    fn health(&self, path: &Path) -> Result<MountHealth>;

    /// The health of the filesystem that contains a path; see
    /// [`health_of_filesystem`](crate::health_of_filesystem).
    fn health_of_filesystem(&self, path: &Path) -> Result<MountHealth>;

    /// The usage of the filesystem at a path; see [`stats`](crate::stats()).
    fn stats(&self, path: &Path) -> Result<Stats>;

    /// The volume in the mark of a place; see [`Target::marked_owner`].
    fn marked_owner(&self, path: &Path) -> Result<Option<OwnerId>>;

    /// Refuses a mount that is not known to be its owner's; see [`Target::refuse_foreign`].
    fn refuse_foreign(&self, place: &VolumePlace) -> Result<()>;

    /// Refuses a protected path; see [`ProtectedPaths::check`].
    fn check_protected(&self, protected: &ProtectedPaths, path: &Path) -> Result<()>;

    /// Whether the node has what volumes need; see [`self_check`](crate::self_check()).
    fn self_check(&self, roots: &[PathBuf], needs: &[NodeNeed]) -> SelfCheck;

    /// Whether a path is a directory; see [`Target::is_directory`].
    fn is_directory(&self, path: &Path) -> Result<bool>;

    /// Whether two paths, on filesystems that answer, lead to one file or directory.
    fn is_same_file(&self, one: &Path, other: &Path) -> Result<bool>;

    /// Gives a volume's files to a group; see [`give_to_group`](crate::give_to_group).
    fn give_to_group(&self, root: &Path, group: u32, change: GroupChange) -> Result<GroupOutcome>;

    /// Removes a directory with its content; see [`Target::remove_tree`].
    fn remove_tree(&self, path: &Path) -> Result<Removed>;

    /// Binds a directory to a target, which is made if it does not exist; see [`Bind`](crate::Bind).
    fn directory_publish(
        &self,
        source: &Path,
        target: &VolumePlace,
        attributes: MountAttributes,
        id_map: IdMap,
    ) -> Result<Outcome>;

    /// Unmounts every layer at a target, and removes it; see [`unmount`](crate::unmount()) and
    /// [`Target::remove`].
    fn directory_unpublish(&self, target: &VolumePlace) -> Result<Removed>;

    /// The number of the block device at a path; see [`BlockDevice::open`](crate::BlockDevice::open).
    fn device_number(&self, device: &Path) -> Result<DeviceNumber>;

    /// Whether a block device is in use; see [`BlockDevice::in_use`](crate::BlockDevice::in_use).
    fn device_use(&self, device: &Path) -> Result<DeviceUse>;

    /// The block device of the volume at a path; see [`device_of`](crate::flow::block::device_of).
    fn device_of(&self, path: &Path) -> Result<DeviceNumber>;

    /// The device inside an encrypted device; see [`opened_device`](crate::flow::block::opened_device).
    fn opened_device(&self, device: &Path) -> Result<Option<PathBuf>>;

    /// Attaches a loop device to a file, or finds the one that is attached; see
    /// [`LoopDevice::attach_or_find`](crate::LoopDevice::attach_or_find).
    fn loop_attach(&self, backing: &Path, options: &LoopOptions) -> Result<LoopPath>;

    /// The loop devices over a file or device; see [`LoopDevice::find`](crate::LoopDevice::find).
    fn loop_devices(&self, backing: &Path) -> Result<Vec<LoopPath>>;

    /// Makes the loop devices over a file or device read its size again; see
    /// [`LoopDevice::refresh_size`](crate::LoopDevice::refresh_size).
    fn loop_refresh(&self, backing: &Path) -> Result<()>;

    /// Detaches the loop devices over a file, and returns their number; see
    /// [`LoopDevice::detach_all`](crate::LoopDevice::detach_all).
    fn loop_detach(&self, backing: &Path) -> Result<usize>;

    /// Stages a filesystem; see [`block::stage`](crate::flow::block::stage).
    fn block_stage(&self, device: &Path, staging: &VolumePlace, plan: &StagePlan) -> Result<Staged>;

    /// Opens an encrypted device that is published raw; see `block::stage_device`.
    #[cfg(feature = "luks")]
    fn block_stage_device(
        &self,
        device: &Path,
        staging: &VolumePlace,
        luks: &crate::Luks,
        key: &crate::LuksKey,
        access: DeviceAccess,
    ) -> Result<()>;

    /// Unstages a filesystem or device; see [`block::unstage_with`](crate::flow::block::unstage_with).
    fn block_unstage(
        &self,
        staging: &VolumePlace,
        device: Option<&Path>,
        copies: MountCopies,
    ) -> Result<Unmounted>;

    /// Publishes a staged filesystem; see
    /// [`block::publish_with_id_map`](crate::flow::block::publish_with_id_map).
    fn block_publish(
        &self,
        staging: &Path,
        target: &VolumePlace,
        attributes: MountAttributes,
        id_map: IdMap,
    ) -> Result<Outcome>;

    /// Publishes a device; see [`block::publish_device`](crate::flow::block::publish_device).
    fn block_publish_device(
        &self,
        device: &Path,
        target: &VolumePlace,
        access: DeviceAccess,
    ) -> Result<Outcome>;

    /// Unpublishes a filesystem or device; see [`block::unpublish`](crate::flow::block::unpublish).
    fn block_unpublish(&self, target: &VolumePlace) -> Result<Removed>;

    /// The usage of a volume, and its device; see [`block::usage`](crate::flow::block::usage).
    fn block_usage(&self, path: &Path) -> Result<(VolumeUsage, Option<DeviceNumber>)>;

    /// Grows a volume to its device's size; see [`block::expand`](crate::flow::block::expand).
    fn block_expand(&self, path: &Path) -> Result<Grown>;

    /// As [`block_expand`](Self::block_expand), for a volume that can be in an encrypted device; see
    /// `block::expand_encrypted`.
    #[cfg(feature = "luks")]
    fn block_expand_encrypted(&self, path: &Path, key: &crate::LuksKey) -> Result<Grown>;

    /// Mounts a shared filesystem; see [`shared::stage`](crate::flow::shared::stage). With attributes other
    /// than none also at a target; see
    /// [`shared::publish_directly`](crate::flow::shared::publish_directly).
    fn shared_mount(
        &self,
        place: &VolumePlace,
        source: &SharedSource,
        attributes: MountAttributes,
    ) -> Result<Outcome>;

    /// Publishes a staged shared filesystem; see [`shared::publish`](crate::flow::shared::publish).
    fn shared_publish(
        &self,
        staging: &Path,
        target: &VolumePlace,
        attributes: MountAttributes,
    ) -> Result<Outcome>;

    /// Unpublishes a shared filesystem; see
    /// [`shared::unpublish_within`](crate::flow::shared::unpublish_within).
    fn shared_unpublish(&self, target: &VolumePlace, limit: Duration) -> Result<Removed>;

    /// Unstages a shared filesystem; see [`shared::unstage_within`](crate::flow::shared::unstage_within).
    fn shared_unstage(&self, staging: &VolumePlace, limit: Duration) -> Result<Unmounted>;

    /// Starts a FUSE daemon; see [`fuse::stage`](crate::flow::fuse::stage).
    fn fuse_stage(&self, staging: &VolumePlace, daemon: &FuseDaemon) -> Result<Outcome>;

    /// Whether a FUSE filesystem has lost its daemon; see [`fuse::is_lost`](crate::flow::fuse::is_lost).
    fn fuse_is_lost(&self, path: &Path) -> Result<bool>;

    /// What the FUSE daemon at a path serves; see [`fuse::identity_at`](crate::flow::fuse::identity_at).
    fn fuse_identity(&self, path: &Path) -> Option<OsString>;

    /// Publishes a FUSE filesystem; see [`fuse::publish`](crate::flow::fuse::publish).
    fn fuse_publish(
        &self,
        staging: &Path,
        target: &VolumePlace,
        attributes: MountAttributes,
    ) -> Result<Outcome>;

    /// Unpublishes a FUSE filesystem; see [`fuse::unpublish`](crate::flow::fuse::unpublish).
    fn fuse_unpublish(&self, target: &VolumePlace) -> Result<Removed>;

    /// Ends a FUSE daemon; see [`fuse::unstage_within`](crate::flow::fuse::unstage_within).
    fn fuse_unstage(&self, staging: &VolumePlace, limit: Duration) -> Result<Unmounted>;

    /// Publishes content in memory; see [`ephemeral::publish`](crate::flow::ephemeral::publish).
    fn ephemeral_publish(
        &self,
        target: &VolumePlace,
        content: &Content,
        plan: &EphemeralPlan,
    ) -> Result<Change>;
}
