//! The report as JUnit XML for build servers.

use std::fmt::Write as _;

use csi_proto::escape;

use super::{Report, Verdict};

impl Report {
    /// The report as JUnit XML.
    pub fn junit(&self) -> String {
        let failed = self.failed().filter(|entry| self.counts(entry.level)).count();
        let skipped = self.entries.len() - failed - self.passed();
        let mut text = format!(
            "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuite name=\"{}\" tests=\"{}\" \
             failures=\"{failed}\" errors=\"0\" skipped=\"{skipped}\" time=\"{:.3}\">\n",
            xml(&self.driver),
            self.entries.len(),
            self.took.as_secs_f64()
        );
        for entry in &self.entries {
            let (group, name) = entry.test.id.split_once('.').unwrap_or(("", &entry.test.id));
            let time = entry.took.as_secs_f64();
            let _ = write!(
                text,
                "  <testcase classname=\"{}\" name=\"{}\" time=\"{time:.3}\"",
                xml(group),
                xml(name)
            );
            let rules = xml(&entry.test.rules.join(", "));
            let _ = write!(
                text,
                "><properties><property name=\"level\" value=\"{}\"/><property name=\"rule\" \
                 value=\"{rules}\"/><property name=\"section\" value=\"{}\"/></properties>",
                entry.level,
                xml(entry.test.section)
            );
            let _ = match &entry.verdict {
                Verdict::Passed => Ok(()),
                Verdict::DoesNotApply(reason) => {
                    write!(text, "<skipped message=\"{}\"/>", xml(reason))
                }
                // Build servers know no other result that does not fail the build.
                Verdict::Failed(failure) if !self.counts(entry.level) => {
                    let words = xml(&format!("{}: {}\n{failure}", entry.level, entry.test.title));
                    write!(text, "<skipped message=\"{words}\"/>")
                }
                Verdict::Failed(failure) => {
                    let title = xml(entry.test.title);
                    let words = xml(&failure.to_string());
                    write!(text, "<failure message=\"{title}\" type=\"{rules}\">{words}</failure>")
                }
            };
            text.push_str("</testcase>\n");
        }
        text + "</testsuite>\n"
    }
}

/// Text as terminals show it, escaped for XML 1.0, which has no encoding for most control characters. Line
/// breaks are kept.
fn xml(text: &str) -> String {
    let lines: Vec<_> = text.split('\n').map(escape::terminal).collect();
    let xml = lines.join("\n").replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    xml.replace('"', "&quot;").replace('\n', "&#10;")
}
