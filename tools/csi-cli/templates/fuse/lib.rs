//! The CSI driver {{driver}}: a volume is a directory, which a FUSE program serves.
use std::path::{Path, PathBuf};
use std::sync::Arc;

use csi_core::mount::flow::fuse::FuseDaemon;
use csi_core::types::MountFlags;
use csi_core::{Result, prelude::*};

const NAME: &str = "{{driver}}";

#[derive(clap::Parser, Clone)]
#[command(about = "The CSI driver {{driver}}")]
pub struct Args {
    /// The directory that has the volumes
    #[arg(long, env = "DATA_DIR", value_name = "PATH", default_value = "/var/lib/{{name}}")]
    pub root: PathBuf,

    /// The FUSE program. Its arguments are the volume's directory and the mount point; it stays in the foreground
    #[arg(long, env = "FUSE_PROGRAM", value_name = "PATH", default_value = "{{name}}-fuse")]
    pub program: PathBuf,

    #[command(flatten)]
    pub driver: DriverArgs,
}

struct Driver(Args);

impl Driver {
    fn path(&self, id: &VolumeId) -> Result<PathBuf> {
        Ok(self.0.root.join(id.as_file_name()?))
    }
}

#[async_trait]
impl Controller for Driver {
    async fn lookup(&self, id: &VolumeId) -> Result<Option<Volume>> {
        let path = self.path(id)?;
        Ok(tokio::fs::try_exists(&path).await.at("look for", &path)?.then(|| Volume::new(id.clone(), 0)))
    }

    fn supports(&self, capability: &VolumeCapability) -> bool {
        capability.is_mount() && !capability.access_mode.is_multi_node()
    }
}

#[async_trait]
impl CreateDeleteVolume for Driver {
    async fn create_volume(&self, request: CreateVolumeRequest) -> Result<Volume> {
        request.parameters.check_keys(&[])?;
        let id = VolumeId::from_name(&request.name)?;
        let path = self.path(&id)?;
        tokio::fs::create_dir_all(&path).await.at("create", &path).map(|()| Volume::new(id, 0))
    }

    async fn delete_volume(&self, request: DeleteVolumeRequest) -> Result<()> {
        remove_tree(request.host(), self.path(&request.volume_id)?).await
    }
}

#[async_trait]
impl FuseFilesystems for Driver {
    async fn info(&self) -> Result<NodeInfo> {
        self.0.driver.node_info()
    }

    async fn daemon(&self, volume: &Attachment, _: &MountFlags, mountpoint: &Path) -> Result<FuseDaemon> {
        self.lookup(&volume.volume_id).await?.ok_or(Error::VolumeNotFound(volume.volume_id.clone()))?;
        Ok(FuseDaemon::new(&self.0.program).arg(self.path(&volume.volume_id)?).arg(mountpoint))
    }
}

/// Returns the driver, configured by its flags.
pub fn plugin(args: &Args) -> Plugin {
    let driver = Arc::new(Driver(args.clone()));
    let controller = ControllerService::new(driver.clone()).create_delete_volume();
    let node = FuseNode::service(driver);
    let plugin = Plugin::new(NAME, env!("CARGO_PKG_VERSION"))
        .own_directory(&args.root)
        .controller(controller{% if multi_writer %}.single_node_multi_writer(){% endif %})
        .node(node{% if multi_writer %}.single_node_multi_writer(){% endif %});
    #[cfg(feature = "manifests")]
    let plugin = declare(plugin, args.clone());
    plugin
}

/// Declares what the manifests say besides the driver's capabilities.
#[cfg(feature = "manifests")]
fn declare(plugin: Plugin, args: Args) -> Plugin {
    let root = args.root.display().to_string();
    plugin.declare(move |options| {
        // The kubelet publishes again from time to time, which restarts a program that has ended.
        options.requires_republish = true;
        options.storage_class.push(csi_core::deploy::Class::new("{{name}}"));
        options.arg.push(format!("--root={root}"));
        options.controller_host_path.push(root.clone());
        options.node_host_path.push(root);
    })
}
