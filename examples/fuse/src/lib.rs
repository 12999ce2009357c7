//! A complete CSI driver whose volumes are served by a FUSE program. Each volume staged on the node has its
//! own `flatfs` process: a child of the driver, or in a pod of its own.
use csi_core::mount::{MountOptions, flow::fuse::FuseDaemon, flow::fuse::Mounter};
use csi_core::types::MountFlags;
use csi_core::{Result, prelude::*};
use std::path::{Path, PathBuf};
use std::sync::Arc;

struct Flat {
    root: PathBuf,
    daemon: FuseDaemon,
    mounter: Option<Mounter>,
    args: DriverArgs,
}

impl Flat {
    fn store(&self, id: &VolumeId) -> Result<PathBuf> {
        Ok(self.root.join(id.as_file_name()?))
    }
}

#[async_trait]
impl Controller for Flat {
    async fn lookup(&self, id: &VolumeId) -> Result<Option<Volume>> {
        let store = self.store(id)?;
        Ok(tokio::fs::try_exists(&store).await.at("look for", &store)?.then(|| Volume::new(id.clone(), 0)))
    }
    fn supports(&self, capability: &VolumeCapability) -> bool {
        capability.is_mount() && !capability.access_mode.is_multi_node()
    }
}

#[async_trait]
impl CreateDeleteVolume for Flat {
    async fn create_volume(&self, request: CreateVolumeRequest) -> Result<Volume> {
        request.parameters.check_keys(&[])?;
        let id = VolumeId::from_name(&request.name)?;
        let store = self.store(&id)?;
        tokio::fs::create_dir_all(&store).await.at("create", &store).map(|()| Volume::new(id, 0))
    }
    async fn delete_volume(&self, request: DeleteVolumeRequest) -> Result<()> {
        remove_tree(request.host(), self.store(&request.volume_id)?).await
    }
}

#[async_trait]
impl FuseFilesystems for Flat {
    async fn info(&self) -> Result<NodeInfo> {
        self.args.node_info()
    }
    async fn daemon(&self, volume: &Attachment, _: &MountFlags, mountpoint: &Path) -> Result<FuseDaemon> {
        self.lookup(&volume.volume_id).await?.ok_or(Error::VolumeNotFound(volume.volume_id.clone()))?;
        let daemon = self.daemon.clone().arg(self.store(&volume.volume_id)?);
        if self.mounter.is_none() {
            return Ok(daemon.arg(mountpoint));
        }
        let options = MountOptions::parse(["allow_other", "default_permissions"])?;
        // flatfs can serve what an earlier process has mounted.
        Ok(daemon.arg_device(options).continue_when_lost())
    }
    fn mounter(&self) -> Option<Mounter> {
        self.mounter.clone()
    }
}

/// Returns the driver, which keeps its volumes below `root` and serves each with a `daemon` of its own, in the pods of
/// a `mounter` or as its child.
pub fn plugin(root: PathBuf, daemon: FuseDaemon, mounter: Option<Mounter>, args: &DriverArgs) -> Plugin {
    let flat = Arc::new(Flat { root: root.clone(), daemon, mounter, args: args.clone() });
    Plugin::new("flat.csi.example.org", env!("CARGO_PKG_VERSION"))
        .own_directory(root)
        .controller(ControllerService::new(flat.clone()).create_delete_volume())
        .node(FuseNode::service(flat))
}
