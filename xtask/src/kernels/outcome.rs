//! The results that a machine reports.

use std::time::Duration;

use super::archive::Kernel;
use super::image;
use super::suites::SUITES;

/// The result of one test.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Outcome {
    /// `package/program: test`.
    pub(crate) test: String,
    pub(crate) millis: u64,
    /// Why it failed, and its output.
    pub(crate) failure: Option<String>,
}

impl Outcome {
    pub(crate) fn is_ok(&self) -> bool {
        self.failure.is_none()
    }
}

/// The tests of one kernel.
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) kernel: Kernel,
    pub(crate) outcomes: Vec<Outcome>,
    /// How many outcomes are those of an earlier gate.
    pub(crate) repeated: usize,
    pub(crate) elapsed: Duration,
    running: Option<String>,
    output: Vec<String>,
}

/// The meaning of a line.
pub(crate) enum Said {
    /// A test ended; a line about it.
    Test(String),
    /// All tests are done.
    End,
    Other,
}

impl Run {
    pub(crate) fn new(kernel: Kernel) -> Self {
        Self {
            kernel,
            outcomes: Vec::new(),
            repeated: 0,
            elapsed: Duration::ZERO,
            running: None,
            output: Vec::new(),
        }
    }

    /// Reads a line of the guest's report.
    pub(crate) fn hear(&mut self, line: &str) -> Said {
        let words: Vec<&str> = line.split('\t').collect();
        let (test, millis, why) = match words.as_slice() {
            ["@", "begin", suite, test] => {
                self.running = Some(format!("{suite}: {test}"));
                self.output.clear();
                return Said::Other;
            }
            ["@", "ok", suite, test, millis] => (format!("{suite}: {test}"), *millis, None),
            ["@", "failed", suite, test, millis, why] => (format!("{suite}: {test}"), *millis, Some(*why)),
            ["@", "module", name, why] => (format!("load the module {name}"), "0", Some(*why)),
            ["@", "end"] => return Said::End,
            _ => {
                self.output.extend(line.strip_prefix("> ").map(str::to_owned));
                return Said::Other;
            }
        };
        let millis = millis.parse().unwrap_or(0);
        let verdict = why.map_or("ok".to_owned(), |why| format!("FAILED: {why}"));
        let mut said = format!("{test}: {verdict}, {:.1} s", millis as f64 / 1000.0);
        if why.is_none() {
            said.extend(self.output.iter().flat_map(|line| ["\n", line]));
        }
        let failure = why.map(|why| [why, &self.output.join("\n")].join("\n"));
        self.outcomes.push(Outcome { test, millis, failure });
        self.running = None;
        Said::Test(said)
    }

    /// How long the guest can be silent now. A working guest reaches its own limit for the test first.
    pub(crate) fn patience(&self, silence: Duration) -> Duration {
        let suite = self.running.as_ref().and_then(|running| {
            SUITES.iter().find(|suite| running.starts_with(&format!("{}/{}: ", suite.package, suite.test)))
        });
        silence + Duration::from_secs(suite.map_or(0, |suite| image::seconds(suite, &image::sample()).into()))
    }

    /// Adds what another machine with the same kernel reported.
    pub(crate) fn join(&mut self, other: Self) {
        self.outcomes.extend(other.outcomes);
        self.repeated += other.repeated;
        self.elapsed += other.elapsed;
    }

    /// Called when the machine is off. `why` says why it did not reach its end.
    pub(crate) fn finish(&mut self, why: Option<String>, elapsed: Duration) {
        self.elapsed = elapsed;
        let nothing = (why.is_none() && self.outcomes.is_empty()).then(|| "no test ran".to_owned());
        if let Some(why) = why.or(nothing) {
            let test = self.running.take().unwrap_or_else(|| "the machine".to_owned());
            self.outcomes.push(Outcome { test, millis: 0, failure: Some(why) });
        }
    }

    /// A line about the tests that were not run again.
    pub(crate) fn not_again(&self) -> Option<String> {
        let Self { repeated, kernel, .. } = self;
        (*repeated > 0).then(|| {
            format!(
                "{}: NOT RUN AGAIN: {repeated} tests, which passed on the same machine before",
                kernel.version
            )
        })
    }

    pub(crate) fn failed(&self) -> impl Iterator<Item = &Outcome> {
        self.outcomes.iter().filter(|outcome| !outcome.is_ok())
    }
}

#[cfg(test)]
mod tests {
    use super::super::archive::Version;
    use super::*;

    fn heard(lines: &[&str]) -> Run {
        let kernel = Kernel { version: Version::new(6, 1), name: "k".into(), root: "/".into() };
        let mut run = Run::new(kernel);
        for line in lines {
            run.hear(line);
        }
        run
    }

    #[test]
    fn what_a_guest_tells() {
        let mut run = heard(&[
            "@\tkernel\t6.1",
            "@\tbegin\tp/t\ta",
            "@\tok\tp/t\ta\t20",
            "@\tbegin\tp/t\tb",
            "> why",
            "@\tfailed\tp/t\tb\t30\texit status 101",
        ]);
        run.finish(None, Duration::from_secs(1));
        let expected = [("p/t: a", 20, None), ("p/t: b", 30, Some("exit status 101\nwhy"))];
        assert_eq!(run.outcomes.len(), expected.len());
        for (outcome, (test, millis, failure)) in run.outcomes.iter().zip(expected) {
            assert_eq!(
                (outcome.test.as_str(), outcome.millis, outcome.failure.as_deref()),
                (test, millis, failure)
            );
        }
    }

    #[test]
    fn a_machine_that_stops_fails_the_test_that_ran() {
        let mut run = heard(&["@\tbegin\tp/t\ta"]);
        run.finish(Some("stopped".into()), Duration::ZERO);
        assert_eq!((run.outcomes[0].test.as_str(), run.outcomes[0].is_ok()), ("p/t: a", false));
    }

    #[test]
    fn a_machine_that_runs_nothing_fails() {
        let mut run = heard(&["@\tend"]);
        run.finish(None, Duration::ZERO);
        assert_eq!(run.failed().count(), 1);
    }
}
