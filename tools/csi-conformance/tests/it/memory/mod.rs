//! A small correct driver. Its state is in memory. Its volumes are directories, images that are published
//! raw, or images with a filesystem, which grow while they are not in use.

#![allow(dead_code, reason = "not every test needs each")]

mod attach;
mod content;
mod groups;
mod health;
mod node;
mod snapshots;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard};

use content::Storage;
use csi_core::controller::{
    AttachLimit, Capacity, ControllerModifyVolume, ControllerModifyVolumeRequest,
    ControllerPublishVolumeRequest, CreateRecord, GetCapacity, GetCapacityRequest,
};
use csi_core::types::{AccessMode, ContentSource, NodeId, Place, Snapshot, Topology, VolumeGroupSnapshot};
use csi_core::*;

const MIB: u64 = 1 << 20;
const SIZES: std::ops::RangeInclusive<u64> = MIB..=MIB << 20;
pub(crate) const UNWELL: &str = "unwell";
pub(crate) const NODE: &str = "node-1";
const MOST_ATTACHED: u8 = 6;

#[derive(Debug, Default)]
struct State {
    volumes: BTreeMap<String, Known>,
    attached: BTreeMap<String, (NodeId, ControllerPublishVolumeRequest)>,
    snapshots: BTreeMap<String, Snapshot>,
    copying: BTreeSet<String>,
    groups: BTreeMap<String, VolumeGroupSnapshot>,
}

#[derive(Debug)]
struct Known {
    volume: Volume,
    /// None for a volume that existed before.
    record: Option<CreateRecord>,
}

/// The driver on one node. Clones on other nodes share its state.
#[derive(Clone)]
pub(crate) struct Memory {
    root: PathBuf,
    storage: Storage,
    node: &'static str,
    state: Arc<Mutex<State>>,
    attached: AttachLimit,
}

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Mutable {
    #[serde(default, rename = "iops")]
    _iops: u32,
    #[serde(default, rename = "tier")]
    _tier: Option<String>,
}

impl Memory {
    pub(crate) fn directories(root: PathBuf) -> Self {
        Self::new(root, Storage::Directories)
    }

    pub(crate) fn images(root: PathBuf) -> Self {
        Self::new(root, Storage::Images)
    }

    pub(crate) fn filesystems(root: PathBuf) -> Self {
        Self::new(root, Storage::Filesystems)
    }

    pub(crate) fn two_kinds(root: PathBuf) -> Self {
        Self::new(root, Storage::TwoKinds)
    }

    fn new(root: PathBuf, storage: Storage) -> Self {
        let mut state = State::default();
        let volume = Volume::new(VolumeId::new(UNWELL).unwrap(), *SIZES.start()).accessible_from(zone());
        state.volumes.insert(UNWELL.to_owned(), Known { volume, record: None });
        let attached = AttachLimit::new(MOST_ATTACHED.into());
        Self { root, storage, node: NODE, state: Arc::new(Mutex::new(state)), attached }
    }

    pub(crate) fn on(&self, node: &'static str) -> Self {
        Self { node, ..self.clone() }
    }

    pub(crate) fn plugin(self) -> Plugin {
        let memory = Arc::new(self);
        let controller = ControllerService::new(memory.clone())
            .create_delete_volume()
            .clone_volume()
            .publish_unpublish_volume()
            .expand_volume(memory.expansion())
            .list_volumes()
            .list_volumes_published_nodes()
            .get_volume()
            .get_capacity()
            .modify_volume()
            .create_delete_snapshot()
            .list_snapshots()
            .get_snapshot()
            .get_volume_health()
            .list_volume_health()
            .single_node_multi_writer();
        let plugin = Plugin::new("memory.csi.example.org", "1")
            .group_controller(memory.clone())
            .volume_accessibility_constraints()
            .volume_roots([std::env::temp_dir()])
            .spec(Spec::V1_13)
            .serve_volume_condition();
        match memory.storage {
            Storage::Directories => plugin
                .controller(controller)
                .node(DirectoryNode::service(memory).single_node_multi_writer().volume_mount_group()),
            Storage::Images => plugin
                // A device can be attached read-only. A directory is not attached at all.
                .controller(controller.publish_readonly())
                .snapshot_metadata(memory.clone())
                .node(BlockNode::service(memory).single_node_multi_writer()),
            Storage::Filesystems | Storage::TwoKinds => plugin
                .controller(controller.publish_readonly())
                .node(BlockNode::service(memory).single_node_multi_writer()),
        }
    }

    /// A mounted ext4 grows only with CAP_SYS_RESOURCE.
    fn expansion(&self) -> Expansion {
        match self.storage {
            Storage::Filesystems | Storage::TwoKinds => Expansion::Offline,
            Storage::Directories | Storage::Images => Expansion::Online,
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    fn place(&self, id: &str) -> Result<PathBuf> {
        Ok(self.root.join(VolumeId::new(id)?.as_file_name()?))
    }

    /// The path and size of the content that the new volume starts with.
    async fn source(&self, source: &ContentSource) -> Result<(PathBuf, u64)> {
        let (id, bytes) = match source {
            ContentSource::Volume(id) => {
                let volume = self.lookup(id).await?.ok_or(Error::VolumeNotFound(id.clone()))?;
                (id.as_str(), volume.capacity_bytes)
            }
            ContentSource::Snapshot(id) => {
                let state = self.state();
                let snapshot = state.snapshots.get(id.as_str()).ok_or(Error::SnapshotNotFound(id.clone()))?;
                (id.as_str(), snapshot.size_bytes)
            }
            _ => return Err(Error::SourceNotFound(source.to_string().into())),
        };
        Ok((self.place(id)?, bytes))
    }
}

fn zone() -> Topology {
    Topology::new("memory.csi.example.org/zone", "z1")
}

#[async_trait]
impl Controller for Memory {
    async fn lookup(&self, id: &VolumeId) -> Result<Option<Volume>> {
        Ok(self.state().volumes.get(id.as_str()).map(|known| known.volume.clone()))
    }

    fn supports(&self, capability: &VolumeCapability) -> bool {
        let mode = capability.access_mode;
        match (self.storage, capability.is_mount()) {
            (Storage::TwoKinds, false) => mode == AccessMode::MultiNodeMultiWriter,
            (storage, is_mount) => is_mount == (storage != Storage::Images) && !mode.is_multi_node(),
        }
    }
}

#[async_trait]
impl CreateDeleteVolume for Memory {
    async fn create_volume(&self, request: CreateVolumeRequest) -> Result<Volume> {
        let id = VolumeId::from_name(&request.name)?;
        let _: Mutable = request.parameters.parse()?;
        let _: Mutable = request.mutable_parameters.parse()?;
        if let Some(known) = self.state().volumes.get(id.as_str()) {
            known
                .record
                .as_ref()
                .ok_or(Error::Incompatible("it was there before".into()))?
                .check(&request)?;
            return Ok(known.volume.clone());
        }
        let source = match &request.volume_content_source {
            Some(source) => Some(self.source(source).await?),
            None => None,
        };
        let least = source.as_ref().map_or(*SIZES.start(), |(_, bytes)| *bytes);
        let bytes = request.capacity_range.at_least(least).choose(least, 1)?;
        if !SIZES.contains(&bytes) {
            return Err(Error::OutOfRange(format!("a volume has at most {} bytes", SIZES.end()).into()));
        }
        let places = [Place::new(zone(), ())];
        let place = Place::candidates(&places, request.accessibility_requirements.as_ref(), bytes)?[0];
        self.storage.make(&self.place(id.as_str())?, source.map(|(path, _)| path), bytes)?;
        let mut volume =
            Volume::new(id.clone(), bytes).accessible_from(place.topology.clone()).context("kind", "memory");
        volume.content_source = request.volume_content_source.clone();
        let record = Some(CreateRecord::new(&request, &volume));
        self.state().volumes.insert(id.as_str().to_owned(), Known { volume: volume.clone(), record });
        Ok(volume)
    }

    async fn delete_volume(&self, request: DeleteVolumeRequest) -> Result<()> {
        if let Some((node, _)) = self.state().attached.get(request.volume_id.as_str()) {
            return Err(Error::InUse(format!("it is attached to {node}").into()));
        }
        // The loop device of a deleted image would never be found again.
        if self.storage != Storage::Directories && self.attached_as(&request.volume_id)?.is_some() {
            return Err(Error::InUse("it is attached here".into()));
        }
        self.storage.remove(&self.place(request.volume_id.as_str())?)?;
        self.state().volumes.remove(request.volume_id.as_str());
        Ok(())
    }
}

#[async_trait]
impl ControllerExpandVolume for Memory {
    async fn expand_volume(&self, request: ControllerExpandVolumeRequest) -> Result<Expanded> {
        let place = self.place(request.volume_id.as_str())?;
        let mut state = self.state();
        let is_attached = state.attached.contains_key(request.volume_id.as_str());
        let found = state.volumes.get_mut(request.volume_id.as_str());
        let known = found.ok_or(Error::VolumeNotFound(request.volume_id))?;
        if is_attached && self.expansion() == Expansion::Offline {
            return Err(Error::InUse("it is attached to a node".into()));
        }
        let now = known.volume.capacity_bytes;
        let bytes = request.capacity_range.choose(now, 1)?.max(now);
        if !SIZES.contains(&bytes) {
            return Err(Error::OutOfRange(format!("a volume has at most {} bytes", SIZES.end()).into()));
        }
        self.storage.make(&place, None, bytes)?;
        known.volume.capacity_bytes = bytes;
        if let Some(record) = &mut known.record {
            record.expanded(bytes);
        }
        Ok(match self.storage {
            Storage::Directories => Expanded::complete(bytes),
            _ => Expanded::node_expansion_required(bytes),
        })
    }
}

#[async_trait]
impl ControllerModifyVolume for Memory {
    async fn modify_volume(&self, request: ControllerModifyVolumeRequest) -> Result<()> {
        let _: Mutable = request.mutable_parameters.parse()?;
        let mut state = self.state();
        let found = state.volumes.get_mut(request.volume_id.as_str());
        let known = found.ok_or(Error::VolumeNotFound(request.volume_id))?;
        known.record.iter_mut().for_each(|record| record.modified(&request.mutable_parameters));
        Ok(())
    }
}

#[async_trait]
impl GetCapacity for Memory {
    async fn capacity(&self, request: GetCapacityRequest) -> Result<Capacity> {
        let is_here = request.accessible_topology.is_none_or(|place| place == zone());
        let fits = is_here && request.volume_capabilities.iter().all(|one| self.supports(one));
        Ok(Capacity::new(if fits { SIZES.end() * 8 } else { 0 })
            .maximum_volume_size(*SIZES.end())
            .minimum_volume_size(*SIZES.start()))
    }
}
