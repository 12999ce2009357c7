//! The methods of the ready-made node plugins: which directory, which device.

use csi_core::mount::internal::LoopDevice;
use csi_core::mount::{DeviceAccess, LoopOptions};

use super::*;

impl Memory {
    fn node_info(&self) -> Result<NodeInfo> {
        Ok(NodeInfo::new(self.node)?.at(zone()).max_volumes(MOST_ATTACHED.into()))
    }

    pub(super) fn attached_as(&self, id: &VolumeId) -> Result<Option<LoopDevice>> {
        let image = self.place(id.as_str())?;
        Ok(if image.exists() { LoopDevice::find(image)?.into_iter().next() } else { None })
    }
}

#[async_trait]
impl Directories for Memory {
    async fn info(&self) -> Result<NodeInfo> {
        self.node_info()
    }

    async fn directory(&self, id: &VolumeId) -> Result<PathBuf> {
        self.place(id.as_str())
    }
}

#[async_trait]
impl BlockDevices for Memory {
    async fn info(&self) -> Result<NodeInfo> {
        self.node_info()
    }

    async fn attach(&self, volume: &Attachment) -> Result<PathBuf> {
        self.lookup(&volume.volume_id).await?.ok_or(Error::VolumeNotFound(volume.volume_id.clone()))?;
        let access = match volume.publish_context.get("access") {
            Some("read-only") => DeviceAccess::ReadOnly,
            _ => DeviceAccess::ReadWrite,
        };
        let options = LoopOptions::new().access(access);
        Ok(LoopDevice::attach_or_find(self.place(volume.volume_id.as_str())?, &options)?.path().to_owned())
    }

    async fn device(&self, volume: &Attachment) -> Result<Option<PathBuf>> {
        Ok(self.attached_as(&volume.volume_id)?.map(|device| device.path().to_owned()))
    }

    async fn refresh(&self, volume: &Attachment) -> Result<()> {
        Ok(self.attached_as(&volume.volume_id)?.map_or(Ok(()), |device| device.refresh_size())?)
    }

    async fn detach(&self, volume: &Attachment) -> Result<()> {
        Ok(self.attached_as(&volume.volume_id)?.map_or(Ok(()), LoopDevice::detach)?)
    }
}
