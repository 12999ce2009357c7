//! Snapshots, and their allocated and changed blocks. A snapshot is a copy, ready from the third call on.

use std::fs;
use std::time::SystemTime;

use csi_core::controller::{
    CreateSnapshotRequest, DeleteSnapshotRequest, GetSnapshot, GetSnapshotRequest, ListSnapshots,
    ListSnapshotsRequest, Page, Pager,
};
use csi_core::snapshot_metadata::{
    BlockMetadata, BlockMetadataType, BlockRange, GetMetadataAllocatedRequest, GetMetadataDeltaRequest,
    SnapshotMetadata,
};
use csi_core::types::{Snapshot, SnapshotId};
use tokio_stream::iter;

use super::*;

impl Memory {
    pub(super) fn cut(&self, state: &mut State, id: String, source: &VolumeId) -> Result<Snapshot> {
        let known =
            state.volumes.get(source.as_str()).ok_or_else(|| Error::VolumeNotFound(source.clone()))?;
        let bytes = known.volume.capacity_bytes;
        self.storage.make(&self.place(&id)?, Some(self.place(source.as_str())?), bytes)?;
        let mut snapshot = Snapshot::new(SnapshotId::new(id.clone())?, source.clone(), SystemTime::now());
        snapshot.size_bytes = bytes;
        state.snapshots.insert(id, snapshot.clone());
        Ok(snapshot)
    }

    pub(super) fn drop_snapshot(&self, state: &mut State, id: &str) -> Result<()> {
        self.storage.remove(&self.place(id)?)?;
        state.snapshots.remove(id);
        Ok(())
    }
}

#[async_trait]
impl CreateDeleteSnapshot for Memory {
    async fn create_snapshot(&self, request: CreateSnapshotRequest) -> Result<Snapshot> {
        let source = request.source_volume_id;
        let id = format!("snapshot-{}", VolumeId::from_name(&request.name)?);
        let mut state = self.state();
        let is_second = state.copying.remove(&id);
        if let Some(snapshot) = state.snapshots.get_mut(&id) {
            snapshot.ready_to_use = !is_second;
            return if snapshot.source_volume_id == source {
                Ok(snapshot.clone())
            } else {
                Err(Error::Incompatible("it is another volume's".into()))
            };
        }
        self.cut(&mut state, id.clone(), &source)?;
        let snapshot = state.snapshots.get_mut(&id).unwrap();
        snapshot.ready_to_use = false;
        let snapshot = snapshot.clone();
        state.copying.insert(id);
        Ok(snapshot)
    }

    async fn delete_snapshot(&self, request: DeleteSnapshotRequest) -> Result<()> {
        let id = request.snapshot_id.as_str();
        let mut state = self.state();
        let group = state.snapshots.get(id).and_then(|snapshot| snapshot.group_snapshot_id.as_ref());
        match group {
            Some(group) => Err(Error::invalid("snapshot_id", format!("it goes with its group {group}"))),
            None => self.drop_snapshot(&mut state, id),
        }
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

const BLOCK: usize = 16 << 10;

impl Memory {
    fn image(&self, id: &SnapshotId) -> Result<(VolumeId, Vec<u8>)> {
        let state = self.state();
        let found = state.snapshots.get(id.as_str()).ok_or(Error::SnapshotNotFound(id.clone()))?;
        Ok((found.source_volume_id.clone(), fs::read(self.place(id.as_str())?)?))
    }
}

fn blocks(image: &[u8], differs: impl Fn(usize, &[u8]) -> bool) -> BlockMetadata {
    let chunks = image.chunks_exact(BLOCK).enumerate().filter(|(at, block)| differs(*at, block));
    let range = |(at, _)| BlockRange::new((at * BLOCK) as u64, BLOCK as u64);
    let ranges: Vec<_> = chunks.map(range).map(Ok).collect();
    BlockMetadata::new(BlockMetadataType::FixedLength, image.len() as u64, Box::pin(iter(ranges)))
}

#[async_trait]
impl SnapshotMetadata for Memory {
    async fn metadata_allocated(&self, request: GetMetadataAllocatedRequest) -> Result<BlockMetadata> {
        let (_, image) = self.image(&request.snapshot_id)?;
        Ok(blocks(&image, |_, block| block.iter().any(|byte| *byte != 0)))
    }

    async fn metadata_delta(&self, request: GetMetadataDeltaRequest) -> Result<BlockMetadata> {
        let (of, base) = self.image(&request.base_snapshot_id)?;
        let (volume, target) = self.image(&request.target_snapshot_id)?;
        if of != volume {
            return Err(Error::invalid("base_snapshot_id", "it is another volume's"));
        }
        Ok(blocks(&target, |at, block| base.get(at * BLOCK..(at + 1) * BLOCK) != Some(block)))
    }
}
