//! What a driver says of volumes that are block devices.

use std::path::PathBuf;

use async_trait::async_trait;
use csi_mount::Filesystem;
use csi_mount::flow::block::{MountCopies, StagePlan};

use super::kernel::mount_options;
use super::mount_group::MountGroup;
use crate::node::NodeInfo;
use crate::{Error, PublishContext, Result, Secrets, VolumeCapability, VolumeContext, VolumeId};

/// What only the driver knows of its block devices. [`BlockNode`](super::BlockNode) makes a node plugin of it.
#[async_trait]
pub trait BlockDevices: Send + Sync + 'static {
    /// Which node this is; the machine's host name, unless the driver knows better. See [`Node::info`](crate::Node::info).
    ///
    /// # Errors
    /// Those of any RPC.
    async fn info(&self) -> Result<NodeInfo> {
        NodeInfo::of_host()
    }

    /// Makes the volume's device appear on this node, and answers with its path. A device that is there already
    /// is the answer as well.
    ///
    /// # Errors
    /// [`Error::VolumeNotFound`] (NOT_FOUND); [`Error::Unavailable`] when it does not appear in time.
    async fn attach(&self, volume: &Attachment) -> Result<PathBuf>;

    /// The volume's device on this node, if it is there.
    ///
    /// # Errors
    /// Whatever keeps the driver from knowing.
    async fn device(&self, volume_id: &VolumeId) -> Result<Option<PathBuf>>;

    /// Takes the volume's device away. Nobody uses it any more. One that is not there is `Ok`.
    ///
    /// # Errors
    /// Whatever keeps the device from going.
    async fn detach(&self, volume_id: &VolumeId) -> Result<()>;

    /// Lets the node see the size that the volume has by now, before a filesystem is grown. For devices that do
    /// not tell by themselves.
    ///
    /// # Errors
    /// Whatever keeps the node from seeing it.
    async fn refresh(&self, _volume_id: &VolumeId) -> Result<()> {
        Ok(())
    }

    /// The filesystems whose programs are to be there when the plugin starts; it says in the log what is missing.
    fn filesystems(&self) -> Vec<Filesystem> {
        Filesystem::ALL.to_vec()
    }

    /// What becomes of mounts of a volume's device in other mount namespaces when it is unstaged. They stay, and
    /// NodeUnstageVolume fails and names them, unless the driver says that those are unmounted which nobody has open: see
    /// [`MountCopies::UnmountUnused`] for the danger.
    fn mount_copies(&self) -> MountCopies {
        MountCopies::default()
    }

    /// How the group of VOLUME_MOUNT_GROUP gets a volume's files, where that is declared.
    fn mount_group(&self) -> MountGroup {
        MountGroup::default()
    }

    /// How the volume's device is encrypted, if it is to be: a blank one is made so when it is staged, and what is formatted,
    /// mounted or published is what is inside. Not called for its key: see [`encryption_key`](Self::encryption_key). A volume
    /// has to be one or the other for good, so say it by its [`volume_context`](Attachment::volume_context):
    ///
    /// ```
    /// # use csi_core::{Attachment, Result, mount::Luks};
    /// fn encryption(volume: &Attachment) -> Result<Option<Luks>> {
    ///     Ok((volume.volume_context.get("encrypted") == Some("true")).then(Luks::new))
    /// }
    /// ```
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for a way of encryption that can't be had.
    #[cfg(feature = "luks")]
    fn encryption(&self, _volume: &Attachment) -> Result<Option<csi_mount::Luks>> {
        Ok(None)
    }

    /// The name of the key of encrypted devices among the secrets of NodeStageVolume, and of NodeExpandVolume, which needs it
    /// to grow them at once; without it there they grow when they are staged next.
    #[cfg(feature = "luks")]
    fn encryption_key(&self) -> &str {
        "luksKey"
    }

    /// How a volume is formatted and mounted: the filesystem that the caller names, or ext4, with the caller's mount
    /// options. A driver that says more starts from [`stage_plan`], with what it knows of the volume: which disk it has to be,
    /// a label, arguments of `mkfs`, limits of checks, and whether it has content already: see [`staged`](Self::staged).
    ///
    /// ```
    /// # use csi_core::{Attachment, Result, VolumeCapability, mount::ExpectedDevice, mount::flow::block::StagePlan};
    /// async fn plan(volume: &Attachment, capability: &VolumeCapability) -> Result<StagePlan> {
    ///     let serial = volume.publish_context.require("serial")?;
    ///     let plan = csi_core::stage_plan(capability)?.expect(ExpectedDevice::new().serial(serial));
    ///     Ok(if volume.volume_context.get("restored").is_some() { plan.never_format() } else { plan })
    /// }
    /// ```
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for a filesystem or options that can't be had.
    async fn plan(&self, _volume: &Attachment, capability: &VolumeCapability) -> Result<StagePlan> {
        stage_plan(capability)
    }

    /// The volume has a filesystem from now on, which was made or found there, and is about to be used.
    ///
    /// A driver that keeps this with the volume, and whose [`plan`](Self::plan) then says
    /// [`never_format`](StagePlan::never_format), does not lose a volume to a device that reads as blank though it is not
    /// new. It is to be kept for all nodes, and for copies of the volume too. Called each time before NodeStageVolume is
    /// answered, so it may be said already; not for raw volumes. `examples/block` does so in ten lines.
    ///
    /// # Errors
    /// Whatever keeps the driver from noting it: the stage then fails, and is repeated.
    async fn staged(&self, _volume: &Attachment) -> Result<()> {
        Ok(())
    }
}

/// What the caller asks for, as a plan: the filesystem that it names, or ext4, with its mount options, read-only if the access
/// mode is.
///
/// # Errors
/// [`Error::InvalidArgument`] for a filesystem or options that can't be had.
pub fn stage_plan(capability: &VolumeCapability) -> Result<StagePlan> {
    let filesystem = filesystem(capability)?.unwrap_or(Filesystem::Ext4);
    let options = mount_options(capability)?;
    let read_only = capability.access_mode.is_read_only();
    Ok(StagePlan::new(filesystem).options(if read_only { options.read_only() } else { options }))
}

/// The filesystem that the caller names.
fn filesystem(capability: &VolumeCapability) -> Result<Option<Filesystem>> {
    let parse = |name: &str| {
        name.parse().map_err(|error: csi_mount::Error| {
            Error::invalid("volume_capability.mount.fs_type", error.to_string())
        })
    };
    capability.fs_type().map(parse).transpose()
}

/// Which volume is to appear, and what was said of it.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Attachment {
    /// The volume.
    pub volume_id: VolumeId,
    /// What the controller's publish said of it.
    pub publish_context: PublishContext,
    /// What CreateVolume said of it.
    pub volume_context: VolumeContext,
    /// Credentials.
    pub secrets: Secrets,
}
