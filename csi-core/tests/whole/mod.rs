//! A driver that offers every capability and knows every id, so each refusal comes from the framework.
#![allow(dead_code, unreachable_pub, reason = "a module of each test file, which uses its part")]

pub mod client;
pub mod log;
pub mod samples;
pub mod walk;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::SystemTime;

use csi_core::*;

#[derive(Debug, Default)]
pub struct Whole;

pub fn volume(id: &VolumeId) -> Volume {
    Volume::new(id.clone(), 0).context("made", "here")
}

pub fn snapshot(id: &SnapshotId, source: &VolumeId) -> Snapshot {
    Snapshot::new(id.clone(), source.clone(), SystemTime::UNIX_EPOCH)
}

fn any<T>(make: impl Fn(String) -> Result<T>) -> T {
    make("any".to_owned()).unwrap()
}

#[async_trait]
impl Controller for Whole {
    async fn lookup(&self, volume_id: &VolumeId) -> Result<Option<Volume>> {
        Ok(Some(volume(volume_id)))
    }

    fn supports(&self, _: &VolumeCapability) -> bool {
        true
    }
}

#[async_trait]
impl CreateDeleteVolume for Whole {
    async fn create_volume(&self, request: CreateVolumeRequest) -> Result<Volume> {
        Ok(volume(&VolumeId::new(request.name.as_str())?))
    }

    async fn delete_volume(&self, _: DeleteVolumeRequest) -> Result<()> {
        Ok(())
    }
}

#[async_trait]
impl PublishUnpublishVolume for Whole {
    async fn publish_volume(&self, _: ControllerPublishVolumeRequest) -> Result<Published> {
        Ok(Published::new(BTreeMap::from([("device".to_owned(), "sdx".to_owned())])))
    }

    async fn unpublish_volume(&self, _: ControllerUnpublishVolumeRequest) -> Result<()> {
        Ok(())
    }
}

#[async_trait]
impl ListVolumes for Whole {
    async fn list_volumes(&self, _: ListVolumesRequest) -> Result<Page<VolumeListing>> {
        let listing = VolumeListing::new(volume(&any(VolumeId::new)), vec![any(NodeId::new)]);
        Ok(Page::new(vec![listing], None))
    }
}

#[async_trait]
impl ControllerGetVolume for Whole {
    async fn get_volume(&self, request: ControllerGetVolumeRequest) -> Result<VolumeListing> {
        Ok(VolumeListing::new(volume(&request.volume_id), vec![]))
    }
}

#[async_trait]
impl csi_core::GetCapacity for Whole {
    async fn capacity(&self, _: GetCapacityRequest) -> Result<Capacity> {
        Ok(Capacity::new(5).maximum_volume_size(4).minimum_volume_size(1))
    }
}

#[async_trait]
impl CreateDeleteSnapshot for Whole {
    async fn create_snapshot(&self, request: CreateSnapshotRequest) -> Result<Snapshot> {
        Ok(snapshot(&SnapshotId::new(request.name.as_str())?, &request.source_volume_id))
    }

    async fn delete_snapshot(&self, _: DeleteSnapshotRequest) -> Result<()> {
        Ok(())
    }
}

#[async_trait]
impl ListSnapshots for Whole {
    async fn list_snapshots(&self, request: ListSnapshotsRequest) -> Result<Page<Snapshot>> {
        let id = request.snapshot_id.unwrap_or_else(|| any(SnapshotId::new));
        let source = request.source_volume_id.unwrap_or_else(|| any(VolumeId::new));
        Ok(Page::new(vec![snapshot(&id, &source)], None))
    }
}

#[async_trait]
impl GetSnapshot for Whole {
    async fn get_snapshot(&self, request: GetSnapshotRequest) -> Result<Snapshot> {
        Ok(snapshot(&request.snapshot_id, &any(VolumeId::new)))
    }
}

#[async_trait]
impl ControllerExpandVolume for Whole {
    async fn expand_volume(&self, request: ControllerExpandVolumeRequest) -> Result<Expanded> {
        Ok(Expanded::node_expansion_required(request.capacity_range.choose(0, 1)?))
    }
}

#[async_trait]
impl ControllerModifyVolume for Whole {
    async fn modify_volume(&self, _: ControllerModifyVolumeRequest) -> Result<()> {
        Ok(())
    }
}

pub fn unwell(volume_id: VolumeId) -> VolumeHealth {
    let entry = VolumeHealthEntry::new(VolumeHealthStatus::Degraded, "DiskSlow", "a disk is slow");
    VolumeHealth::new(volume_id, vec![entry])
}

#[async_trait]
impl ControllerGetVolumeHealth for Whole {
    async fn volume_health(&self, request: ControllerGetVolumeHealthRequest) -> Result<VolumeHealth> {
        Ok(VolumeHealth::new(request.volume_id, vec![]))
    }
}

#[async_trait]
impl ControllerListVolumeHealth for Whole {
    async fn list_volume_health(&self, _: ControllerListVolumeHealthRequest) -> Result<Page<VolumeHealth>> {
        Ok(Page::new(vec![unwell(any(VolumeId::new))], None))
    }
}

#[async_trait]
impl GroupController for Whole {
    async fn create_volume_group_snapshot(
        &self,
        request: CreateVolumeGroupSnapshotRequest,
    ) -> Result<VolumeGroupSnapshot> {
        let snapshots =
            request.source_volume_ids.iter().map(|source| snapshot(&any(SnapshotId::new), source)).collect();
        let id = GroupSnapshotId::new(request.name.as_str())?;
        Ok(VolumeGroupSnapshot::new(id, snapshots, SystemTime::UNIX_EPOCH))
    }

    async fn delete_volume_group_snapshot(&self, _: DeleteVolumeGroupSnapshotRequest) -> Result<()> {
        Ok(())
    }

    async fn volume_group_snapshot(
        &self,
        request: GetVolumeGroupSnapshotRequest,
    ) -> Result<VolumeGroupSnapshot> {
        let snapshots = request.snapshot_ids.iter().map(|id| snapshot(id, &any(VolumeId::new))).collect();
        Ok(VolumeGroupSnapshot::new(request.group_snapshot_id, snapshots, SystemTime::UNIX_EPOCH))
    }
}

pub fn ranges(ranges: Vec<Result<BlockRange>>) -> BlockMetadata {
    BlockMetadata::new(BlockMetadataType::VariableLength, 100, Box::pin(tokio_stream::iter(ranges)))
}

#[async_trait]
impl SnapshotMetadata for Whole {
    async fn metadata_allocated(&self, _: GetMetadataAllocatedRequest) -> Result<BlockMetadata> {
        Ok(ranges(vec![Ok(BlockRange::new(0, 10))]))
    }

    async fn metadata_delta(&self, _: GetMetadataDeltaRequest) -> Result<BlockMetadata> {
        Ok(ranges(vec![Ok(BlockRange::new(0, 10))]))
    }
}

#[async_trait]
impl Node for Whole {
    async fn info(&self) -> Result<NodeInfo> {
        Ok(NodeInfo::new("node-1")?.at(Topology::new("zone", "a")))
    }

    async fn publish_volume(&self, _: NodePublishVolumeRequest) -> Result<()> {
        Ok(())
    }

    async fn unpublish_volume(&self, _: NodeUnpublishVolumeRequest) -> Result<()> {
        Ok(())
    }
}

#[async_trait]
impl StageUnstageVolume for Whole {
    async fn stage_volume(&self, _: NodeStageVolumeRequest) -> Result<()> {
        Ok(())
    }

    async fn unstage_volume(&self, _: NodeUnstageVolumeRequest) -> Result<()> {
        Ok(())
    }
}

#[async_trait]
impl NodeGetVolumeStats for Whole {
    async fn volume_stats(&self, request: NodeGetVolumeStatsRequest) -> Result<VolumeStats> {
        match request.volume_path.is_absolute() {
            true => Ok(VolumeStats::from_device_size(5)),
            false => Err(Error::VolumeNotFound(request.volume_id)),
        }
    }
}

#[async_trait]
impl NodeExpandVolume for Whole {
    async fn expand_volume(&self, request: NodeExpandVolumeRequest) -> Result<u64> {
        match request.volume_path.is_absolute() {
            true => Ok(9),
            false => Err(Error::VolumeNotFound(request.volume_id)),
        }
    }
}

#[async_trait]
impl NodeGetVolumeHealth for Whole {
    async fn volume_health(&self, request: NodeGetVolumeHealthRequest) -> Result<VolumeHealth> {
        Ok(VolumeHealth::new(request.volume_id, vec![]))
    }
}

#[async_trait]
impl NodeGetStorageHealth for Whole {
    async fn storage_health(&self, _: NodeGetStorageHealthRequest) -> Result<Vec<StorageHealthEntry>> {
        Ok(vec![])
    }
}

/// The controller with all of its capabilities.
pub fn controller() -> ControllerService<Whole> {
    ControllerService::new(Arc::new(Whole))
        .create_delete_volume()
        .clone_volume()
        .publish_unpublish_volume()
        .publish_readonly()
        .list_volumes()
        .list_volumes_published_nodes()
        .get_capacity()
        .create_delete_snapshot()
        .list_snapshots()
        .get_snapshot()
        .expand_volume(Expansion::Online)
        .get_volume()
        .modify_volume()
        .list_volume_health()
        .single_node_multi_writer()
}

/// The node with all of its capabilities.
pub fn node() -> NodeService<Whole> {
    NodeService::new(Arc::new(Whole))
        .stage_unstage_volume()
        .get_volume_stats()
        .expand_volume()
        .get_volume_health()
        .get_storage_health()
        .volume_mount_group()
        .single_node_multi_writer()
}

/// The plugin with all services and all capabilities.
pub fn plugin() -> Plugin {
    Plugin::new("whole.csi.example.org", "1.2.3")
        .controller(controller())
        .node(node())
        .group_controller(Arc::new(Whole))
        .snapshot_metadata(Arc::new(Whole))
        .volume_accessibility_constraints()
        .spec(Spec::V1_13)
        .snapshot_accessibility_constraints()
        .serve_volume_condition()
}
