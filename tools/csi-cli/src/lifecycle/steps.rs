//! The steps of a volume's life: calls that are made twice, checked at the volume's paths, reported as one line,
//! and recorded so that they can be undone.

use std::path::Path;

use csi_proto::client::{MakeCalls, Target};
use csi_proto::{RpcRequest, Undo};

use super::call::{Caller, Failure, Outcome, Repeat};
use super::target::{self, Content};
use super::undo::UndoLog;
use super::volume_spec::TargetChecks;
use crate::secrets::Secrets;

pub(crate) struct Steps<'c, 'r> {
    pub(crate) caller: &'c mut Caller<'r>,
    pub(crate) undo_log: &'c mut UndoLog,
    pub(crate) secrets: &'c Secrets,
    pub(crate) on_node: OnNode,
}

/// The volume at its paths, as far as this process sees them.
#[derive(Clone)]
pub(crate) struct OnNode {
    pub(crate) checks: TargetChecks,
    pub(crate) content: Content,
    /// Where the volume is published; empty if it is put on no node.
    pub(crate) targets: Vec<Target>,
    /// Whether the driver mounted the volume at the staging path. It is free to stage in another way.
    is_mounted_at_staging: bool,
}

impl<'r> Steps<'_, 'r> {
    pub(crate) fn of_copy(&mut self) -> Steps<'_, 'r> {
        let on_node = OnNode::new(self.on_node.checks, self.on_node.content);
        Steps { caller: self.caller, undo_log: self.undo_log, secrets: self.secrets, on_node }
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
        let sent = self.secrets.added_to(request.clone());
        let undo_log = &mut *self.undo_log;
        let seen = |answer: &R::Answer| undo_log.answered(&request, answer);
        let answer = self.caller.twice(name, &sent, repeat, seen, text).await?;
        self.undo_log.succeeded(&request);
        Ok(answer)
    }

    /// Makes a call once, without a line in the report.
    pub(crate) async fn unreported<R: RpcRequest>(&self, request: R) -> Outcome<R::Answer> {
        self.caller.unreported(&self.secrets.added_to(request)).await
    }
}

impl MakeCalls for Steps<'_, '_> {
    type Error = Failure;

    async fn make_call<R: RpcRequest>(&mut self, request: R) -> Outcome<R::Answer> {
        let mut on_node = self.on_node.clone();
        let sent = request.clone();
        let text = |_: &R::Answer| on_node.checked(&sent);
        let answer = self.make(R::RPC.name(), request, Repeat::Equal, text).await?;
        self.on_node = on_node;
        Ok(answer)
    }
}

impl OnNode {
    pub(crate) fn new(checks: TargetChecks, content: Content) -> Self {
        Self { checks, content, targets: Vec::new(), is_mounted_at_staging: false }
    }

    /// Checks that a call took effect at the volume's paths, and describes it.
    fn checked<R: RpcRequest>(&mut self, request: &R) -> Result<String, String> {
        match request.undo(None) {
            Some(Undo::Detach(attached)) => return Ok(format!("attached to {}", attached.node_id)),
            Some(Undo::Unstage(staged)) => return self.staged(Path::new(&staged.staging_target_path)),
            Some(Undo::Unpublish(published)) => return self.published(Path::new(&published.target_path)),
            _ => {}
        }
        match request.as_undo() {
            Some(Undo::Detach(_)) => Ok("detached".to_owned()),
            Some(Undo::Unstage(request)) => {
                if self.is_seen() {
                    target::is_gone(Path::new(&request.staging_target_path))?;
                }
                Ok(if self.is_mounted_at_staging { "unmounted" } else { "unstaged" }.to_owned())
            }
            Some(Undo::Unpublish(request)) => self.unpublished(Path::new(&request.target_path)),
            _ => Ok(String::new()),
        }
    }

    fn is_seen(&self) -> bool {
        self.checks != TargetChecks::Off
    }

    fn staged(&mut self, path: &Path) -> Result<String, String> {
        let is_looked_for = self.is_seen() && self.content == Content::Files;
        let mount = if is_looked_for { target::mount_if_any(path)? } else { None };
        self.is_mounted_at_staging = mount.is_some();
        Ok(match (mount, self.content) {
            (Some(mount), _) => format!("{} on {}", mount.fs_type, mount.source.to_string_lossy()),
            (None, Content::Device) => "staged, as a raw device".to_owned(),
            (None, Content::Files) => "staged".to_owned(),
        })
    }

    fn published(&self, path: &Path) -> Result<String, String> {
        if !self.is_seen() {
            return Ok(name(path));
        }
        let is_read_only = self.targets.iter().any(|target| target.path == path && target.is_read_only);
        let mount = target::mount_at(path)?;
        match self.content {
            // The device itself refuses writes; a later step writes to it.
            Content::Device if is_read_only => Ok(format!("{}, a device that refuses writes", name(path))),
            Content::Device => Ok(format!("{}, a device", name(path))),
            Content::Files if target::is_read_only(&mount) == is_read_only => Ok(name(path)),
            Content::Files if is_read_only => Err(format!("{} is mounted for writing", path.display())),
            Content::Files => Err(format!("{} is mounted read-only", path.display())),
        }
    }

    fn unpublished(&self, path: &Path) -> Result<String, String> {
        if self.is_seen() {
            target::is_gone(path)?;
            if path.exists() {
                return Err(format!("{} still exists", path.display()));
            }
        }
        Ok(name(path))
    }
}

fn name(path: &Path) -> String {
    path.file_name().unwrap_or_default().display().to_string()
}
