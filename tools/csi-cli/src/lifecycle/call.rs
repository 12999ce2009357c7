//! A call to the driver: made twice, timed, with a deadline, and reported as one line.

use std::time::{Duration, Instant};

use csi_proto::client::explain;
use csi_proto::{Redactor, RpcRequest};
use tonic::{Code, Status};

use super::driver::Sockets;
use super::options::Options;
use super::report::{Report, Timing};

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

    fn refused(step: &str, status: &Status) -> Self {
        Self { step: step.to_owned(), reason: explain(status), code: Some(status.code()) }
    }
}

/// The result of a step.
pub type Outcome<T> = Result<T, Failure>;

/// Makes calls to one driver, and reports them.
#[derive(Debug)]
pub(crate) struct Caller<'r> {
    sockets: Sockets,
    timeout: Duration,
    pub(crate) report: &'r mut Report,
}

impl<'r> Caller<'r> {
    /// A caller with this deadline for each answer. If a driver hangs, the step fails.
    pub(crate) fn new(options: &Options, report: &'r mut Report) -> Self {
        let timeout = options.timeout;
        Self { sockets: options.sockets.clone().deadline(timeout), timeout, report }
    }

    /// Makes the call twice and checks that both answers are equal. `text` checks the answer and describes it
    /// for the report.
    pub(crate) async fn step<R: RpcRequest>(
        &mut self,
        name: &str,
        request: &R,
        text: impl FnOnce(&R::Answer) -> Result<String, String>,
    ) -> Outcome<R::Answer> {
        self.twice(name, request, Repeat::Equal, |_| {}, text).await
    }

    /// The same for a repeated answer that is allowed to differ, and with a function that sees each answer at
    /// once.
    pub(crate) async fn twice<R: RpcRequest>(
        &mut self,
        name: &str,
        request: &R,
        repeat: Repeat,
        mut seen: impl FnMut(&R::Answer),
        text: impl FnOnce(&R::Answer) -> Result<String, String>,
    ) -> Outcome<R::Answer> {
        let (first, time) = self.with_timeout(name, request).await?;
        seen(&first);
        let again = self.with_timeout(name, request).await;
        let (second, again) = again.map_err(|failure| Failure {
            reason: format!("the second call failed: {}", failure.reason),
            ..failure
        })?;
        seen(&second);
        if repeat == Repeat::Equal && first != second {
            return Err(Failure::new(name, "the second call returned a different answer"));
        }
        let text = text(&second).map_err(|reason| Failure::new(name, reason))?;
        self.report.ok(name, &text, Timing { first: time, again: Some(again) });
        Ok(second)
    }

    pub(crate) fn timeout(&self) -> Duration {
        self.timeout
    }

    /// Makes the call once, without a line in the report.
    pub(crate) async fn unreported<R: RpcRequest>(&self, request: &R) -> Outcome<R::Answer> {
        self.with_timeout(R::RPC.name(), request).await.map(|(answer, _)| answer)
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

    async fn with_timeout<R: RpcRequest>(&self, name: &str, request: &R) -> Outcome<(R::Answer, Duration)> {
        let start = Instant::now();
        match tokio::time::timeout(self.timeout, self.sockets.call(request.clone())).await {
            Ok(Ok(answer)) => Ok((answer, start.elapsed())),
            // The deadline sent to the driver also ends the wait on this side, with code CANCELLED.
            Ok(Err(status)) if status.code() != Code::Cancelled || start.elapsed() < self.timeout => {
                Err(Failure::refused(name, &status))
            }
            _ => Err(Failure {
                code: Some(Code::DeadlineExceeded),
                ..Failure::new(name, format!("no answer within {:?}", self.timeout))
            }),
        }
    }
}

/// Whether the answer to a repeated call has to be equal to the first one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Repeat {
    Equal,
    /// It can change by itself.
    MayDiffer,
}
