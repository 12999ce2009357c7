//! A run: the tests one after the other, and what undoes them.

use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::task::Poll;
use std::time::Instant;

use crate::clean_up::clean_up;
use crate::cx::Cx;
use crate::failure::{Failure, Outcome};
use crate::kit::Kit;
use crate::report::{Entry, Report, Verdict};
use crate::test::Test;

/// The run could not take place; nothing is said about the driver.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{0}")]
pub struct CouldNotRun(pub(crate) String);

/// How a run goes on, for whoever watches it.
#[derive(Debug)]
#[non_exhaustive]
pub enum Progress<'a> {
    /// The test with this number of so many begins.
    Begins(&'a Test, usize, usize),
    /// It is over.
    Ended(&'a Entry),
}

impl Kit {
    /// Runs the tests and undoes what they made.
    ///
    /// # Errors
    /// When the driver does not become ready, or does not say what it can do.
    pub async fn run(self) -> Result<Report, CouldNotRun> {
        self.run_watched(|_| {}).await
    }

    /// The same, watched.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    pub async fn run_watched(self, mut watch: impl FnMut(Progress<'_>)) -> Result<Report, CouldNotRun> {
        let tests = self.tests();
        if tests.is_empty() {
            return Err(CouldNotRun("no test fits the filters".to_owned()));
        }
        let cx = self.meet().await?;
        let (mut entries, start) = (Vec::new(), Instant::now());
        for (at, test) in tests.iter().enumerate() {
            watch(Progress::Begins(test, at + 1, tests.len()));
            let entry = run_one(&cx, test).await;
            watch(Progress::Ended(&entry));
            entries.push(entry);
            if let Some(error) = cx.ledger.trouble() {
                let words = "what is made could not be noted, and would be left behind if this run died";
                return Err(CouldNotRun(format!("{words}: {error}")));
            }
        }
        let Self(settings) = self;
        Ok(Report {
            driver: cx.offers.driver.clone(),
            version: cx.offers.version.clone(),
            endpoint: settings.endpoint.to_string(),
            entries,
            took: start.elapsed(),
        })
    }

    /// Finishes a run that died: undoes what its journal names. Answers with what could not be undone.
    ///
    /// # Errors
    /// When there is no journal to read, or the driver does not become ready.
    pub async fn clean_up(self) -> Result<Vec<String>, CouldNotRun> {
        let cx = self.connected().await?;
        let left = clean_up(&cx).await;
        crate::clean_up::remove_staging(&cx, crate::cx::NAMES);
        Ok(left)
    }
}

/// A test that panics has failed like any other: what it made is undone, and the others run.
async fn caught(test: impl Future<Output = Outcome>) -> Outcome {
    let mut test = pin!(test);
    poll_fn(|context| match catch_unwind(AssertUnwindSafe(|| test.as_mut().poll(context))) {
        Ok(poll) => poll,
        Err(panic) => {
            let words = panic.downcast_ref::<String>().cloned();
            let words = words.or(panic.downcast_ref::<&str>().map(|&words| words.to_owned()));
            let came = format!("a fault of this kit: {}", words.unwrap_or_default());
            Poll::Ready(Err(Box::new(Failure::new("a verdict of the test", came))))
        }
    })
    .await
}

async fn run_one(cx: &Cx, test: &Test) -> Entry {
    let start = Instant::now();
    let verdict = match test.needs.iter().find_map(|need| crate::needs::lacking(cx, *need)) {
        Some(reason) => Verdict::DoesNotApply(reason),
        None => {
            cx.trace.clear();
            let outcome = caught((test.run)(cx)).await;
            let (calls, last) = (cx.trace.text(), cx.trace.last());
            let left = clean_up(cx).await;
            match (outcome, left.is_empty()) {
                (Err(failure), _) => {
                    let mut failure = Failure { calls, ..*failure };
                    if let Some((rpc, bytes)) = last.filter(|_| failure.sent.is_empty()) {
                        failure.sent = cx.sent_text(rpc, &bytes);
                    }
                    Verdict::Failed(failure)
                }
                (Ok(()), true) => Verdict::Passed,
                (Ok(()), false) => {
                    Verdict::Failed(Failure::new("all that the test made can be undone", left.join("; ")))
                }
            }
        }
    };
    Entry { test: test.clone(), verdict, took: start.elapsed() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_test_that_panics_has_failed() {
        let failure = caught(async { panic!("at the disco") }).await.unwrap_err();
        assert!(failure.came.contains("at the disco"), "{failure}");
        assert!(caught(async { Ok(()) }).await.is_ok());
    }
}
