//! A volume's life on this node, as a sequence of the calls that the attacher and the kubelet make.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use csi_proto::v1;
use csi_proto::{ControllerCapability, NodeCapability};
use v1::plugin_capability::volume_expansion::Type as Expansion;
use v1::volume_capability::AccessType;

use crate::context::TestContext;
use crate::failure::{Failure, Outcome};
use crate::test::Kind;

/// A volume, and how it is used on this node.
#[derive(Clone)]
pub(crate) struct Life {
    pub(crate) ctx: TestContext,
    pub(crate) id: String,
    /// The size in bytes from CreateVolume's answer; 0 if it is unknown.
    pub(crate) capacity: i64,
    pub(crate) capability: v1::VolumeCapability,
    pub(crate) context: BTreeMap<String, String>,
    pub(crate) publish_context: BTreeMap<String, String>,
    staging: PathBuf,
    folder: PathBuf,
}

impl Life {
    /// Creates a volume that is not attached or staged.
    pub(crate) async fn new(ctx: &TestContext, kind: Kind) -> Outcome<Self> {
        Self::of(ctx, ctx.capability(kind)).await
    }

    pub(crate) async fn of(ctx: &TestContext, capability: v1::VolumeCapability) -> Outcome<Self> {
        if !ctx.offers.controller(ControllerCapability::CreateDeleteVolume)
            && let Some(volume) = ctx.premade()
        {
            return Ok(Self::with(ctx, capability, volume));
        }
        let request = v1::CreateVolumeRequest {
            volume_capabilities: vec![capability.clone()],
            ..ctx.create(&ctx.name())
        };
        let volume = ctx.created(request).await?;
        Ok(Self::with(ctx, capability, volume))
    }

    /// Wraps an existing volume.
    pub(crate) fn with(ctx: &TestContext, capability: v1::VolumeCapability, volume: v1::Volume) -> Self {
        let path = |path: &Option<PathBuf>| path.clone().unwrap_or_default();
        Self {
            ctx: ctx.clone(),
            capability,
            id: volume.volume_id,
            capacity: volume.capacity_bytes,
            context: volume.volume_context,
            publish_context: BTreeMap::new(),
            staging: path(&ctx.settings.staging).join(ctx.name()),
            folder: path(&ctx.settings.target),
        }
    }

    /// Creates, attaches and stages a volume, as far as the driver supports this.
    pub(crate) async fn staged(ctx: &TestContext, kind: Kind) -> Outcome<Self> {
        let mut life = Self::new(ctx, kind).await?;
        life.prepare().await?;
        Ok(life)
    }

    pub(crate) async fn prepare(&mut self) -> Outcome {
        self.attach().await?;
        self.stage().await
    }

    pub(crate) async fn attach(&mut self) -> Outcome {
        if self.ctx.offers.controller(ControllerCapability::PublishUnpublishVolume) {
            self.publish_context = self.ctx.ok(self.attaching()).await?.publish_context;
        }
        Ok(())
    }

    pub(crate) async fn stage(&self) -> Outcome {
        if self.stages() {
            self.make_staging_directory()?;
            self.ctx.ok(self.staging()).await?;
        }
        Ok(())
    }

    /// Creates the staging directory, which is the orchestrator's task. If the node's directories are not
    /// shared with this machine, the user has to create it.
    pub(crate) fn make_staging_directory(&self) -> Outcome {
        let is_here = || self.ctx.sees_mounts() || self.staging.parent().is_some_and(Path::is_dir);
        if self.stages() && is_here() {
            match std::fs::create_dir(&self.staging) {
                Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => {
                    return Err(Box::new(Failure::new("a staging directory", error.to_string())));
                }
                _ => {}
            }
        }
        Ok(())
    }

    pub(crate) fn stages(&self) -> bool {
        self.ctx.offers.node(NodeCapability::StageUnstageVolume)
    }

    /// A new target path.
    pub(crate) fn target(&self) -> PathBuf {
        self.folder.join(self.ctx.name())
    }

    /// Stages the volume at another path from now on.
    pub(crate) fn stage_at(&mut self, staging: PathBuf) {
        self.staging = staging;
    }

    pub(crate) fn staging_path(&self) -> &Path {
        &self.staging
    }

    pub(crate) fn attaching(&self) -> v1::ControllerPublishVolumeRequest {
        v1::ControllerPublishVolumeRequest {
            volume_id: self.id.clone(),
            node_id: self.ctx.offers.node_id.clone(),
            volume_capability: Some(self.capability.clone()),
            volume_context: self.context.clone(),
            ..Default::default()
        }
    }

    pub(crate) fn detaching(&self) -> v1::ControllerUnpublishVolumeRequest {
        v1::ControllerUnpublishVolumeRequest {
            volume_id: self.id.clone(),
            node_id: self.ctx.offers.node_id.clone(),
            ..Default::default()
        }
    }

    pub(crate) fn staging(&self) -> v1::NodeStageVolumeRequest {
        v1::NodeStageVolumeRequest {
            volume_id: self.id.clone(),
            publish_context: self.publish_context.clone(),
            staging_target_path: text(&self.staging),
            volume_capability: Some(self.capability.clone()),
            volume_context: self.context.clone(),
            ..Default::default()
        }
    }

    pub(crate) fn unstaging(&self) -> v1::NodeUnstageVolumeRequest {
        v1::NodeUnstageVolumeRequest { volume_id: self.id.clone(), staging_target_path: text(&self.staging) }
    }

    pub(crate) fn publishing(&self, target: &Path) -> v1::NodePublishVolumeRequest {
        v1::NodePublishVolumeRequest {
            volume_id: self.id.clone(),
            publish_context: self.publish_context.clone(),
            staging_target_path: if self.stages() { text(&self.staging) } else { String::new() },
            target_path: text(target),
            volume_capability: Some(self.capability.clone()),
            volume_context: self.context.clone(),
            ..Default::default()
        }
    }

    pub(crate) fn unpublishing(&self, target: &Path) -> v1::NodeUnpublishVolumeRequest {
        v1::NodeUnpublishVolumeRequest { volume_id: self.id.clone(), target_path: text(target) }
    }

    pub(crate) fn deleting(&self) -> v1::DeleteVolumeRequest {
        v1::DeleteVolumeRequest { volume_id: self.id.clone(), ..Default::default() }
    }

    pub(crate) fn stats(&self, path: &Path) -> v1::NodeGetVolumeStatsRequest {
        v1::NodeGetVolumeStatsRequest {
            volume_id: self.id.clone(),
            volume_path: text(path),
            ..Default::default()
        }
    }

    /// Its size in bytes: the driver's answer, or at least the requested size.
    pub(crate) fn size(&self) -> i64 {
        self.capacity.max(self.ctx.settings.size)
    }

    /// ControllerExpandVolume as the resizer calls it.
    pub(crate) fn expanding(&self, required_bytes: i64) -> v1::ControllerExpandVolumeRequest {
        v1::ControllerExpandVolumeRequest {
            volume_id: self.id.clone(),
            capacity_range: Some(v1::CapacityRange { required_bytes, limit_bytes: 0 }),
            volume_capability: Some(self.capability.clone()),
            ..Default::default()
        }
    }

    /// Expands the published volume with the calls of the resizer and the kubelet, each twice. A driver with
    /// OFFLINE expansion only, or without EXPAND_VOLUME of the node, gets the volume back after it was taken off
    /// the node. Returns the target, which is another one then.
    pub(crate) async fn expand(&mut self, target: PathBuf, wanted: i64) -> Outcome<PathBuf> {
        let offers = &self.ctx.offers;
        let by_controller = offers.controller(ControllerCapability::ExpandVolume);
        let is_offline = by_controller && !offers.expands(Expansion::Online);
        let on_node = offers.node(NodeCapability::ExpandVolume);
        if is_offline {
            self.leave(&target).await?;
        }
        let mut needs_node = !by_controller;
        if by_controller {
            let request = self.expanding(wanted);
            for _ in 0..2 {
                let answer = self.ctx.ok(request.clone()).await?;
                if answer.capacity_bytes < wanted {
                    let came = format!("{} bytes", answer.capacity_bytes);
                    return Err(self.ctx.failure(&request, came, format!("at least {wanted}")));
                }
                needs_node = answer.node_expansion_required;
                self.capacity = answer.capacity_bytes;
            }
        }
        // Without EXPAND_VOLUME of the node, a filesystem is allowed to grow at its next stage.
        let is_mount = matches!(self.capability.access_type, Some(AccessType::Mount(_)));
        let is_restaged = !is_offline && !on_node && is_mount;
        if is_restaged {
            self.leave(&target).await?;
        }
        let target = if is_offline || is_restaged { self.arrive().await? } else { target };
        if needs_node && on_node {
            let range = v1::CapacityRange { required_bytes: wanted, limit_bytes: 0 };
            for _ in 0..2 {
                self.ctx.ok(self.growing(&target, Some(range))).await?;
            }
        }
        self.capacity = self.capacity.max(wanted);
        Ok(target)
    }

    /// NodeExpandVolume as the kubelet calls it.
    pub(crate) fn growing(
        &self,
        path: &Path,
        capacity_range: Option<v1::CapacityRange>,
    ) -> v1::NodeExpandVolumeRequest {
        v1::NodeExpandVolumeRequest {
            volume_id: self.id.clone(),
            volume_path: text(path),
            capacity_range,
            staging_target_path: if self.stages() { text(&self.staging) } else { String::new() },
            volume_capability: Some(self.capability.clone()),
            ..Default::default()
        }
    }

    /// Attaches, stages and publishes the volume, and returns the target path.
    pub(crate) async fn arrive(&mut self) -> Outcome<PathBuf> {
        self.prepare().await?;
        let target = self.target();
        self.ctx.ok(self.publishing(&target)).await?;
        Ok(target)
    }

    /// Unpublishes, unstages and detaches the volume.
    pub(crate) async fn leave(&self, target: &Path) -> Outcome {
        self.ctx.ok(self.unpublishing(target)).await?;
        self.end_here().await
    }

    /// Unstages and detaches the volume, which still exists after that.
    pub(crate) async fn end_here(&self) -> Outcome {
        if self.stages() {
            self.ctx.ok(self.unstaging()).await?;
        }
        if self.ctx.offers.controller(ControllerCapability::PublishUnpublishVolume) {
            self.ctx.ok(self.detaching()).await?;
        }
        Ok(())
    }

    /// Unpublishes all targets, unstages, detaches and deletes the volume.
    pub(crate) async fn end(&self, targets: &[&Path]) -> Outcome {
        for target in targets {
            self.ctx.ok(self.unpublishing(target)).await?;
        }
        self.end_here().await?;
        if self.ctx.offers.controller(ControllerCapability::CreateDeleteVolume) {
            self.ctx.ok(self.deleting()).await?;
        }
        Ok(())
    }
}

pub(crate) fn text(path: &Path) -> String {
    path.display().to_string()
}
