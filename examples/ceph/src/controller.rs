//! The controller: subvolumes, their snapshots and clones, by the manager's module `volumes`.
//!
//! A record in the cluster says what a volume was requested as. It is written before the subvolume is made and
//! removed after it, so a repeated call continues where an earlier one stopped.

use std::time::{Duration, Instant, SystemTime};

use csi_core::{Result, prelude::*};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::CephFs;
use crate::cluster::{Cluster, EEXIST, ENOENT, User, is_name};

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// How long a call waits for a copy.
const COPY: Duration = Duration::from_secs(120);

/// All subvolumes of the driver are in this group, so its users can be limited to it.
const GROUP: &str = "--group_name=csi";
const TO_GROUP: &str = "--target_group_name=csi";

/// The kinds of records.
const VOLUME: &str = "volume";
const SNAPSHOT: &str = "snapshot";

/// A StorageClass and a VolumeSnapshotClass have no parameters.
#[derive(Deserialize)]
struct NoParameters {}

/// A volume as it was requested, and its directory as soon as it is complete.
#[derive(Serialize, Deserialize)]
struct Subvolume {
    created: CreateRecord,
    path: Option<String>,
}

impl Subvolume {
    fn volume(&self, id: &VolumeId) -> Volume {
        let volume = self.created.volume(id.clone());
        self.path.iter().fold(volume, |volume, path| volume.context("path", path))
    }
}

/// The id of a volume or snapshot with this name. Commands of the cluster do not take every character: a name that is
/// not plain and short is replaced by a hash (FNV-1a of 128 bits).
fn key(name: &str) -> String {
    if is_name(name) && !name.contains('_') {
        return name.to_owned();
    }
    let (basis, prime) = (0x6c62272e07bb014262b821756295c58d_u128, 0x0000000001000000000000000000013b_u128);
    let hash = name.bytes().fold(basis, |hash, byte| (hash ^ u128::from(byte)).wrapping_mul(prime));
    format!("_{hash:032x}")
}

/// The name of a subvolume or snapshot. The prefix keeps it from being read as an option.
pub(crate) fn name(id: &str) -> String {
    format!("csi-{id}")
}

/// The name of the snapshot that exists while a volume is cloned.
fn origin(clone: &str) -> String {
    format!("clone-{clone}")
}

impl CephFs {
    fn cluster<'a>(&'a self, secrets: &'a Secrets) -> Result<Cluster<'a>> {
        Ok(Cluster { monitors: &self.ceph.monitors, user: User::of(secrets)? })
    }

    /// `ceph fs …` on the driver's group. The verb has one or more words.
    async fn fs(
        &self,
        cluster: &Cluster<'_>,
        verb: &str,
        words: &[&str],
        accept: &[i32],
    ) -> Result<Option<String>> {
        let before = ["fs"].into_iter().chain(verb.split(' ')).chain([&*self.ceph.filesystem]);
        let all: Vec<&str> = before.chain(words.iter().copied()).chain([GROUP]).collect();
        cluster.run(&all, accept).await
    }

    /// Makes the subvolume of this record, or continues to. Returns its directory.
    async fn make(&self, cluster: &Cluster<'_>, id: &VolumeId, record: &CreateRecord) -> Result<String> {
        let (target, size) = (name(id.as_str()), record.capacity_bytes().to_string());
        match record.volume(id.clone()).content_source {
            None => drop(self.fs(cluster, "subvolume create", &[&target, &size], &[]).await?),
            Some(ContentSource::Snapshot(snapshot)) => {
                let taken: Option<SnapshotRecord> = cluster.record(SNAPSHOT, snapshot.as_str()).await?;
                let taken = taken.ok_or_else(|| Error::SourceNotFound(snapshot.to_string().into()))?;
                let source = name(taken.source_volume_id().as_str());
                self.clone(cluster, [&source, &name(snapshot.as_str()), &target]).await?;
            }
            Some(source) => {
                let (source, snapshot) = (name(source.id()), origin(&target));
                // If the clone is complete, the snapshot was perhaps removed already.
                if self.state(cluster, &target).await?.as_deref() != Some("complete") {
                    self.fs(cluster, "subvolume snapshot create", &[&source, &snapshot], &[]).await?;
                    self.clone(cluster, [&source, &snapshot, &target]).await?;
                }
                let remove = [&*source, &snapshot];
                self.fs(cluster, "subvolume snapshot rm", &remove, &[ENOENT]).await?;
            }
        }
        // A clone has the size of its source.
        self.fs(cluster, "subvolume resize", &[&target, &size], &[]).await?;
        let path = self.fs(cluster, "subvolume getpath", &[&target], &[]).await?;
        path.filter(|path| path.starts_with('/'))
            .ok_or_else(|| Error::Internal("a subvolume has no path".into()))
    }

    /// How far a clone is: `pending`, `in-progress`, `complete`, `failed`, `canceled`; `None` without a clone.
    async fn state(&self, cluster: &Cluster<'_>, target: &str) -> Result<Option<String>> {
        let Some(text) = self.fs(cluster, "clone status", &[target], &[ENOENT]).await? else {
            return Ok(None);
        };
        let status: Value = serde_json::from_str(&text).map_err(Error::internal)?;
        Ok(status["status"]["state"].as_str().map(str::to_owned))
    }

    /// Starts a copy in the cluster, and waits for it. [`Error::Pending`] if that takes long: the caller repeats the
    /// call.
    async fn clone(&self, cluster: &Cluster<'_>, words: [&str; 3]) -> Result<()> {
        let [_, _, target] = words;
        let verb = "subvolume snapshot clone";
        self.fs(cluster, verb, &[&words[..], &[TO_GROUP]].concat(), &[EEXIST]).await?;
        let begun = Instant::now();
        while begun.elapsed() < COPY {
            match self.state(cluster, target).await?.as_deref() {
                Some("complete") => return Ok(()),
                Some("failed" | "canceled") => {
                    self.fs(cluster, "subvolume rm", &[target, "--force"], &[ENOENT]).await?;
                    let failed = "the copy failed in the cluster; it is started again";
                    return Err(Error::OutcomeUnknown(failed.into()));
                }
                _ => tokio::time::sleep(Duration::from_secs(1)).await,
            }
        }
        Err(Error::Pending("the cluster still copies the content".into()))
    }
}

#[async_trait]
impl Controller for CephFs {
    async fn lookup(&self, id: &VolumeId) -> Result<Option<Volume>> {
        self.lookup_with_secrets(id, &Secrets::default()).await
    }

    async fn lookup_with_secrets(&self, id: &VolumeId, secrets: &Secrets) -> Result<Option<Volume>> {
        let found: Option<Subvolume> = self.cluster(secrets)?.record(VOLUME, id.as_str()).await?;
        Ok(found.map(|found| found.volume(id)))
    }

    fn supports(&self, capability: &VolumeCapability) -> bool {
        capability.is_mount()
            && capability.fs_type().is_none_or(|name| matches!(name, "ceph" | "fuse.ceph-fuse"))
    }
}

#[async_trait]
impl CreateDeleteVolume for CephFs {
    async fn create_volume(&self, request: CreateVolumeRequest) -> Result<Volume> {
        let NoParameters {} = request.parameters.parse()?;
        let (id, cluster) = (VolumeId::new(key(request.name.as_str()))?, self.cluster(&request.secrets)?);
        let mut found: Subvolume = match cluster.record(VOLUME, id.as_str()).await? {
            Some(found) => found,
            None => {
                let least = match &request.volume_content_source {
                    None => 0,
                    Some(source) => self.size_of(&cluster, source).await?,
                };
                let size = request.capacity_range.at_least(least).choose(GIB.max(least), MIB)?;
                let mut volume = Volume::new(id.clone(), size);
                volume.content_source.clone_from(&request.volume_content_source);
                let record = Subvolume { created: CreateRecord::new(&request, &volume), path: None };
                cluster.put(VOLUME, id.as_str(), &record).await?;
                record
            }
        };
        found.created.check(&request)?;
        if found.path.is_none() {
            let made = self.make(&cluster, &id, &found.created).await;
            // The record exists, so the caller has to repeat the call or to delete the volume.
            found.path = Some(made.map_err(|error| match error {
                Error::Internal(reason) => Error::OutcomeUnknown(reason),
                other => other,
            })?);
            cluster.put(VOLUME, id.as_str(), &found).await?;
        }
        Ok(found.volume(&id))
    }

    async fn delete_volume(&self, request: DeleteVolumeRequest) -> Result<()> {
        let (id, cluster) = (request.volume_id, self.cluster(&request.secrets)?);
        let Some(found): Option<Subvolume> = cluster.record(VOLUME, id.as_str()).await? else {
            return Ok(());
        };
        let target = name(id.as_str());
        let source = found.volume(&id).content_source;
        let is_cloning = found.path.is_none() && source.is_some();
        if is_cloning && self.state(&cluster, &target).await?.is_some_and(|state| state != "complete") {
            // It is canceled already, or has just become complete.
            let _ = self.fs(&cluster, "clone cancel", &[&target], &[]).await;
            self.fs(&cluster, "subvolume rm", &[&target, "--force"], &[ENOENT]).await?;
        }
        // Snapshots stay, and volumes can still be made from them.
        self.fs(&cluster, "subvolume rm", &[&target, "--retain-snapshots"], &[ENOENT]).await?;
        if let (true, Some(ContentSource::Volume(source))) = (is_cloning, source) {
            let remove = [&*name(source.as_str()), &origin(&target)];
            self.fs(&cluster, "subvolume snapshot rm", &remove, &[ENOENT]).await?;
        }
        cluster.forget(VOLUME, id.as_str()).await
    }
}

impl CephFs {
    /// The least size of a volume with this content.
    async fn size_of(&self, cluster: &Cluster<'_>, source: &ContentSource) -> Result<u64> {
        let size = match source {
            ContentSource::Volume(id) => {
                let found: Option<Subvolume> = cluster.record(VOLUME, id.as_str()).await?;
                found.filter(|found| found.path.is_some()).map(|found| found.created.capacity_bytes())
            }
            source => {
                let found: Option<SnapshotRecord> = cluster.record(SNAPSHOT, source.id()).await?;
                found.map(|found| found.size_bytes())
            }
        };
        size.ok_or_else(|| Error::SourceNotFound(source.to_string().into()))
    }
}

#[async_trait]
impl ControllerExpandVolume for CephFs {
    async fn expand_volume(&self, request: ControllerExpandVolumeRequest) -> Result<Expanded> {
        let (id, cluster) = (request.volume_id, self.cluster(&request.secrets)?);
        let found: Option<Subvolume> = cluster.record(VOLUME, id.as_str()).await?;
        let mut found = found.ok_or_else(|| Error::VolumeNotFound(id.clone()))?;
        let now = found.created.capacity_bytes();
        let size = request.capacity_range.choose(now, MIB)?.max(now);
        let words = [&*name(id.as_str()), &size.to_string(), "--no_shrink"];
        self.fs(&cluster, "subvolume resize", &words, &[]).await?;
        found.created.expanded(size);
        cluster.put(VOLUME, id.as_str(), &found).await?;
        Ok(Expanded::complete(size))
    }
}

#[async_trait]
impl CreateDeleteSnapshot for CephFs {
    async fn create_snapshot(&self, request: CreateSnapshotRequest) -> Result<Snapshot> {
        let NoParameters {} = request.parameters.parse()?;
        let (id, cluster) = (SnapshotId::new(key(request.name.as_str()))?, self.cluster(&request.secrets)?);
        let mut snapshot = match cluster.record::<SnapshotRecord>(SNAPSHOT, id.as_str()).await? {
            Some(found) => {
                found.check(&request)?;
                found.snapshot(id.clone())
            }
            None => {
                let source = request.source_volume_id;
                let found: Option<Subvolume> = cluster.record(VOLUME, source.as_str()).await?;
                let found = found.ok_or_else(|| Error::VolumeNotFound(source.clone()))?;
                let mut snapshot = Snapshot::new(id.clone(), source, SystemTime::now());
                (snapshot.size_bytes, snapshot.ready_to_use) = (found.created.capacity_bytes(), false);
                cluster.put(SNAPSHOT, id.as_str(), &SnapshotRecord::new(&snapshot)).await?;
                snapshot
            }
        };
        if !snapshot.ready_to_use {
            let words = [&*name(snapshot.source_volume_id.as_str()), &name(id.as_str())];
            self.fs(&cluster, "subvolume snapshot create", &words, &[]).await?;
            snapshot.ready_to_use = true;
            cluster.put(SNAPSHOT, id.as_str(), &SnapshotRecord::new(&snapshot)).await?;
        }
        Ok(snapshot)
    }

    async fn delete_snapshot(&self, request: DeleteSnapshotRequest) -> Result<()> {
        let (id, cluster) = (request.snapshot_id, self.cluster(&request.secrets)?);
        let found: Option<SnapshotRecord> = cluster.record(SNAPSHOT, id.as_str()).await?;
        let Some(found) = found else { return Ok(()) };
        let words = [&*name(found.source_volume_id().as_str()), &name(id.as_str())];
        self.fs(&cluster, "subvolume snapshot rm", &words, &[ENOENT]).await?;
        cluster.forget(SNAPSHOT, id.as_str()).await
    }
}
