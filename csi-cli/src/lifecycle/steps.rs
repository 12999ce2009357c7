//! The steps of a volume's life: calls that are made twice, checked at the volume's paths, reported as one line,
//! and recorded so that they can be undone.

use std::any::Any;
use std::path::Path;

use csi_proto::client::MakeCalls;
use csi_proto::{RpcRequest, v1};
use v1::volume_capability::AccessType;

use super::call::{Caller, Failure, Outcome, Repeat};
use super::target::{self, Content};
use super::undo::UndoLog;
use super::volume_spec::TargetChecks;
use crate::secrets::Secrets;

/// Makes the calls of a volume's life.
pub(crate) struct Steps<'c, 'r> {
    pub(crate) caller: &'c mut Caller<'r>,
    pub(crate) undo_log: &'c mut UndoLog,
    pub(crate) secrets: &'c Secrets,
    pub(crate) checks: TargetChecks,
    /// Whether the driver mounted the volume at the staging path. It is free to stage in another way.
    pub(crate) is_mounted_at_staging: bool,
}

impl<'r> Steps<'_, 'r> {
    /// The same for another volume.
    pub(crate) fn of_copy(&mut self) -> Steps<'_, 'r> {
        Steps { caller: self.caller, undo_log: self.undo_log, is_mounted_at_staging: false, ..*self }
    }

    /// Makes one step. `text` checks the answer and describes it.
    pub(crate) async fn make<R: RpcRequest>(
        &mut self,
        name: &str,
        request: R,
        repeat: Repeat,
        text: impl FnOnce(&R::Answer) -> Result<String, String> + Send,
    ) -> Outcome<R::Answer> {
        self.undo_log.begins(&request);
        let (sent, undo_log) = (self.secrets.added_to(request.clone()), &mut *self.undo_log);
        let seen = |answer: &R::Answer| undo_log.answered(answer);
        let answer = self.caller.twice(name, &sent, repeat, seen, text).await?;
        self.undo_log.succeeded(&request);
        Ok(answer)
    }

    /// Makes a call once, without a line in the report.
    pub(crate) async fn unreported<R: RpcRequest>(&self, request: R) -> Outcome<R::Answer> {
        self.caller.unreported(&self.secrets.added_to(request)).await
    }
}

/// The calls that put a volume on a node and take it off.
impl MakeCalls for Steps<'_, '_> {
    type Error = Failure;

    async fn make_call<R: RpcRequest>(&mut self, request: R) -> Outcome<R::Answer> {
        let (checks, mut is_mounted, asked) = (self.checks, self.is_mounted_at_staging, request.clone());
        let text = |_: &R::Answer| checked(&asked, checks, &mut is_mounted);
        let answer = self.make(R::RPC.name(), request, Repeat::Equal, text).await?;
        self.is_mounted_at_staging = is_mounted;
        Ok(answer)
    }
}

/// Checks that a call took effect at the volume's paths, and describes it.
fn checked(request: &dyn Any, checks: TargetChecks, is_mounted: &mut bool) -> Result<String, String> {
    let is_seen = checks != TargetChecks::Off;
    if let Some(request) = request.downcast_ref::<v1::ControllerPublishVolumeRequest>() {
        return Ok(format!("attached to {}", request.node_id));
    }
    if request.is::<v1::ControllerUnpublishVolumeRequest>() {
        return Ok("detached".to_owned());
    }
    if let Some(request) = request.downcast_ref::<v1::NodeStageVolumeRequest>() {
        let content = content(request.volume_capability.as_ref());
        // A driver is free to stage in another way than by a mount.
        let mount = match is_seen && content == Content::Files {
            true => target::mount_if_any(Path::new(&request.staging_target_path))?,
            false => None,
        };
        *is_mounted = mount.is_some();
        return Ok(match (mount, content) {
            (Some(mount), _) => format!("{} on {}", mount.fs_type, mount.source.to_string_lossy()),
            (None, Content::Device) => "staged, as a raw device".to_owned(),
            (None, Content::Files) => "staged".to_owned(),
        });
    }
    if let Some(request) = request.downcast_ref::<v1::NodePublishVolumeRequest>() {
        let path = Path::new(&request.target_path);
        let content = content(request.volume_capability.as_ref());
        return if is_seen { published(path, request.readonly, content) } else { Ok(name(path)) };
    }
    if let Some(request) = request.downcast_ref::<v1::NodeUnpublishVolumeRequest>() {
        let path = Path::new(&request.target_path);
        if is_seen {
            target::is_gone(path)?;
            if path.exists() {
                return Err(format!("{} still exists", path.display()));
            }
        }
        return Ok(name(path));
    }
    if let Some(request) = request.downcast_ref::<v1::NodeUnstageVolumeRequest>() {
        if is_seen {
            target::is_gone(Path::new(&request.staging_target_path))?;
        }
        return Ok(if *is_mounted { "unmounted" } else { "unstaged" }.to_owned());
    }
    Ok(String::new())
}

/// The type of the targets with this capability.
fn content(capability: Option<&v1::VolumeCapability>) -> Content {
    match capability.and_then(|capability| capability.access_type.as_ref()) {
        Some(AccessType::Block(_)) => Content::Device,
        _ => Content::Files,
    }
}

/// Checks that a target is as requested, and describes it.
fn published(path: &Path, is_read_only: bool, content: Content) -> Result<String, String> {
    let mount = target::mount_at(path)?;
    match content {
        // The device itself refuses writes; a later step writes to it.
        Content::Device if is_read_only => Ok(format!("{}, a device that refuses writes", name(path))),
        Content::Device => Ok(format!("{}, a device", name(path))),
        Content::Files if target::is_read_only(&mount) == is_read_only => Ok(name(path)),
        Content::Files if is_read_only => Err(format!("{} is mounted for writing", path.display())),
        Content::Files => Err(format!("{} is mounted read-only", path.display())),
    }
}

fn name(path: &Path) -> String {
    path.file_name().unwrap_or_default().display().to_string()
}
