//! A volume's life as an orchestrator drives it: created, used, snapshotted, restored, cloned, deleted.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use csi_core::client::Client;
use csi_core::proto::v1;
use v1::volume_content_source::{SnapshotSource, Type as Source, VolumeSource};

/// The settings for new volumes and for mounting their share.
#[derive(Debug, Clone)]
pub struct Class {
    /// `server`, `share` and any other parameters of a StorageClass.
    pub parameters: BTreeMap<String, String>,
    /// For example `nfsvers=4.2`.
    pub mount_options: Vec<String>,
}

type Outcome<T = ()> = Result<T, String>;

fn status_text(status: tonic::Status) -> String {
    format!("{:?}: {}", status.code(), status.message())
}

fn failed(what: &str, path: &Path, error: impl std::fmt::Display) -> String {
    format!("{what} {}: {error}", path.display())
}

/// A driver, and the directory for its volumes on this node.
struct Life<'a> {
    client: &'a Client,
    class: &'a Class,
    node: &'a Path,
}

/// Runs all steps, and calls `done` with a line for each step. Volumes are staged and published below `node`.
///
/// # Errors
/// Says what failed. Everything created before is left in place.
pub async fn live(client: &Client, class: &Class, node: &Path, mut done: impl FnMut(&str)) -> Outcome {
    let life = Life { client, class, node };
    let volume = life.create("pvc-first", None).await?;
    let id = &volume.volume_id;
    done(&format!("created volume {id}"));
    let target = life.publish(&volume, false).await?;
    write(&target, "before")?;
    done(&format!("staged, published and written to at {}", target.display()));
    done(&life.usage(id, &target).await?);

    let snapshot = life.snapshot(id).await?;
    done(&format!("snapshot {}", snapshot.snapshot_id));
    write(&target, "after")?;
    let from_snapshot = Source::Snapshot(SnapshotSource { snapshot_id: snapshot.snapshot_id.clone() });
    let restored = life.create("pvc-restored", Some(from_snapshot)).await?;
    let from_volume = Source::Volume(VolumeSource { volume_id: id.clone() });
    let cloned = life.create("pvc-cloned", Some(from_volume)).await?;
    for (volume, due) in [(&restored, "before"), (&cloned, "after")] {
        let at = life.publish(volume, true).await?;
        let found = read(&at)?;
        if found != due {
            return Err(format!("{}: contains {found:?} instead of {due:?}", volume.volume_id));
        }
        if write(&at, "never").is_ok() {
            return Err(format!("{}: published read-only, but a write succeeded", volume.volume_id));
        }
        done(&format!("volume {} has the data that was written {due} the snapshot", volume.volume_id));
    }
    for volume in [&volume, &restored, &cloned] {
        life.end(volume).await?;
    }
    let request = v1::DeleteSnapshotRequest { snapshot_id: snapshot.snapshot_id, ..Default::default() };
    client.controller().delete_snapshot(request).await.map_err(status_text)?;
    done("unpublished, unstaged and deleted everything");
    Ok(())
}

impl Life<'_> {
    fn capability(&self) -> v1::VolumeCapability {
        use v1::volume_capability::{AccessMode, AccessType, MountVolume, access_mode::Mode};
        let mount = MountVolume { mount_flags: self.class.mount_options.clone(), ..Default::default() };
        v1::VolumeCapability {
            access_mode: Some(AccessMode { mode: Mode::MultiNodeMultiWriter.into() }),
            access_type: Some(AccessType::Mount(mount)),
        }
    }

    fn staging(&self, volume: &v1::Volume) -> PathBuf {
        self.node.join("staging").join(volume.volume_id.replace('/', "_"))
    }

    fn target(&self, volume: &v1::Volume) -> PathBuf {
        self.node.join("target").join(volume.volume_id.replace('/', "_"))
    }

    async fn create(&self, name: &str, source: Option<Source>) -> Outcome<v1::Volume> {
        let request = v1::CreateVolumeRequest {
            name: name.to_owned(),
            parameters: self.class.parameters.clone(),
            volume_capabilities: vec![self.capability()],
            volume_content_source: source.map(|source| v1::VolumeContentSource { r#type: Some(source) }),
            ..Default::default()
        };
        let answer = self.client.controller().create_volume(request).await.map_err(status_text)?;
        answer.into_inner().volume.ok_or_else(|| "the answer to CreateVolume has no volume".to_owned())
    }

    async fn publish(&self, volume: &v1::Volume, readonly: bool) -> Outcome<PathBuf> {
        let (staging, target) = (self.staging(volume), self.target(volume));
        let parent = target.parent().unwrap_or(self.node);
        for directory in [staging.as_path(), parent] {
            fs::create_dir_all(directory).map_err(|error| failed("make", directory, error))?;
        }
        let stage = v1::NodeStageVolumeRequest {
            volume_id: volume.volume_id.clone(),
            volume_context: volume.volume_context.clone(),
            volume_capability: Some(self.capability()),
            staging_target_path: staging.display().to_string(),
            ..Default::default()
        };
        self.client.node().node_stage_volume(stage).await.map_err(status_text)?;
        let publish = v1::NodePublishVolumeRequest {
            volume_id: volume.volume_id.clone(),
            volume_context: volume.volume_context.clone(),
            volume_capability: Some(self.capability()),
            staging_target_path: staging.display().to_string(),
            target_path: target.display().to_string(),
            readonly,
            ..Default::default()
        };
        self.client.node().node_publish_volume(publish).await.map_err(status_text)?;
        Ok(target)
    }

    async fn usage(&self, volume_id: &str, target: &Path) -> Outcome<String> {
        let request = v1::NodeGetVolumeStatsRequest {
            volume_id: volume_id.to_owned(),
            volume_path: target.display().to_string(),
            ..Default::default()
        };
        let stats =
            self.client.node().node_get_volume_stats(request).await.map_err(status_text)?.into_inner();
        let bytes = stats.usage.first().ok_or("the answer to NodeGetVolumeStats has no usage")?;
        Ok(format!("{} of {} bytes are available on its share", bytes.available, bytes.total))
    }

    async fn snapshot(&self, source: &str) -> Outcome<v1::Snapshot> {
        let request = v1::CreateSnapshotRequest {
            source_volume_id: source.to_owned(),
            name: "snapshot-first".to_owned(),
            ..Default::default()
        };
        let answer = self.client.controller().create_snapshot(request).await.map_err(status_text)?;
        answer.into_inner().snapshot.ok_or_else(|| "the answer to CreateSnapshot has no snapshot".to_owned())
    }

    async fn end(&self, volume: &v1::Volume) -> Outcome {
        let (volume_id, staging) = (&volume.volume_id, self.staging(volume));
        let unpublish = v1::NodeUnpublishVolumeRequest {
            volume_id: volume_id.clone(),
            target_path: self.target(volume).display().to_string(),
        };
        self.client.node().node_unpublish_volume(unpublish).await.map_err(status_text)?;
        let unstage = v1::NodeUnstageVolumeRequest {
            volume_id: volume_id.clone(),
            staging_target_path: staging.display().to_string(),
        };
        self.client.node().node_unstage_volume(unstage).await.map_err(status_text)?;
        let delete = v1::DeleteVolumeRequest { volume_id: volume_id.clone(), ..Default::default() };
        self.client.controller().delete_volume(delete).await.map_err(status_text)?;
        Ok(())
    }
}

fn write(target: &Path, text: &str) -> Outcome {
    let file = target.join("note");
    fs::write(&file, text).map_err(|error| failed("write", &file, error))
}

fn read(target: &Path) -> Outcome<String> {
    let file = target.join("note");
    fs::read_to_string(&file).map_err(|error| failed("read", &file, error))
}
