//! Repeats calls until a state is reached, for at most the deadline of one call.

use std::time::Duration;

use tokio::time::Instant;
use tonic::Code;

use crate::context::TestContext;
use crate::failure::Outcome;
use csi_proto::RpcRequest;

/// Counts the calls, and limits the time for them.
pub(crate) struct Retries {
    rounds: u32,
    since: Instant,
    most: Duration,
}

impl TestContext {
    /// Starts the time now.
    pub(crate) fn retries(&self) -> Retries {
        Retries { rounds: 0, since: Instant::now(), most: self.settings.deadline }
    }
}

impl Retries {
    /// Waits before the next call, longer each time. Returns false when the time is over.
    pub(crate) async fn again(&mut self) -> bool {
        if self.since.elapsed() >= self.most {
            return false;
        }
        // The first two retries come at once: the state is often reached by then.
        let millis = (u64::from(self.rounds).saturating_sub(1) * 20).min(500);
        tokio::time::sleep(Duration::from_millis(millis)).await;
        self.rounds += 1;
        true
    }

    /// The repeated answer as text, with the number of calls and the time.
    pub(crate) fn describe(&self, came: &str) -> String {
        format!("{came}, {} times in {:.0} s", self.rounds + 1, self.since.elapsed().as_secs_f64())
    }
}

/// Whether a refusal with this code asks the caller to retry later.
pub(crate) fn is_retryable(code: Code) -> bool {
    matches!(code, Code::Aborted | Code::Unavailable | Code::DeadlineExceeded | Code::ResourceExhausted)
}

/// Repeats the call while it is refused because of other operations in progress, as a caller does.
pub(crate) async fn call_with_retries<C: RpcRequest>(ctx: &TestContext, request: C) -> Outcome<C::Answer> {
    let mut wait = ctx.retries();
    loop {
        match ctx.call(request.clone()).await {
            Ok(answer) => return Ok(answer),
            Err(refusal)
                if matches!(refusal.code, Code::Aborted | Code::Unavailable) && wait.again().await => {}
            Err(refusal) => {
                let due = "OK after the pending operation has ended";
                let mut failure = ctx.unexpected(&request, &refusal, due);
                failure.actual = wait.describe(&failure.actual);
                return Err(failure);
            }
        }
    }
}

/// Sends all requests at the same time, and repeats those that were refused because others were running.
/// Returns the answers in the order of the requests.
pub(crate) async fn call_all_at_once<C: RpcRequest>(
    ctx: &TestContext,
    requests: Vec<C>,
) -> Outcome<Vec<C::Answer>> {
    let mut all = Vec::new();
    for (request, answer) in requests.clone().into_iter().zip(ctx.at_once(requests).await) {
        all.push(match answer {
            Ok(answer) => answer,
            Err(refusal) if is_retryable(refusal.code) => call_with_retries(ctx, request).await?,
            Err(refusal) => {
                let due = "OK, or ABORTED while another operation is pending";
                return Err(ctx.unexpected(&request, &refusal, due));
            }
        });
    }
    Ok(all)
}
