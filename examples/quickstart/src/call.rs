//! A call to the driver: made twice, timed, bounded, and reported as one line.

use std::time::{Duration, Instant};

use csi_core::client::Client;
use tonic::{Code, Response, Status};

use crate::report::{Report, Timing};

/// How long an answer may take; a driver that hangs is a step that failed.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);

/// Why a step failed.
#[derive(Debug)]
pub(crate) struct Failure {
    /// The call, or what else was done.
    pub(crate) step: String,
    pub(crate) reason: String,
    /// The driver's code, if it is the driver that refused.
    pub(crate) code: Option<Code>,
}

impl Failure {
    pub(crate) fn new(step: impl Into<String>, reason: impl Into<String>) -> Self {
        Self { step: step.into(), reason: reason.into(), code: None }
    }

    fn refused(step: &str, status: &Status) -> Self {
        let reason = format!("{:?}: {}", status.code(), status.message());
        Self { step: step.to_owned(), reason, code: Some(status.code()) }
    }
}

pub(crate) type Outcome<T> = Result<T, Failure>;

/// Makes calls to one driver, and reports them.
pub(crate) struct Caller<'r> {
    client: Client,
    pub(crate) report: &'r mut Report,
}

impl<'r> Caller<'r> {
    pub(crate) fn new(client: Client, report: &'r mut Report) -> Self {
        Self { client, report }
    }

    /// Makes the call twice, sees that the answers are the same, and reports what `text` makes of the answer, which
    /// is where the answer is looked at too.
    pub(crate) async fn step<Q: Clone, A: PartialEq>(
        &mut self,
        name: &str,
        request: &Q,
        call: impl AsyncFn(Client, Q) -> Result<Response<A>, Status>,
        text: impl FnOnce(&A) -> Result<String, String>,
    ) -> Outcome<A> {
        let (first, second, timing) = self.twice(name, request, call).await?;
        if first != second {
            return Err(Failure::new(name, "the second time the answer is another one"));
        }
        let text = text(&first).map_err(|reason| Failure::new(name, reason))?;
        self.report.ok(name, &text, timing);
        Ok(first)
    }

    /// As [`step`](Self::step), for an answer that may change by itself.
    pub(crate) async fn ask<Q: Clone, A>(
        &mut self,
        name: &str,
        request: &Q,
        call: impl AsyncFn(Client, Q) -> Result<Response<A>, Status>,
        text: impl FnOnce(&A) -> Result<String, String>,
    ) -> Outcome<A> {
        let (_, second, timing) = self.twice(name, request, call).await?;
        let text = text(&second).map_err(|reason| Failure::new(name, reason))?;
        self.report.ok(name, &text, timing);
        Ok(second)
    }

    async fn twice<Q: Clone, A>(
        &self,
        name: &str,
        request: &Q,
        call: impl AsyncFn(Client, Q) -> Result<Response<A>, Status>,
    ) -> Outcome<(A, A, Timing)> {
        let (first, time) = bounded(name, call(self.client.clone(), request.clone())).await?;
        let again = bounded(name, call(self.client.clone(), request.clone())).await;
        let (second, again) = again.map_err(|failure| Failure {
            reason: format!("the second time, with the first gone well: {}", failure.reason),
            ..failure
        })?;
        Ok((first, second, Timing { first: time, again: Some(again) }))
    }

    /// Does something else than a call, once.
    pub(crate) fn look(&mut self, name: &str, work: impl FnOnce() -> Result<String, String>) -> Outcome<()> {
        let (done, timing) = Timing::of(work);
        let text = done.map_err(|reason| Failure::new(name, reason))?;
        self.report.ok(name, &text, timing);
        Ok(())
    }
}

async fn bounded<A>(
    name: &str,
    call: impl Future<Output = Result<Response<A>, Status>>,
) -> Outcome<(A, Duration)> {
    let start = Instant::now();
    match tokio::time::timeout(PATIENCE, call).await {
        Ok(Ok(answer)) => Ok((answer.into_inner(), start.elapsed())),
        Ok(Err(status)) => Err(Failure::refused(name, &status)),
        Err(_) => Err(Failure::new(name, format!("no answer within {PATIENCE:?}"))),
    }
}
