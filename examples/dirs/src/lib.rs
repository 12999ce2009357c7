//! A complete CSI driver: a volume is a directory of this machine, below a root.
use {csi_core::Result, csi_core::prelude::*, std::path::PathBuf, std::sync::Arc};

struct Dirs(PathBuf);

#[async_trait]
impl Directories for Dirs {
    async fn directory(&self, id: &VolumeId) -> Result<PathBuf> {
        Ok(self.0.join(id.as_file_name()?))
    }
}

#[async_trait]
impl Controller for Dirs {
    async fn lookup(&self, id: &VolumeId) -> Result<Option<Volume>> {
        let path = self.directory(id).await?;
        Ok(tokio::fs::try_exists(&path).await.at("look for", &path)?.then(|| Volume::new(id.clone(), 0)))
    }
    fn supports(&self, capability: &VolumeCapability) -> bool {
        capability.is_mount() && !capability.access_mode.is_multi_node()
    }
}

#[async_trait]
impl CreateDeleteVolume for Dirs {
    async fn create_volume(&self, request: CreateVolumeRequest) -> Result<Volume> {
        let id = VolumeId::from_name(&request.name)?;
        let size = request.capacity_range.choose(1 << 30, 1 << 20)?;
        Ok(Volume::new(id.clone(), create_directory(request.host(), self.directory(&id).await?, size).await?))
    }
    async fn delete_volume(&self, request: DeleteVolumeRequest) -> Result<()> {
        remove_tree(request.host(), self.directory(&request.volume_id).await?).await
    }
}

/// Returns the driver, which keeps its volumes below `root`.
pub fn plugin(root: PathBuf) -> Plugin {
    let dirs = Arc::new(Dirs(root.clone()));
    Plugin::new("dirs.csi.example.org", env!("CARGO_PKG_VERSION"))
        .own_directory(root)
        .controller(ControllerService::new(dirs.clone()).create_delete_volume().single_node_multi_writer())
        .node(DirectoryNode::service(dirs).single_node_multi_writer())
}
