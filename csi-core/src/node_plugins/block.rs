//! A whole node plugin for volumes that are block devices: the driver says which device a volume is, this
//! module does the rest.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;
use csi_mount::flow::block::{MountCopies, VolumeUsage};
use csi_mount::{
    DeviceAccess, DeviceNumber, DeviceUse, ErrorKind, Evidence, Machine, MountAttributes, NodeNeed, Owner,
    VolumePlace,
};

use super::attachments::{Attachments, Kept};
use super::block_devices::{Attachment, BlockDevices};
use super::condition::device_gone;
use super::encryption::{Encryption, content, expander, refuse_closed};
use super::kernel::{mount_options, usage};
use super::mount_group::MountGroupChange;
use super::places::{owner, owner_known_by};
use super::selinux::require_context;
use super::targets::MountTable;
use crate::node::{
    Node, NodeExpandVolume, NodeExpandVolumeRequest, NodeGetVolumeHealth, NodeGetVolumeHealthRequest,
    NodeGetVolumeStats, NodeGetVolumeStatsRequest, NodeInfo, NodePublishVolumeRequest, NodeService,
    NodeStageVolumeRequest, NodeUnpublishVolumeRequest, NodeUnstageVolumeRequest, PublishedTargets,
    StageUnstageVolume,
};
use crate::{AbsolutePath, Error, Reason, Result, VolumeHealth, VolumeId, VolumeStats, blocking, machine};

/// A node plugin for block devices: stages, formats, mounts, grows and publishes them, as filesystems or
/// raw.
///
/// ```
/// # use std::{path::PathBuf, sync::Arc};
/// # use csi_core::{Result, prelude::*};
/// # struct Disks;
/// # #[async_trait] impl BlockDevices for Disks {
/// #     async fn attach(&self, _: &Attachment) -> Result<PathBuf> { Ok("/dev/sdx".into()) }
/// #     async fn device(&self, _: &Attachment) -> Result<Option<PathBuf>> { Ok(None) }
/// #     async fn detach(&self, _: &Attachment) -> Result<()> { Ok(()) }
/// # }
/// let service = BlockNode::service(Arc::new(Disks));
/// # drop(service);
/// ```
#[derive(Debug, Clone)]
pub struct BlockNode<D>(Arc<D>);

impl<D: BlockDevices> BlockNode<D> {
    /// Creates the node plugin for these devices.
    pub fn new(devices: Arc<D>) -> Self {
        Self(devices)
    }

    /// Creates a Node service for these devices, with all supported capabilities registered.
    pub fn service(devices: Arc<D>) -> NodeService<Self> {
        let filesystems = devices.filesystems().into_iter().map(NodeNeed::Filesystem);
        let needs: Vec<_> = std::iter::once(NodeNeed::BlockDevices).chain(filesystems).collect();
        NodeService::new(Arc::new(Self::new(devices)))
            .stage_unstage_volume()
            .get_volume_stats()
            .get_volume_health()
            .expand_volume()
            .self_check(&needs)
    }
}

impl<D: BlockDevices> BlockNode<D> {
    fn attachments(&self) -> Option<Attachments> {
        self.0.attachments_directory().map(Attachments::new)
    }

    /// What is known about a volume that a call names by its id only; `None` if it is known that nothing of
    /// the volume is attached.
    async fn recall(&self, id: &VolumeId) -> Result<Option<Kept>> {
        let id = id.clone();
        match self.attachments() {
            Some(attachments) => blocking(move || attachments.recall(&id)).await,
            None => Ok(Some(Kept { attachment: Attachment::new(id), is_of_this_boot: true })),
        }
    }

    /// The device with the content of a volume that a call names by its id only.
    async fn recalled_content(&self, id: &VolumeId) -> Result<Option<PathBuf>> {
        match self.recall(id).await? {
            Some(kept) => content(&*self.0, &kept.attachment).await,
            None => Ok(None),
        }
    }

    /// Keeps what the stage says about the volume, before its device is attached. Returns what was kept
    /// before, if it said something else.
    async fn keep(
        &self,
        volume: &Attachment,
        staging: &AbsolutePath,
        was_staged: bool,
    ) -> Result<Option<Attachment>> {
        let Some(attachments) = self.attachments() else { return Ok(None) };
        let before = self.recall(&volume.volume_id).await?;
        if before.as_ref().is_some_and(|kept| kept.is_current(volume)) {
            return Ok(None);
        }
        let before = before.filter(|kept| kept.is_of_this_boot).map(|kept| kept.attachment);
        if let Some(before) = &before
            && !was_staged
            && self.is_staged(before, staging).await?
        {
            return Err(Error::Incompatible(
                "publish_context: the volume is staged there from the device of another publish context; \
                 unstage it first"
                    .into(),
            ));
        }
        let volume = volume.clone();
        blocking(move || attachments.keep(&volume)).await?;
        Ok(before)
    }

    /// Keeps what was kept before instead, or nothing.
    async fn keep_again(&self, volume_id: &VolumeId, before: Option<Attachment>) -> Result<()> {
        let Some(attachments) = self.attachments() else { return Ok(()) };
        let volume_id = volume_id.clone();
        blocking(move || match before {
            Some(before) => attachments.keep(&before),
            None => attachments.forget(&volume_id),
        })
        .await
    }

    /// Whether the volume is already staged there. If this can't be determined, it counts as staged.
    async fn is_staged(&self, volume: &Attachment, staging: &AbsolutePath) -> Result<bool> {
        let Some(device) = content(&*self.0, volume).await? else { return Ok(false) };
        let staging = staging.clone();
        blocking(move || match machine().block().device_of(&staging) {
            Ok(found) => Ok(machine().devices().number(&device).map_or(true, |number| number == found)),
            Err(error) => Ok(!matches!(error.kind(), ErrorKind::NotFound | ErrorKind::Unsupported)),
        })
        .await
    }

    /// Detaches the device of a failed stage, unless something still uses it: a mount that could not be
    /// undone, or a process that can't be killed.
    async fn detach_unstaged(
        &self,
        volume: &Attachment,
        (staging, device): (VolumePlace, PathBuf),
    ) -> Result<()> {
        blocking(move || match machine().block().unstage(&staging, Some(&device), MountCopies::Kept) {
            // What is staged there belongs to another volume, and stays.
            Err(error) if matches!(error.kind(), ErrorKind::WrongDevice | ErrorKind::NotOwned) => {
                match machine().devices().in_use(&device)? {
                    DeviceUse::Free => Ok(()),
                    DeviceUse::InUse => Err(error.into()),
                }
            }
            unstaged => Ok(unstaged.map(drop)?),
        })
        .await?;
        self.0.detach(volume).await
    }
}

#[async_trait]
impl<D: BlockDevices> StageUnstageVolume for BlockNode<D> {
    async fn stage_volume(&self, request: NodeStageVolumeRequest) -> Result<()> {
        let is_read_only = request.volume_capability.access_mode.is_read_only();
        let volume = Attachment::from(&request);
        let plan = match request.volume_capability.is_mount() {
            true => Some(self.0.plan(&volume, &request.volume_capability).await?),
            false => None,
        };
        let encryption = Encryption::of(&*self.0, &volume)?;
        let was_staged = self.is_staged(&volume, &request.staging_target_path).await?;
        let kept_before = self.keep(&volume, &request.staging_target_path, was_staged).await?;
        let device = self.0.attach(&volume).await?;
        let (path, place) = (request.staging_target_path.clone(), (request.place(), device.clone()));
        let is_mount = plan.is_some();
        let staged = blocking(move || {
            let Some(plan) = plan else {
                let access = if is_read_only { DeviceAccess::ReadOnly } else { DeviceAccess::ReadWrite };
                return encryption.stage_device(&device, &request.place(), access);
            };
            let staged = machine().block().stage(&device, &request.place(), &encryption.plan(plan))?;
            tracing::info!(device = %device.display(), ?staged, "staged");
            Ok(())
        })
        .await;
        let is_mounted_here = staged.is_ok();
        let staged = match staged {
            Ok(()) if is_mount => self.0.staged(&volume).await,
            other => other,
        };
        // After a final error the caller does not unstage, so the device that this call attached, or an
        // earlier call that was killed, is detached here. What is staged although this call failed was staged
        // by another process meanwhile, such as the new plugin of an update, and stays.
        if staged.is_err()
            && !was_staged
            && (is_mounted_here || !self.is_staged(&volume, &path).await.unwrap_or(true))
        {
            let undone = match self.detach_unstaged(&volume, place).await {
                Ok(()) => self.keep_again(&volume.volume_id, kept_before).await,
                failed => failed,
            };
            if let Err(left) = undone {
                tracing::warn!("the device of a volume that could not be staged stays: {left}");
            }
        }
        staged
    }

    async fn unstage_volume(&self, request: NodeUnstageVolumeRequest) -> Result<()> {
        let mut kept = self.recall(&request.volume_id).await?;
        let mut device = match &kept {
            Some(kept) => self.0.device(&kept.attachment).await?,
            None => None,
        };
        // Nothing was staged since the node started, so a device in use there is another volume's.
        if let (Some(Kept { is_of_this_boot: false, .. }), Some(path)) = (&kept, device.clone())
            && blocking(move || Ok(is_in_use(&path)?)).await?
        {
            tracing::info!("not detached: its address before the restart is another volume's device now");
            (kept, device) = (None, None);
        }
        let copies = self.0.mount_copies();
        let volume_id = request.volume_id.clone();
        blocking(move || {
            let owner = owner_known_by(&request.volume_id, request.plugin(), evidence(device.as_deref())?);
            let staging = VolumePlace::new(&*request.staging_target_path, owner);
            machine().block().unstage(&staging, device.as_deref(), copies)?;
            Ok(())
        })
        .await?;
        if let Some(kept) = kept {
            self.0.detach(&kept.attachment).await?;
        }
        self.keep_again(&volume_id, None).await
    }
}

/// Whether anything on the node uses this device. A device that does not exist is not in use.
fn is_in_use(device: &Path) -> csi_mount::Result<bool> {
    match machine().devices().in_use(device) {
        Ok(found) => Ok(found == DeviceUse::InUse),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

#[async_trait]
impl<D: BlockDevices> Node for BlockNode<D> {
    async fn info(&self) -> Result<NodeInfo> {
        self.0.info().await
    }

    async fn publish_volume(&self, request: NodePublishVolumeRequest) -> Result<()> {
        let device = content(&*self.0, &Attachment::from(&request)).await?;
        if request.volume_capability.is_block() {
            let Some(device) = device else { return Err(without_device(&request.volume_id)) };
            refuse_closed(&*self.0, &request).await?;
            let access =
                if request.is_read_only() { DeviceAccess::ReadOnly } else { DeviceAccess::ReadWrite };
            return blocking(move || {
                machine().block().publish_device(&device, &request.place(), access)?;
                Ok(())
            })
            .await;
        }
        let (options, attributes) = (mount_options(&request.volume_capability)?, request.attributes()?);
        let group = MountGroupChange::new(&request.volume_capability, self.0.mount_group())?;
        let Some(staging) = request.staging_target_path.clone() else {
            return Err(Error::invalid("staging_target_path", "is required: this driver stages its volumes"));
        };
        blocking(move || {
            require_staged(&request, &staging, device.as_deref())?;
            require_context(&options, &staging)?;
            let id_map = group.apply(&staging, attributes.contains(MountAttributes::RDONLY))?;
            machine().block().publish(&staging, &request.place(), attributes, id_map)?;
            Ok(())
        })
        .await
    }

    async fn published(&self, request: &NodePublishVolumeRequest) -> Result<PublishedTargets> {
        let device = content(&*self.0, &Attachment::from(request)).await?;
        let (target, staging) = (request.target_path.clone(), request.staging_target_path.clone());
        let capability = request.volume_capability.clone();
        blocking(move || {
            let table = MountTable::read()?;
            match (staging, device) {
                (_, Some(device)) if capability.is_block() => table.of_device(&device, &target),
                (Some(staging), _) if capability.is_mount() => {
                    Ok(table.of_staged(&staging, &target, capability.fs_type()))
                }
                _ => Ok(PublishedTargets::default()),
            }
        })
        .await
    }

    async fn unpublish_volume(&self, request: NodeUnpublishVolumeRequest) -> Result<()> {
        // The device is additional evidence of ownership; if the driver can't return it, the mark is
        // enough.
        let device = self.recalled_content(&request.volume_id).await.unwrap_or_else(|error| {
            tracing::info!("unpublished without its device, which the driver could not find: {error}");
            None
        });
        blocking(move || {
            let owner = owner_known_by(&request.volume_id, request.plugin(), evidence(device.as_deref())?);
            machine().block().unpublish(&VolumePlace::new(&*request.target_path, owner))?;
            Ok(())
        })
        .await
    }
}

/// The evidence that identifies a mount of this device; `None` if the device does not exist.
fn evidence(device: Option<&Path>) -> Result<Option<Evidence>> {
    let Some(device) = device else { return Ok(None) };
    match machine().devices().number(device) {
        Ok(number) => Ok(Some(Evidence::Device(number))),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Refuses to publish from a staging path at which another volume is staged, or none. A volume whose device
/// can't be named any more is known by the mark of the path and by what is mounted there.
fn require_staged(request: &NodePublishVolumeRequest, staging: &Path, device: Option<&Path>) -> Result<()> {
    let found = machine().block().device_of(staging).map_err(|error| not_staged(error, staging))?;
    let is_volume = match device {
        Some(device) => {
            machine().devices().number(device).map_err(|error| not_staged(error, staging))? == found
        }
        None => {
            let owner = owner(&request.volume_id, request.plugin());
            is_volume_at(staging, &owner, Some(found), None)?
        }
    };
    match is_volume {
        true => Ok(()),
        false => Err(Error::NotStaged(
            format!("staging_target_path: another volume is staged at {}", staging.display()).into(),
        )),
    }
}

fn without_device(volume_id: &VolumeId) -> Error {
    Error::NotStaged(format!("volume {volume_id} is not staged on this node: its device is missing").into())
}

fn not_staged(error: csi_mount::Error, staging: &Path) -> Error {
    Error::NotStaged(Reason::because(
        format!("staging_target_path: no volume is staged at {}: {error}", staging.display()),
        error,
    ))
}

#[async_trait]
impl<D: BlockDevices> NodeGetVolumeStats for BlockNode<D> {
    async fn volume_stats(&self, request: NodeGetVolumeStatsRequest) -> Result<VolumeStats> {
        let device = self.recalled_content(&request.volume_id).await?;
        blocking(move || {
            let owner = owner(&request.volume_id, request.plugin());
            let volume_id = request.volume_id;
            if !request.volume_path.is_absolute() {
                return Err(Error::VolumeNotFound(volume_id));
            }
            let is_volume = |found| is_volume_at(&request.volume_path, &owner, found, device.as_deref());
            match machine().block().usage(&request.volume_path) {
                Err(error) if error.kind() == ErrorKind::NotFound => Err(Error::VolumeNotFound(volume_id)),
                Err(error) => Err(error.into()),
                Ok((_, found)) if !is_volume(found)? => Err(Error::VolumeNotFound(volume_id)),
                Ok((VolumeUsage::Device { size }, _)) => Ok(VolumeStats::from_device_size(size)),
                Ok((VolumeUsage::Filesystem(stats), _)) => {
                    Ok(VolumeStats::from_usage(usage(stats.bytes), stats.inodes.map(usage)))
                }
                Ok(_) => Err(Error::Internal("usage of a kind that this driver does not know".into())),
            }
        })
        .await
    }
}

/// Whether what is mounted at the path, on the device `found`, is the volume's. The volume's own mark
/// decides; at a path without a mark it must be the volume's device.
fn is_volume_at(
    path: &Path,
    owner: &Owner,
    found: Option<DeviceNumber>,
    device: Option<&Path>,
) -> Result<bool> {
    match machine().mounts().marked_owner(path)? {
        Some(mark) if !owner.has_id(&mark) => Ok(false),
        Some(_) => match machine().mounts().refuse_foreign(&VolumePlace::new(path, owner.clone())) {
            Err(error) if error.kind() == ErrorKind::NotOwned => Ok(false),
            known => Ok(known.map(|()| true)?),
        },
        None => device.map_or(Ok(false), |device| is_beneath(found, device)),
    }
}

/// Whether the device found at a path is the volume's, or a read-only loop device over it.
fn is_beneath(found: Option<DeviceNumber>, device: &Path) -> Result<bool> {
    let number = machine().devices().number(device)?;
    let Some(found) = found else { return Ok(false) };
    if found == number {
        return Ok(true);
    }
    let over = machine().devices().loop_devices(device)?;
    Ok(over.iter().any(|over| over.number == found))
}

#[async_trait]
impl<D: BlockDevices> NodeExpandVolume for BlockNode<D> {
    async fn expand_volume(&self, request: NodeExpandVolumeRequest) -> Result<u64> {
        let device = match self.recall(&request.volume_id).await? {
            Some(kept) => match content(&*self.0, &kept.attachment).await? {
                Some(device) => {
                    self.0.refresh(&kept.attachment).await?;
                    Some(device)
                }
                None => None,
            },
            None => None,
        };
        let expand = expander(&*self.0, &request.secrets)?;
        blocking(move || {
            let owner = owner(&request.volume_id, request.plugin());
            let volume_id = request.volume_id;
            let found = match request.volume_path.is_absolute() {
                true => machine().block().device_of(&request.volume_path).ok(),
                false => None,
            };
            if found.is_none() || !is_volume_at(&request.volume_path, &owner, found, device.as_deref())? {
                return Err(Error::VolumeNotFound(volume_id));
            }
            let grown = expand(&request.volume_path).map_err(|error| match error.kind() {
                ErrorKind::NotFound => Error::VolumeNotFound(volume_id),
                // It can't grow now and here; the next stage grows it. FAILED_PRECONDITION lets the kubelet
                // continue.
                ErrorKind::PermissionDenied => Error::InUse(Reason::from_error(error)),
                _ => error.into(),
            })?;
            // For a raw read-only publish, the workload sees a loop device over the device.
            if let Some(device) = device {
                machine().devices().loop_refresh(&device)?;
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
        let device = match self.recall(&request.volume_id).await? {
            Some(kept) => self.0.device(&kept.attachment).await?,
            None => None,
        };
        if device.is_none() && !blocking(move || is_filesystem_mounted(&request)).await? {
            health.entries.push(device_gone());
        }
        Ok(health)
    }
}

/// Whether the volume's filesystem is mounted at one of the request's paths. It then keeps its device, even
/// if the driver can't name it any more: a link can go away while the device works. A bound device node
/// keeps no device.
fn is_filesystem_mounted(request: &NodeGetVolumeHealthRequest) -> Result<bool> {
    let owner = owner(&request.volume_id, request.plugin());
    for path in request.staging_target_path.iter().chain(&request.volume_publish_path) {
        if machine().mounts().state(path)?.mount_point().is_some()
            && machine().directories().is_directory(path)?
            && is_volume_at(path, &owner, None, None)?
        {
            return Ok(true);
        }
    }
    Ok(false)
}
