//! What the orchestrator asks for, done on the share that it is about.

use std::sync::Arc;

use csi_core::{
    ContentSource, Controller, ControllerExpandVolumeRequest, CreateDeleteSnapshot, CreateDeleteVolume,
    CreateSnapshotRequest, CreateVolumeRequest, DeleteSnapshotRequest, DeleteVolumeRequest, Error,
    ExpandVolume, Expanded, Result, Snapshot, Volume, VolumeCapability, VolumeId, async_trait,
};
use serde::Deserialize;

use crate::VolumeArgs;
use crate::desk::Desk;
use crate::parameters::Wanted;
use crate::records;
use crate::share::Share;
use crate::snapshots;
use crate::volumes::{self, Content, Kept};

pub(crate) struct Shares {
    desk: Desk,
    defaults: VolumeArgs,
}

/// A VolumeSnapshotClass has none.
#[derive(Deserialize)]
struct NoParameters {}

impl Shares {
    pub(crate) fn new(desk: Desk, defaults: VolumeArgs) -> Self {
        Self { desk, defaults }
    }

    /// Where the content of a new volume comes from.
    async fn content(&self, source: &ContentSource) -> Result<Content> {
        let missing = || match source {
            ContentSource::Volume(id) => Error::SourceNotFound(format!("volume {id}")),
            ContentSource::Snapshot(id) => Error::SourceNotFound(format!("snapshot {id}")),
        };
        let (share, key) = match source {
            ContentSource::Volume(id) => Share::of_volume(id),
            ContentSource::Snapshot(id) => Share::of_snapshot(id),
        }
        .map_err(|_| missing())?;
        let is_volume = matches!(source, ContentSource::Volume(_));
        let root = self.desk.share(&share).await?;
        let looked = Arc::clone(&root);
        let find = move || match is_volume {
            true => Ok(volumes::find(looked.root()?, &key)?.map(|kept| kept.sub_dir)),
            false => snapshots::content(looked.root()?, &key),
        };
        let path = self.desk.answer(&share, &root, find).await?.ok_or_else(missing)?;
        Ok(Content { root, path })
    }
}

fn volume(share: &Share, key: &str, kept: &Kept) -> Result<Volume> {
    let volume = Volume::new(share.volume_id(key)?, kept.capacity_bytes);
    Ok(volume.context("server", &share.server).context("share", &share.path).context("subDir", &kept.sub_dir))
}

#[async_trait]
impl Controller for Shares {
    async fn lookup(&self, id: &VolumeId) -> Result<Option<Volume>> {
        // A static share has an id of its owner's choosing, and nothing here knows it.
        let Ok((share, key)) = Share::of_volume(id) else { return Ok(None) };
        let root = self.desk.share(&share).await?;
        let (looked, sought) = (Arc::clone(&root), key.clone());
        let kept = self.desk.answer(&share, &root, move || volumes::find(looked.root()?, &sought)).await?;
        kept.map(|kept| volume(&share, &key, &kept)).transpose()
    }

    fn supports(&self, capability: &VolumeCapability) -> bool {
        capability.is_mount() && capability.fs_type().is_none_or(|name| matches!(name, "nfs" | "nfs4"))
    }
}

#[async_trait]
impl CreateDeleteVolume for Shares {
    async fn create_volume(&self, request: CreateVolumeRequest) -> Result<Volume> {
        let wanted = Wanted::read(&request, &self.defaults)?;
        let key = records::key(request.name.as_str());
        let share = wanted.share.clone();
        let id = share.volume_id(&key)?;
        let content = match &request.volume_content_source {
            Some(source) => Some(self.content(source).await?),
            None => None,
        };
        let (places, made) = (self.desk.places_of(&share), key.clone());
        let make = move |root: &_| volumes::create(root, &places, &made, &wanted, &request, content.as_ref());
        let kept = self.desk.work(&share, id.as_str(), make).await?;
        volume(&share, &key, &kept)
    }

    async fn delete_volume(&self, request: DeleteVolumeRequest) -> Result<()> {
        let (share, key) = Share::of_volume(&request.volume_id)?;
        let places = self.desk.places_of(&share);
        let delete = move |root: &_| volumes::delete(root, &places, &key, None);
        self.desk.work(&share, request.volume_id.as_str(), delete).await
    }
}

#[async_trait]
impl ExpandVolume for Shares {
    async fn expand_volume(&self, request: ControllerExpandVolumeRequest) -> Result<Expanded> {
        let (share, key) = Share::of_volume(&request.volume_id)?;
        let wanted = request.capacity_range.choose(0, 1)?;
        let expand = move |root: &_| volumes::expand(root, &key, wanted);
        let capacity_bytes = self.desk.work(&share, request.volume_id.as_str(), expand).await?;
        Ok(Expanded { capacity_bytes, node_expansion_required: false })
    }
}

#[async_trait]
impl CreateDeleteSnapshot for Shares {
    async fn create_snapshot(&self, request: CreateSnapshotRequest) -> Result<Snapshot> {
        let NoParameters {} = request.parameters.parse()?;
        let (share, source_key) = Share::of_volume(&request.source_volume_id)?;
        let name = request.name.as_str().to_owned();
        let key = records::key(&name);
        let id = share.snapshot_id(&key)?;
        let source = request.source_volume_id;
        let cut = move |root: &_| snapshots::create(root, &key, &name, &source, &source_key);
        self.desk.work(&share, id.as_str(), cut).await?.snapshot(id)
    }

    async fn delete_snapshot(&self, request: DeleteSnapshotRequest) -> Result<()> {
        let (share, key) = Share::of_snapshot(&request.snapshot_id)?;
        let delete = move |root: &_| snapshots::delete(root, &key);
        self.desk.work(&share, request.snapshot_id.as_str(), delete).await
    }
}
