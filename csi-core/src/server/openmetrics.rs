//! The text format of OpenMetrics, which Prometheus reads.

use std::fmt::{self, Debug, Write};

/// The content type of the format.
pub(super) const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// The last line.
pub(super) const EOF: &str = "# EOF\n";

/// Labels: the name and the value of each.
pub(super) type Labels<'a> = [(&'a str, &'a str)];

/// A metric, whose samples differ in their labels.
pub(super) struct Family<'a> {
    out: &'a mut dyn Write,
    name: &'a str,
}

impl<'a> Family<'a> {
    /// Writes the lines above the samples. `kind` is `gauge`, `counter` or `histogram`.
    pub(super) fn new(
        out: &'a mut dyn Write,
        name: &'a str,
        kind: &str,
        help: &str,
    ) -> Result<Self, fmt::Error> {
        writeln!(out, "# HELP {name} {help}\n# TYPE {name} {kind}")?;
        Ok(Self { out, name })
    }

    /// Writes one sample. `suffix` is what its kind requires after the metric's name. `Debug` writes a number with a
    /// point exactly if it is a floating-point one, as the format wants it.
    pub(super) fn sample(&mut self, suffix: &str, labels: &Labels<'_>, value: impl Debug) -> fmt::Result {
        write!(self.out, "{}{suffix}", self.name)?;
        let mut before = '{';
        for (name, value) in labels {
            write!(self.out, "{before}{name}=\"")?;
            for character in value.chars() {
                match character {
                    '\\' | '"' => write!(self.out, "\\{character}")?,
                    '\n' => self.out.write_str("\\n")?,
                    _ => self.out.write_char(character)?,
                }
            }
            self.out.write_char('"')?;
            before = ',';
        }
        if !labels.is_empty() {
            self.out.write_char('}')?;
        }
        writeln!(self.out, " {value:?}")
    }

    /// Writes a histogram: the number of values up to each bound, and above the last one; and the sum of all values.
    pub(super) fn histogram(
        &mut self,
        labels: &Labels<'_>,
        bounds: &[f64],
        counts: &[u64],
        sum: f64,
    ) -> fmt::Result {
        self.sample("_sum", labels, sum)?;
        self.sample("_count", labels, counts.iter().sum::<u64>())?;
        let bounds = bounds.iter().map(|bound| format!("{bound:?}")).chain(["+Inf".to_owned()]);
        let mut below = 0;
        for (bound, count) in bounds.zip(counts) {
            below += count;
            self.sample("_bucket", &[&[("le", bound.as_str())], labels].concat(), below)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_metric_is_written_as_the_format_wants_it() {
        let mut out = String::new();
        let mut family = Family::new(&mut out, "seconds", "histogram", "What it took.").unwrap();
        family.histogram(&[("of", "a \"b\"\n\\")], &[0.5, 600.0], &[2, 1, 4], 601.0).unwrap();
        Family::new(&mut out, "files", "gauge", "Open files.").unwrap().sample("", &[], 3.0).unwrap();
        let due = "\
            # HELP seconds What it took.\n\
            # TYPE seconds histogram\n\
            seconds_sum{of=\"a \\\"b\\\"\\n\\\\\"} 601.0\n\
            seconds_count{of=\"a \\\"b\\\"\\n\\\\\"} 7\n\
            seconds_bucket{le=\"0.5\",of=\"a \\\"b\\\"\\n\\\\\"} 2\n\
            seconds_bucket{le=\"600.0\",of=\"a \\\"b\\\"\\n\\\\\"} 3\n\
            seconds_bucket{le=\"+Inf\",of=\"a \\\"b\\\"\\n\\\\\"} 7\n\
            # HELP files Open files.\n\
            # TYPE files gauge\n\
            files 3.0\n";
        assert_eq!(out, due);
    }
}
