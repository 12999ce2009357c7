//! Subvolumes of a CephFS filesystem, by the manager's module `volumes`.

use std::time::{Duration, Instant};

use csi_core::types::SnapshotId;
use csi_core::{Result, prelude::*};
use serde_json::Value;

use crate::cluster::{Cluster, EEXIST, ENOENT};
use crate::controller::{Context, Origin, Request, Store, name, origin_snapshot};

/// How long a call waits for a copy.
const COPY: Duration = Duration::from_secs(120);

/// All subvolumes of the driver are in this group, so its users can be limited to it.
const GROUP: &str = "--group_name=csi";
const TO_GROUP: &str = "--target_group_name=csi";

/// The subvolumes of this filesystem.
pub(crate) struct Subvolumes {
    pub(crate) filesystem: String,
}

impl Subvolumes {
    /// `ceph fs …` on the driver's group. The verb has one or more words.
    async fn fs(
        &self,
        cluster: &Cluster<'_>,
        verb: &str,
        words: &[&str],
        accept: &[i32],
    ) -> Result<Option<String>> {
        let before = ["fs"].into_iter().chain(verb.split(' ')).chain([&*self.filesystem]);
        let all: Vec<&str> = before.chain(words.iter().copied()).chain([GROUP]).collect();
        cluster.ceph(&all, accept).await
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
impl Store for Subvolumes {
    fn kinds(&self) -> [&'static str; 2] {
        ["volume", "snapshot"]
    }

    fn supports(&self, capability: &VolumeCapability) -> bool {
        capability.is_mount()
            && capability.fs_type().is_none_or(|name| matches!(name, "ceph" | "fuse.ceph-fuse"))
    }

    async fn make(&self, cluster: &Cluster<'_>, volume: &Request<'_>) -> Result<Context> {
        let target = name(volume.id.as_str());
        let size = volume.bytes.to_string();
        match &volume.origin {
            None => drop(self.fs(cluster, "subvolume create", &[&target, &size], &[]).await?),
            Some(Origin::Snapshot(source, snapshot)) => {
                let source = name(source.as_str());
                let snapshot = name(snapshot.as_str());
                self.clone(cluster, [&source, &snapshot, &target]).await?;
            }
            Some(Origin::Volume(source)) => {
                let source = name(source.as_str());
                let snapshot = origin_snapshot(&target);
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
        let path = path.filter(|path| path.starts_with('/'));
        let path = path.ok_or_else(|| Error::Internal("a subvolume has no path".into()))?;
        Ok([("path".to_owned(), path)].into())
    }

    async fn remove(&self, cluster: &Cluster<'_>, volume: &Request<'_>) -> Result<()> {
        let target = name(volume.id.as_str());
        let is_cloning = !volume.is_complete && volume.is_copy;
        if is_cloning && self.state(cluster, &target).await?.is_some_and(|state| state != "complete") {
            // It is canceled already, or has just become complete.
            let _ = self.fs(cluster, "clone cancel", &[&target], &[]).await;
            self.fs(cluster, "subvolume rm", &[&target, "--force"], &[ENOENT]).await?;
        }
        // Snapshots stay, and volumes can still be made from them.
        self.fs(cluster, "subvolume rm", &[&target, "--retain-snapshots"], &[ENOENT]).await?;
        if let (true, Some(Origin::Volume(source))) = (is_cloning, &volume.origin) {
            let remove = [&*name(source.as_str()), &origin_snapshot(&target)];
            self.fs(cluster, "subvolume snapshot rm", &remove, &[ENOENT]).await?;
        }
        Ok(())
    }

    async fn grow(&self, cluster: &Cluster<'_>, id: &VolumeId, bytes: u64) -> Result<()> {
        let words = [&*name(id.as_str()), &bytes.to_string(), "--no_shrink"];
        self.fs(cluster, "subvolume resize", &words, &[]).await.map(drop)
    }

    async fn take_snapshot(&self, cluster: &Cluster<'_>, volume: &VolumeId, id: &SnapshotId) -> Result<()> {
        let words = [&*name(volume.as_str()), &name(id.as_str())];
        self.fs(cluster, "subvolume snapshot create", &words, &[]).await.map(drop)
    }

    async fn remove_snapshot(&self, cluster: &Cluster<'_>, volume: &VolumeId, id: &SnapshotId) -> Result<()> {
        let words = [&*name(volume.as_str()), &name(id.as_str())];
        self.fs(cluster, "subvolume snapshot rm", &words, &[ENOENT]).await.map(drop)
    }

    /// The clients see the new quota by themselves.
    fn expanded(&self, bytes: u64) -> Expanded {
        Expanded::complete(bytes)
    }
}
