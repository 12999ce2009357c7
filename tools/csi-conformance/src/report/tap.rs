//! The report in the Test Anything Protocol, version 13.

use std::fmt::Write as _;

use csi_proto::escape;

use super::{Entry, Report, Verdict};

impl Report {
    /// The report as TAP.
    pub fn tap(&self) -> String {
        let mut text = format!("TAP version 13\n1..{}\n", self.entries.len());
        for (at, entry) in self.entries.iter().enumerate() {
            let number = at + 1;
            let id = format!("{}: {}", entry.test.id, entry.test.title.replace('#', "\\#"));
            let _ = match &entry.verdict {
                Verdict::Passed => writeln!(text, "ok {number} - {id}\n  ---\n{}  ...", rules(entry)),
                Verdict::DoesNotApply(reason) => {
                    writeln!(text, "ok {number} - {id} # SKIP {}", escape::terminal(reason))
                }
                Verdict::Failed(failure) => {
                    let parts = [&failure.sent, &failure.actual, &failure.expected, &failure.calls];
                    let [sent, actual, expected, calls] = parts.map(|part| yaml(part));
                    // A test harness does not count a failure that is marked with TODO.
                    let todo = if self.counts(entry.level) {
                        String::new()
                    } else {
                        format!(" # TODO {}", entry.level)
                    };
                    writeln!(
                        text,
                        "not ok {number} - {id}{todo}\n  ---\n{}  sent: {sent}\n  actual: {actual}\n  \
                         expected: {expected}\n  calls: {calls}\n  ...",
                        rules(entry)
                    )
                }
            };
        }
        if self.stopped {
            text.push_str("Bail out! The run was stopped\n");
        }
        text
    }
}

/// A test's level, rules and section, as lines of YAML.
fn rules(entry: &Entry) -> String {
    let level = yaml(&entry.level.to_string());
    let rules = yaml(&entry.test.rules.join(", "));
    let section = yaml(entry.test.section);
    format!("  level: {level}\n  rule: {rules}\n  section: {section}\n")
}

/// A double-quoted YAML scalar with the text as terminals show it.
fn yaml(text: &str) -> String {
    let shown = escape::terminal(text);
    format!("\"{}\"", shown.replace('\\', r"\\").replace('"', "\\\""))
}
