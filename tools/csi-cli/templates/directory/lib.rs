//! The CSI driver {{driver}}: a volume is a directory below a root.
use std::{path::PathBuf, sync::Arc};

{% if local %}
use csi_core::types::{Place, Topology};
{% endif %}
use csi_core::{Result, prelude::*};

const NAME: &str = "{{driver}}";

#[derive(clap::Parser, Clone)]
#[command(about = "The CSI driver {{driver}}")]
pub struct Args {
    /// The directory that has the volumes
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
{% if local %}

    /// Where this node's volumes can be used: on this node.
    fn here(&self) -> Result<Topology> {
        Ok(Topology::new(format!("{NAME}/node"), self.0.driver.node_info()?.node_id.as_str()))
    }
{% endif %}

    fn volume(&self, id: VolumeId, bytes: u64) -> Result<Volume> {
        Ok(Volume::new(id, bytes){% if local %}.accessible_from(self.here()?){% endif %})
    }
}

#[async_trait]
impl Controller for Driver {
    async fn lookup(&self, id: &VolumeId) -> Result<Option<Volume>> {
        let path = self.path(id)?;
        let exists = tokio::fs::try_exists(&path).await.at("look for", &path)?;
        exists.then(|| self.volume(id.clone(), 0)).transpose()
    }

    fn supports(&self, capability: &VolumeCapability) -> bool {
{% if local %}
        capability.is_mount() && !capability.access_mode.is_multi_node()
{% else %}
        capability.is_mount()
{% endif %}
    }
}

#[async_trait]
impl CreateDeleteVolume for Driver {
    async fn create_volume(&self, request: CreateVolumeRequest) -> Result<Volume> {
        request.parameters.check_keys(&[])?;
{% if local %}
        let places = [Place::new(self.here()?, ())];
        Place::candidates(&places, request.accessibility_requirements.as_ref(), 0)?;
{% endif %}
        let id = VolumeId::from_name(&request.name)?;
        let size = request.capacity_range.choose(1 << 30, 1 << 20)?;
        // ext4, XFS and btrfs with quotas enforce it; elsewhere the log says why not.
        let bytes = create_directory(request.host(), self.path(&id)?, size).await?;
        self.volume(id, bytes)
    }

    async fn delete_volume(&self, request: DeleteVolumeRequest) -> Result<()> {
        remove_tree(request.host(), self.path(&request.volume_id)?).await
    }
}

#[async_trait]
impl Directories for Driver {
    async fn info(&self) -> Result<NodeInfo> {
{% if local %}
        Ok(self.0.driver.node_info()?.at(self.here()?))
{% else %}
        self.0.driver.node_info()
{% endif %}
    }

    async fn directory(&self, id: &VolumeId) -> Result<PathBuf> {
        self.path(id)
    }
}

/// Returns the driver, configured by its flags.
pub fn plugin(args: &Args) -> Plugin {
    let driver = Arc::new(Driver(args.clone()));
    let controller = ControllerService::new(driver.clone()).create_delete_volume();
    let node = DirectoryNode::service(driver);
    let plugin = Plugin::new(NAME, env!("CARGO_PKG_VERSION"))
        .own_directory(&args.root)
{% if local %}
        .volume_accessibility_constraints()
{% endif %}
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
{% if local %}
        // Each node creates its own volumes.
        options.controller = csi_core::deploy::Controller::NodeLocal;
{% else %}
        options.controller_host_path.push(root.clone());
{% endif %}
        options.storage_class.push(csi_core::deploy::Class::new("{{name}}"));
        options.arg.push(format!("--root={root}"));
        options.node_host_path.push(root);
    })
}
