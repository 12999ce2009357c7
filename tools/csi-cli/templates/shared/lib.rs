//! The CSI driver {{driver}}: a volume is a directory on an NFS server. The controller
//! sees the server's export as a directory; each node mounts a volume's part of it.
use std::{path::PathBuf, sync::Arc};

use csi_core::mount::flow::shared::SharedSource;
use csi_core::{Result, prelude::*};

const NAME: &str = "{{driver}}";

#[derive(clap::Parser, Clone)]
#[command(about = "The CSI driver {{driver}}")]
pub struct Args {
    /// The NFS server
    #[arg(long, env = "NFS_SERVER", value_name = "HOST", default_value = "nfs.{{organisation}}")]
    pub server: String,

    /// The directory that the server exports
    #[arg(long, env = "NFS_EXPORT", value_name = "PATH", default_value = "/export")]
    pub export: String,

    /// Where the export is mounted on the controller's host
    #[arg(long, env = "DATA_DIR", value_name = "PATH", default_value = "/var/lib/{{name}}")]
    pub root: PathBuf,

    #[command(flatten)]
    pub driver: DriverArgs,
}

struct Driver(Args);

impl Driver {
    fn path(&self, id: &VolumeId) -> Result<PathBuf> {
        Ok(self.0.root.join(id.as_file_name()?))
    }

    /// The volume, with what a node needs to mount it.
    fn volume(&self, id: VolumeId) -> Result<Volume> {
        let share = format!("{}/{}", self.0.export.trim_end_matches('/'), id.as_file_name()?);
        Ok(Volume::new(id, 0).context("server", &self.0.server).context("share", share))
    }
}

#[async_trait]
impl Controller for Driver {
    async fn lookup(&self, id: &VolumeId) -> Result<Option<Volume>> {
        let path = self.path(id)?;
        let exists = tokio::fs::try_exists(&path).await.at("look for", &path)?;
        exists.then(|| self.volume(id.clone())).transpose()
    }

    fn supports(&self, capability: &VolumeCapability) -> bool {
        capability.is_mount()
    }
}

#[async_trait]
impl CreateDeleteVolume for Driver {
    async fn create_volume(&self, request: CreateVolumeRequest) -> Result<Volume> {
        request.parameters.check_keys(&[])?;
        let id = VolumeId::from_name(&request.name)?;
        let path = self.path(&id)?;
        tokio::fs::create_dir_all(&path).await.at("create", &path)?;
        self.volume(id)
    }

    async fn delete_volume(&self, request: DeleteVolumeRequest) -> Result<()> {
        remove_tree(request.host(), self.path(&request.volume_id)?).await
    }
}

#[async_trait]
impl SharedFilesystems for Driver {
    async fn info(&self) -> Result<NodeInfo> {
        self.0.driver.node_info()
    }

    async fn source(&self, volume: &Attachment) -> Result<SharedSource> {
        let context = &volume.volume_context;
        let name = volume.volume_id.as_file_name()?;
        match (context.get("server"), context.get("share")) {
            // Not the share of another volume.
            (Some(server), Some(share)) if share.rsplit('/').next() == Some(name) => {
                Ok(SharedSource::nfs(server, share)?)
            }
            _ => Err(Error::VolumeNotFound(volume.volume_id.clone())),
        }
    }
}

/// Returns the driver, configured by its flags.
pub fn plugin(args: &Args) -> Plugin {
    let driver = Arc::new(Driver(args.clone()));
    let controller = ControllerService::new(driver.clone()).create_delete_volume();
    let node = SharedNode::{% if stage %}service{% else %}unstaged_service{% endif %}(driver);
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
        // A mount of the kernel's NFS client belongs to the network in which it was made.
        options.host_network = true;
        options.storage_class.push(csi_core::deploy::Class::new("{{name}}"));
        options.controller_arg.push(format!("--server={}", args.server));
        options.controller_arg.push(format!("--export={}", args.export));
        options.controller_arg.push(format!("--root={root}"));
        options.controller_host_path.push(root);
    })
}
