//! The ledger of what was begun and has to be undone.

use std::path::{Path, PathBuf};
use std::time::Duration;

use csi_core::Rpc;
use csi_core::client::is_final;
use csi_proto::{escape, v1};
use tokio::time::{Instant, sleep};
use tonic::{Code, Status};

use super::call::Sockets;
use crate::secrets::{Hidden, Secrets};

/// The time limit for undoing one step.
const PATIENCE: Duration = Duration::from_secs(60);
/// The wait before a driver is called again that is still busy with an abandoned call.
const PAUSE: Duration = Duration::from_millis(200);

/// Something that was begun, as the request that undoes it.
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
pub struct Begun {
    steps: Vec<Step>,
    /// The secrets for the calls that undo.
    pub(crate) secrets: Secrets,
}

/// The result of [`Begun::undo`].
#[derive(Debug, Default)]
pub struct Undone {
    /// What was undone.
    pub done: Vec<String>,
    /// What could not be undone, and why.
    pub failed: Vec<String>,
    /// The commands that undo the rest, in order.
    pub left: Vec<String>,
}

impl Begun {
    /// Whether there is nothing to undo.
    pub fn is_empty(&self) -> bool {
        self.steps.is_empty()
    }

    pub(crate) fn begin(&mut self, step: Step) {
        if !self.steps.contains(&step) {
            self.steps.push(step);
        }
    }

    pub(crate) fn is_over(&mut self, step: &Step) {
        self.steps.retain(|one| one != step);
    }

    /// Called when the volume's id is known.
    pub(crate) fn know_volume(&mut self, volume_id: &str) {
        let secrets = self.secrets.of(Rpc::DeleteVolume);
        let known = Step::Volume(v1::DeleteVolumeRequest { volume_id: volume_id.to_owned(), secrets });
        self.know(|step| matches!(step, Step::MaybeVolume(_)), known);
    }

    /// Called when the snapshot's id is known.
    pub(crate) fn know_snapshot(&mut self, snapshot_id: &str) {
        let secrets = self.secrets.of(Rpc::DeleteSnapshot);
        let known =
            Step::Snapshot(v1::DeleteSnapshotRequest { snapshot_id: snapshot_id.to_owned(), secrets });
        self.know(|step| matches!(step, Step::MaybeSnapshot(_)), known);
    }

    fn know(&mut self, is_it: impl Fn(&Step) -> bool, known: Step) {
        if let Some(step) = self.steps.iter_mut().find(|step| is_it(step)) {
            *step = known;
        }
    }

    /// Undoes everything, the last step first. A step is skipped if another one that depends on it could not
    /// be undone. Steps that are not undone stay recorded, and the next call continues with them.
    pub async fn undo(&mut self, sockets: &Sockets) -> Undone {
        let sockets = sockets.clone().deadline(PATIENCE);
        let hidden = self.secrets.hidden();
        let mut undone = Undone::default();
        // If the caller drops this future midway, the steps that are not undone are still recorded.
        let mut stuck: Vec<Step> = Vec::new();
        while let Some(step) = self.steps.iter().rfind(|step| !stuck.contains(step)).cloned() {
            if stuck.iter().any(|above| above.rests_on(&step)) {
                stuck.push(step);
                continue;
            }
            match self.patiently(&sockets, &step).await {
                Ok(what) => {
                    undone.done.extend(what);
                    self.is_over(&step);
                }
                Err(reason) => {
                    undone.failed.push(hidden.scrub(&format!("{}: {reason}", step.call())));
                    stuck.push(step);
                }
            }
        }
        undone.left = self.commands();
        undone
    }

    /// The commands that undo the rest, without running them.
    pub fn kept(&self) -> Undone {
        Undone { left: self.commands(), ..Undone::default() }
    }

    fn commands(&self) -> Vec<String> {
        let hidden = self.secrets.hidden();
        self.steps.iter().rev().map(|step| step.command(&hidden)).collect()
    }

    /// Repeats the call while the driver is busy, for example with an abandoned call.
    async fn patiently(&mut self, sockets: &Sockets, step: &Step) -> Result<Option<String>, String> {
        if let Step::Directory(directory) = step {
            return remove(directory).map(|()| None);
        }
        let end = Instant::now() + PATIENCE;
        loop {
            match self.take_back(sockets, step).await {
                Err(status) if status.code() == Code::NotFound => return Ok(None),
                Err(status) if is_passing(&status) && Instant::now() < end => sleep(PAUSE).await,
                result => return result.map_err(|status| csi_core::client::explain(&status)),
            }
        }
    }

    async fn take_back(&mut self, sockets: &Sockets, step: &Step) -> Result<Option<String>, Status> {
        Ok(Some(match step.clone() {
            Step::Published(request) => {
                let what = format!("unpublished {}", request.target_path);
                sockets.node().node_unpublish_volume(request).await.map(|_| what)?
            }
            Step::Staged(request) => {
                let what = format!("unstaged {}", request.staging_target_path);
                sockets.node().node_unstage_volume(request).await.map(|_| what)?
            }
            Step::Attached(request) => {
                let what = format!("detached {}", request.volume_id);
                sockets.controller().controller_unpublish_volume(request).await.map(|_| what)?
            }
            Step::Snapshot(request) => {
                let what = format!("deleted snapshot {}", request.snapshot_id);
                sockets.controller().delete_snapshot(request).await.map(|_| what)?
            }
            Step::Volume(request) => {
                let what = format!("deleted volume {}", request.volume_id);
                sockets.controller().delete_volume(request).await.map(|_| what)?
            }
            Step::MaybeVolume(request) => {
                return self.find(sockets.controller().create_volume(request).await, |begun, answer| {
                    begun.know_volume(&answer.volume.unwrap_or_default().volume_id);
                });
            }
            Step::MaybeSnapshot(request) => {
                return self.find(sockets.controller().create_snapshot(request).await, |begun, answer| {
                    begun.know_snapshot(&answer.snapshot.unwrap_or_default().snapshot_id);
                });
            }
            Step::Directory(_) => return Ok(None),
        }))
    }

    /// Evaluates the answer to a repeated create request. After a final refusal nothing exists.
    fn find<A>(
        &mut self,
        answer: Result<tonic::Response<A>, Status>,
        know: impl FnOnce(&mut Self, A),
    ) -> Result<Option<String>, Status> {
        match answer {
            Ok(answer) => {
                know(self, answer.into_inner());
                Ok(None)
            }
            Err(status) if is_final(status.code()) => Ok(None),
            Err(status) => Err(status),
        }
    }

    /// Creates a directory and records it, unless it exists.
    pub(crate) fn make_directory(&mut self, directory: PathBuf) -> std::io::Result<()> {
        match std::fs::create_dir(&directory) {
            Ok(()) => self.begin(Step::Directory(directory)),
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
                self.is_over(step);
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
fn is_passing(status: &Status) -> bool {
    let is_passing =
        matches!(status.code(), Code::Aborted | Code::Unavailable | Code::DeadlineExceeded | Code::Cancelled);
    is_passing && !is_unreachable(status)
}

/// Whether the call did not reach the driver.
fn is_unreachable(status: &Status) -> bool {
    std::error::Error::source(status).is_some()
}

impl Step {
    /// Whether this step has to be undone before `below`.
    fn rests_on(&self, below: &Self) -> bool {
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
