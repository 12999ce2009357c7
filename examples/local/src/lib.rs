//! A CSI driver for the disks of its own node: a volume is a logical volume of LVM, thick or in a thin pool. It has a
//! filesystem or is published raw, can be encrypted, and is erased before another volume gets its space.
use std::path::PathBuf;
use std::sync::Arc;

use csi_core::controller::{
    Capacity, CreateSnapshotRequest, DeleteSnapshotRequest, GetCapacity, GetCapacityRequest,
};
use csi_core::mount::flow::block::StagePlan;
use csi_core::mount::lvm::EraseMode;
use csi_core::mount::lvm::{HOST_LAUNCHER, LvmLayout, LvmName, LvmOptions, LvmRequest};
use csi_core::mount::{Filesystem, IdMap, Luks};
use csi_core::node::{
    NodeExpandVolume, NodeExpandVolumeRequest, NodeGetStorageHealth, NodeGetStorageHealthRequest,
};
use csi_core::node_plugins::{FilesystemOptions, LogicalVolumes};
use csi_core::types::{Place, Snapshot, SnapshotId, StorageHealthEntry, Topology};
use csi_core::{Result, prelude::*};

const NAME: &str = "local.csi.example.org";

/// The driver's flags.
#[derive(Debug, Clone, clap::Parser)]
#[command(version, about = "A CSI driver for the disks of its own node, by LVM", long_about = None)]
#[non_exhaustive]
pub struct Args {
    /// The volume group, which each node has
    #[arg(long, env = "VOLUME_GROUP", value_name = "NAME", default_value = "csi")]
    pub group: String,
    /// Run the lvm of the host, as a driver in a pod has to
    #[arg(long, env = "HOST_LVM")]
    pub host_lvm: bool,
    /// The volumes of a thin pool together, in percent of the pool; above 100 it can become full
    #[arg(long, env = "OVERCOMMIT", value_name = "PERCENT", default_value_t = 100)]
    pub overcommit: u32,
    /// The flags that every driver has.
    #[command(flatten)]
    pub driver: DriverArgs,
}

/// The parameters of a StorageClass, next to those of the filesystem.
#[derive(serde::Deserialize)]
struct Params {
    /// The thin pool. Without one, volumes are thick.
    pool: Option<String>,
    /// The tag of the physical volumes that thick volumes are on.
    disks: Option<String>,
    /// `zero`, `discard` or `none`.
    erase: Option<String>,
    /// Whether volumes are encrypted, with the key `luksKey` of the class's secret.
    encrypted: Option<bool>,
}

impl Params {
    fn layout(&self) -> Result<LvmLayout> {
        match (&self.pool, &self.disks) {
            (None, None) => Ok(LvmLayout::Thick),
            (None, Some(tag)) => Ok(LvmLayout::ThickOn(tag.clone())),
            (Some(pool), None) => Ok(LvmLayout::Thin(pool.clone())),
            _ => Err(Error::invalid("parameters[disks]", "is for thick volumes, and pool for thin ones")),
        }
    }

    /// What LUKS takes of the logical volume.
    fn header(&self) -> u64 {
        if self.encrypted == Some(true) { Luks::HEADER_BYTES } else { 0 }
    }
}

#[derive(Clone)]
struct Local {
    driver: DriverArgs,
    volumes: LogicalVolumes,
}

impl Local {
    /// Where this node's volumes can be used: on this node.
    fn here(&self) -> Result<Topology> {
        Ok(Topology::new(format!("{NAME}/node"), self.driver.node_info()?.node_id.as_str()))
    }

    fn volume(&self, id: &VolumeId, bytes: u64) -> Result<Volume> {
        Ok(Volume::new(id.clone(), bytes).accessible_from(self.here()?))
    }
}

#[async_trait]
impl Controller for Local {
    async fn lookup(&self, id: &VolumeId) -> Result<Option<Volume>> {
        let found = self.volumes.find(id).await?;
        found.map(|found| self.volume(id, found.bytes)).transpose()
    }

    fn supports(&self, capability: &VolumeCapability) -> bool {
        let known = capability.fs_type().is_none_or(|name| name.parse::<Filesystem>().is_ok());
        known && !capability.access_mode.is_multi_node()
    }
}

#[async_trait]
impl CreateDeleteVolume for Local {
    async fn create_volume(&self, mut request: CreateVolumeRequest) -> Result<Volume> {
        let filesystem = FilesystemOptions::take(&mut request.parameters, &request.volume_capabilities)?;
        let params: Params = request.parameters.parse()?;
        let places = [Place::new(self.here()?, ())];
        Place::candidates(&places, request.accessibility_requirements.as_ref(), 0)?;
        let sizes = request.volume_capabilities.iter().map(VolumeCapability::min_device_size);
        let range = request.capacity_range.at_least(sizes.fold(1, u64::max));
        let id = VolumeId::from_name(&request.name)?;
        let bytes = range.choose(1 << 30, 1)?;
        let source = request.volume_content_source.as_ref().map(LvmName::from);
        let wanted = LvmRequest::new(id.as_str(), bytes).limit(range.limit_bytes).source(source);
        let mut wanted = wanted.layout(params.layout()?).header(params.header());
        if let Some(mode) = params.erase {
            let mode = mode.parse::<EraseMode>();
            wanted = wanted.erase(mode.map_err(|it| Error::invalid("parameters[erase]", it.to_string()))?);
        }
        let made = self.volumes.create(wanted).await?;
        let mut volume = filesystem.keep_in(self.volume(&id, made.bytes)?);
        if params.encrypted == Some(true) {
            volume = volume.context("encrypted", "true");
        }
        Ok(request.volume_content_source.into_iter().fold(volume, Volume::source))
    }

    async fn delete_volume(&self, request: DeleteVolumeRequest) -> Result<()> {
        self.volumes.delete(&request.volume_id).await
    }
}

#[async_trait]
impl CreateDeleteSnapshot for Local {
    async fn create_snapshot(&self, request: CreateSnapshotRequest) -> Result<Snapshot> {
        let id = SnapshotId::from_name(&request.name)?;
        self.volumes.snapshot(id, &request.source_volume_id).await
    }

    async fn delete_snapshot(&self, request: DeleteSnapshotRequest) -> Result<()> {
        self.volumes.delete(&request.snapshot_id).await
    }
}

#[async_trait]
impl GetCapacity for Local {
    async fn capacity(&self, request: GetCapacityRequest) -> Result<Capacity> {
        let params = request.parameters.parse_known::<Params>()?;
        let is_supported = request.volume_capabilities.iter().all(|one| self.supports(one));
        if !is_supported || !request.is_for(&self.here()?) {
            return Ok(Capacity::new(0));
        }
        self.volumes.capacity(params.layout()?, params.header()).await
    }
}

#[async_trait]
impl BlockDevices for Local {
    async fn info(&self) -> Result<NodeInfo> {
        Ok(self.driver.node_info()?.at(self.here()?))
    }

    async fn attach(&self, volume: &Attachment) -> Result<PathBuf> {
        self.volumes.attach(volume).await
    }

    async fn device(&self, volume: &Attachment) -> Result<Option<PathBuf>> {
        self.volumes.device(volume).await
    }

    async fn detach(&self, volume: &Attachment) -> Result<()> {
        self.volumes.detach(volume).await
    }

    fn encryption(&self, volume: &Attachment) -> Result<Option<Luks>> {
        Ok((volume.volume_context.get("encrypted") == Some("true")).then(Luks::new))
    }

    fn id_map(&self, volume: &Attachment) -> Result<IdMap> {
        FilesystemOptions::kept_in(&volume.volume_context)?.id_map()
    }

    async fn plan(&self, volume: &Attachment, capability: &VolumeCapability) -> Result<StagePlan> {
        let plan = FilesystemOptions::kept_in(&volume.volume_context)?.plan(capability)?;
        self.volumes.plan(volume, plan).await
    }

    async fn staged(&self, volume: &Attachment) -> Result<()> {
        self.volumes.staged(volume).await
    }
}

/// The node grows its volumes: external-resizer calls one controller, which is on another node.
#[async_trait]
impl NodeExpandVolume for Local {
    async fn expand_volume(&self, mut request: NodeExpandVolumeRequest) -> Result<u64> {
        // The range does not count LUKS' headers, which the device has.
        let range = std::mem::take(&mut request.capacity_range);
        let node = BlockNode::new(Arc::new(self.clone()));
        // Where the volume is not, nothing grows.
        node.expand_volume(request.clone()).await?;
        let bytes = self.volumes.grow(&request.volume_id, range).await?;
        node.expand_volume(request).await?;
        Ok(bytes)
    }
}

#[async_trait]
impl NodeGetStorageHealth for Local {
    async fn storage_health(&self, _: NodeGetStorageHealthRequest) -> Result<Vec<StorageHealthEntry>> {
        self.volumes.storage_health().await
    }
}

/// Returns the driver, configured by its flags.
pub fn plugin(args: &Args) -> Plugin {
    let mut options = LvmOptions::new(NAME).overcommit(args.overcommit);
    if args.host_lvm {
        options = options.launcher(HOST_LAUNCHER);
    }
    // Beside the socket, in a directory of the host.
    if let Some(socket) = args.driver.endpoint().ok().map(|endpoint| endpoint.path().to_owned()) {
        options = options.known_by(socket.with_file_name(format!("{}.disks", args.group)));
    }
    let volumes = LogicalVolumes::new(&args.group, options);
    let local = Arc::new(Local { driver: args.driver.clone(), volumes: volumes.clone() });
    let controller = ControllerService::new(local.clone());
    let controller = controller.create_delete_volume().create_delete_snapshot().clone_volume().get_capacity();
    let node = BlockNode::service(local.clone())
        .expand_volume_by(local.clone())
        .get_storage_health_by(local.clone());
    Plugin::new(NAME, env!("CARGO_PKG_VERSION"))
        .volume_accessibility_constraints()
        .volume_expansion(Expansion::Online)
        .identity(Arc::new(volumes.clone()))
        .metrics(move |out| volumes.write_metrics(out))
        .controller(controller.single_node_multi_writer())
        .node(node.single_node_multi_writer())
        .declare(|options| {
            options.controller = csi_core::deploy::Controller::NodeLocal;
            options.devices = true;
            options.host_pid = true;
            options.default_fstype = Some("ext4".to_owned());
            options.storage_class.push(csi_core::deploy::Class::new("local"));
            options.arg.push("--host-lvm".to_owned());
        })
}
