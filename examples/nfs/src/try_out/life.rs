//! A volume's life as an orchestrator drives it: created, used, snapshotted, restored, cloned, deleted.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use csi_core::client::{Client, Target, VolumeUse};
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
    let target = life.publish(&volume, Target::new(life.target(&volume))).await?;
    write(&target, "before")?;
    done(&format!("staged, published and written to at {}", target.display()));
    done(&life.usage(&volume, &target).await?);

    let snapshot = life.snapshot(&volume).await?;
    done(&format!("snapshot {}", snapshot.snapshot_id));
    write(&target, "after")?;
    let from_snapshot = Source::Snapshot(SnapshotSource { snapshot_id: snapshot.snapshot_id.clone() });
    let restored = life.create("pvc-restored", Some(from_snapshot)).await?;
    let from_volume = Source::Volume(VolumeSource { volume_id: id.clone() });
    let cloned = life.create("pvc-cloned", Some(from_volume)).await?;
    for (volume, due) in [(&restored, "before"), (&cloned, "after")] {
        let at = life.publish(volume, Target::new(life.target(volume)).read_only()).await?;
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
    client.call(request).await.map_err(status_text)?;
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

    fn target(&self, volume: &VolumeUse) -> PathBuf {
        self.node.join("target").join(volume.volume_id.replace('/', "_"))
    }

    async fn create(&self, name: &str, source: Option<Source>) -> Outcome<VolumeUse> {
        let request = v1::CreateVolumeRequest {
            name: name.to_owned(),
            parameters: self.class.parameters.clone(),
            volume_capabilities: vec![self.capability()],
            volume_content_source: source.map(|source| v1::VolumeContentSource { r#type: Some(source) }),
            ..Default::default()
        };
        let volume = self.client.call(request).await.map_err(status_text)?.volume;
        let volume = volume.ok_or("the answer to CreateVolume has no volume")?;
        let staging = self.node.join("staging").join(volume.volume_id.replace('/', "_"));
        let mut used = VolumeUse::new(volume.volume_id, self.capability()).staged_at(staging);
        used.volume_context = volume.volume_context;
        Ok(used)
    }

    async fn publish(&self, volume: &VolumeUse, target: Target) -> Outcome<PathBuf> {
        for directory in [volume.staging_path.as_deref(), target.path.parent()].into_iter().flatten() {
            fs::create_dir_all(directory).map_err(|error| failed("make", directory, error))?;
        }
        volume.stage(self.client).await.map_err(status_text)?;
        volume.publish(self.client, std::slice::from_ref(&target)).await.map_err(status_text)?;
        Ok(target.path)
    }

    async fn usage(&self, volume: &VolumeUse, target: &Path) -> Outcome<String> {
        let stats = self.client.call(volume.node_get_volume_stats(target)).await.map_err(status_text)?;
        let bytes = stats.usage.first().ok_or("the answer to NodeGetVolumeStats has no usage")?;
        Ok(format!("{} of {} bytes are available on its share", bytes.available, bytes.total))
    }

    async fn snapshot(&self, volume: &VolumeUse) -> Outcome<v1::Snapshot> {
        let answer = self.client.call(volume.create_snapshot("snapshot-first")).await.map_err(status_text)?;
        answer.snapshot.ok_or_else(|| "the answer to CreateSnapshot has no snapshot".to_owned())
    }

    async fn end(&self, volume: &VolumeUse) -> Outcome {
        volume.take_off_node(self.client, &[self.target(volume)]).await.map_err(status_text)?;
        self.client.call(volume.delete_volume()).await.map_err(status_text).map(drop)
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
