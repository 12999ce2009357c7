//! The result of a run, and its forms: text, TAP and JUnit XML.

mod junit;
mod tap;
mod text;

use std::time::Duration;

use crate::failure::Failure;
use crate::test::{Level, Test};

/// The result of a test.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// The driver follows the rule.
    Passed,
    /// The driver breaks the rule.
    Failed(Failure),
    /// The test does not apply to this driver or run, with the reason.
    DoesNotApply(String),
}

/// A test and its result.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Entry {
    /// The test.
    pub test: Test,
    /// The test's level, or MUST if something that the test created could not be undone.
    pub level: Level,
    /// Its result.
    pub verdict: Verdict,
    /// How long it took, including its clean-up.
    pub(crate) took: Duration,
}

/// The result of a run.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Report {
    pub(crate) driver: String,
    pub(crate) version: String,
    /// The selected tests; in a stopped run, those that ended before the stop.
    pub entries: Vec<Entry>,
    /// Whether a failure of any level fails the run: [`Kit::strict`](crate::Kit::strict).
    pub(crate) strict: bool,
    /// Whether the run was stopped early.
    pub stopped: bool,
    /// The duration of the run.
    pub took: Duration,
}

impl Report {
    /// The tests that failed, of every level.
    pub fn failed(&self) -> impl Iterator<Item = &Entry> {
        self.entries.iter().filter(|entry| matches!(entry.verdict, Verdict::Failed(_)))
    }

    /// The tests of this level that failed.
    pub fn failed_at(&self, level: Level) -> impl Iterator<Item = &Entry> {
        self.failed().filter(move |entry| entry.level == level)
    }

    fn counts(&self, level: Level) -> bool {
        self.strict || level == Level::Must
    }

    /// The number of tests that passed.
    pub fn passed(&self) -> usize {
        self.passing(&Level::ALL)
    }

    fn passing(&self, levels: &[Level]) -> usize {
        let is_it = |entry: &&Entry| entry.verdict == Verdict::Passed && levels.contains(&entry.level);
        self.entries.iter().filter(is_it).count()
    }

    /// Whether the run reached its end, at least one test passed, and none failed whose level counts: MUST, or
    /// every level in a strict run.
    pub fn is_ok(&self) -> bool {
        !self.stopped && self.passed() > 0 && !self.failed().any(|entry| self.counts(entry.level))
    }

    /// Panics unless the driver conforms; for a driver's own `cargo test`.
    ///
    /// # Panics
    /// With the whole report, unless [`is_ok`](Self::is_ok).
    #[track_caller]
    pub fn assert_ok(&self) {
        assert!(self.is_ok(), "the driver does not conform:\n{}", self.text());
    }
}
