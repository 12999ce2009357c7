//! A CSI driver for the disks of its own node: a volume is a logical volume of LVM, thick or in a thin pool. It has a
//! filesystem or is published raw, can be encrypted, and is erased before another volume gets its space.
use std::path::PathBuf;
use std::sync::Arc;

use csi_core::controller::{
    Capacity, CreateSnapshotRequest, DeleteSnapshotRequest, GetCapacity, GetCapacityRequest,
};
use csi_core::identity::Readiness;
use csi_core::mount::erase::EraseMode;
use csi_core::mount::flow::block::StagePlan;
use csi_core::mount::lvm::{
    HOST_LAUNCHER, LvmEraser, LvmLayout, LvmName, LvmOptions, LvmRequest, LvmState, VolumeGroup,
};
use csi_core::mount::{self, Filesystem, IdMap, Luks};
use csi_core::node::{
    NodeExpandVolume, NodeExpandVolumeRequest, NodeGetStorageHealth, NodeGetStorageHealthRequest,
};
use csi_core::node_plugins::FilesystemOptions;
use csi_core::types::{
    ContentSource, Place, Snapshot, SnapshotId, StorageHealthEntry, StorageHealthStatus, Topology,
};
use csi_core::{Result, prelude::*};
use tokio::sync::OnceCell;

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
}

struct Local {
    args: Args,
    /// Opened by the first call, so that the manifests need no volume group.
    opened: OnceCell<(VolumeGroup, LvmEraser)>,
}

fn open(args: &Args) -> mount::Result<(VolumeGroup, LvmEraser)> {
    let mut options = LvmOptions::new(NAME).overcommit(args.overcommit);
    if args.host_lvm {
        options = options.launcher(HOST_LAUNCHER);
    }
    let group = VolumeGroup::open(&args.group, options)?;
    let eraser = group.start_eraser()?;
    Ok((group, eraser))
}

impl Local {
    /// Works with the volume of this id, on a thread that is allowed to block.
    async fn with<T: Send + 'static>(
        &self,
        id: impl ToString,
        work: impl FnOnce(&VolumeGroup, &str) -> mount::Result<T> + Send + 'static,
    ) -> Result<T> {
        let id = id.to_string();
        self.run(move |group| work(group, &id)).await
    }

    /// Works with the volume group, on a thread that is allowed to block.
    async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce(&VolumeGroup) -> mount::Result<T> + Send + 'static,
    ) -> Result<T> {
        let args = self.args.clone();
        let opened = self.opened.get_or_try_init(|| blocking(move || Ok(open(&args)?))).await?;
        let group = opened.0.clone();
        blocking(move || Ok(work(&group)?)).await
    }

    /// Where this node's volumes can be used: on this node.
    fn here(&self) -> Result<Topology> {
        Ok(Topology::new(format!("{NAME}/node"), self.args.driver.node_info()?.node_id.as_str()))
    }

    fn volume(&self, id: &VolumeId, bytes: u64) -> Result<Volume> {
        Ok(Volume::new(id.clone(), bytes).accessible_from(self.here()?))
    }
}

#[async_trait]
impl Identity for Local {
    async fn probe(&self) -> Result<Readiness> {
        self.run(|_| Ok(Readiness::Ready)).await
    }
}

#[async_trait]
impl Controller for Local {
    async fn lookup(&self, id: &VolumeId) -> Result<Option<Volume>> {
        let found = self.with(id, |group, id| group.find(&LvmName::volume(id))).await?;
        let usable = found.filter(|found| found.state == LvmState::Ready);
        usable.map(|found| self.volume(id, found.bytes)).transpose()
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
        let filesystems = request.volume_capabilities.iter().filter_map(|one| one.fs_type()?.parse().ok());
        let range = request.capacity_range.at_least(filesystems.map(Filesystem::min_size).max().unwrap_or(1));
        let id = VolumeId::from_name(&request.name)?;
        let mut wanted = LvmRequest::new(id.as_str(), range.choose(1 << 30, 1)?).layout(params.layout()?);
        if let Some(mode) = params.erase {
            let mode = mode.parse::<EraseMode>();
            wanted = wanted.erase(mode.map_err(|it| Error::invalid("parameters[erase]", it.to_string()))?);
        }
        if let Some(limit) = range.limit_bytes {
            wanted = wanted.limit(limit);
        }
        if let Some(source) = &request.volume_content_source {
            let is_snapshot = matches!(source, ContentSource::Snapshot(_));
            let kind = if is_snapshot { LvmName::snapshot } else { LvmName::volume };
            wanted = wanted.source(kind(source.id().to_owned()));
        }
        let made = self.run(move |group| group.create(&wanted)).await?;
        let mut volume = filesystem.keep_in(self.volume(&id, made.bytes)?);
        if params.encrypted == Some(true) {
            volume = volume.context("encrypted", "true");
        }
        Ok(request.volume_content_source.into_iter().fold(volume, Volume::source))
    }

    async fn delete_volume(&self, request: DeleteVolumeRequest) -> Result<()> {
        self.with(&request.volume_id, |group, id| group.delete(&LvmName::volume(id)).map(drop)).await
    }
}

#[async_trait]
impl CreateDeleteSnapshot for Local {
    async fn create_snapshot(&self, request: CreateSnapshotRequest) -> Result<Snapshot> {
        let id = SnapshotId::from_name(&request.name)?;
        let source = request.source_volume_id.clone();
        let made = self.with(&id, move |group, id| group.snapshot(id, source.as_str())).await?;
        let mut snapshot = Snapshot::new(id, request.source_volume_id.clone(), made.created);
        snapshot.size_bytes = made.bytes;
        Ok(snapshot)
    }

    async fn delete_snapshot(&self, request: DeleteSnapshotRequest) -> Result<()> {
        self.with(&request.snapshot_id, |group, id| group.delete(&LvmName::snapshot(id)).map(drop)).await
    }
}

#[async_trait]
impl GetCapacity for Local {
    async fn capacity(&self, request: GetCapacityRequest) -> Result<Capacity> {
        let layout = request.parameters.parse_known::<Params>()?.layout()?;
        let is_supported = request.volume_capabilities.iter().all(|one| self.supports(one));
        if !is_supported || !request.is_for(&self.here()?) {
            return Ok(Capacity::new(0));
        }
        let room = self.run(move |group| group.capacity(&layout)).await?;
        let capacity = Capacity::new(room.available);
        Ok(capacity.maximum_volume_size(room.maximum).minimum_volume_size(room.minimum))
    }
}

#[async_trait]
impl BlockDevices for Local {
    async fn info(&self) -> Result<NodeInfo> {
        Ok(self.args.driver.node_info()?.at(self.here()?))
    }

    async fn attach(&self, volume: &Attachment) -> Result<PathBuf> {
        self.with(&volume.volume_id, |group, id| Ok(group.activate(id)?.path().to_owned())).await
    }

    async fn device(&self, volume: &Attachment) -> Result<Option<PathBuf>> {
        let device = self.with(&volume.volume_id, VolumeGroup::device).await?;
        Ok(device.map(|device| device.path().to_owned()))
    }

    async fn detach(&self, volume: &Attachment) -> Result<()> {
        self.with(&volume.volume_id, VolumeGroup::deactivate).await
    }

    fn encryption(&self, volume: &Attachment) -> Result<Option<Luks>> {
        Ok((volume.volume_context.get("encrypted") == Some("true")).then(Luks::new))
    }

    fn id_map(&self, volume: &Attachment) -> Result<IdMap> {
        FilesystemOptions::kept_in(&volume.volume_context)?.id_map()
    }

    async fn plan(&self, volume: &Attachment, capability: &VolumeCapability) -> Result<StagePlan> {
        let plan = FilesystemOptions::kept_in(&volume.volume_context)?.plan(capability)?;
        let found = self.with(&volume.volume_id, |group, id| group.find(&LvmName::volume(id))).await?;
        let was_staged = found.is_some_and(|found| found.was_staged);
        Ok(if was_staged { plan.never_format() } else { plan })
    }

    async fn staged(&self, volume: &Attachment) -> Result<()> {
        self.with(&volume.volume_id, VolumeGroup::set_staged).await
    }
}

/// The node grows its volumes: external-resizer calls one controller, which is on another node.
struct Growth(Arc<Local>);

#[async_trait]
impl NodeExpandVolume for Growth {
    async fn expand_volume(&self, request: NodeExpandVolumeRequest) -> Result<u64> {
        if let Some(bytes) = request.capacity_range.required_bytes {
            self.0.with(&request.volume_id, move |group, id| group.grow(id, bytes)).await?;
        }
        BlockNode::new(self.0.clone()).expand_volume(request).await
    }
}

#[async_trait]
impl NodeGetStorageHealth for Local {
    async fn storage_health(&self, _: NodeGetStorageHealthRequest) -> Result<Vec<StorageHealthEntry>> {
        let pools = self.run(VolumeGroup::pools).await?;
        let faults = pools.into_iter().filter_map(|pool| Some(format!("{}: {}", pool.name, pool.fault?)));
        let entry = |fault| StorageHealthEntry::new(StorageHealthStatus::Degraded, "ThinPool", fault);
        Ok(faults.map(entry).collect())
    }
}

/// Returns the driver, configured by its flags.
pub fn plugin(args: &Args) -> Plugin {
    let local = Arc::new(Local { args: args.clone(), opened: OnceCell::new() });
    let controller = ControllerService::new(local.clone());
    let controller = controller.create_delete_volume().create_delete_snapshot().clone_volume().get_capacity();
    let node = BlockNode::service(local.clone())
        .expand_volume_by(Arc::new(Growth(local.clone())))
        .get_storage_health_by(local.clone());
    Plugin::new(NAME, env!("CARGO_PKG_VERSION"))
        .volume_accessibility_constraints()
        .volume_expansion(Expansion::Online)
        .identity(local)
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
