//! The life of a volume, call by call.

use std::fs;
use std::path::{Path, PathBuf};

use csi_proto::v1;

use crate::args::Keep;
use crate::call::{Caller, Failure, Outcome};
use crate::introductions::Offers;
use crate::report::size;
use crate::target::{self, Content};
use crate::wanted::Wanted;

/// Whether a target takes writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    ReadWrite,
    ReadOnly,
}

/// A volume that exists, and the one who looks after it.
pub(crate) struct Life<'c, 'r> {
    pub(crate) caller: &'c mut Caller<'r>,
    pub(crate) offers: Offers,
    pub(crate) wanted: &'c Wanted,
    pub(crate) id: String,
    context: std::collections::BTreeMap<String, String>,
    pub(crate) staging: PathBuf,
    /// One that takes writes, and one that does not.
    pub(crate) targets: [(PathBuf, Access); 2],
}

/// Creates a volume, uses it, makes it larger, and takes it away, with its paths in `folder`.
pub(crate) async fn play(
    caller: &mut Caller<'_>,
    offers: Offers,
    wanted: &Wanted,
    folder: &Path,
    keep: Keep,
) -> Outcome<()> {
    caller.report.part(&wanted.title());
    let volume = create(caller, wanted).await?;
    let folder = folder.join(wanted.name);
    let staging = folder.join("staging");
    // The parents of the targets, and the staging directory itself, are the orchestrator's to make.
    fs::create_dir_all(&staging)
        .map_err(|error| Failure::new("make a staging directory", error.to_string()))?;
    let targets =
        [(folder.join("target"), Access::ReadWrite), (folder.join("target-read-only"), Access::ReadOnly)];
    let (id, context) = (volume.volume_id, volume.volume_context);
    let mut life = Life { caller, offers, wanted, id, context, staging, targets };
    life.validate().await?;
    life.stage().await?;
    life.publish().await?;
    life.use_it()?;
    life.stats().await?;
    life.expand().await?;
    if keep == Keep::Everything {
        return Ok(());
    }
    life.unpublish().await?;
    life.unstage().await?;
    life.delete().await
}

async fn create(caller: &mut Caller<'_>, wanted: &Wanted) -> Outcome<v1::Volume> {
    let request = v1::CreateVolumeRequest {
        name: wanted.name.to_owned(),
        capacity_range: Some(v1::CapacityRange { required_bytes: wanted.size, limit_bytes: 0 }),
        volume_capabilities: vec![wanted.capability()],
        ..Default::default()
    };
    let answer = caller
        .step(
            "CreateVolume",
            &request,
            async |client, request| client.controller().create_volume(request).await,
            |answer| {
                let volume = answer.volume.as_ref().ok_or("the answer has no volume")?;
                // A size of 0 is one that the driver does not keep.
                match volume.capacity_bytes {
                    0 => Ok(volume.volume_id.clone()),
                    bytes if bytes < wanted.size => Err(format!("{bytes} bytes are too few")),
                    bytes => Ok(format!("{}, {}", volume.volume_id, size(bytes.unsigned_abs()))),
                }
            },
        )
        .await?;
    answer.volume.ok_or_else(|| Failure::new("CreateVolume", "the answer has no volume"))
}

impl Life<'_, '_> {
    async fn validate(&mut self) -> Outcome<()> {
        let request = v1::ValidateVolumeCapabilitiesRequest {
            volume_id: self.id.clone(),
            volume_context: self.context.clone(),
            volume_capabilities: vec![self.wanted.capability()],
            ..Default::default()
        };
        self.caller
            .step(
                "ValidateVolumeCapabilities",
                &request,
                async |client, request| client.controller().validate_volume_capabilities(request).await,
                |answer| match &answer.confirmed {
                    Some(_) => Ok("confirmed".to_owned()),
                    None => Err(format!("not confirmed: {}", answer.message)),
                },
            )
            .await
            .map(drop)
    }

    pub(crate) async fn stage(&mut self) -> Outcome<()> {
        if !self.offers.stages {
            return Ok(());
        }
        let request = v1::NodeStageVolumeRequest {
            volume_id: self.id.clone(),
            staging_target_path: text(&self.staging),
            volume_capability: Some(self.wanted.capability()),
            volume_context: self.context.clone(),
            ..Default::default()
        };
        let (staging, content) = (&self.staging, self.wanted.content);
        self.caller
            .step(
                "NodeStageVolume",
                &request,
                async |client, request| client.node().node_stage_volume(request).await,
                |_| match content {
                    Content::Device => Ok("attached, as a raw device".to_owned()),
                    Content::Files => {
                        let mount = target::mount_at(staging)?;
                        Ok(format!("{} on {}", mount.fs_type, mount.source.to_string_lossy()))
                    }
                },
            )
            .await
            .map(drop)
    }

    pub(crate) async fn publish(&mut self) -> Outcome<()> {
        for (path, access) in &self.targets {
            let request = v1::NodePublishVolumeRequest {
                volume_id: self.id.clone(),
                staging_target_path: if self.offers.stages { text(&self.staging) } else { String::new() },
                target_path: text(path),
                volume_capability: Some(self.wanted.capability()),
                readonly: *access == Access::ReadOnly,
                volume_context: self.context.clone(),
                ..Default::default()
            };
            let content = self.wanted.content;
            self.caller
                .step(
                    "NodePublishVolume",
                    &request,
                    async |client, request| client.node().node_publish_volume(request).await,
                    |_| published(path, *access, content),
                )
                .await?;
        }
        Ok(())
    }

    fn use_it(&mut self) -> Outcome<()> {
        let [(writable, _), (read_only, _)] = &self.targets;
        let content = self.wanted.content;
        self.caller.look("  write and read", || target::write_and_read(writable, read_only, content))?;
        self.caller.look("  write, read-only", || {
            target::refused_write(read_only, content).map(|why| format!("refused: {why}"))
        })
    }

    async fn stats(&mut self) -> Outcome<()> {
        if !self.offers.stats {
            return Ok(());
        }
        let request = v1::NodeGetVolumeStatsRequest {
            volume_id: self.id.clone(),
            volume_path: text(&self.targets[0].0),
            staging_target_path: if self.offers.stages { text(&self.staging) } else { String::new() },
        };
        self.caller
            .ask(
                "NodeGetVolumeStats",
                &request,
                async |client, request| client.node().node_get_volume_stats(request).await,
                usage,
            )
            .await
            .map(drop)
    }

    pub(crate) async fn unpublish(&mut self) -> Outcome<()> {
        for (path, _) in &self.targets {
            let request =
                v1::NodeUnpublishVolumeRequest { volume_id: self.id.clone(), target_path: text(path) };
            self.caller
                .step(
                    "NodeUnpublishVolume",
                    &request,
                    async |client, request| client.node().node_unpublish_volume(request).await,
                    |_| match target::is_gone(path) {
                        Ok(()) if path.exists() => Err(format!("{} is still there", path.display())),
                        gone => gone.map(|()| name(path)),
                    },
                )
                .await?;
        }
        Ok(())
    }

    pub(crate) async fn unstage(&mut self) -> Outcome<()> {
        if !self.offers.stages {
            return Ok(());
        }
        let request = v1::NodeUnstageVolumeRequest {
            volume_id: self.id.clone(),
            staging_target_path: text(&self.staging),
        };
        let staging = &self.staging;
        self.caller
            .step(
                "NodeUnstageVolume",
                &request,
                async |client, request| client.node().node_unstage_volume(request).await,
                |_| target::is_gone(staging).map(|()| "unmounted, detached".to_owned()),
            )
            .await
            .map(drop)
    }

    async fn delete(&mut self) -> Outcome<()> {
        let request = v1::DeleteVolumeRequest { volume_id: self.id.clone(), ..Default::default() };
        let id = self.id.clone();
        self.caller
            .step(
                "DeleteVolume",
                &request,
                async |client, request| client.controller().delete_volume(request).await,
                |_| Ok(id),
            )
            .await
            .map(drop)
    }
}

/// Sees that a target is as it was asked for, and says how it is.
fn published(path: &Path, access: Access, content: Content) -> Result<String, String> {
    let mount = target::mount_at(path)?;
    match (content, access) {
        // A device refuses writes itself: see the write.
        (Content::Device, Access::ReadOnly) => Ok(format!("{}, a device that refuses writes", name(path))),
        (Content::Device, Access::ReadWrite) => Ok(format!("{}, a device", name(path))),
        (Content::Files, Access::ReadOnly) if !target::is_read_only(&mount) => {
            Err(format!("{} is mounted for writing", path.display()))
        }
        (Content::Files, Access::ReadWrite) if target::is_read_only(&mount) => {
            Err(format!("{} is mounted read-only", path.display()))
        }
        (Content::Files, _) => Ok(name(path)),
    }
}

/// The usage in bytes.
fn usage(answer: &v1::NodeGetVolumeStatsResponse) -> Result<String, String> {
    let bytes = answer.usage.iter().find(|usage| usage.unit() == v1::volume_usage::Unit::Bytes);
    let bytes = bytes.ok_or("the answer has no bytes")?;
    if bytes.total <= 0 {
        return Err(format!("a volume of {} bytes", bytes.total));
    }
    let total = size(bytes.total.unsigned_abs());
    match bytes.available + bytes.used {
        0 => Ok(total),
        _ => Ok(format!("{total}, {} free", size(bytes.available.unsigned_abs()))),
    }
}

fn name(path: &Path) -> String {
    path.file_name().unwrap_or_default().display().to_string()
}

/// The path for the wire. It is UTF-8, for the place is.
pub(crate) fn text(path: &Path) -> String {
    path.display().to_string()
}
