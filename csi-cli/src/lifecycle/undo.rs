//! The log of the steps that have to be undone. It sees each call and each answer, so no step records itself.

use std::any::Any;
use std::path::{Path, PathBuf};
use std::time::Duration;

use csi_proto::client::is_final;
use csi_proto::{Rpc, RpcRequest, escape, v1};
use tokio::time::{Instant, sleep};
use tonic::{Code, Status};

use super::call::Sockets;
use crate::secrets::{Hidden, Secrets};

/// The time limit for undoing one step.
const UNDO_TIMEOUT: Duration = Duration::from_secs(60);
/// The wait before a driver is called again that is still busy with an abandoned call.
const RETRY_DELAY: Duration = Duration::from_millis(200);

/// Something that was begun, as the request that undoes it. The requests have no secrets; they are added to
/// each call.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Step {
    /// A volume that might exist; repeating the request returns its id.
    MaybeVolume(v1::CreateVolumeRequest),
    Volume(v1::DeleteVolumeRequest),
    Attached(v1::ControllerUnpublishVolumeRequest),
    Staged(v1::NodeUnstageVolumeRequest),
    Published(v1::NodeUnpublishVolumeRequest),
    MaybeSnapshot(v1::CreateSnapshotRequest),
    Snapshot(v1::DeleteSnapshotRequest),
    /// A directory created for the volume.
    Directory(PathBuf),
}

/// The requests that have not been undone yet, in their order. Each is recorded before its call, so that an
/// interrupted call is recorded too.
#[derive(Debug, Default)]
pub struct UndoLog {
    steps: Vec<Step>,
    /// The secrets for the calls that undo.
    pub(crate) secrets: Secrets,
}

/// The result of [`UndoLog::undo`].
#[derive(Debug, Default)]
pub struct UndoResult {
    /// What was undone.
    pub done: Vec<String>,
    /// What could not be undone, and why.
    pub failed: Vec<String>,
    /// The commands that undo the rest, in order.
    pub left: Vec<String>,
}

impl UndoLog {
    /// Whether there is nothing to undo.
    pub fn is_empty(&self) -> bool {
        self.steps.is_empty()
    }

    pub(crate) fn record(&mut self, step: Step) {
        if !self.steps.contains(&step) {
            self.steps.push(step);
        }
    }

    pub(crate) fn forget(&mut self, step: &Step) {
        self.steps.retain(|one| one != step);
    }

    /// Called before a call, which can take effect even if its caller gives up.
    pub(crate) fn begins<R: RpcRequest>(&mut self, request: &R) {
        let request: &dyn Any = request;
        if let Some(request) = request.downcast_ref::<v1::CreateVolumeRequest>() {
            self.record(Step::MaybeVolume(request.clone()));
        } else if let Some(request) = request.downcast_ref::<v1::CreateSnapshotRequest>() {
            self.record(Step::MaybeSnapshot(request.clone()));
        } else if let Some(request) = request.downcast_ref::<v1::ControllerPublishVolumeRequest>() {
            self.record(Step::Attached(request.into()));
        } else if let Some(request) = request.downcast_ref::<v1::NodeStageVolumeRequest>() {
            self.record(Step::Staged(request.into()));
        } else if let Some(request) = request.downcast_ref::<v1::NodePublishVolumeRequest>() {
            self.record(Step::Published(request.into()));
        }
    }

    /// Called for each answer: the id of what was created is known then.
    pub(crate) fn answered<A: 'static>(&mut self, answer: &A) {
        let answer: &dyn Any = answer;
        let (created, with_id): (fn(&Step) -> bool, _) = if let Some(answer) =
            answer.downcast_ref::<v1::CreateVolumeResponse>()
        {
            let volume_id = answer.volume.as_ref().map(|volume| volume.volume_id.clone()).unwrap_or_default();
            let delete = v1::DeleteVolumeRequest { volume_id, ..Default::default() };
            (|step| matches!(step, Step::MaybeVolume(_)), Step::Volume(delete))
        } else if let Some(answer) = answer.downcast_ref::<v1::CreateSnapshotResponse>() {
            let snapshot = answer.snapshot.as_ref();
            let snapshot_id = snapshot.map(|snapshot| snapshot.snapshot_id.clone()).unwrap_or_default();
            let delete = v1::DeleteSnapshotRequest { snapshot_id, ..Default::default() };
            (|step| matches!(step, Step::MaybeSnapshot(_)), Step::Snapshot(delete))
        } else {
            return;
        };
        if let Some(step) = self.steps.iter_mut().find(|step| created(step)) {
            *step = with_id;
        }
    }

    /// Called after a call has succeeded: it can have undone a step.
    pub(crate) fn succeeded<R: RpcRequest>(&mut self, request: &R) {
        self.steps.retain(|step| !step.is_undone_by(request));
    }

    /// Undoes everything, the last step first. A step is skipped if another one that depends on it could not
    /// be undone. Steps that are not undone stay recorded, and the next call continues with them.
    pub async fn undo(&mut self, sockets: &Sockets) -> UndoResult {
        let sockets = sockets.clone().deadline(UNDO_TIMEOUT);
        let hidden = self.secrets.hidden();
        let mut undone = UndoResult::default();
        // If the caller drops this future midway, the steps that are not undone are still recorded.
        let mut not_undone: Vec<Step> = Vec::new();
        while let Some(step) = self.steps.iter().rfind(|step| !not_undone.contains(step)).cloned() {
            if not_undone.iter().any(|above| above.depends_on(&step)) {
                not_undone.push(step);
                continue;
            }
            match self.undo_with_retries(&sockets, &step).await {
                Ok(what) => {
                    undone.done.extend(what);
                    self.forget(&step);
                }
                Err(reason) => {
                    undone.failed.push(hidden.scrub(&format!("{}: {reason}", step.call())));
                    not_undone.push(step);
                }
            }
        }
        undone.left = self.commands();
        undone
    }

    /// The commands that undo the rest, without running them.
    pub fn kept(&self) -> UndoResult {
        UndoResult { left: self.commands(), ..UndoResult::default() }
    }

    fn commands(&self) -> Vec<String> {
        let hidden = self.secrets.hidden();
        self.steps.iter().rev().map(|step| step.command(&hidden)).collect()
    }

    /// Repeats the call while the driver is busy, for example with an abandoned call.
    async fn undo_with_retries(&mut self, sockets: &Sockets, step: &Step) -> Result<Option<String>, String> {
        if let Step::Directory(directory) = step {
            return remove(directory).map(|()| None);
        }
        let end = Instant::now() + UNDO_TIMEOUT;
        loop {
            match self.undo_step(sockets, step).await {
                Err(status) if status.code() == Code::NotFound => return Ok(None),
                Err(status) if can_succeed_later(&status) && Instant::now() < end => sleep(RETRY_DELAY).await,
                result => return result.map_err(|status| csi_proto::client::explain(&status)),
            }
        }
    }

    async fn undo_step(&mut self, sockets: &Sockets, step: &Step) -> Result<Option<String>, Status> {
        let secrets = self.secrets.clone();
        Ok(Some(match step.clone() {
            Step::Published(request) => {
                let what = format!("unpublished {}", request.target_path);
                sockets.call(request).await.map(|_| what)?
            }
            Step::Staged(request) => {
                let what = format!("unstaged {}", request.staging_target_path);
                sockets.call(request).await.map(|_| what)?
            }
            Step::Attached(request) => {
                let what = format!("detached {}", request.volume_id);
                sockets.call(secrets.added_to(request)).await.map(|_| what)?
            }
            Step::Snapshot(request) => {
                let what = format!("deleted snapshot {}", request.snapshot_id);
                sockets.call(secrets.added_to(request)).await.map(|_| what)?
            }
            Step::Volume(request) => {
                let what = format!("deleted volume {}", request.volume_id);
                sockets.call(secrets.added_to(request)).await.map(|_| what)?
            }
            Step::MaybeVolume(request) => return self.look_for(sockets, request).await,
            Step::MaybeSnapshot(request) => return self.look_for(sockets, request).await,
            Step::Directory(_) => return Ok(None),
        }))
    }

    /// Repeats a create request, whose answer has the id. After a final refusal nothing exists.
    async fn look_for<R: RpcRequest>(
        &mut self,
        sockets: &Sockets,
        request: R,
    ) -> Result<Option<String>, Status> {
        match sockets.call(self.secrets.added_to(request)).await {
            Ok(answer) => {
                self.answered(&answer);
                Ok(None)
            }
            Err(status) if is_final(status.code()) => Ok(None),
            Err(status) => Err(status),
        }
    }

    /// Creates a directory and records it, unless it exists.
    pub(crate) fn make_directory(&mut self, directory: PathBuf) -> std::io::Result<()> {
        match std::fs::create_dir(&directory) {
            Ok(()) => self.record(Step::Directory(directory)),
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Removes the directories that are empty now. One in which a driver left something stays recorded.
    pub(crate) fn remove_directories(&mut self) {
        for step in self.steps.clone().iter().rev() {
            if let Step::Directory(directory) = step
                && remove(directory).is_ok()
            {
                self.forget(step);
            }
        }
    }
}

/// A shell word for a text without NUL.
pub(crate) fn quoted(text: &str) -> String {
    escape::shell_word(text).unwrap_or_default()
}

/// Removes a directory, if it exists.
fn remove(directory: &Path) -> Result<(), String> {
    match std::fs::remove_dir(directory) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(format!("{}: {error}", directory.display()))
        }
        _ => Ok(()),
    }
}

/// Whether a retry can succeed.
fn can_succeed_later(status: &Status) -> bool {
    let can_succeed_later =
        matches!(status.code(), Code::Aborted | Code::Unavailable | Code::DeadlineExceeded | Code::Cancelled);
    can_succeed_later && !is_unreachable(status)
}

/// Whether the call did not reach the driver.
fn is_unreachable(status: &Status) -> bool {
    std::error::Error::source(status).is_some()
}

impl Step {
    /// Whether this is the request that undoes the step. Secrets do not count.
    fn is_undone_by<R: RpcRequest>(&self, request: &R) -> bool {
        let mut request = request.clone();
        if let Some(secrets) = request.secrets_mut() {
            secrets.clear();
        }
        let request: &dyn Any = &request;
        match self {
            Self::Published(undo) => request.downcast_ref() == Some(undo),
            Self::Staged(undo) => request.downcast_ref() == Some(undo),
            Self::Attached(undo) => request.downcast_ref() == Some(undo),
            Self::Volume(undo) => request.downcast_ref() == Some(undo),
            Self::Snapshot(undo) => request.downcast_ref() == Some(undo),
            Self::MaybeVolume(_) | Self::MaybeSnapshot(_) | Self::Directory(_) => false,
        }
    }

    /// Whether this step has to be undone before `below`.
    fn depends_on(&self, below: &Self) -> bool {
        match (self, below) {
            (Self::Published(_), Self::Staged(_) | Self::Attached(_) | Self::Volume(_)) => true,
            (Self::Staged(_), Self::Attached(_) | Self::Volume(_)) => true,
            (Self::Attached(_), Self::Volume(_)) => true,
            // The driver decides whether a volume can be deleted before its snapshots.
            _ => false,
        }
    }

    /// The name of the call that undoes the step.
    fn call(&self) -> &'static str {
        match self {
            Self::MaybeVolume(_) => Rpc::CreateVolume.name(),
            Self::Volume(_) => Rpc::DeleteVolume.name(),
            Self::Attached(_) => Rpc::ControllerUnpublishVolume.name(),
            Self::Staged(_) => Rpc::NodeUnstageVolume.name(),
            Self::Published(_) => Rpc::NodeUnpublishVolume.name(),
            Self::MaybeSnapshot(_) => Rpc::CreateSnapshot.name(),
            Self::Snapshot(_) => Rpc::DeleteSnapshot.name(),
            Self::Directory(_) => "rmdir",
        }
    }

    /// The command that undoes the step. If its call needs secrets, the user has to add them.
    fn command(&self, hidden: &Hidden) -> String {
        match self {
            Self::MaybeVolume(request) => {
                format!("# a volume named {} might exist", quoted(&hidden.scrub(&request.name)))
            }
            Self::Volume(request) => {
                line("csi controller delete-volume", &[("--volume-id", &request.volume_id)], hidden)
            }
            Self::Attached(request) => {
                let flags = [("--volume-id", &*request.volume_id), ("--node-id", &request.node_id)];
                line("csi controller unpublish-volume", &flags, hidden)
            }
            Self::Staged(request) => {
                let path = ("--staging-target-path", &*request.staging_target_path);
                line("csi node unstage-volume", &[("--volume-id", &request.volume_id), path], hidden)
            }
            Self::Published(request) => {
                let path = ("--target-path", &*request.target_path);
                line("csi node unpublish-volume", &[("--volume-id", &request.volume_id), path], hidden)
            }
            Self::MaybeSnapshot(request) => {
                format!("# a snapshot named {} might exist", quoted(&hidden.scrub(&request.name)))
            }
            Self::Snapshot(request) => {
                line("csi controller delete-snapshot", &[("--snapshot-id", &request.snapshot_id)], hidden)
            }
            Self::Directory(directory) => {
                format!("rmdir {}", quoted(&hidden.scrub(&directory.display().to_string())))
            }
        }
    }
}

/// A command to paste, with values that the driver chose. They are first redacted and then quoted.
fn line(command: &str, flags: &[(&str, &str)], hidden: &Hidden) -> String {
    let mut line = command.to_owned();
    for (flag, value) in flags {
        let value = hidden.scrub(value);
        let Some(word) = escape::shell_word(&value) else {
            // Quoted even in a comment, because not every shell accepts comments at its prompt.
            return format!("# no command can contain this {flag}: {}", quoted(&escape::terminal(&value)));
        };
        line = format!("{line} {flag} {word}");
    }
    line
}
