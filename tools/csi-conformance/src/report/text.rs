//! The report as text for people.

use std::fmt::Write as _;

use csi_proto::escape;

use super::{Entry, Report, Verdict};
use crate::test::Level;

impl Entry {
    /// One line, or several for a failure.
    pub fn text(&self) -> String {
        let id = &self.test.id;
        match &self.verdict {
            Verdict::Passed => format!("ok      {id} ({:.1} s)", self.took.as_secs_f64()),
            Verdict::DoesNotApply(reason) => format!("n/a     {id}: {}", escape::terminal(reason)),
            Verdict::Failed(failure) => {
                let mark = match self.level {
                    Level::Must => "FAILED",
                    Level::Should => "SHOULD",
                    Level::Practice => "ADVICE",
                };
                let mut text = format!("{mark}  {id}: {}\n", self.test.title);
                let rules = self.test.rules.join(", ");
                let section = self.test.section;
                let _ = writeln!(text, "        rule: {rules} ({}; {section})", self.level);
                for line in failure.to_string().lines() {
                    let _ = writeln!(text, "        {line}");
                }
                text.truncate(text.trim_end().len());
                text
            }
        }
    }
}

impl Report {
    /// One line per test, and a summary.
    pub fn text(&self) -> String {
        let lines: String = self.entries.iter().map(|entry| entry.text() + "\n").collect();
        lines + &self.summary()
    }

    /// The counts: one line for the run, in which only failures that count are failed, and one for each level.
    pub fn summary(&self) -> String {
        let all = self.failed().count();
        let failed = self.failed().filter(|entry| self.counts(entry.level)).count();
        let mut text = format!(
            "{} {}: {} passed, {failed} failed, {} not as recommended, {} do not apply, {} {:.1} s",
            escape::terminal(&self.driver),
            escape::terminal(&self.version),
            self.passed(),
            all - failed,
            self.entries.len() - all - self.passed(),
            if self.stopped { "stopped after" } else { "in" },
            self.took.as_secs_f64()
        );
        for level in Level::ALL {
            let passed = self.passing(&[level]);
            let failed = self.failed_at(level).count();
            let _ = write!(text, "\n  {level:<13} {passed:>3} passed, {failed:>3} failed");
        }
        text
    }
}
