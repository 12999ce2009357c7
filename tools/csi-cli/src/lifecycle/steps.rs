//! The steps of a volume's life: calls that are made twice, timed, with a deadline, checked at the volume's paths,
//! reported as one line, and recorded so that they can be undone.

use std::path::Path;
use std::time::{Duration, Instant};

use csi_proto::client::{Target, explain};
use csi_proto::internal::{MakeCalls, Redactor, Undo};
use csi_proto::{Rpc, RpcRequest};
use tonic::Code;

use super::driver::Sockets;
use super::options::Options;
use super::report::{Report, Timing};
use super::target::{self, Content};
use super::undo::UndoLog;
use super::volume_spec::TargetChecks;
use crate::secrets;

/// Why a step failed.
#[derive(Debug, thiserror::Error)]
#[error("{step}: {reason}")]
pub struct Failure {
    /// The call, or another action.
    pub step: String,
    /// Why it failed, as text.
    pub reason: String,
    /// The driver's status code, if the driver refused the call.
    pub code: Option<Code>,
}

impl Failure {
    /// A failure other than a refusal by the driver.
    #[doc(hidden)]
    pub fn new(step: impl Into<String>, reason: impl Into<String>) -> Self {
        Self { step: step.into(), reason: reason.into(), code: None }
    }

    pub(crate) fn scrubbed(self, hidden: &Redactor) -> Self {
        Self { reason: hidden.scrub(&self.reason), ..self }
    }
}

/// The result of a step.
pub type Outcome<T> = Result<T, Failure>;

/// Makes the steps with one driver, and reports them.
pub(crate) struct Steps<'r> {
    sockets: Sockets,
    /// The deadline for each answer. If a driver hangs, the step fails.
    pub(crate) timeout: Duration,
    pub(crate) report: &'r mut Report,
    pub(crate) undo_log: &'r mut UndoLog,
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

impl<'r> Steps<'r> {
    pub(crate) fn new(options: &Options, report: &'r mut Report, undo_log: &'r mut UndoLog) -> Self {
        let timeout = options.timeout;
        let sockets = options.sockets.clone().deadline(timeout);
        let on_node = OnNode::new(TargetChecks::Off, Content::Files);
        Self { sockets, timeout, report, undo_log, on_node }
    }

    /// Makes a call twice and checks that both answers are equal. `text` checks the answer and describes it for
    /// the report.
    pub(crate) async fn make<R: RpcRequest>(
        &mut self,
        name: &str,
        request: R,
        text: impl FnOnce(&R::Answer) -> Result<String, String> + Send,
    ) -> Outcome<R::Answer> {
        self.undo_log.begins(&request);
        let (first, time) = self.timed(name, &request).await?;
        self.undo_log.answered(&request, &first);
        let again = self.timed(name, &request).await;
        let (second, again) = again.map_err(|failure| Failure {
            reason: format!("the second call failed: {}", failure.reason),
            ..failure
        })?;
        self.undo_log.answered(&request, &second);
        // A snapshot can become ready, and the usage can change, by itself.
        let may_differ = matches!(R::RPC, Rpc::CreateSnapshot | Rpc::NodeGetVolumeStats);
        if first != second && !may_differ {
            return Err(Failure::new(name, "the second call returned a different answer"));
        }
        let text = text(&second).map_err(|reason| Failure::new(name, reason))?;
        self.report.ok(name, &text, Timing { first: time, again: Some(again) });
        self.undo_log.succeeded(&request);
        Ok(second)
    }

    /// Makes a call once, without a line in the report.
    pub(crate) async fn timed<R: RpcRequest>(
        &self,
        name: &str,
        request: &R,
    ) -> Outcome<(R::Answer, Duration)> {
        let sent = secrets::with(&self.undo_log.secrets, request.clone());
        let start = Instant::now();
        match tokio::time::timeout(self.timeout, self.sockets.call(sent)).await {
            Ok(Ok(answer)) => Ok((answer, start.elapsed())),
            // The deadline sent to the driver also ends the wait on this side, with code CANCELLED.
            Ok(Err(status)) if status.code() != Code::Cancelled || start.elapsed() < self.timeout => {
                Err(Failure { code: Some(status.code()), ..Failure::new(name, explain(&status)) })
            }
            _ => Err(Failure {
                code: Some(Code::DeadlineExceeded),
                ..Failure::new(name, format!("no answer within {:?}", self.timeout))
            }),
        }
    }

    /// Runs and reports an action that is not a call, once.
    pub(crate) async fn check(
        &mut self,
        name: &str,
        work: impl FnOnce() -> Result<String, String> + Send + 'static,
    ) -> Outcome<()> {
        let start = Instant::now();
        let text = self.on_own_thread(name, work).await?;
        self.report.ok(name, &text, Timing { first: start.elapsed(), again: None });
        Ok(())
    }

    /// Runs work that can hang on a dead volume on its own thread, and gives it up at the deadline. The
    /// thread then remains, so the runtime must be shut down without waiting for it.
    pub(crate) async fn on_own_thread<T: Send + 'static>(
        &self,
        name: &str,
        work: impl FnOnce() -> Result<T, String> + Send + 'static,
    ) -> Outcome<T> {
        match tokio::time::timeout(self.timeout, tokio::task::spawn_blocking(work)).await {
            Ok(Ok(done)) => done.map_err(|reason| Failure::new(name, reason)),
            Ok(Err(_)) => Err(Failure::new(name, "internal error of this program")),
            Err(_) => {
                let reason = format!("the volume does not answer within {:?}", self.timeout);
                Err(Failure { code: Some(Code::DeadlineExceeded), ..Failure::new(name, reason) })
            }
        }
    }
}

impl MakeCalls for Steps<'_> {
    type Error = Failure;

    async fn make_call<R: RpcRequest>(&mut self, request: R) -> Outcome<R::Answer> {
        let mut on_node = self.on_node.clone();
        let sent = request.clone();
        let text = |_: &R::Answer| on_node.checked(&sent);
        let answer = self.make(R::RPC.name(), request, text).await?;
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
