use csi_core::mount::{ErrorKind, ExpectedDevice, flow::block::StagePlan};
use csi_core::{Result, prelude::*};
use std::path::PathBuf;

/// ControllerPublishVolume attaches a disk, and returns its path on the node and its serial number.
struct Disks {
    /// On the node's disk: `/var/lib/kubelet/plugins/disks.example.org/attachments`.
    attachments: PathBuf,
}

#[async_trait]
impl BlockDevices for Disks {
    fn attachments_directory(&self) -> Option<PathBuf> {
        Some(self.attachments.clone())
    }

    async fn attach(&self, volume: &Attachment) -> Result<PathBuf> {
        let not_yet = || Error::Unavailable("the disk is not attached to this node yet".into());
        self.device(volume).await?.ok_or_else(not_yet)
    }

    async fn device(&self, volume: &Attachment) -> Result<Option<PathBuf>> {
        let path = PathBuf::from(volume.publish_context.require("device")?);
        let host = volume.host().clone();
        blocking(move || match host.devices().number(&path) {
            Ok(_) => Ok(Some(path)),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error.into()),
        })
        .await
    }

    async fn detach(&self, _: &Attachment) -> Result<()> {
        Ok(()) // ControllerUnpublishVolume takes the disk away.
    }

    async fn plan(&self, volume: &Attachment, capability: &VolumeCapability) -> Result<StagePlan> {
        let serial = volume.publish_context.require("serial")?;
        let plan = stage_plan(capability)?.expect(ExpectedDevice::new().serial(serial));
        // The storage system knows that `staged` was called for this volume, or for the one that it is a copy of.
        Ok(if volume.publish_context.get("staged").is_some() { plan.never_format() } else { plan })
    }
}
