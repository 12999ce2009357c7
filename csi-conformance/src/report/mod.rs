//! What came of a run, and how it is told: as text, TAP and JUnit XML.

mod junit;
mod tap;
mod text;

use std::time::Duration;

use crate::failure::Failure;
use crate::test::Test;

/// How a test ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// The driver keeps the rule.
    Passed,
    /// It does not.
    Failed(Failure),
    /// The test does not apply to this driver or this run, for this reason.
    DoesNotApply(String),
}

/// A test and how it ended.
#[derive(Debug, Clone)]
pub struct Entry {
    /// The test.
    pub test: Test,
    /// How it ended.
    pub verdict: Verdict,
    /// How long it took, its clean-up included.
    pub took: Duration,
}

/// What came of a run.
#[derive(Debug, Clone)]
pub struct Report {
    /// The driver's name, by its own words.
    pub driver: String,
    /// Its version.
    pub version: String,
    /// Where it was.
    pub endpoint: String,
    /// Each test that the filters chose; those up to the stop, of a run that was stopped.
    pub entries: Vec<Entry>,
    /// Whether it was stopped before its end.
    pub stopped: bool,
    /// How long all took.
    pub took: Duration,
}

impl Report {
    /// The tests that failed.
    pub fn failed(&self) -> impl Iterator<Item = &Entry> {
        self.entries.iter().filter(|entry| matches!(entry.verdict, Verdict::Failed(_)))
    }

    /// How many passed.
    pub fn passed(&self) -> usize {
        self.entries.iter().filter(|entry| entry.verdict == Verdict::Passed).count()
    }

    /// Whether something was checked and nothing failed, up to the end.
    pub fn is_ok(&self) -> bool {
        !self.stopped && self.passed() > 0 && self.failed().next().is_none()
    }

    /// For a driver's own `cargo test`.
    ///
    /// # Panics
    /// With the whole report, unless [`is_ok`](Self::is_ok).
    #[track_caller]
    pub fn assert_ok(&self) {
        assert!(self.is_ok(), "the driver does not conform:\n{}", self.text());
    }
}
