//! Disks that are attached over the network, for a driver's [`BlockDevices`](super::BlockDevices).

use std::path::PathBuf;

use csi_mount::remote::{self, RemoteTarget};

use super::block_devices::Attachment;
use crate::blocking::blocking;
use crate::error::Result;

/// The remote disks that are attached on this node: the methods of
/// [`BlockDevices`](super::BlockDevices) for a driver whose volumes are targets on the network. The driver
/// says which target a volume is. What is attached is recorded on the node, so the other methods need the
/// volume's id only, and the driver needs no
/// [`attachments_directory`](super::BlockDevices::attachments_directory).
///
/// ```
/// # use std::path::PathBuf;
/// # use csi_core::mount::flow::block::StagePlan;
/// # use csi_core::mount::remote::{NamespaceId, NvmeHost, NvmeTarget};
/// # use csi_core::node_plugins::RemoteDisks;
/// # use csi_core::{Result, VolumeCapability, prelude::*};
/// struct San(RemoteDisks);
///
/// fn target(volume: &Attachment) -> Result<NvmeTarget> {
///     let context = &volume.publish_context;
///     let namespace = NamespaceId::nguid(context.require("nguid")?)?;
///     let portal = context.require("portal")?.parse().map_err(|_| Error::invalid("publish_context", "portal"))?;
///     Ok(NvmeTarget::tcp(NvmeHost::of_node()?, context.require("nqn")?, namespace)?.portal(portal))
/// }
///
/// #[async_trait]
/// impl BlockDevices for San {
///     async fn attach(&self, volume: &Attachment) -> Result<PathBuf> {
///         self.0.attach(volume, target(volume)?).await
///     }
///     async fn plan(&self, volume: &Attachment, capability: &VolumeCapability) -> Result<StagePlan> {
///         Ok(stage_plan(capability)?.expect(target(volume)?.expected()))
///     }
///     async fn device(&self, volume: &Attachment) -> Result<Option<PathBuf>> {
///         self.0.device(volume).await
///     }
///     async fn refresh(&self, volume: &Attachment) -> Result<()> {
///         self.0.refresh(volume).await
///     }
///     async fn detach(&self, volume: &Attachment) -> Result<()> {
///         self.0.detach(volume).await
///     }
/// }
///
/// let disks = RemoteDisks::new("/var/lib/kubelet/plugins/san.example.org/remote");
/// drop(BlockNode::service(std::sync::Arc::new(San(disks))));
/// ```
#[derive(Debug, Clone)]
pub struct RemoteDisks(remote::RemoteDisks);

impl RemoteDisks {
    /// Keeps the records in this directory, which is created. It must be on a disk of the node, not of the
    /// container, and belong to this driver only.
    pub fn new(directory: impl Into<PathBuf>) -> Self {
        Self(remote::RemoteDisks::new(directory))
    }

    async fn run<T: Send + 'static>(
        &self,
        volume: &Attachment,
        work: impl FnOnce(&remote::RemoteDisks, &str) -> csi_mount::Result<T> + Send + 'static,
    ) -> Result<T> {
        let disks = self.0.clone();
        let id = volume.volume_id.clone();
        blocking(move || Ok(work(&disks, id.as_str())?)).await
    }

    /// Attaches the volume's target, and returns the path of its disk.
    ///
    /// # Errors
    /// Those of [`csi_mount::remote::RemoteDisks::attach`]: [`Error::Unavailable`](crate::Error::Unavailable)
    /// where nothing answers.
    pub async fn attach(&self, volume: &Attachment, target: impl Into<RemoteTarget>) -> Result<PathBuf> {
        let target = target.into();
        self.run(volume, move |disks, id| Ok(disks.attach(id, target)?.path().to_owned())).await
    }

    /// Returns the path of the volume's disk, if it is attached.
    ///
    /// # Errors
    /// Those of [`csi_mount::remote::RemoteDisks::device`].
    pub async fn device(&self, volume: &Attachment) -> Result<Option<PathBuf>> {
        self.run(volume, |disks, id| Ok(disks.device(id)?.map(|device| device.path().to_owned()))).await
    }

    /// Makes all paths show the size that the target reports.
    ///
    /// # Errors
    /// Those of [`csi_mount::remote::RemoteDisks::refresh`].
    pub async fn refresh(&self, volume: &Attachment) -> Result<()> {
        self.run(volume, |disks, id| disks.refresh(id).map(drop)).await
    }

    /// Detaches the volume, and disconnects what nothing else on this node needs. Possibly lost writes are
    /// logged.
    ///
    /// # Errors
    /// Those of [`csi_mount::remote::RemoteDisks::detach`].
    pub async fn detach(&self, volume: &Attachment) -> Result<()> {
        let detached = self.run(volume, remote::RemoteDisks::detach).await?;
        tracing::info!("detached: {detached}");
        Ok(())
    }
}
