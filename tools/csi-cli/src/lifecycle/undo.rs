//! The log of the steps that have to be undone. It sees each call and each answer, so no step records itself.

use std::path::{Path, PathBuf};
use std::time::Duration;

use csi_proto::internal::{Redactor, Undo, is_final};
use csi_proto::{Pairs, RpcRequest, escape};
use tokio::time::{Instant, sleep};
use tonic::{Code, Status};

use super::driver::Sockets;
use crate::secrets;

const UNDO_TIMEOUT: Duration = Duration::from_secs(60);
/// The wait before a driver is called again that is still busy with an abandoned call.
const RETRY_DELAY: Duration = Duration::from_millis(200);

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Step {
    /// Begun by a call. The secrets are added to the call that undoes it.
    Call(Undo),
    Directory(PathBuf),
}

/// The requests that have not been undone yet, in their order. Each is recorded before its call, so that an
/// interrupted call is recorded too.
#[derive(Debug, Default)]
pub struct UndoLog {
    steps: Vec<Step>,
    pub(crate) secrets: Pairs,
}

#[derive(Debug, Default)]
pub(crate) struct UndoResult {
    pub(crate) done: Vec<String>,
    /// What could not be undone, and why.
    pub(crate) failed: Vec<String>,
    /// The commands that undo the rest, in order.
    pub(crate) left: Vec<String>,
}

impl UndoLog {
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
        if let Some(undo) = request.undo(None) {
            self.record(Step::Call(undo));
        }
    }

    /// Called for each answer: the id of what was created is known then.
    pub(crate) fn answered<R: RpcRequest>(&mut self, request: &R, answer: &R::Answer) {
        let begun = request.undo(None).map(Step::Call);
        let Some(undo) = request.undo(Some(answer)) else { return };
        if let Some(step) = self.steps.iter_mut().find(|step| Some(&**step) == begun.as_ref()) {
            *step = Step::Call(undo);
        }
    }

    /// Called after a call has succeeded: it can have undone a step.
    pub(crate) fn succeeded<R: RpcRequest>(&mut self, request: &R) {
        if let Some(undo) = request.as_undo() {
            self.forget(&Step::Call(undo));
        }
    }

    /// Undoes everything, the last step first. A step is skipped if another one that depends on it could not
    /// be undone. Steps that are not undone stay recorded, and the next call continues with them.
    pub(crate) async fn undo(&mut self, sockets: &Sockets) -> UndoResult {
        let sockets = sockets.clone().deadline(UNDO_TIMEOUT);
        let hidden = secrets::hidden(&self.secrets);
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
    #[cfg(feature = "program")]
    pub(crate) fn kept(&self) -> UndoResult {
        UndoResult { left: self.commands(), ..UndoResult::default() }
    }

    fn commands(&self) -> Vec<String> {
        let hidden = secrets::hidden(&self.secrets);
        self.steps.iter().rev().map(|step| step.command(&hidden)).collect()
    }

    /// Repeats the call while the driver is busy, for example with an abandoned call.
    async fn undo_with_retries(&mut self, sockets: &Sockets, step: &Step) -> Result<Option<String>, String> {
        let undo = match step {
            Step::Directory(directory) => return remove(directory).map(|()| None),
            Step::Call(undo) => undo,
        };
        let end = Instant::now() + UNDO_TIMEOUT;
        loop {
            match self.call(sockets, undo.clone()).await {
                Err(status) if status.code() == Code::NotFound => return Ok(None),
                Err(status) if can_succeed_later(&status) && Instant::now() < end => sleep(RETRY_DELAY).await,
                result => return result.map_err(|status| csi_proto::client::explain(&status)),
            }
        }
    }

    /// Makes the call, and says what it undid.
    async fn call(&mut self, sockets: &Sockets, undo: Undo) -> Result<Option<String>, Status> {
        let undone = match &undo {
            Undo::Unpublish(request) => format!("unpublished {}", request.target_path),
            Undo::Unstage(request) => format!("unstaged {}", request.staging_target_path),
            Undo::Detach(request) => format!("detached {}", request.volume_id),
            Undo::DeleteSnapshot(request) => format!("deleted snapshot {}", request.snapshot_id),
            Undo::DeleteVolume(request) => format!("deleted volume {}", request.volume_id),
            _ => String::new(),
        };
        match undo {
            Undo::Unpublish(request) => self.send(sockets, request).await?,
            Undo::Unstage(request) => self.send(sockets, request).await?,
            Undo::Detach(request) => self.send(sockets, request).await?,
            Undo::DeleteSnapshot(request) => self.send(sockets, request).await?,
            Undo::DeleteVolume(request) => self.send(sockets, request).await?,
            Undo::FindVolume(request) => return self.look_for(sockets, request).await.map(|()| None),
            Undo::FindSnapshot(request) => return self.look_for(sockets, request).await.map(|()| None),
        }
        Ok(Some(undone))
    }

    async fn send<R: RpcRequest>(&self, sockets: &Sockets, request: R) -> Result<(), Status> {
        sockets.call(secrets::with(&self.secrets, request)).await.map(drop)
    }

    /// Repeats a create request, whose answer has the id. After a final refusal nothing exists.
    async fn look_for<R: RpcRequest>(&mut self, sockets: &Sockets, request: R) -> Result<(), Status> {
        match sockets.call(secrets::with(&self.secrets, request.clone())).await {
            Ok(answer) => self.answered(&request, &answer),
            Err(status) if is_final(status.code()) => {}
            Err(status) => return Err(status),
        }
        Ok(())
    }

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

fn remove(directory: &Path) -> Result<(), String> {
    match std::fs::remove_dir(directory) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(format!("{}: {error}", directory.display()))
        }
        _ => Ok(()),
    }
}

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
    fn depends_on(&self, below: &Self) -> bool {
        let (Self::Call(above), Self::Call(below)) = (self, below) else { return false };
        match above {
            Undo::Unpublish(_) => {
                matches!(below, Undo::Unstage(_) | Undo::Detach(_) | Undo::DeleteVolume(_))
            }
            Undo::Unstage(_) => matches!(below, Undo::Detach(_) | Undo::DeleteVolume(_)),
            Undo::Detach(_) => matches!(below, Undo::DeleteVolume(_)),
            // The driver decides whether a volume can be deleted before its snapshots.
            _ => false,
        }
    }

    fn call(&self) -> &'static str {
        match self {
            Self::Call(undo) => undo.rpc().name(),
            Self::Directory(_) => "rmdir",
        }
    }

    /// The command that undoes the step. If its call needs secrets, the user has to add them.
    fn command(&self, hidden: &Redactor) -> String {
        let undo = match self {
            Self::Directory(directory) => {
                return format!("rmdir {}", quoted(&hidden.scrub(&directory.display().to_string())));
            }
            Self::Call(undo) => undo,
        };
        let (command, flags) = match undo {
            Undo::FindVolume(request) => {
                return format!("# a volume named {} might exist", quoted(&hidden.scrub(&request.name)));
            }
            Undo::FindSnapshot(request) => {
                return format!("# a snapshot named {} might exist", quoted(&hidden.scrub(&request.name)));
            }
            Undo::DeleteVolume(request) => {
                ("controller delete-volume", vec![("--volume-id", &request.volume_id)])
            }
            Undo::DeleteSnapshot(request) => {
                ("controller delete-snapshot", vec![("--snapshot-id", &request.snapshot_id)])
            }
            Undo::Detach(request) => {
                let node_id = ("--node-id", &request.node_id);
                ("controller unpublish-volume", vec![("--volume-id", &request.volume_id), node_id])
            }
            Undo::Unstage(request) => {
                let path = ("--staging-target-path", &request.staging_target_path);
                ("node unstage-volume", vec![("--volume-id", &request.volume_id), path])
            }
            Undo::Unpublish(request) => {
                let path = ("--target-path", &request.target_path);
                ("node unpublish-volume", vec![("--volume-id", &request.volume_id), path])
            }
        };
        line(command, &flags, hidden)
    }
}

/// A command to paste, with values that the driver chose. They are first redacted and then quoted.
fn line(command: &str, flags: &[(&str, &String)], hidden: &Redactor) -> String {
    let mut line = format!("csi {command}");
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
