//! A stage of a volume: its device is recorded, attached, and mounted or opened. What a failed stage did is undone.

use std::path::{Path, PathBuf};

use csi_mount::flow::block::{MountCopies, StagePlan};
use csi_mount::{DeviceAccess, DeviceUse, ErrorKind, OwnedPath};

use super::BlockNode;
use crate::blocking::blocking;
use crate::call::request::TypedRequest as _;
use crate::error::{Error, Result};
use crate::node::NodeStageVolumeRequest;
use crate::node_plugins::block_devices::{Attachment, BlockDevices};
use crate::node_plugins::encryption::{Encryption, content};
use crate::node_plugins::fencing::Reservation;

/// What the volume's users get.
pub(super) enum StagedContent {
    /// A filesystem, mounted at the staging path.
    Filesystem(Box<StagePlan>),
    /// The device itself, opened if it is encrypted.
    Device(Encryption, Reservation, DeviceAccess),
}

impl StagedContent {
    pub(super) async fn of<D: BlockDevices>(
        node: &BlockNode<D>,
        request: &NodeStageVolumeRequest,
    ) -> Result<Self> {
        let volume = Attachment::from(request);
        let capability = &request.volume_capability;
        let reservation = Reservation::for_stage(&*node.0, &volume).await?;
        if capability.is_mount() {
            let plan = node.0.plan(&volume, capability).await?;
            let encryption = Encryption::of(&*node.0, &volume)?;
            return Ok(Self::Filesystem(Box::new(reservation.plan(encryption.plan(plan)))));
        }
        let is_read_only = capability.access_mode.is_read_only();
        let access = if is_read_only { DeviceAccess::ReadOnly } else { DeviceAccess::ReadWrite };
        Ok(Self::Device(Encryption::of(&*node.0, &volume)?, reservation, access))
    }
}

/// One stage, and what it needs to know for its undo.
pub(super) struct StageCall<'a, D> {
    node: &'a BlockNode<D>,
    volume: Attachment,
    staging: OwnedPath,
    /// The volume was staged there before this call. Then nothing is undone: an earlier stage succeeded.
    was_staged: bool,
    /// What the volume's record said before, if this call changed it.
    replaced: Option<Attachment>,
}

impl<'a, D: BlockDevices> StageCall<'a, D> {
    /// Looks at what is staged, and records the volume: the record is there before the device is attached.
    pub(super) async fn begin(node: &'a BlockNode<D>, request: &NodeStageVolumeRequest) -> Result<Self> {
        let volume = Attachment::from(request);
        let stored = node.stored(volume.host(), &volume.volume_id).await?;
        if let Some(device) = stored.and_then(|stored| stored.shut_down) {
            let host = request.host().clone();
            blocking(move || device.refuse_in_use(&host)).await?;
        }
        let staging = request.owned_staging();
        let mut call = Self { node, volume, staging, was_staged: false, replaced: None };
        call.was_staged = call.is_staged(&call.volume).await?;
        call.replaced = call.record().await?;
        Ok(call)
    }

    /// Stages the volume. If it fails, the device is detached, unless it was staged before.
    pub(super) async fn run(self, content: StagedContent) -> Result<()> {
        let is_filesystem = matches!(content, StagedContent::Filesystem(_));
        let device = self.node.0.attach(&self.volume).await?;
        if let Err(error) = self.stage(&device, content).await {
            // What is staged all the same was staged by another process meanwhile, such as the new plugin of an
            // update, and stays.
            if !self.was_staged && !self.is_staged(&self.volume).await.unwrap_or(true) {
                self.undo(device).await;
            }
            return Err(error);
        }
        if is_filesystem && let Err(error) = self.node.0.staged(&self.volume).await {
            if !self.was_staged {
                self.undo(device).await;
            }
            return Err(error);
        }
        Ok(())
    }

    /// Records the volume. Returns what its record said before, if it said something else.
    async fn record(&self) -> Result<Option<Attachment>> {
        let Some(attachments) = self.node.attachments() else { return Ok(None) };
        let stored = self.node.stored(self.volume.host(), &self.volume.volume_id).await?;
        if stored.as_ref().is_some_and(|stored| stored.is_current(&self.volume)) {
            return Ok(None);
        }
        let replaced = stored.filter(|stored| stored.is_of_this_boot).map(|stored| stored.attachment);
        if let Some(replaced) = &replaced
            && !self.was_staged
            && self.is_staged(replaced).await?
        {
            return Err(Error::Incompatible(
                "publish_context: the volume is staged there from the device of another publish context; \
                 unstage it first"
                    .into(),
            ));
        }
        let volume = self.volume.clone();
        blocking(move || attachments.store(&volume)).await?;
        Ok(replaced)
    }

    /// Whether this attachment's device is staged there. If this can't be determined, it counts as staged.
    async fn is_staged(&self, volume: &Attachment) -> Result<bool> {
        let Some(device) = content(&*self.node.0, volume).await? else { return Ok(false) };
        let host = volume.host().clone();
        let staging = self.staging.clone();
        blocking(move || match host.block().device_of(staging.path()) {
            Ok(found) => Ok(host.devices().number(&device).map_or(true, |number| number == found)),
            Err(error) => Ok(!matches!(error.kind(), ErrorKind::NotFound | ErrorKind::Unsupported)),
        })
        .await
    }

    /// Mounts the filesystem, or opens the device.
    async fn stage(&self, device: &Path, content: StagedContent) -> Result<()> {
        let host = self.volume.host().clone();
        let device = device.to_owned();
        let staging = self.staging.clone();
        blocking(move || match content {
            StagedContent::Filesystem(plan) => {
                let staged = host.block().stage(&device, &staging, &plan)?;
                tracing::info!(device = %device.display(), ?staged, "staged");
                Ok(())
            }
            StagedContent::Device(encryption, reservation, access) => {
                if host.block().device_of(staging.path()).is_ok() {
                    return Err(Error::Incompatible(
                        "volume_capability.block: a filesystem is mounted at the staging path; unstage it first".into(),
                    ));
                }
                reservation.reserve(&host, &device)?;
                encryption.stage_device(&host, &device, &staging, access)
            }
        })
        .await
    }

    /// Detaches the device that this call attached, or an earlier call that was killed, and restores the record:
    /// after a final error the caller does not unstage.
    async fn undo(self, device: PathBuf) {
        let detached = self.detach(device).await;
        let undone = match detached {
            Ok(()) => self.node.restore_record(&self.volume.volume_id, self.replaced).await,
            Err(error) => Err(error),
        };
        if let Err(left) = undone {
            tracing::warn!("the device of a volume that could not be staged stays: {left}");
        }
    }

    /// Detaches the device, unless something still uses it: a mount that could not be undone, or a process that
    /// can't be killed.
    async fn detach(&self, device: PathBuf) -> Result<()> {
        let host = self.volume.host().clone();
        let staging = self.staging.clone();
        blocking(move || match host.block().unstage(&staging, Some(&device), MountCopies::Kept) {
            // What is staged there belongs to another volume, and stays.
            Err(error) if matches!(error.kind(), ErrorKind::WrongDevice | ErrorKind::NotOwned) => {
                match host.devices().in_use(&device)? {
                    DeviceUse::Free => Ok(()),
                    DeviceUse::InUse => Err(error.into()),
                }
            }
            unstaged => Ok(unstaged.map(drop)?),
        })
        .await?;
        self.node.0.detach(&self.volume).await
    }
}
