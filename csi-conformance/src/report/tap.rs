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
                    let parts = [&failure.sent, &failure.came, &failure.due, &failure.calls];
                    let [sent, came, due, calls] = parts.map(|part| yaml(part));
                    // A test harness does not count a failure that is marked with TODO.
                    let todo = match self.counts(entry.level) {
                        true => String::new(),
                        false => format!(" # TODO {}", entry.level),
                    };
                    writeln!(
                        text,
                        "not ok {number} - {id}{todo}\n  ---\n{}  sent: {sent}\n  came: {came}\n  due: {due}\n  \
                         calls: {calls}\n  ...",
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
    let (rules, section) = (yaml(&entry.test.rules.join(", ")), yaml(entry.test.section));
    format!("  level: {level}\n  rule: {rules}\n  section: {section}\n")
}

/// A double-quoted YAML scalar with the text as terminals show it.
fn yaml(text: &str) -> String {
    let shown = escape::terminal(text);
    format!("\"{}\"", shown.replace('\\', r"\\").replace('"', "\\\""))
}
