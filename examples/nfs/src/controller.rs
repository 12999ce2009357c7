//! The controller's RPCs, each run on the share that it concerns.

use std::sync::Arc;

use csi_core::controller::{CreateSnapshotRequest, DeleteSnapshotRequest};
use csi_core::types::{ContentSource, Snapshot};
use csi_core::{
    Controller, ControllerExpandVolume, ControllerExpandVolumeRequest, CreateDeleteSnapshot,
    CreateDeleteVolume, CreateVolumeRequest, DeleteVolumeRequest, Error, Expanded, Result, Volume,
    VolumeCapability, VolumeId, async_trait,
};
use serde::Deserialize;

use crate::VolumeArgs;
use crate::parameters::Wanted;
use crate::records;
use crate::share::Share;
use crate::share_workers::ShareWorkers;
use crate::snapshots;
use crate::volumes::{self, Content, VolumeRecord};

pub(crate) struct Shares {
    workers: ShareWorkers,
    defaults: VolumeArgs,
}

/// A VolumeSnapshotClass has no parameters.
#[derive(Deserialize)]
struct NoParameters {}

impl Shares {
    pub(crate) fn new(workers: ShareWorkers, defaults: VolumeArgs) -> Self {
        Self { workers, defaults }
    }

    /// The source of a new volume. Whether it exists is checked when it is held and copied.
    async fn content(&self, source: &ContentSource) -> Result<Content> {
        let missing = || Error::SourceNotFound(source.to_string().into());
        let (share, key) = match source {
            ContentSource::Volume(id) => Share::of_volume(id),
            ContentSource::Snapshot(id) => Share::of_snapshot(id),
            _ => Err(missing()),
        }
        .map_err(|_| missing())?;
        Ok(Content { root: self.workers.share(&share).await?, source: source.clone(), key })
    }
}

fn volume(share: &Share, key: &str, record: &VolumeRecord) -> Result<Volume> {
    let volume = Volume::new(share.volume_id(key)?, record.capacity_bytes);
    Ok(at(share, &record.sub_dir, volume))
}

fn at(share: &Share, sub_dir: &str, volume: Volume) -> Volume {
    volume.context("server", &share.server).context("share", &share.path).context("subDir", sub_dir)
}

#[async_trait]
impl Controller for Shares {
    async fn lookup(&self, id: &VolumeId) -> Result<Option<Volume>> {
        if let Some((share, sub_dir, _)) = Share::of_csi_driver_nfs(id) {
            let root = self.workers.share(&share).await?;
            let looked = Arc::clone(&root);
            let sought = sub_dir.clone();
            let is_there = move || Ok(looked.root()?.target(&sought)?.is_directory()?);
            let is_there = self.workers.answer(&share, &root, is_there).await?;
            return Ok(is_there.then(|| at(&share, &sub_dir, Volume::new(id.clone(), 0))));
        }
        // The id of a static share is chosen by its administrator; the driver does not know it.
        let Ok((share, key)) = Share::of_volume(id) else { return Ok(None) };
        let root = self.workers.share(&share).await?;
        let looked = Arc::clone(&root);
        let sought = key.clone();
        let record =
            self.workers.answer(&share, &root, move || volumes::find(looked.root()?, &sought)).await?;
        record.map(|record| volume(&share, &key, &record)).transpose()
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
        let source = request.volume_content_source.as_ref().map(|source| source.id().to_owned());
        let places = self.workers.places_of(&share);
        let made = key.clone();
        let make = move |root: &_| volumes::create(root, &places, &made, &wanted, &request, content.as_ref());
        let record = self.workers.work(&share, id.as_str(), source.as_deref(), make).await?;
        volume(&share, &key, &record)
    }

    async fn delete_volume(&self, request: DeleteVolumeRequest) -> Result<()> {
        if let Some((share, sub_dir, on_delete)) = Share::of_csi_driver_nfs(&request.volume_id) {
            let places = self.workers.places_of(&share);
            let on_delete = on_delete.unwrap_or(self.defaults.default_on_delete);
            let delete = move |root: &_| volumes::delete_unrecorded(root, &places, &sub_dir, on_delete);
            return self.workers.work(&share, request.volume_id.as_str(), None, delete).await;
        }
        let (share, key) = Share::of_volume(&request.volume_id)?;
        let places = self.workers.places_of(&share);
        let delete = move |root: &_| volumes::delete(root, &places, &key);
        self.workers.work(&share, request.volume_id.as_str(), None, delete).await
    }
}

#[async_trait]
impl ControllerExpandVolume for Shares {
    async fn expand_volume(&self, request: ControllerExpandVolumeRequest) -> Result<Expanded> {
        let (share, key) = Share::of_volume(&request.volume_id)?;
        let wanted = request.capacity_range.choose(0, 1)?;
        let expand = move |root: &_| volumes::expand(root, &key, wanted);
        let capacity_bytes = self.workers.work(&share, request.volume_id.as_str(), None, expand).await?;
        Ok(Expanded::complete(capacity_bytes))
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
        let source_id = source.to_string();
        let cut = move |root: &_| snapshots::create(root, &key, &name, &source, &source_key);
        let cut = self.workers.work(&share, id.as_str(), Some(&source_id), cut).await?;
        Ok(cut.taken.snapshot(id))
    }

    async fn delete_snapshot(&self, request: DeleteSnapshotRequest) -> Result<()> {
        let (share, key) = Share::of_snapshot(&request.snapshot_id)?;
        let delete = move |root: &_| snapshots::delete(root, &key);
        self.workers.work(&share, request.snapshot_id.as_str(), None, delete).await
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use csi_core::mount::Root;
    use csi_core::proto::v1;
    use v1::volume_content_source::{SnapshotSource, Type, VolumeSource};

    use super::*;

    const VOLUME: &str = "v1:192.0.2.7:%2Fexport:source:";
    const SNAPSHOT: &str = "s1:192.0.2.7:%2Fexport:cut:";

    /// The state after the caller gave up and the work goes on.
    #[tokio::test]
    async fn what_is_being_deleted_is_not_copied() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().to_owned();
        let workers = ShareWorkers::new(Arc::new(move |_| Ok(Root::open(&path)?)), Duration::from_secs(600));
        let shares = Shares::new(workers, VolumeArgs::default());
        let _held = [VOLUME, SNAPSHOT].map(|id| shares.workers.locks.lock(id, None).unwrap());

        let cut = v1::CreateSnapshotRequest {
            source_volume_id: VOLUME.to_owned(),
            name: "other".to_owned(),
            ..Default::default()
        };
        let refused = shares.create_snapshot(cut.try_into().unwrap()).await;
        assert!(matches!(refused, Err(Error::Pending(_))), "{refused:?}");
        for source in [
            Type::Volume(VolumeSource { volume_id: VOLUME.to_owned() }),
            Type::Snapshot(SnapshotSource { snapshot_id: SNAPSHOT.to_owned() }),
        ] {
            use v1::volume_capability::{AccessMode, AccessType, access_mode::Mode};
            let mode = Mode::MultiNodeMultiWriter.into();
            let capability = v1::VolumeCapability {
                access_mode: Some(AccessMode { mode }),
                access_type: Some(AccessType::Mount(Default::default())),
            };
            let parameters = [("server", "192.0.2.7"), ("share", "/export")];
            let copy = v1::CreateVolumeRequest {
                name: "copy".to_owned(),
                volume_capabilities: vec![capability],
                parameters: parameters.map(|(key, value)| (key.to_owned(), value.to_owned())).into(),
                volume_content_source: Some(v1::VolumeContentSource { r#type: Some(source) }),
                ..Default::default()
            };
            let refused = shares.create_volume(copy.try_into().unwrap()).await;
            assert!(matches!(refused, Err(Error::Pending(_))), "{refused:?}");
        }
    }
}
