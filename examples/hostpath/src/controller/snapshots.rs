//! CREATE_DELETE_SNAPSHOT, LIST_SNAPSHOTS and GET_SNAPSHOT. A snapshot is a full copy.

use std::sync::Arc;
use std::time::SystemTime;

use csi_core::controller::{
    CreateSnapshotRequest, DeleteSnapshotRequest, GetSnapshot, GetSnapshotRequest, ListSnapshots,
    ListSnapshotsRequest, Page, Pager,
};
use csi_core::types::{GroupSnapshotId, Place, Snapshot, SnapshotId, TopologyRequirement};
use csi_core::{CreateDeleteSnapshot, Error, Result, TypedRequest as _, VolumeId, async_trait};
use serde::Deserialize;

use crate::content;
use crate::damage;
use crate::features::Feature;
use crate::host::{Driver, Host};
use crate::pools::{Pool, Reservation};
use crate::quiesce::Consistency;
use crate::records::{SnapshotRecord, VolumeRecord};
use crate::store::{NewObject, new_id};

/// The parameters of a VolumeSnapshotClass.
#[derive(Deserialize)]
pub(crate) struct SnapshotParameters {
    /// Accepted for existing VolumeSnapshotClasses, and without effect: a snapshot always fails if part of
    /// the volume can't be read.
    #[serde(default, rename = "ignoreFailedRead")]
    _ignore_failed_read: bool,
}

#[async_trait]
impl CreateDeleteSnapshot for Driver {
    async fn create_snapshot(&self, request: CreateSnapshotRequest) -> Result<Snapshot> {
        let _: SnapshotParameters = request.parameters.parse()?;
        self.with(move |host| {
            if let Some((id, record)) = host.snapshots.by_name(request.name.as_str())? {
                return record.snapshot(&id);
            }
            let source = host.source(&request.source_volume_id)?;
            let source_id = request.source_volume_id.as_str();
            let still = host.quiesce(request.host(), source_id, &source, Consistency::Crash)?;
            let required = request.accessibility_requirements.as_ref();
            let cut =
                host.cut(&request.source_volume_id, &source, Some(request.name.as_str()), None, required)?;
            drop(still);
            cut.unshare(&source)?;
            let Cut { id, record, made, room } = cut;
            host.snapshots.commit(made)?;
            room.keep();
            record.snapshot(&id)
        })
        .await
    }

    async fn delete_snapshot(&self, request: DeleteSnapshotRequest) -> Result<()> {
        self.with(move |host| {
            let record = host.snapshot(&request.snapshot_id)?;
            if let Some(group) = record.taken.group_snapshot_id() {
                let reason = format!("is one of group snapshot {group}: delete the group");
                return Err(Error::invalid("snapshot_id", reason));
            }
            host.remove_snapshot(request.snapshot_id.as_str(), &record)
        })
        .await
    }
}

/// A snapshot on the disk that is not visible in the store yet.
pub(crate) struct Cut {
    pub(crate) id: String,
    pub(crate) record: SnapshotRecord,
    pub(crate) made: NewObject<SnapshotRecord>,
    pub(crate) room: Reservation,
}

impl Cut {
    /// Gives the snapshot of a thick volume its own blocks, so that the volume's next write allocates
    /// nothing. Runs after the volume is thawed.
    pub(crate) fn unshare(&self, source: &VolumeRecord) -> Result<()> {
        if source.mutable.is_thick() { content::unshare(source.kind, self.made.place()) } else { Ok(()) }
    }
}

impl Host {
    pub(crate) fn source(&self, id: &VolumeId) -> Result<Arc<VolumeRecord>> {
        self.volumes.find(id.as_str())?.ok_or_else(|| Error::VolumeNotFound(id.clone()))
    }

    pub(crate) fn snapshot(&self, id: &SnapshotId) -> Result<Arc<SnapshotRecord>> {
        self.snapshots.find(id.as_str())?.ok_or_else(|| Error::SnapshotNotFound(id.clone()))
    }

    pub(crate) fn remove_snapshot(&self, id: &str, record: &SnapshotRecord) -> Result<()> {
        self.snapshots.remove(id)?;
        self.pools.release(&record.pool, record.taken.size_bytes());
        Ok(())
    }

    /// Copies the content of a volume, which is frozen if that is possible.
    ///
    /// # Errors
    /// [`Error::NotPossible`] for truncated or missing content: its copy would look complete.
    pub(crate) fn cut(
        &self,
        volume: &VolumeId,
        source: &VolumeRecord,
        name: Option<&str>,
        group: Option<&GroupSnapshotId>,
        required: Option<&TopologyRequirement>,
    ) -> Result<Cut> {
        damage::refuse_volume(self, volume.as_str(), source)?;
        let bytes = source.created.capacity_bytes();
        let places = self.pools.places(None, &source.pool);
        let best = Place::candidates(&places, required, bytes)?;
        let pool: &Pool = &best
            .first()
            .ok_or_else(|| {
                Error::LimitReached("no pool has enough space for the snapshot".to_owned().into())
            })?
            .value;
        let room = self.pools.reserve(&pool.name, bytes)?;
        let id = new_id()?;
        let mut snapshot = Snapshot::new(SnapshotId::new(&*id)?, volume.clone(), SystemTime::now());
        snapshot.size_bytes = bytes;
        snapshot.group_snapshot_id = group.cloned();
        if self.features.has(Feature::SnapshotTopology) {
            snapshot.accessible_topology.clone_from(&pool.places);
        }
        let record = SnapshotRecord {
            name: name.map(str::to_owned),
            kind: source.kind,
            pool: pool.name.clone(),
            taken: csi_core::controller::SnapshotRecord::new(&snapshot),
        };
        let from = self.volumes.place(volume.as_str());
        let made = self
            .snapshots
            .make(id.clone(), record.clone(), |place| content::copy(source.kind, &from, place))?;
        Ok(Cut { id, record, made, room })
    }
}

#[async_trait]
impl ListSnapshots for Driver {
    async fn list_snapshots(&self, request: ListSnapshotsRequest) -> Result<Page<Snapshot>> {
        let pager = Pager::new(request.max_entries, request.starting_token.as_ref())?;
        let passes = |id: &str, record: &SnapshotRecord| {
            request.snapshot_id.as_ref().is_none_or(|wanted| wanted.as_str() == id)
                && request
                    .source_volume_id
                    .as_ref()
                    .is_none_or(|wanted| wanted == record.taken.source_volume_id())
        };
        let page = self.snapshots.visit(pager.range(), |found| {
            let passing = found.filter(|(id, record)| passes(id, record));
            pager.page(passing.map(|(id, record)| (id.to_owned(), (id.to_owned(), record))))
        })?;
        page.try_map(|(id, record)| record.snapshot(&id))
    }
}

#[async_trait]
impl GetSnapshot for Driver {
    async fn get_snapshot(&self, request: GetSnapshotRequest) -> Result<Snapshot> {
        self.snapshot(&request.snapshot_id)?.snapshot(request.snapshot_id.as_str())
    }
}
