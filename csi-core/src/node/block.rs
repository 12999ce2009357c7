//! A whole node plugin for volumes that are block devices: the driver says which device a volume is, and the rest
//! is done here.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;
use csi_mount::flow::block::{self, StagePlan, VolumeUsage};
use csi_mount::{BlockDevice, DeviceAccess, ErrorKind, Filesystem, LoopDevice, MountAttributes, Target};

use super::condition::device_gone;
use super::encryption::{Encryption, expander, is_encrypted};
use super::kernel::{mount_options, usage};
use super::mount_group::{Due, MountGroup};
use super::{
    GetVolumeStats, Node, NodeExpandVolume, NodeExpandVolumeRequest, NodeGetVolumeHealth,
    NodeGetVolumeHealthRequest, NodeGetVolumeStatsRequest, NodeInfo, NodePublishVolumeRequest, NodeService,
    NodeStageVolumeRequest, NodeUnpublishVolumeRequest, NodeUnstageVolumeRequest, PublishedTargets,
    StageUnstageVolume, targets::MountTable,
};
use crate::{
    Error, PublishContext, Result, Secrets, VolumeCapability, VolumeContext, VolumeHealth, VolumeId,
    VolumeStats, blocking,
};

/// What only the driver knows of its block devices. [`BlockNode`] makes a node plugin of it.
#[async_trait]
pub trait BlockDevices: Send + Sync + 'static {
    /// Which node this is; the machine's host name, unless the driver knows better. See [`Node::info`].
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
    /// options. For mkfs arguments and labels of the driver's own.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for a filesystem or options that can't be had.
    fn plan(&self, capability: &VolumeCapability) -> Result<StagePlan> {
        let filesystem = filesystem(capability)?.unwrap_or(Filesystem::Ext4);
        let options = mount_options(capability)?;
        let read_only = capability.access_mode.is_read_only();
        Ok(StagePlan::new(filesystem).options(if read_only { options.read_only() } else { options }))
    }
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

/// A node plugin for block devices: stages, formats, mounts, grows, publishes, as a filesystem or raw.
///
/// ```
/// # use std::{path::PathBuf, sync::Arc};
/// # use csi_core::*;
/// # struct Disks;
/// # #[async_trait] impl BlockDevices for Disks {
/// #     async fn attach(&self, _: &Attachment) -> Result<PathBuf> { Ok("/dev/sdx".into()) }
/// #     async fn device(&self, _: &VolumeId) -> Result<Option<PathBuf>> { Ok(None) }
/// #     async fn detach(&self, _: &VolumeId) -> Result<()> { Ok(()) }
/// # }
/// let service = BlockNode::service(Arc::new(Disks));
/// # drop(service);
/// ```
#[derive(Debug, Clone)]
pub struct BlockNode<D>(Arc<D>);

impl<D: BlockDevices> BlockNode<D> {
    /// The node plugin of these devices.
    pub fn new(devices: Arc<D>) -> Self {
        Self(devices)
    }

    /// The same as a service, with all that it can do registered.
    pub fn service(devices: Arc<D>) -> NodeService<Self> {
        let filesystems = devices.filesystems();
        NodeService::new(Arc::new(Self::new(devices)))
            .stage_unstage_volume()
            .get_volume_stats()
            .get_volume_health()
            .expand_volume()
            .self_check(&filesystems)
    }

    /// The device with the volume's content: inside an encrypted one that is open, else the volume's own.
    async fn content(&self, volume_id: &VolumeId) -> Result<Option<PathBuf>> {
        let Some(device) = self.0.device(volume_id).await? else { return Ok(None) };
        blocking(move || Ok(Some(block::inside(&device)?.unwrap_or(device)))).await
    }

    /// What is beneath an encrypted device that is not open is nobody's to write to.
    async fn refuse_closed(&self, request: &NodePublishVolumeRequest) -> Result<()> {
        let volume = Attachment {
            volume_id: request.volume_id.clone(),
            publish_context: request.publish_context.clone(),
            volume_context: request.volume_context.clone(),
            secrets: request.secrets.clone(),
        };
        if !is_encrypted(&*self.0, &volume)? {
            return Ok(());
        }
        let id = &request.volume_id;
        let inside = match self.0.device(id).await? {
            Some(device) => blocking(move || Ok(block::inside(&device)?)).await?,
            None => None,
        };
        match inside {
            Some(_) => Ok(()),
            None => Err(Error::NotStaged(format!("the encrypted device of volume {id} is not open"))),
        }
    }
}

#[async_trait]
impl<D: BlockDevices> StageUnstageVolume for BlockNode<D> {
    async fn stage_volume(&self, request: NodeStageVolumeRequest) -> Result<()> {
        let plan = match request.volume_capability.is_mount() {
            true => Some(self.0.plan(&request.volume_capability)?),
            false => None,
        };
        let is_read_only = request.volume_capability.access_mode.is_read_only();
        let volume = Attachment {
            volume_id: request.volume_id,
            publish_context: request.publish_context,
            volume_context: request.volume_context,
            secrets: request.secrets,
        };
        let encryption = Encryption::of(&*self.0, &volume)?;
        let volume_id = volume.volume_id.clone();
        let was_there = self.0.device(&volume_id).await?.is_some();
        let device = self.0.attach(&volume).await?;
        let staging = request.staging_target_path;
        let staged = blocking(move || {
            let Some(plan) = plan else {
                let access = if is_read_only { DeviceAccess::ReadOnly } else { DeviceAccess::ReadWrite };
                return encryption.stage_device(&device, &staging, access);
            };
            let staged = block::stage(&device, &Target::new(&staging)?, &encryption.plan(plan))?;
            tracing::info!(device = %device.display(), ?staged, "staged");
            Ok(())
        })
        .await;
        // After an error that is final the caller does not unstage: what this call attached, it takes away.
        if staged.is_err()
            && !was_there
            && let Err(left) = self.0.detach(&volume_id).await
        {
            tracing::warn!("the device of a volume that could not be staged stays: {left}");
        }
        staged
    }

    async fn unstage_volume(&self, request: NodeUnstageVolumeRequest) -> Result<()> {
        let device = self.0.device(&request.volume_id).await?;
        blocking(move || {
            block::unstage(&Target::new(&request.staging_target_path)?, device.as_deref())?;
            Ok(())
        })
        .await?;
        self.0.detach(&request.volume_id).await
    }
}

#[async_trait]
impl<D: BlockDevices> Node for BlockNode<D> {
    async fn info(&self) -> Result<NodeInfo> {
        self.0.info().await
    }

    async fn publish_volume(&self, request: NodePublishVolumeRequest) -> Result<()> {
        let Some(device) = self.content(&request.volume_id).await? else {
            return Err(Error::NotStaged(format!("volume {} is not staged on this node", request.volume_id)));
        };
        if request.volume_capability.is_block() {
            self.refuse_closed(&request).await?;
            let access =
                if request.is_read_only() { DeviceAccess::ReadOnly } else { DeviceAccess::ReadWrite };
            return blocking(move || {
                block::publish_device(&device, &Target::new(&request.target_path)?, access)?;
                Ok(())
            })
            .await;
        }
        let attributes = request.attributes()?;
        let group = Due::new(&request.volume_capability, self.0.mount_group())?;
        let Some(staging) = request.staging_target_path else {
            return Err(Error::invalid("staging_target_path", "is required: this driver stages its volumes"));
        };
        blocking(move || {
            is_at(&staging, &device)
                .map_err(|error| not_staged(&error, &staging))?
                .then_some(())
                .ok_or_else(|| {
                    Error::NotStaged(format!("staging_target_path: another volume is staged at {staging}"))
                })?;
            let id_map = group.apply(&staging, attributes.contains(MountAttributes::RDONLY))?;
            block::publish_shown(&staging, &Target::new(&request.target_path)?, attributes, id_map)?;
            Ok(())
        })
        .await
    }

    async fn published(&self, request: &NodePublishVolumeRequest) -> Result<PublishedTargets> {
        let Some(device) = self.content(&request.volume_id).await? else {
            return Ok(PublishedTargets::default());
        };
        let (target, staging) = (request.target_path.clone(), request.staging_target_path.clone());
        let capability = request.volume_capability.clone();
        blocking(move || {
            let table = MountTable::read()?;
            match staging {
                _ if capability.is_block() => table.of_device(&device, &target),
                Some(staging) => Ok(table.of_staged(&staging, &target, capability.fs_type())),
                None => Ok(PublishedTargets::default()),
            }
        })
        .await
    }

    async fn unpublish_volume(&self, request: NodeUnpublishVolumeRequest) -> Result<()> {
        blocking(move || {
            block::unpublish(&Target::new(&request.target_path)?)?;
            Ok(())
        })
        .await
    }
}

/// Whether what is mounted at `path` is this device.
fn is_at(path: &Path, device: &Path) -> csi_mount::Result<bool> {
    Ok(block::device_of(path)? == BlockDevice::open(device)?.number())
}

fn not_staged(error: &csi_mount::Error, staging: &Path) -> Error {
    Error::NotStaged(format!("staging_target_path: no volume is staged at {}: {error}", staging.display()))
}

#[async_trait]
impl<D: BlockDevices> GetVolumeStats for BlockNode<D> {
    async fn volume_stats(&self, request: NodeGetVolumeStatsRequest) -> Result<VolumeStats> {
        let volume_id = request.volume_id;
        let Some(device) = self.content(&volume_id).await? else {
            return Err(Error::VolumeNotFound(volume_id));
        };
        blocking(move || {
            if !request.volume_path.is_absolute() {
                return Err(Error::VolumeNotFound(volume_id));
            }
            match block::usage(&request.volume_path) {
                Err(error) if error.kind() == ErrorKind::NotFound => Err(Error::VolumeNotFound(volume_id)),
                Err(error) => Err(error.into()),
                Ok((_, found)) if !is_beneath(found, &device)? => Err(Error::VolumeNotFound(volume_id)),
                Ok((VolumeUsage::Device { size }, _)) => Ok(VolumeStats::of_device(size)),
                Ok((VolumeUsage::Filesystem(stats), _)) => {
                    Ok(VolumeStats::of_filesystem(usage(stats.bytes), stats.inodes.map(usage)))
                }
                Ok(_) => Err(Error::internal_message("usage of a kind that this driver does not know")),
            }
        })
        .await
    }
}

/// Whether the device found at a path is the volume's, or a read-only loop device over it.
fn is_beneath(found: Option<csi_mount::DeviceNumber>, device: &Path) -> Result<bool> {
    let number = BlockDevice::open(device)?.number();
    let Some(found) = found else { return Ok(false) };
    if found == number {
        return Ok(true);
    }
    let over = LoopDevice::find(device)?;
    Ok(over.iter().any(|over| over.number() == found))
}

#[async_trait]
impl<D: BlockDevices> NodeExpandVolume for BlockNode<D> {
    async fn expand_volume(&self, request: NodeExpandVolumeRequest) -> Result<u64> {
        let volume_id = request.volume_id;
        let Some(device) = self.content(&volume_id).await? else {
            return Err(Error::VolumeNotFound(volume_id));
        };
        self.0.refresh(&volume_id).await?;
        let expand = expander(&*self.0, &request.secrets)?;
        blocking(move || {
            if !request.volume_path.is_absolute() {
                return Err(Error::VolumeNotFound(volume_id));
            }
            let grown = expand(&request.volume_path).map_err(|error| match error.kind() {
                ErrorKind::NotFound => Error::VolumeNotFound(volume_id),
                // Not now and not here; the next stage grows it. FAILED_PRECONDITION lets the kubelet go on.
                ErrorKind::PermissionDenied => Error::InUse(error.to_string()),
                _ => error.into(),
            })?;
            // Where it is published raw and read-only, a loop device over it is what the workload sees.
            for over in LoopDevice::find(&device)? {
                over.refresh_size()?;
            }
            Ok(grown.size())
        })
        .await
    }
}

#[async_trait]
impl<D: BlockDevices> NodeGetVolumeHealth for BlockNode<D> {
    async fn volume_health(&self, request: NodeGetVolumeHealthRequest) -> Result<VolumeHealth> {
        let mut health = request.mount_health().await?;
        if self.0.device(&request.volume_id).await?.is_none() {
            health.entries.push(device_gone());
        }
        Ok(health)
    }
}
