//! The node's part of a volume's life: staged, published, used, and removed again.

use std::path::Path;

use csi_proto::Rpc;
use csi_proto::v1;

use super::call::Outcome;
use super::report::size;
use super::scenario::{LifeCycle, text};
use super::target::{self, Content};
use super::undo::Step;
use super::volume_spec::{Access, TargetChecks};

impl LifeCycle<'_, '_> {
    pub(crate) async fn stage(&mut self) -> Outcome<()> {
        if !self.offers.stages {
            return Ok(());
        }
        let request = v1::NodeStageVolumeRequest {
            volume_id: self.id.clone(),
            staging_target_path: text(&self.staging),
            volume_capability: Some(self.spec.capability(self.offers)),
            volume_context: self.context.clone(),
            publish_context: self.publish_context.clone(),
            secrets: self.spec.secrets.of(Rpc::NodeStageVolume),
        };
        self.undo_log.record(Step::Staged(self.unstage_request()));
        let (staging, content, checks) = (&self.staging, self.spec.content, self.checks);
        let mut mount = None;
        self.caller
            .step(
                "NodeStageVolume",
                &request,
                async |sockets, request| sockets.node().node_stage_volume(request).await,
                |_| {
                    // A driver is free to stage in another way than by a mount.
                    if checks != TargetChecks::Off && content == Content::Files {
                        mount = target::mount_if_any(staging)?;
                    }
                    Ok(match (&mount, content) {
                        (Some(mount), _) => {
                            format!("{} on {}", mount.fs_type, mount.source.to_string_lossy())
                        }
                        (None, Content::Device) => "staged, as a raw device".to_owned(),
                        (None, Content::Files) => "staged".to_owned(),
                    })
                },
            )
            .await?;
        self.is_mounted_at_staging = mount.is_some();
        Ok(())
    }

    pub(crate) async fn publish(&mut self) -> Outcome<()> {
        for (path, access) in &self.targets {
            let request = v1::NodePublishVolumeRequest {
                volume_id: self.id.clone(),
                staging_target_path: self.staging_path(),
                target_path: text(path),
                volume_capability: Some(self.spec.capability(self.offers)),
                readonly: *access == Access::ReadOnly,
                volume_context: self.context.clone(),
                publish_context: self.publish_context.clone(),
                secrets: self.spec.secrets.of(Rpc::NodePublishVolume),
            };
            self.undo_log.record(Step::Published(self.unpublish_request(path)));
            let (content, checks) = (self.spec.content, self.checks);
            self.caller
                .step(
                    "NodePublishVolume",
                    &request,
                    async |sockets, request| sockets.node().node_publish_volume(request).await,
                    |_| match checks {
                        TargetChecks::Off => Ok(name(path)),
                        _ => published(path, *access, content),
                    },
                )
                .await?;
        }
        Ok(())
    }

    pub(crate) async fn write_and_read(&mut self) -> Outcome<()> {
        let content = self.spec.content;
        if self.checks != TargetChecks::Content {
            self.caller.report.left_out("  write and read", "writing is not allowed for this volume");
            return Ok(());
        }
        let writable = self.targets[0].0.clone();
        let read_only = self.targets.get(1).map(|(path, _)| path.clone());
        let read = read_only.clone().unwrap_or_else(|| writable.clone());
        let work = move || target::write_and_read(&writable, &read, content);
        self.caller.check("  write and read", work).await?;
        let Some(read_only) = read_only else {
            self.caller.report.left_out("  write, read-only", "the access mode allows only one target");
            return Ok(());
        };
        let work = move || target::refused_write(&read_only, content).map(|why| format!("refused: {why}"));
        self.caller.check("  write, read-only", work).await
    }

    pub(crate) async fn stats(&mut self) -> Outcome<()> {
        if !self.offers.stats {
            return Ok(());
        }
        let request = v1::NodeGetVolumeStatsRequest {
            volume_id: self.id.clone(),
            volume_path: text(&self.targets[0].0),
            staging_target_path: self.staging_path(),
        };
        self.caller
            .ask(
                "NodeGetVolumeStats",
                &request,
                async |sockets, request| sockets.node().node_get_volume_stats(request).await,
                usage,
            )
            .await
            .map(drop)
    }

    pub(crate) async fn unpublish(&mut self) -> Outcome<()> {
        let checks = self.checks;
        for (path, _) in &self.targets {
            let request = self.unpublish_request(path);
            self.caller
                .step(
                    "NodeUnpublishVolume",
                    &request,
                    async |sockets, request| sockets.node().node_unpublish_volume(request).await,
                    |_| match target::is_gone(path) {
                        _ if checks == TargetChecks::Off => Ok(name(path)),
                        Ok(()) if path.exists() => Err(format!("{} still exists", path.display())),
                        gone => gone.map(|()| name(path)),
                    },
                )
                .await?;
            self.undo_log.forget(&Step::Published(request));
        }
        Ok(())
    }

    pub(crate) async fn unstage(&mut self) -> Outcome<()> {
        if !self.offers.stages {
            return Ok(());
        }
        let request = self.unstage_request();
        let (staging, checks) = (&self.staging, self.checks);
        let text = if self.is_mounted_at_staging { "unmounted" } else { "unstaged" };
        self.caller
            .step(
                "NodeUnstageVolume",
                &request,
                async |sockets, request| sockets.node().node_unstage_volume(request).await,
                |_| match checks {
                    TargetChecks::Off => Ok(text.to_owned()),
                    _ => target::is_gone(staging).map(|()| text.to_owned()),
                },
            )
            .await?;
        self.undo_log.forget(&Step::Staged(request));
        Ok(())
    }

    fn unstage_request(&self) -> v1::NodeUnstageVolumeRequest {
        v1::NodeUnstageVolumeRequest { volume_id: self.id.clone(), staging_target_path: text(&self.staging) }
    }

    fn unpublish_request(&self, target: &Path) -> v1::NodeUnpublishVolumeRequest {
        v1::NodeUnpublishVolumeRequest { volume_id: self.id.clone(), target_path: text(target) }
    }
}

/// Checks that a target is as requested, and describes it.
fn published(path: &Path, access: Access, content: Content) -> Result<String, String> {
    let mount = target::mount_at(path)?;
    match (content, access) {
        // The device itself refuses writes; a later step writes to it.
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
        return Err(format!("the total is {} bytes", bytes.total));
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
