//! JUnit XML, as build servers read it.

use std::fmt::Write as _;

use super::{Report, Verdict};

impl Report {
    /// As JUnit XML.
    pub fn junit(&self) -> String {
        let failed = self.failed().count();
        let skipped = self.entries.len() - failed - self.passed();
        let mut text = format!(
            "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuite name=\"{}\" tests=\"{}\" failures=\"{failed}\" \
             errors=\"0\" skipped=\"{skipped}\" time=\"{:.3}\">\n",
            escape(&self.driver),
            self.entries.len(),
            self.took.as_secs_f64()
        );
        for entry in &self.entries {
            let (group, name) = entry.test.id.split_once('.').unwrap_or(("", &entry.test.id));
            let time = entry.took.as_secs_f64();
            let _ = write!(
                text,
                "  <testcase classname=\"{}\" name=\"{}\" time=\"{time:.3}\"",
                escape(group),
                escape(name)
            );
            let rules = escape(&entry.test.rules.join(", "));
            let _ = write!(
                text,
                "><properties><property name=\"rule\" value=\"{rules}\"/><property name=\"section\" \
                 value=\"{}\"/></properties>",
                escape(entry.test.section)
            );
            let _ = match &entry.verdict {
                Verdict::Passed => Ok(()),
                Verdict::DoesNotApply(reason) => {
                    write!(text, "<skipped message=\"{}\"/>", escape(reason))
                }
                Verdict::Failed(failure) => {
                    let (title, words) = (escape(entry.test.title), escape(&failure.to_string()));
                    write!(text, "<failure message=\"{title}\" type=\"{rules}\">{words}</failure>")
                }
            };
            text.push_str("</testcase>\n");
        }
        text + "</testsuite>\n"
    }
}

/// Text for XML 1.0, which has no place for most control characters.
fn escape(text: &str) -> String {
    let mut escaped = String::new();
    for c in text.chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\n' => escaped.push_str("&#10;"),
            c if c.is_control() || matches!(c, '\u{fffe}' | '\u{ffff}') => escaped.push('\u{fffd}'),
            c => escaped.push(c),
        }
    }
    escaped
}
