//! The report as text for people.

use std::fmt::Write as _;

use csi_proto::escape;

use super::{Entry, Report, Verdict};

impl Entry {
    /// One line, or several for a failure.
    pub fn text(&self) -> String {
        let id = &self.test.id;
        match &self.verdict {
            Verdict::Passed => format!("ok      {id} ({:.1} s)", self.took.as_secs_f64()),
            Verdict::DoesNotApply(reason) => format!("n/a     {id}: {}", escape::terminal(reason)),
            Verdict::Failed(failure) => {
                let mut text = format!("FAILED  {id}: {}\n", self.test.title);
                let _ =
                    writeln!(text, "        rule: {} ({})", self.test.rules.join(", "), self.test.section);
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

    /// The counts in one line.
    pub fn summary(&self) -> String {
        let failed = self.failed().count();
        format!(
            "{} {}: {} passed, {failed} failed, {} do not apply, {} {:.1} s",
            escape::terminal(&self.driver),
            escape::terminal(&self.version),
            self.passed(),
            self.entries.len() - failed - self.passed(),
            if self.stopped { "stopped after" } else { "in" },
            self.took.as_secs_f64()
        )
    }
}
