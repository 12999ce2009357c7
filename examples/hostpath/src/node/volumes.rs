//! The volumes of one store as devices and directories of this node: everything that the ready-made plugins
//! ask of a driver.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use csi_core::mount::flow::block::StagePlan;
use csi_core::mount::{DeviceAccess, LoopOptions};
use csi_core::{
    Attachment, BlockDevices, BlockNode, Directories, DirectoryNode, Error, NodeInfo, Result,
    VolumeCapability, VolumeId, async_trait, blocking, stage_plan,
};

use super::READONLY;
use crate::content;
use crate::host::Driver;
use crate::kind::Kind;
use crate::records::VolumeRecord;
use crate::store::read_record;

/// The volumes of a store, with one plugin for each kind.
#[derive(Debug)]
pub(super) struct Volumes {
    content: Arc<Content>,
    pub(super) devices: BlockNode<Content>,
    pub(super) directories: DirectoryNode<Content>,
}

/// The location of the volumes' content.
#[derive(Debug)]
pub(super) struct Content {
    node: NodeInfo,
    root: PathBuf,
}

impl Volumes {
    pub(super) fn new(driver: &Driver, root: PathBuf) -> Self {
        let content = Arc::new(Content { node: driver.node.clone(), root });
        let devices = Arc::clone(&content);
        let directories = Arc::clone(&content);
        Self { content, devices: BlockNode::new(devices), directories: DirectoryNode::new(directories) }
    }

    /// The directory of the volume's content.
    pub(super) fn place(&self, id: &VolumeId) -> Result<PathBuf> {
        self.content.place(id)
    }

    /// Reads the volume's record from the disk, because the controller can be another process.
    pub(super) async fn record(&self, id: &VolumeId) -> Result<Option<VolumeRecord>> {
        let Ok(place) = self.content.place(id) else { return Ok(None) };
        blocking(move || read_record(&place)).await
    }
}

impl Content {
    fn place(&self, id: &VolumeId) -> Result<PathBuf> {
        Ok(self.root.join(id.as_file_name()?))
    }

    async fn with<T: Send + 'static>(
        &self,
        id: &VolumeId,
        work: impl FnOnce(&Path) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let image = Kind::Image.content(&self.place(id)?);
        blocking(move || work(&image)).await
    }
}

#[async_trait]
impl BlockDevices for Content {
    async fn info(&self) -> Result<NodeInfo> {
        Ok(self.node.clone())
    }

    async fn attach(&self, volume: &Attachment) -> Result<PathBuf> {
        let is_read_only = volume.publish_context.get(READONLY).is_some();
        let access = if is_read_only { DeviceAccess::ReadOnly } else { DeviceAccess::ReadWrite };
        let options = LoopOptions::new().access(access);
        let host = volume.host().clone();
        self.with(&volume.volume_id, move |image| {
            if !image.try_exists()? {
                return Err(Error::Unavailable(format!("{} no longer exists", image.display()).into()));
            }
            Ok(host.devices().loop_attach(image, &options)?.path)
        })
        .await
    }

    async fn device(&self, volume: &Attachment) -> Result<Option<PathBuf>> {
        // Also that of an image that was deleted while attached.
        let host = volume.host().clone();
        let find = move |image: &Path| {
            Ok(host.devices().loop_devices(image)?.into_iter().next().map(|found| found.path))
        };
        self.with(&volume.volume_id, find).await
    }

    async fn plan(&self, volume: &Attachment, capability: &VolumeCapability) -> Result<StagePlan> {
        let place = self.place(&volume.volume_id)?;
        let plan = stage_plan(capability)?;
        blocking(move || Ok(if content::was_staged(&place)? { plan.never_format() } else { plan })).await
    }

    async fn staged(&self, volume: &Attachment) -> Result<()> {
        let place = self.place(&volume.volume_id)?;
        blocking(move || content::note_staged(&place)).await
    }

    async fn refresh(&self, volume: &Attachment) -> Result<()> {
        let host = volume.host().clone();
        self.with(&volume.volume_id, move |image| Ok(host.devices().loop_refresh(image)?)).await
    }

    async fn detach(&self, volume: &Attachment) -> Result<()> {
        let host = volume.host().clone();
        self.with(&volume.volume_id, move |image| Ok(host.devices().loop_detach(image).map(drop)?)).await
    }
}

#[async_trait]
impl Directories for Content {
    async fn info(&self) -> Result<NodeInfo> {
        Ok(self.node.clone())
    }

    async fn directory(&self, id: &VolumeId) -> Result<PathBuf> {
        Ok(Kind::Directory.content(&self.place(id)?))
    }
}
