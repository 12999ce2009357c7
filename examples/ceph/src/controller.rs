//! The controller: volumes, snapshots and copies, whatever the cluster makes them of.
//!
//! A record in the cluster says what a volume was requested as. It is written before the volume is made and
//! removed after it, so a repeated call continues where an earlier one stopped.

use std::collections::BTreeMap;
use std::time::SystemTime;

use csi_core::controller::{CreateRecord, CreateSnapshotRequest, DeleteSnapshotRequest, SnapshotRecord};
use csi_core::types::{ContentSource, Secrets, Snapshot, SnapshotId};
use csi_core::{Result, prelude::*};
use serde::{Deserialize, Serialize};

use crate::Ceph;
use crate::cluster::{Cluster, User, is_name};

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// What the node must know about a volume.
pub(crate) type Context = BTreeMap<String, String>;

/// What volumes are made of. Every step can be repeated.
#[async_trait]
pub(crate) trait Store: Send + Sync {
    /// The kinds of records, of volumes and of snapshots.
    fn kinds(&self) -> [&'static str; 2];

    fn supports(&self, capability: &VolumeCapability) -> bool;

    /// The least size of a volume that is used so.
    fn least(&self, _capabilities: &[VolumeCapability]) -> u64 {
        MIB
    }

    /// The filesystem that the node makes for a mounted volume, if it makes one.
    fn fs_type(&self, _capabilities: &[VolumeCapability]) -> Option<String> {
        None
    }

    /// Makes a volume, from a snapshot of the driver or from nothing, with its size; or continues to.
    async fn make(&self, cluster: &Cluster<'_>, volume: &Request<'_>) -> Result<Context>;

    async fn remove(&self, cluster: &Cluster<'_>, volume: &Request<'_>) -> Result<()>;

    async fn grow(&self, cluster: &Cluster<'_>, id: &VolumeId, bytes: u64) -> Result<()>;

    async fn take_snapshot(&self, cluster: &Cluster<'_>, volume: &VolumeId, id: &SnapshotId) -> Result<()>;

    async fn remove_snapshot(&self, cluster: &Cluster<'_>, volume: &VolumeId, id: &SnapshotId) -> Result<()>;

    /// What ControllerExpandVolume answers.
    fn expanded(&self, bytes: u64) -> Expanded;
}

/// A volume as it was requested.
pub(crate) struct Request<'a> {
    pub(crate) id: &'a VolumeId,
    pub(crate) bytes: u64,
    /// None also if the snapshot was deleted meanwhile.
    pub(crate) origin: Option<Origin>,
    pub(crate) is_copy: bool,
    pub(crate) is_complete: bool,
}

/// Where the content of a volume comes from.
pub(crate) enum Origin {
    /// A snapshot of this volume.
    Snapshot(VolumeId, SnapshotId),
    Volume(VolumeId),
}

/// A StorageClass and a VolumeSnapshotClass have no parameters.
#[derive(Deserialize)]
struct NoParameters {}

/// A volume as it was requested, and its context as soon as it is complete.
#[derive(Serialize, Deserialize)]
struct Made {
    created: CreateRecord,
    context: Option<Context>,
}

impl Made {
    fn volume(&self, id: &VolumeId) -> Volume {
        let volume = self.created.volume(id.clone());
        let context = self.context.iter().flatten();
        context.fold(volume, |volume, (key, value)| volume.context(key.clone(), value.clone()))
    }
}

/// The id of a volume or snapshot with this name. Commands of the cluster do not take every character: a name that is
/// not plain and short is replaced by a hash (FNV-1a of 128 bits).
fn key(name: &str) -> String {
    if is_name(name) && !name.contains('_') {
        return name.to_owned();
    }
    let basis = 0x6c62272e07bb014262b821756295c58d_u128;
    let prime = 0x0000000001000000000000000000013b_u128;
    let hash = name.bytes().fold(basis, |hash, byte| (hash ^ u128::from(byte)).wrapping_mul(prime));
    format!("_{hash:032x}")
}

/// The name of a subvolume or snapshot. The prefix keeps it from being read as an option.
pub(crate) fn name(id: &str) -> String {
    format!("csi-{id}")
}

/// The name of the snapshot that exists while a volume is copied.
pub(crate) fn origin_snapshot(copy: &str) -> String {
    format!("clone-{copy}")
}

impl Ceph {
    fn cluster<'a>(&'a self, secrets: &'a Secrets) -> Result<Cluster<'a>> {
        Ok(Cluster { monitors: &self.args.monitors, user: User::of(secrets)? })
    }

    async fn made(&self, cluster: &Cluster<'_>, id: &VolumeId) -> Result<Option<Made>> {
        cluster.record(self.store.kinds()[0], id.as_str()).await
    }

    async fn put(&self, cluster: &Cluster<'_>, id: &VolumeId, made: &Made) -> Result<()> {
        cluster.put(self.store.kinds()[0], id.as_str(), made).await
    }

    async fn taken(&self, cluster: &Cluster<'_>, id: &str) -> Result<Option<SnapshotRecord>> {
        cluster.record(self.store.kinds()[1], id).await
    }

    /// The volume of this record, for the store.
    async fn request<'a>(&self, cluster: &Cluster<'_>, id: &'a VolumeId, made: &Made) -> Result<Request<'a>> {
        let source = made.volume(id).content_source;
        let is_copy = source.is_some();
        let origin = match source {
            None => None,
            Some(ContentSource::Snapshot(snapshot)) => {
                let taken = self.taken(cluster, snapshot.as_str()).await?;
                taken.map(|taken| Origin::Snapshot(taken.source_volume_id().clone(), snapshot))
            }
            Some(source) => Some(Origin::Volume(VolumeId::new(source.id())?)),
        };
        let bytes = made.created.capacity_bytes();
        Ok(Request { id, bytes, origin, is_copy, is_complete: made.context.is_some() })
    }

    /// The least size of a volume with this content, and the filesystem that it then has, if that is known.
    async fn source(&self, cluster: &Cluster<'_>, source: &ContentSource) -> Result<(u64, Option<String>)> {
        let owned = |fs_type: Option<&str>| fs_type.map(str::to_owned);
        let found = match source {
            ContentSource::Volume(id) => {
                let found = self.made(cluster, id).await?.filter(|found| found.context.is_some());
                found.map(|found| (found.created.capacity_bytes(), owned(found.created.fs_type())))
            }
            source => {
                let found = self.taken(cluster, source.id()).await?;
                found.map(|found| (found.size_bytes(), owned(found.fs_type())))
            }
        };
        found.ok_or_else(|| Error::SourceNotFound(source.to_string().into()))
    }
}

#[async_trait]
impl Controller for Ceph {
    async fn lookup(&self, id: &VolumeId) -> Result<Option<Volume>> {
        self.lookup_with_secrets(id, &Secrets::default()).await
    }

    async fn lookup_with_secrets(&self, id: &VolumeId, secrets: &Secrets) -> Result<Option<Volume>> {
        let found = self.made(&self.cluster(secrets)?, id).await?;
        Ok(found.map(|found| found.volume(id)))
    }

    fn supports(&self, capability: &VolumeCapability) -> bool {
        self.store.supports(capability)
    }
}

#[async_trait]
impl CreateDeleteVolume for Ceph {
    async fn create_volume(&self, request: CreateVolumeRequest) -> Result<Volume> {
        let NoParameters {} = request.parameters.parse()?;
        let id = VolumeId::new(key(request.name.as_str()))?;
        let cluster = self.cluster(&request.secrets)?;
        let mut found = match self.made(&cluster, &id).await? {
            Some(found) => found,
            None => {
                let (bytes, held) = match &request.volume_content_source {
                    None => (0, None),
                    Some(source) => self.source(&cluster, source).await?,
                };
                let fs_type = self.store.fs_type(&request.volume_capabilities);
                if fs_type.is_some() {
                    request.check_source_fs_type(held.as_deref())?;
                }
                let least = bytes.max(self.store.least(&request.volume_capabilities));
                let size = request.capacity_range.at_least(least).choose(GIB.max(least), MIB)?;
                let mut volume = Volume::new(id.clone(), size);
                volume.content_source.clone_from(&request.volume_content_source);
                volume.fs_type = fs_type.or(held);
                let made = Made { created: CreateRecord::new(&request, &volume), context: None };
                self.put(&cluster, &id, &made).await?;
                made
            }
        };
        found.created.check(&request)?;
        if found.context.is_none() {
            let volume = self.request(&cluster, &id, &found).await?;
            if let (None, Some(source)) = (&volume.origin, &found.volume(&id).content_source) {
                return Err(Error::SourceNotFound(source.to_string().into()));
            }
            let made = self.store.make(&cluster, &volume).await;
            // The record exists, so the caller has to repeat the call or to delete the volume.
            found.context = Some(made.map_err(|error| match error {
                Error::Internal(reason) => Error::OutcomeUnknown(reason),
                other => other,
            })?);
            self.put(&cluster, &id, &found).await?;
        }
        Ok(found.volume(&id))
    }

    async fn delete_volume(&self, request: DeleteVolumeRequest) -> Result<()> {
        let id = request.volume_id;
        let cluster = self.cluster(&request.secrets)?;
        let Some(found) = self.made(&cluster, &id).await? else { return Ok(()) };
        let volume = self.request(&cluster, &id, &found).await?;
        self.store.remove(&cluster, &volume).await?;
        cluster.forget(self.store.kinds()[0], id.as_str()).await
    }
}

#[async_trait]
impl ControllerExpandVolume for Ceph {
    async fn expand_volume(&self, request: ControllerExpandVolumeRequest) -> Result<Expanded> {
        let id = request.volume_id;
        let cluster = self.cluster(&request.secrets)?;
        let found = self.made(&cluster, &id).await?;
        let mut found = found.ok_or_else(|| Error::VolumeNotFound(id.clone()))?;
        let now = found.created.capacity_bytes();
        let size = request.capacity_range.choose(now, MIB)?.max(now);
        self.store.grow(&cluster, &id, size).await?;
        found.created.expanded(size);
        self.put(&cluster, &id, &found).await?;
        Ok(self.store.expanded(size))
    }
}

#[async_trait]
impl CreateDeleteSnapshot for Ceph {
    async fn create_snapshot(&self, request: CreateSnapshotRequest) -> Result<Snapshot> {
        let NoParameters {} = request.parameters.parse()?;
        let id = SnapshotId::new(key(request.name.as_str()))?;
        let cluster = self.cluster(&request.secrets)?;
        let kind = self.store.kinds()[1];
        let mut snapshot = match self.taken(&cluster, id.as_str()).await? {
            Some(found) => {
                found.check(&request)?;
                found.snapshot(id.clone())
            }
            None => {
                let source = request.source_volume_id;
                let found = self.made(&cluster, &source).await?;
                let found = found.ok_or_else(|| Error::VolumeNotFound(source.clone()))?;
                let mut snapshot = Snapshot::new(id.clone(), source, SystemTime::now());
                snapshot.fs_type = found.created.fs_type().map(str::to_owned);
                (snapshot.size_bytes, snapshot.ready_to_use) = (found.created.capacity_bytes(), false);
                cluster.put(kind, id.as_str(), &SnapshotRecord::new(&snapshot)).await?;
                snapshot
            }
        };
        if !snapshot.ready_to_use {
            self.store.take_snapshot(&cluster, &snapshot.source_volume_id, &id).await?;
            snapshot.ready_to_use = true;
            cluster.put(kind, id.as_str(), &SnapshotRecord::new(&snapshot)).await?;
        }
        Ok(snapshot)
    }

    async fn delete_snapshot(&self, request: DeleteSnapshotRequest) -> Result<()> {
        let id = request.snapshot_id;
        let cluster = self.cluster(&request.secrets)?;
        let Some(found) = self.taken(&cluster, id.as_str()).await? else { return Ok(()) };
        self.store.remove_snapshot(&cluster, found.source_volume_id(), &id).await?;
        cluster.forget(self.store.kinds()[1], id.as_str()).await
    }
}
