//! A whole node plugin for volumes that are block devices: the driver says which device a volume is, this
//! module does the rest.

mod publish;
mod stage;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;
use csi_mount::flow::block::{MountCopies, VolumeUsage};
use csi_mount::{
    DeviceAccess, DeviceNumber, ErrorKind, Evidence, Host, MountAttributes, NodeNeed, OwnedPath, Owner,
    Unmounted,
};

use self::publish::{refuse_mounted, require_staged, without_device};
use self::stage::{StageCall, StagedContent};
use crate::blocking::blocking;
use crate::call::request::TypedRequest as _;
use crate::error::{Error, Reason, Result};
use crate::node::{
    Node, NodeExpandVolume, NodeExpandVolumeRequest, NodeGetVolumeHealth, NodeGetVolumeHealthRequest,
    NodeGetVolumeStats, NodeGetVolumeStatsRequest, NodeInfo, NodePublishVolumeRequest, NodeService,
    NodeStageVolumeRequest, NodeUnpublishVolumeRequest, NodeUnstageVolumeRequest, PublishedTargets,
    StageUnstageVolume,
};
use crate::node_plugins::attachments::{Attachments, Loaded, ShutDownDevice, StoredAttachment, is_in_use};
use crate::node_plugins::block_devices::{Attachment, BlockDevices};
use crate::node_plugins::condition::{device_gone, device_unknown, known};
use crate::node_plugins::encryption::{content, expander, refuse_closed};
use crate::node_plugins::fencing::Reservation;
use crate::node_plugins::kernel::{mount_options, usage};
use crate::node_plugins::mount_group::MountGroupChange;
use crate::node_plugins::ownership::{owner, owner_known_by};
use crate::node_plugins::selinux::require_context;
use crate::node_plugins::targets::MountTable;
use crate::types::{VolumeHealth, VolumeId, VolumeStats};

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
            .always_staged()
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

    /// What the record says about a volume that a call names by its id only.
    async fn load(&self, host: &Host, id: &VolumeId) -> Result<Loaded> {
        let host = host.clone();
        let id = id.clone();
        match self.attachments() {
            Some(attachments) => blocking(move || attachments.load(&host, &id)).await,
            None => {
                let attachment = Attachment { host, ..Attachment::new(id) };
                Ok(Loaded::Stored(Box::new(StoredAttachment {
                    attachment,
                    is_of_this_boot: true,
                    shut_down: None,
                })))
            }
        }
    }

    /// What the driver chose for copies of the mount. A filesystem is shut down only if a record then keeps its
    /// device from being staged again.
    fn mount_copies(&self, stored: Option<&StoredAttachment>, device: Option<&Path>) -> MountCopies {
        match self.0.mount_copies() {
            MountCopies::ShutDown if self.0.attachments_directory().is_none() => {
                tracing::warn!(
                    "mount_copies: ShutDown needs attachments_directory; copies of mounts are kept"
                );
                MountCopies::Kept
            }
            MountCopies::ShutDown if stored.is_none() || device.is_none() => MountCopies::Kept,
            chosen => chosen,
        }
    }

    /// What is known about a volume that a call names by its id only; `None` if nothing of the volume is attached, or
    /// its record can't be read.
    async fn stored(&self, host: &Host, id: &VolumeId) -> Result<Option<StoredAttachment>> {
        Ok(self.load(host, id).await?.stored())
    }

    /// The device with the content of a volume that a call names by its id only.
    async fn stored_content(&self, host: &Host, id: &VolumeId) -> Result<Option<PathBuf>> {
        match self.stored(host, id).await? {
            Some(stored) => content(&*self.0, &stored.attachment).await,
            None => Ok(None),
        }
    }

    /// Makes the volume's record say what it said before, or removes it.
    async fn restore_record(&self, volume_id: &VolumeId, before: Option<Attachment>) -> Result<()> {
        let Some(attachments) = self.attachments() else { return Ok(()) };
        let volume_id = volume_id.clone();
        blocking(move || match before {
            Some(before) => attachments.store(&before),
            None => attachments.remove(&volume_id),
        })
        .await
    }
}

#[async_trait]
impl<D: BlockDevices> StageUnstageVolume for BlockNode<D> {
    async fn stage_volume(&self, request: NodeStageVolumeRequest) -> Result<()> {
        let content = StagedContent::of(self, &request).await?;
        StageCall::begin(self, &request).await?.run(content).await
    }

    async fn unstage_volume(&self, request: NodeUnstageVolumeRequest) -> Result<()> {
        let mut stored = None;
        let mut unreadable = None;
        let mut has_record = true;
        match self.load(request.host(), &request.volume_id).await? {
            Loaded::Nothing => has_record = false,
            Loaded::Stored(found) => stored = Some(*found),
            Loaded::Unreadable(error) => unreadable = Some(error),
        }
        // Without its device, the volume is known by its marks: what is mounted is unmounted in any case.
        let found = match &stored {
            Some(stored) => self.0.device(&stored.attachment).await,
            None => Ok(None),
        };
        let (mut device, unknown) = match found {
            Ok(device) => (device, None),
            Err(error) => (None, Some(error)),
        };
        let is_lost = stored.is_some() && device.is_none() && unknown.is_none();
        let host = request.host().clone();
        // Nothing was staged since the node started, so a device in use there is another volume's.
        if let (Some(StoredAttachment { is_of_this_boot: false, .. }), Some(path)) = (&stored, device.clone())
            && blocking(move || Ok(is_in_use(&host, &path)?)).await?
        {
            tracing::info!("not detached: its address before the restart is another volume's device now");
            (stored, device) = (None, None);
        }
        let copies = self.mount_copies(stored.as_ref(), device.as_deref());
        let unknown_volume =
            Attachment { host: request.host().clone(), ..Attachment::new(request.volume_id.clone()) };
        let (unmounted, in_use) = blocking(move || {
            let host = request.host();
            let evidence = evidence(host, device.as_deref())?;
            let owner = owner_known_by(&request.volume_id, request.plugin(), evidence);
            let staging = OwnedPath::new(&*request.staging_target_path, owner);
            let unmounted = if is_lost {
                host.block().unstage_lost(&staging, copies)?
            } else {
                host.block().unstage(&staging, device.as_deref(), copies)?
            };
            let in_use = match device.filter(|_| copies == MountCopies::ShutDown) {
                Some(device) => ShutDownDevice::in_use_at(host, &device)?,
                None => None,
            };
            Ok((unmounted, in_use))
        })
        .await?;
        if let Some(error) = unknown {
            return Err(error);
        }
        if let (Some(stored), Some(device), Some(attachments)) = (&stored, in_use, self.attachments()) {
            let attachment = stored.attachment.clone();
            return blocking(move || attachments.store_shut_down(&attachment, device)).await;
        }
        if let Some(error) = unreadable {
            // A driver that needs no context detaches it all the same.
            let detached = self.0.detach(&unknown_volume).await;
            detached.map_err(|left| not_detached(&error, left))?;
        } else if let Some(stored) = stored {
            self.0.detach(&stored.attachment).await?;
        } else if !has_record
            && unmounted != Unmounted::NotMounted
            && let Err(left) = self.0.detach(&unknown_volume).await
        {
            // An earlier driver staged it, so nothing can be repaired, and a retry knows no more.
            tracing::warn!("unstaged a volume without a record; its device can be attached still: {left}");
        }
        self.restore_record(&unknown_volume.volume_id, None).await
    }
}

/// The error for a volume that is unmounted, and whose device stays: its record can't be read.
fn not_detached(record: &Error, left: Error) -> Error {
    let text = format!("the volume is unmounted, and its device can be attached still ({left}): {record}");
    Error::Internal(Reason::because(text, left))
}

#[async_trait]
impl<D: BlockDevices> Node for BlockNode<D> {
    async fn info(&self) -> Result<NodeInfo> {
        self.0.info().await
    }

    async fn publish_volume(&self, request: NodePublishVolumeRequest) -> Result<()> {
        let device = content(&*self.0, &Attachment::from(&request)).await?;
        if !request.volume_capability.is_mount() {
            let Some(device) = device else { return Err(without_device(&request.volume_id)) };
            refuse_closed(&*self.0, &request).await?;
            let access =
                if request.is_read_only() { DeviceAccess::ReadOnly } else { DeviceAccess::ReadWrite };
            return blocking(move || {
                if access == DeviceAccess::ReadWrite {
                    refuse_mounted(&request, &device)?;
                }
                request.host().block().publish_device(&device, &request.owned_target(), access)?;
                Ok(())
            })
            .await;
        }
        let options = mount_options(&request.volume_capability)?;
        let attributes = request.attributes()?;
        let group = MountGroupChange::new(&request.volume_capability, self.0.mount_group())?;
        let id_map = self.0.id_map(&Attachment::from(&request))?;
        let Some(staging) = request.staging_target_path.clone() else {
            return Err(Error::invalid("staging_target_path", "is required: this driver stages its volumes"));
        };
        blocking(move || {
            require_staged(&request, &staging, device.as_deref())?;
            require_context(request.host(), &options, &staging)?;
            let is_read_only = attributes.contains(MountAttributes::RDONLY);
            let id_map = group.apply(request.host(), &staging, is_read_only, id_map)?;
            request.host().block().publish(&staging, &request.owned_target(), attributes, id_map)?;
            Ok(())
        })
        .await
    }

    async fn published(&self, request: &NodePublishVolumeRequest) -> Result<PublishedTargets> {
        let device = content(&*self.0, &Attachment::from(request)).await?;
        let target = request.target_path.clone();
        let staging = request.staging_target_path.clone();
        let capability = request.volume_capability.clone();
        let host = request.host().clone();
        blocking(move || {
            let table = MountTable::read(&host)?;
            match (staging, device) {
                (_, Some(device)) if !capability.is_mount() => table.of_device(&host, &device, &target),
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
        let device = self.stored_content(request.host(), &request.volume_id).await.unwrap_or_else(|error| {
            tracing::info!("unpublished without its device, which the driver could not find: {error}");
            None
        });
        blocking(move || {
            let host = request.host();
            let evidence = evidence(host, device.as_deref())?;
            let owner = owner_known_by(&request.volume_id, request.plugin(), evidence);
            host.block().unpublish(&OwnedPath::new(&*request.target_path, owner))?;
            Ok(())
        })
        .await
    }
}

/// The evidence that identifies a mount of this device; `None` if the device does not exist.
fn evidence(host: &Host, device: Option<&Path>) -> Result<Option<Evidence>> {
    let Some(device) = device else { return Ok(None) };
    match host.devices().number(device) {
        Ok(number) => Ok(Some(Evidence::Device(number))),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error.into()),
    }
}

#[async_trait]
impl<D: BlockDevices> NodeGetVolumeStats for BlockNode<D> {
    async fn volume_stats(&self, request: NodeGetVolumeStatsRequest) -> Result<VolumeStats> {
        // A mount says by its mark whose it is, also while the driver can't name the device.
        let found = self.stored_content(request.host(), &request.volume_id).await;
        let (device, unknown) = known(found)?;
        blocking(move || {
            let owner = owner(&request.volume_id, request.plugin());
            let host = request.host();
            let volume_id = request.volume_id.clone();
            if !request.volume_path.is_absolute() {
                return Err(Error::VolumeNotFound(volume_id));
            }
            let is_volume =
                |found| is_volume_at(host, &request.volume_path, &owner, found, device.as_deref());
            match host.block().usage(&request.volume_path) {
                Err(error) if error.kind() == ErrorKind::NotFound => Err(Error::VolumeNotFound(volume_id)),
                Err(error) => Err(error.into()),
                Ok((_, found)) if !is_volume(found)? => {
                    Err(unknown.unwrap_or(Error::VolumeNotFound(volume_id)))
                }
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
    host: &Host,
    path: &Path,
    owner: &Owner,
    found: Option<DeviceNumber>,
    device: Option<&Path>,
) -> Result<bool> {
    match host.mounts().marked_owner(path)? {
        Some(mark) if !owner.has_id(&mark) => Ok(false),
        Some(_) => match host.mounts().refuse_foreign(&OwnedPath::new(path, owner.clone())) {
            Err(error) if error.kind() == ErrorKind::NotOwned => Ok(false),
            known => Ok(known.map(|()| true)?),
        },
        None => device.map_or(Ok(false), |device| is_beneath(host, found, device)),
    }
}

/// Whether the device found at a path is the volume's, or a read-only loop device over it.
fn is_beneath(host: &Host, found: Option<DeviceNumber>, device: &Path) -> Result<bool> {
    let number = host.devices().number(device)?;
    let Some(found) = found else { return Ok(false) };
    if found == number {
        return Ok(true);
    }
    let over = host.devices().loop_devices(device)?;
    Ok(over.iter().any(|over| over.number == found))
}

#[async_trait]
impl<D: BlockDevices> NodeExpandVolume for BlockNode<D> {
    async fn expand_volume(&self, request: NodeExpandVolumeRequest) -> Result<u64> {
        let device = match self.stored(request.host(), &request.volume_id).await? {
            Some(stored) => match content(&*self.0, &stored.attachment).await? {
                Some(device) => {
                    self.0.refresh(&stored.attachment).await?;
                    Some(device)
                }
                None => None,
            },
            None => None,
        };
        let expand = expander(&*self.0, &request.secrets)?;
        blocking(move || {
            let owner = owner(&request.volume_id, request.plugin());
            let host = request.host();
            let volume_id = request.volume_id.clone();
            let is_absolute = request.volume_path.is_absolute();
            let found = is_absolute.then(|| host.block().device_of(&request.volume_path).ok()).flatten();
            if found.is_none() || !is_volume_at(host, &request.volume_path, &owner, found, device.as_deref())?
            {
                return Err(Error::VolumeNotFound(volume_id));
            }
            let size = host.block().device_size(&request.volume_path)?;
            request.capacity_range.check_expanded(size)?;
            expand(host, &request.volume_path).map_err(|error| match error.kind() {
                ErrorKind::NotFound => Error::VolumeNotFound(volume_id),
                // It can't grow now and here; the next stage grows it. FAILED_PRECONDITION lets the kubelet
                // continue.
                ErrorKind::PermissionDenied => Error::InUse(Reason::from_error(error)),
                _ => error.into(),
            })?;
            // For a raw read-only publish, the workload sees a loop device over the device.
            if let Some(device) = device {
                host.devices().loop_refresh(&device)?;
            }
            Ok(size)
        })
        .await
    }
}

#[async_trait]
impl<D: BlockDevices> NodeGetVolumeHealth for BlockNode<D> {
    async fn volume_health(&self, request: NodeGetVolumeHealthRequest) -> Result<VolumeHealth> {
        let mut health = request.mount_health().await?;
        let stored = self.stored(request.host(), &request.volume_id).await?;
        let found = match &stored {
            Some(stored) => self.0.device(&stored.attachment).await,
            None => Ok(None),
        };
        let (device, unknown) = known(found)?;
        if let Some(error) = unknown {
            health.entries.push(device_unknown(&error));
            return Ok(health);
        }
        if let (Some(stored), Some(device)) = (stored, device.clone()) {
            let reservation = Reservation::of(&*self.0, &stored.attachment)?;
            let host = request.host().clone();
            health.entries.extend(blocking(move || reservation.health(&host, &device)).await?);
        }
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
    let host = request.host();
    let owner = owner(&request.volume_id, request.plugin());
    for path in request.staging_target_path.iter().chain(&request.volume_publish_path) {
        if host.mounts().state(path)?.mount_point().is_some()
            && host.directories().is_directory(path)?
            && is_volume_at(host, path, &owner, None, None)?
        {
            return Ok(true);
        }
    }
    Ok(false)
}
