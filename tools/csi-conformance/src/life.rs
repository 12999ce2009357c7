//! A volume's life on this node, as a sequence of the calls that the attacher and the kubelet make.

use std::ops::{Deref, DerefMut};
use std::path::{Path, PathBuf};

use csi_proto::client::{Target, VolumeUse};
use csi_proto::internal::MakeCalls;
use csi_proto::{ControllerCapability, NodeCapability, RpcRequest, v1};
use v1::plugin_capability::volume_expansion::Type as Expansion;
use v1::volume_capability::AccessType;

use crate::content::Kind;
use crate::context::TestContext;
use crate::failure::{Failure, Outcome};

/// A volume, and how it is used on this node. It makes the volume's requests.
#[derive(Clone)]
pub(crate) struct VolumeLifecycle {
    pub(crate) ctx: TestContext,
    /// The size in bytes from CreateVolume's answer; 0 if it is unknown.
    pub(crate) capacity: i64,
    pub(crate) volume: VolumeUse,
    folder: PathBuf,
}

impl Deref for VolumeLifecycle {
    type Target = VolumeUse;

    fn deref(&self) -> &VolumeUse {
        &self.volume
    }
}

impl DerefMut for VolumeLifecycle {
    fn deref_mut(&mut self) -> &mut VolumeUse {
        &mut self.volume
    }
}

/// Any other status than OK is a failure.
impl MakeCalls for &TestContext {
    type Error = Box<Failure>;

    async fn make_call<R: RpcRequest>(&mut self, request: R) -> Outcome<R::Answer> {
        self.ok(request).await
    }
}

impl VolumeLifecycle {
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

    pub(crate) fn with(ctx: &TestContext, capability: v1::VolumeCapability, volume: v1::Volume) -> Self {
        let path = |path: &Option<PathBuf>| path.clone().unwrap_or_default();
        let offers = &ctx.offers;
        let settings = &ctx.settings;
        let mut used = VolumeUse::new(volume.volume_id, capability);
        used.volume_context = volume.volume_context;
        if offers.controller(ControllerCapability::PublishUnpublishVolume) {
            used = used.attached_to(&offers.node_id);
        }
        if offers.node(NodeCapability::StageUnstageVolume) {
            used = used.staged_at(path(&settings.staging).join(ctx.name()));
        }
        let folder = path(&settings.target);
        Self { ctx: ctx.clone(), capacity: volume.capacity_bytes, volume: used, folder }
    }

    /// Creates, attaches and stages a volume, as far as the driver supports this.
    pub(crate) async fn staged(ctx: &TestContext, kind: Kind) -> Outcome<Self> {
        let mut life = Self::new(ctx, kind).await?;
        life.prepare().await?;
        Ok(life)
    }

    /// The same, and publishes it at a target.
    pub(crate) async fn published(ctx: &TestContext, kind: Kind) -> Outcome<(Self, PathBuf)> {
        let mut life = Self::new(ctx, kind).await?;
        let target = life.arrive().await?;
        Ok((life, target))
    }

    pub(crate) async fn prepare(&mut self) -> Outcome {
        self.attach().await?;
        self.stage().await
    }

    pub(crate) async fn attach(&mut self) -> Outcome {
        self.volume.attach(&self.ctx).await
    }

    pub(crate) async fn stage(&self) -> Outcome {
        self.make_staging_directory()?;
        self.volume.stage(&self.ctx).await
    }

    /// Creates the staging directory, which is the orchestrator's task. If the node's directories are not
    /// shared with this machine, the user has to create it.
    pub(crate) fn make_staging_directory(&self) -> Outcome {
        let staging = self.staging_path();
        let is_here = || self.ctx.sees_mounts() || staging.parent().is_some_and(Path::is_dir);
        if self.stages() && is_here() {
            match std::fs::create_dir(staging) {
                Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => {
                    return Err(Box::new(Failure::new("a staging directory", error.to_string())));
                }
                _ => {}
            }
        }
        Ok(())
    }

    pub(crate) fn stages(&self) -> bool {
        self.volume.staging_path.is_some()
    }

    pub(crate) fn target(&self) -> PathBuf {
        self.folder.join(self.ctx.name())
    }

    /// The staging path; empty if the driver does not stage volumes.
    pub(crate) fn staging_path(&self) -> &Path {
        self.volume.staging_path.as_deref().unwrap_or(Path::new(""))
    }

    /// Its size in bytes: the driver's answer, or at least the requested size.
    pub(crate) fn size(&self) -> i64 {
        self.capacity.max(self.ctx.settings.size)
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
            for _ in 0..2 {
                let answer = self.ctx.expanded(self.controller_expand_volume(wanted), wanted).await?;
                needs_node = answer.node_expansion_required;
                self.capacity = answer.capacity_bytes;
            }
        }
        // Without EXPAND_VOLUME of the node, a filesystem is allowed to grow at its next stage.
        let is_mount = matches!(self.volume.capability.access_type, Some(AccessType::Mount(_)));
        let is_restaged = !is_offline && !on_node && is_mount;
        if is_restaged {
            self.leave(&target).await?;
        }
        let target = if is_offline || is_restaged { self.arrive().await? } else { target };
        if needs_node && on_node {
            self.ctx.twice(self.node_expand_volume(&target, wanted)).await?;
        }
        self.capacity = self.capacity.max(wanted);
        Ok(target)
    }

    /// NodeExpandVolume without a capacity range.
    pub(crate) fn node_expand_to_fit(&self, path: &Path) -> v1::NodeExpandVolumeRequest {
        v1::NodeExpandVolumeRequest { capacity_range: None, ..self.node_expand_volume(path, 0) }
    }

    pub(crate) async fn arrive(&mut self) -> Outcome<PathBuf> {
        self.make_staging_directory()?;
        let target = self.target();
        self.volume.attach_stage_publish(&self.ctx, &[Target::new(&target)]).await?;
        Ok(target)
    }

    pub(crate) async fn leave(&self, target: &Path) -> Outcome {
        self.volume.unpublish_unstage_detach(&self.ctx, &[target]).await
    }

    /// Unstages and detaches the volume, which still exists after that.
    pub(crate) async fn end_here(&self) -> Outcome {
        self.volume.unpublish_unstage_detach(&self.ctx, &[] as &[&Path]).await
    }

    /// Unpublishes all targets, unstages, detaches and deletes the volume.
    pub(crate) async fn end(&self, targets: &[&Path]) -> Outcome {
        self.volume.unpublish_unstage_detach(&self.ctx, targets).await?;
        if self.ctx.offers.controller(ControllerCapability::CreateDeleteVolume) {
            self.ctx.ok(self.delete_volume()).await?;
        }
        Ok(())
    }
}

pub(crate) fn text(path: &Path) -> String {
    path.display().to_string()
}
