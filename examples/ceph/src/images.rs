//! Images of a pool (RBD), by the program `rbd`, and their disks on the node, by the kernel's client.

use std::path::PathBuf;

use csi_core::mount::Filesystem;
use csi_core::mount::flow::block::StagePlan;
use csi_core::mount::remote::{RbdPool, RbdTarget};
use csi_core::types::SnapshotId;
use csi_core::{Result, prelude::*};
use serde::Deserialize;
use serde_json::Value;

use crate::Ceph;
use crate::cluster::{Cluster, EEXIST, ENOENT, User};
use crate::controller::{Context, Origin, Request, Store, name, origin_snapshot};

/// What the kernel's client has on each supported kernel.
const FEATURES: &str = "--image-feature=layering,exclusive-lock";
/// A clone of this format needs no protected snapshot.
const CLONE_FORMAT: &str = "--rbd-default-clone-format=2";
const MIB: u64 = 1 << 20;

/// An image has watchers, or it has snapshots.
const EBUSY: i32 = 16;
const ENOTEMPTY: i32 = 39;

/// The images of this pool.
pub(crate) struct Images {
    pub(crate) pool: String,
}

/// What the node must know about an image.
#[derive(Deserialize)]
struct Identity {
    fsid: String,
    pool: String,
    #[serde(rename = "poolId")]
    pool_id: u64,
    image: String,
    #[serde(rename = "imageId")]
    image_id: String,
    /// Whether it has the content of another volume, which is never formatted.
    #[serde(rename = "isCopy")]
    is_copy: bool,
}

impl Images {
    fn at(&self, id: &VolumeId) -> String {
        format!("{}/{}", self.pool, name(id.as_str()))
    }

    fn snapshot_at(&self, volume: &VolumeId, snapshot: &str) -> String {
        format!("{}@{snapshot}", self.at(volume))
    }

    async fn info(&self, cluster: &Cluster<'_>, id: &VolumeId) -> Result<Option<Value>> {
        let text = cluster.rbd(&["info", "--format=json", &self.at(id)], &[ENOENT]).await?;
        text.map(|text| serde_json::from_str(&text).map_err(Error::internal)).transpose()
    }

    /// Makes an image with the content of this snapshot, which does not need it afterwards.
    async fn copy(&self, cluster: &Cluster<'_>, snapshot: &str, id: &VolumeId) -> Result<()> {
        cluster.rbd(&["clone", CLONE_FORMAT, FEATURES, snapshot, &self.at(id)], &[EEXIST]).await?;
        let info = self.info(cluster, id).await?.unwrap_or_default();
        if info["parent"].is_object() {
            cluster.rbd(&["flatten", "--no-progress", &self.at(id)], &[]).await?;
        }
        Ok(())
    }

    async fn identity(&self, cluster: &Cluster<'_>, id: &VolumeId, is_copy: bool) -> Result<Context> {
        let missing = |what: &str| Error::Internal(format!("the cluster reports no {what}").into());
        let info = self.info(cluster, id).await?.unwrap_or_default();
        let image_id = info["id"].as_str().ok_or_else(|| missing("id of the image"))?;
        let json =
            |text: Option<String>| serde_json::from_str(&text.unwrap_or_default()).map_err(Error::internal);
        let fsid: Value = json(cluster.ceph(&["fsid"], &[]).await?)?;
        let pools: Value = json(cluster.ceph(&["osd", "lspools"], &[]).await?)?;
        let pools = pools.as_array().map_or(&[][..], |pools| pools);
        let pool = pools.iter().find(|pool| pool["poolname"] == *self.pool);
        let pool_id = pool.and_then(|pool| pool["poolnum"].as_u64()).ok_or_else(|| missing("pool"))?;
        let context = [
            ("fsid", fsid["fsid"].as_str().ok_or_else(|| missing("fsid"))?.to_owned()),
            ("pool", self.pool.clone()),
            ("poolId", pool_id.to_string()),
            ("image", name(id.as_str())),
            ("imageId", image_id.to_owned()),
            ("isCopy", is_copy.to_string()),
        ];
        Ok(context.map(|(key, value)| (key.to_owned(), value)).into())
    }
}

#[async_trait]
impl Store for Images {
    fn kinds(&self) -> [&'static str; 2] {
        ["image", "image-snapshot"]
    }

    fn supports(&self, capability: &VolumeCapability) -> bool {
        let known = capability.fs_type().is_none_or(|name| name.parse::<Filesystem>().is_ok());
        known && !capability.access_mode.is_multi_node()
    }

    fn least(&self, capabilities: &[VolumeCapability]) -> u64 {
        capabilities.iter().map(VolumeCapability::min_device_size).fold(MIB, u64::max)
    }

    fn fs_type(&self, capabilities: &[VolumeCapability]) -> Option<String> {
        let mounted = capabilities.iter().find(|capability| capability.is_mount())?;
        Some(mounted.fs_type().unwrap_or(Filesystem::Ext4.name()).to_owned())
    }

    async fn make(&self, cluster: &Cluster<'_>, volume: &Request<'_>) -> Result<Context> {
        let image = self.at(volume.id);
        let size = format!("{}M", volume.bytes / MIB);
        match &volume.origin {
            None => drop(cluster.rbd(&["create", FEATURES, "--size", &size, &image], &[EEXIST]).await?),
            Some(Origin::Snapshot(source, snapshot)) => {
                self.copy(cluster, &self.snapshot_at(source, &name(snapshot.as_str())), volume.id).await?;
            }
            Some(Origin::Volume(source)) => {
                let snapshot = self.snapshot_at(source, &origin_snapshot(volume.id.as_str()));
                let is_copied =
                    self.info(cluster, volume.id).await?.is_some_and(|info| !info["parent"].is_object());
                if !is_copied {
                    cluster.rbd(&["snap", "create", "--no-progress", &snapshot], &[EEXIST]).await?;
                    self.copy(cluster, &snapshot, volume.id).await?;
                }
                cluster.rbd(&["snap", "rm", "--no-progress", &snapshot], &[ENOENT]).await?;
            }
        }
        if volume.origin.is_some() {
            self.grow(cluster, volume.id, volume.bytes).await?;
        }
        self.identity(cluster, volume.id, volume.origin.is_some()).await
    }

    async fn remove(&self, cluster: &Cluster<'_>, volume: &Request<'_>) -> Result<()> {
        let image = self.at(volume.id);
        let removed = cluster.rbd(&["rm", "--no-progress", &image], &[ENOENT, EBUSY, ENOTEMPTY]).await?;
        if removed.is_none() && self.info(cluster, volume.id).await?.is_some() {
            let reason = "the image is mapped on a node, or has snapshots, which it shares its data with";
            return Err(Error::InUse(reason.into()));
        }
        if let (false, Some(Origin::Volume(source))) = (volume.is_complete, &volume.origin) {
            let snapshot = self.snapshot_at(source, &origin_snapshot(volume.id.as_str()));
            cluster.rbd(&["snap", "rm", "--no-progress", &snapshot], &[ENOENT]).await?;
        }
        Ok(())
    }

    async fn grow(&self, cluster: &Cluster<'_>, id: &VolumeId, bytes: u64) -> Result<()> {
        let info = self.info(cluster, id).await?.ok_or_else(|| Error::VolumeNotFound(id.clone()))?;
        // `rbd` refuses the size that an image has, as it refuses a smaller one.
        if info["size"].as_u64().is_some_and(|now| now >= bytes) {
            return Ok(());
        }
        let size = format!("{}M", bytes / MIB);
        cluster.rbd(&["resize", "--no-progress", "--size", &size, &self.at(id)], &[]).await.map(drop)
    }

    async fn take_snapshot(&self, cluster: &Cluster<'_>, volume: &VolumeId, id: &SnapshotId) -> Result<()> {
        let snapshot = self.snapshot_at(volume, &name(id.as_str()));
        cluster.rbd(&["snap", "create", "--no-progress", &snapshot], &[EEXIST]).await.map(drop)
    }

    async fn remove_snapshot(&self, cluster: &Cluster<'_>, volume: &VolumeId, id: &SnapshotId) -> Result<()> {
        let snapshot = self.snapshot_at(volume, &name(id.as_str()));
        cluster.rbd(&["snap", "rm", "--no-progress", &snapshot], &[ENOENT]).await.map(drop)
    }

    fn expanded(&self, bytes: u64) -> Expanded {
        Expanded::node_expansion_required(bytes)
    }
}

impl Ceph {
    fn target(&self, volume: &Attachment, identity: &Identity) -> Result<RbdTarget> {
        let pool = RbdPool::new(&identity.fsid, &identity.pool, identity.pool_id)?;
        let target = RbdTarget::new(pool, &identity.image, &identity.image_id)?;
        let target = self.args.monitors.iter().fold(target, |target, monitor| target.monitor(*monitor));
        // Secrets come with a stage only.
        match User::of(&volume.secrets) {
            Ok(user) => Ok(target.user(user.id, user.key)?),
            Err(_) => Ok(target),
        }
    }
}

/// The volume context. A volume without one, or with that of another volume, is not of this driver.
fn identity(volume: &Attachment) -> Result<Identity> {
    let image = volume.volume_context.get("image");
    if image.is_none_or(|image| *image != name(volume.volume_id.as_str())) {
        return Err(Error::VolumeNotFound(volume.volume_id.clone()));
    }
    volume.volume_context.parse()
}

#[async_trait]
impl BlockDevices for Ceph {
    async fn info(&self) -> Result<NodeInfo> {
        self.driver.node_info()
    }

    async fn attach(&self, volume: &Attachment) -> Result<PathBuf> {
        let identity = identity(volume)?;
        User::of(&volume.secrets)?;
        self.disks.attach(volume, self.target(volume, &identity)?).await
    }

    async fn device(&self, volume: &Attachment) -> Result<Option<PathBuf>> {
        self.disks.device(volume).await
    }

    async fn plan(&self, volume: &Attachment, capability: &VolumeCapability) -> Result<StagePlan> {
        let identity = identity(volume)?;
        let plan = stage_plan(capability)?.expect(self.target(volume, &identity)?.expected());
        Ok(if identity.is_copy { plan.never_format() } else { plan })
    }

    async fn refresh(&self, volume: &Attachment) -> Result<()> {
        self.disks.refresh(volume).await
    }

    async fn detach(&self, volume: &Attachment) -> Result<()> {
        self.disks.detach(volume).await
    }
}
