//! A run: the tests one after the other, and the clean-up after each.

use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::task::Poll;
use std::time::Instant;

use csi_proto::{escape, v1};
use tonic::Code;

use crate::clean_up::clean_up;
use crate::context::{NAMES, TestContext};
use crate::failure::{Failure, Outcome};
use crate::kit::Kit;
use crate::report::{Entry, Report, Verdict};
use crate::test::{Level, Test};

/// The run could not take place, so it says nothing about the driver.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{}", escape::terminal(.0))]
pub struct CouldNotRun(pub(crate) String);

/// The progress of a run, for a watcher.
#[derive(Debug)]
#[non_exhaustive]
pub enum Progress<'a> {
    /// A test begins; its number, and the number of all tests.
    Begins(&'a Test, usize, usize),
    /// A test has ended.
    Ended(&'a Entry),
}

impl Kit {
    /// Runs the tests and undoes what they created.
    ///
    /// # Errors
    /// When the driver does not become ready, or does not report its capabilities.
    pub async fn run(self) -> Result<Report, CouldNotRun> {
        self.run_until(std::future::pending(), |_| {}).await
    }

    /// Runs the tests like [`run`](Self::run), reports the progress to `watch`, and stops when `stop` completes.
    /// What the current test created is undone then, and the report has the tests that ended before.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    pub async fn run_until(
        self,
        stop: impl Future<Output = ()>,
        mut watch: impl FnMut(Progress<'_>),
    ) -> Result<Report, CouldNotRun> {
        let tests = self.tests();
        if tests.is_empty() {
            return Err(CouldNotRun("no test matches the filters".to_owned()));
        }
        let mut stop = pin!(stop);
        let ctx = tokio::select! {
            ctx = self.discover() => ctx?,
            () = &mut stop => return Err(self.stopped_early().await),
        };
        let mut entries = Vec::new();
        let mut stopped = false;
        let start = Instant::now();
        for (at, test) in tests.iter().enumerate() {
            watch(Progress::Begins(test, at + 1, tests.len()));
            let (mut entry, mut is_stopped) = run_one(&ctx, test, stop.as_mut()).await;
            if !is_stopped && let Verdict::Failed(failure) = &mut entry.verdict {
                tokio::select! {
                    answers = answers(&ctx) => if !answers {
                        failure.actual.push_str(GONE);
                        is_stopped = true;
                    },
                    () = &mut stop => is_stopped = true,
                }
            }
            watch(Progress::Ended(&entry));
            entries.push(entry);
            if let Some(error) = ctx.ledger.trouble() {
                let words = "the journal can't be written, and without it a run that is killed leaves its objects \
                             behind: make room, or name another journal";
                return Err(CouldNotRun(format!("{words}: {error}")));
            }
            stopped = is_stopped;
            if stopped {
                break;
            }
        }
        let Self(settings) = self;
        Ok(Report {
            driver: ctx.offers.driver.clone(),
            version: ctx.offers.version.clone(),
            entries,
            strict: settings.strict,
            stopped,
            took: start.elapsed(),
        })
    }

    /// Before the first test there is nothing to report. What was created to learn the driver's capabilities
    /// is in the journal. Without that, no driver is needed any more.
    pub(crate) async fn stopped_early(self) -> CouldNotRun {
        let left = match self.ledger().await.map(|ledger| ledger.all().is_empty()) {
            Ok(true) => Ok(vec![]),
            Ok(false) => self.clean_up().await,
            Err(error) => Err(error),
        };
        match left {
            Ok(left) => {
                let left = left.iter().map(|what| format!("; not undone: {what}")).collect::<String>();
                CouldNotRun(format!("stopped before the first test{left}"))
            }
            Err(error) => error,
        }
    }

    /// Cleans up after a run that died: undoes what its journal lists. Returns what could not be undone.
    ///
    /// # Errors
    /// When the journal can't be read, or the driver does not become ready. Without a journal nothing is undone.
    pub async fn clean_up(self) -> Result<Vec<String>, CouldNotRun> {
        let ctx = self.connected().await?;
        let mut left = clean_up(&ctx).await;
        crate::clean_up::remove_staging(&ctx, NAMES);
        left.extend(crate::own_mount::unmount_left(&ctx, NAMES));
        Ok(left)
    }
}

/// Added to the failure of the test in which the driver died.
const GONE: &str = "; then the driver did not answer any more, and the run was ended: start the driver, look at its \
                    log, and clean up after this run";

/// Whether the driver answers, also after a restart. Without it every other test would fail, each after its deadline.
async fn answers(ctx: &TestContext) -> bool {
    let mut wait = ctx.retries();
    loop {
        let silent = [Code::Unavailable, Code::DeadlineExceeded, Code::Cancelled, Code::Unknown];
        match ctx.call(v1::ProbeRequest {}).await {
            Err(refusal) if silent.contains(&refusal.code) => {}
            _ => return true,
        }
        if !wait.again().await {
            return false;
        }
    }
}

/// Turns a panic into a failure of the test, so that its objects are undone and the other tests run.
async fn caught(test: impl Future<Output = Outcome>) -> Outcome {
    let mut test = pin!(test);
    poll_fn(|context| match catch_unwind(AssertUnwindSafe(|| test.as_mut().poll(context))) {
        Ok(poll) => poll,
        Err(panic) => {
            let words = panic.downcast_ref::<String>().cloned();
            let words = words.or(panic.downcast_ref::<&str>().map(|&words| words.to_owned()));
            let came = format!("internal error of this kit: {}", words.unwrap_or_default());
            Poll::Ready(Err(Box::new(Failure::new("a result of the test", came))))
        }
    })
    .await
}

/// Runs one test. Returns its entry, and whether it was stopped.
async fn run_one(ctx: &TestContext, test: &Test, stop: Pin<&mut impl Future<Output = ()>>) -> (Entry, bool) {
    let start = Instant::now();
    let ((verdict, level), is_stopped) =
        match test.needs.iter().find_map(|need| crate::needs::lacking(ctx, *need)) {
            Some(reason) => ((Verdict::DoesNotApply(reason), test.level), false),
            None => {
                ctx.trace.clear();
                let outcome = tokio::select! {
                    biased;
                    () = stop => None,
                    outcome = caught((test.run)(ctx)) => Some(outcome),
                };
                let is_stopped = outcome.is_none();
                (concluded(ctx, test.level, outcome).await, is_stopped)
            }
        };
    (Entry { test: test.clone(), level, verdict, took: start.elapsed() }, is_stopped)
}

/// Undoes what the test created, and decides its verdict and level. Whatever the test is about, objects that
/// can't be undone break a MUST.
async fn concluded(ctx: &TestContext, level: Level, outcome: Option<Outcome>) -> (Verdict, Level) {
    let calls = ctx.trace.text();
    let last = ctx.trace.last();
    let left = clean_up(ctx).await;
    let level = if left.is_empty() { level } else { Level::Must };
    let verdict = match outcome {
        Some(Err(failure)) if failure.lacks_room && left.is_empty() => {
            Verdict::DoesNotApply(format!("the driver has no room for it: {}", failure.actual))
        }
        Some(Err(failure)) => {
            let mut failure = Failure { calls, ..*failure };
            if let Some((rpc, bytes)) = last.filter(|_| failure.sent.is_empty()) {
                failure.sent = ctx.redacted_request(rpc, &bytes);
            }
            for what in &left {
                failure.actual += &format!("; not undone: {what}");
            }
            Verdict::Failed(failure)
        }
        _ if !left.is_empty() => {
            Verdict::Failed(Failure::new("everything that the test created can be undone", left.join("; ")))
        }
        Some(Ok(())) => Verdict::Passed,
        None => Verdict::DoesNotApply("the run was stopped".to_owned()),
    };
    (verdict, level)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_test_that_panics_has_failed() {
        let failure = caught(async { panic!("at the disco") }).await.unwrap_err();
        assert!(failure.actual.contains("at the disco"), "{failure}");
        assert!(caught(async { Ok(()) }).await.is_ok());
    }
}
