//! A small driver that does everything right: volumes are directories, what it knows is in memory.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::SystemTime;

use csi_core::*;

#[derive(Debug, Default)]
struct State {
    volumes: BTreeMap<String, (CreateRecord, Volume)>,
    attached: BTreeMap<String, (NodeId, ControllerPublishVolumeRequest)>,
    snapshots: BTreeMap<String, Snapshot>,
}

pub(crate) struct Memory {
    root: PathBuf,
    state: Mutex<State>,
}

pub(crate) const NODE: &str = "node-1";

pub(crate) fn plugin(root: PathBuf) -> Plugin {
    let memory = Arc::new(Memory { root, state: Mutex::default() });
    Plugin::new("memory.csi.example.org", "1")
        .controller(
            ControllerService::new(memory.clone())
                .create_delete_volume()
                .clone_volume()
                .publish_unpublish_volume()
                .publish_readonly()
                .expand_volume(Expansion::Online)
                .list_volumes()
                .list_volumes_published_nodes()
                .get_volume()
                .create_delete_snapshot()
                .list_snapshots()
                .get_snapshot()
                .single_node_multi_writer(),
        )
        .node(DirectoryNode::service(memory).single_node_multi_writer())
}

impl Memory {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    fn nodes(state: &State, id: &str) -> Vec<NodeId> {
        state.attached.get(id).map(|(node, _)| node.clone()).into_iter().collect()
    }
}

#[async_trait]
impl Directories for Memory {
    async fn info(&self) -> Result<NodeInfo> {
        NodeInfo::new(NODE)
    }

    async fn directory(&self, id: &VolumeId) -> Result<PathBuf> {
        Ok(self.root.join(id.as_file_name()?))
    }
}

#[async_trait]
impl Controller for Memory {
    async fn lookup(&self, id: &VolumeId) -> Result<Option<Volume>> {
        Ok(self.state().volumes.get(id.as_str()).map(|(_, volume)| volume.clone()))
    }

    fn supports(&self, capability: &VolumeCapability) -> bool {
        capability.is_mount() && !capability.access_mode.is_multi_node()
    }
}

#[async_trait]
impl CreateDeleteVolume for Memory {
    async fn create_volume(&self, request: CreateVolumeRequest) -> Result<Volume> {
        let id = VolumeId::from_name(&request.name)?;
        if let Some((record, volume)) = self.state().volumes.get(id.as_str()) {
            record.check(&request)?;
            return Ok(volume.clone());
        }
        let mut least = 1 << 20;
        match &request.volume_content_source {
            Some(ContentSource::Volume(source)) => {
                let source = self.lookup(source).await?.ok_or(Error::VolumeNotFound(source.clone()))?;
                least = source.capacity_bytes;
            }
            Some(ContentSource::Snapshot(source))
                if !self.state().snapshots.contains_key(source.as_str()) =>
            {
                return Err(Error::SnapshotNotFound(source.clone()));
            }
            _ => {}
        }
        tokio::fs::create_dir_all(self.directory(&id).await?).await?;
        let mut volume = Volume::new(id.clone(), request.capacity_range.at_least(least).choose(least, 1)?);
        volume.content_source = request.volume_content_source.clone();
        let record = CreateRecord::new(&request, &volume);
        self.state().volumes.insert(id.as_str().to_owned(), (record, volume.clone()));
        Ok(volume)
    }

    async fn delete_volume(&self, request: DeleteVolumeRequest) -> Result<()> {
        remove_tree(self.directory(&request.volume_id).await?).await?;
        self.state().volumes.remove(request.volume_id.as_str());
        Ok(())
    }
}

#[async_trait]
impl PublishUnpublishVolume for Memory {
    async fn publish_volume(&self, request: ControllerPublishVolumeRequest) -> Result<Published> {
        let mut state = self.state();
        let id = request.volume_id.as_str().to_owned();
        if !state.volumes.contains_key(&id) {
            return Err(Error::VolumeNotFound(request.volume_id));
        }
        match state.attached.get(&id) {
            Some((node, _)) if *node != request.node_id => {
                return Err(Error::PublishedElsewhere(node.clone()));
            }
            Some((_, earlier)) if earlier.readonly != request.readonly => {
                return Err(Error::Incompatible("it is attached in another way".into()));
            }
            _ if request.node_id.as_str() != NODE => return Err(Error::NodeNotFound(request.node_id)),
            _ => {}
        }
        state.attached.insert(id, (request.node_id.clone(), request));
        Ok(Published::default())
    }

    async fn unpublish_volume(&self, request: ControllerUnpublishVolumeRequest) -> Result<()> {
        self.state().attached.remove(request.volume_id.as_str());
        Ok(())
    }
}

#[async_trait]
impl ExpandVolume for Memory {
    async fn expand_volume(&self, request: ControllerExpandVolumeRequest) -> Result<Expanded> {
        let mut state = self.state();
        let found = state.volumes.get_mut(request.volume_id.as_str());
        let (record, volume) = found.ok_or(Error::VolumeNotFound(request.volume_id))?;
        let now = volume.capacity_bytes;
        volume.capacity_bytes = request.capacity_range.choose(now, 1)?.max(now);
        record.expanded(volume.capacity_bytes);
        Ok(Expanded { capacity_bytes: volume.capacity_bytes, node_expansion_required: false })
    }
}

#[async_trait]
impl ListVolumes for Memory {
    async fn list_volumes(&self, request: ListVolumesRequest) -> Result<Page<VolumeListing>> {
        let state = self.state();
        let pager = Pager::new(request.max_entries, request.starting_token.as_ref())?;
        pager.page(state.volumes.range::<str, _>(pager.range()).map(|(id, (_, volume))| {
            (id, VolumeListing { volume: volume.clone(), published_node_ids: Self::nodes(&state, id) })
        }))
    }
}

#[async_trait]
impl GetVolume for Memory {
    async fn get_volume(&self, request: ControllerGetVolumeRequest) -> Result<VolumeListing> {
        let id = request.volume_id;
        let volume = self.lookup(&id).await?.ok_or(Error::VolumeNotFound(id.clone()))?;
        Ok(VolumeListing { volume, published_node_ids: Self::nodes(&self.state(), id.as_str()) })
    }
}

#[async_trait]
impl CreateDeleteSnapshot for Memory {
    async fn create_snapshot(&self, request: CreateSnapshotRequest) -> Result<Snapshot> {
        let source = request.source_volume_id;
        let id = VolumeId::from_name(&VolumeName::new(request.name.as_str())?)?.as_str().to_owned();
        let mut state = self.state();
        if !state.volumes.contains_key(source.as_str()) {
            return Err(Error::VolumeNotFound(source));
        }
        if let Some(snapshot) = state.snapshots.get(&id) {
            return match snapshot.source_volume_id == source {
                true => Ok(snapshot.clone()),
                false => Err(Error::Incompatible("it is another volume's".into())),
            };
        }
        let snapshot = Snapshot::new(SnapshotId::new(id.clone())?, source, SystemTime::now());
        state.snapshots.insert(id, snapshot.clone());
        Ok(snapshot)
    }

    async fn delete_snapshot(&self, request: DeleteSnapshotRequest) -> Result<()> {
        self.state().snapshots.remove(request.snapshot_id.as_str());
        Ok(())
    }
}

#[async_trait]
impl ListSnapshots for Memory {
    async fn list_snapshots(&self, request: ListSnapshotsRequest) -> Result<Page<Snapshot>> {
        let state = self.state();
        let pager = Pager::new(request.max_entries, request.starting_token.as_ref())?;
        let fits = |one: &Snapshot| {
            request.snapshot_id.as_ref().is_none_or(|id| *id == one.snapshot_id)
                && request.source_volume_id.as_ref().is_none_or(|id| *id == one.source_volume_id)
        };
        let entries = state.snapshots.range::<str, _>(pager.range());
        pager.page(entries.filter(|(_, one)| fits(one)).map(|(id, one)| (id, one.clone())))
    }
}

#[async_trait]
impl GetSnapshot for Memory {
    async fn get_snapshot(&self, request: GetSnapshotRequest) -> Result<Snapshot> {
        let found = self.state().snapshots.get(request.snapshot_id.as_str()).cloned();
        found.ok_or(Error::SnapshotNotFound(request.snapshot_id))
    }
}
