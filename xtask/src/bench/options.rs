//! The options of the command line.

use std::path::PathBuf;

use crate::Failure;

pub(crate) const HELP: &str = "\
Compares the toolkit's cost with system calls, programs and other crates. Needs root; uses its own mount
namespaces.

Usage: cargo xtask bench [options]

  --quick             take a tenth of the time: one short run of each subject, at the smallest and the
                      largest size
  --only TEXT         only subjects whose name contains TEXT; no footprint and no instruction counts
  --compare FILE      at the end print the changes since a record, as ratios to the bare work of the same
                      run; fail if something became slower by more than the spread of both records
  --resume            continue an interrupted run, and keep its measurements
  --instructions      only count instructions of the parsers and of a call (valgrind) and compare them with
                      the record; for any user, also on a busy machine; fail if a count grew by more than a
                      tenth
  --instructions --record
                      write the counts to benches/instructions.json
  --drivers           only measure the processes of `dirs` and `hostpath` next to the mock driver of
                      Kubernetes' own tests, in Go: first answer, memory, size, Probes, creates; print a table
  --document          measure nothing: write docs/benchmarks.md and the charts again from
                      docs/benchmarks.json
  --help              print this text

A complete run takes about ten minutes on an idle machine. It writes the part of docs/benchmarks.md between
the two marks, the charts, and docs/benchmarks.json, the record for `--compare`. Other runs print a table.
Every run writes its record to <target>/bench/latest.json.

All implementations of the same job run in turns, in short rounds and in random order, and each ratio is
taken within a round. So the ratios are valid on a busy machine too; the times are not.
";

/// The command.
#[derive(Debug, PartialEq)]
pub(crate) enum Options {
    Help,
    Instructions { record: bool },
    Document,
    Drivers,
    Measure(Plan),
}

/// What to measure, and for how long.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Plan {
    pub(crate) quick: bool,
    pub(crate) only: Option<String>,
    pub(crate) compare: Option<PathBuf>,
    pub(crate) resume: bool,
}

impl Plan {
    /// Whether its results can go into the documents.
    pub(crate) fn is_whole(&self) -> bool {
        !self.quick && self.only.is_none()
    }

    /// The number of runs of each subject.
    pub(crate) fn repeats(&self) -> usize {
        if self.quick { 1 } else { 3 }
    }

    /// The time in which a run begins new rounds.
    pub(crate) fn milliseconds(&self) -> u64 {
        if self.quick { 300 } else { 1500 }
    }
}

impl Options {
    pub(crate) fn parse(arguments: &[&str]) -> Result<Self, Failure> {
        let mut plan = Plan::default();
        let mut arguments = arguments.iter();
        while let Some(argument) = arguments.next() {
            let mut value = |what: &str| {
                let value = arguments.next().filter(|value| !value.starts_with("--"));
                value.copied().ok_or_else(|| Failure::usage(format!("{argument} takes {what}\n\n{HELP}")))
            };
            match *argument {
                "--help" | "-h" | "help" => return Ok(Self::Help),
                "--quick" => plan.quick = true,
                "--resume" => plan.resume = true,
                "--only" => plan.only = Some(value("a text")?.to_owned()),
                "--compare" => plan.compare = Some(value("a file")?.into()),
                "--instructions" => {
                    return match arguments.as_slice() {
                        [] => Ok(Self::Instructions { record: false }),
                        ["--record"] => Ok(Self::Instructions { record: true }),
                        _ => Err(Failure::usage(HELP)),
                    };
                }
                "--document" if plan == Plan::default() && arguments.len() == 0 => return Ok(Self::Document),
                "--drivers" if plan == Plan::default() && arguments.len() == 0 => return Ok(Self::Drivers),
                other => return Err(Failure::usage(format!("unknown option: {other}\n\n{HELP}"))),
            }
        }
        Ok(Self::Measure(plan))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options() {
        let plan = |line: &str| match Options::parse(&line.split_whitespace().collect::<Vec<_>>()) {
            Ok(Options::Measure(plan)) => plan,
            other => panic!("{other:?}"),
        };
        assert!(plan("").is_whole());
        assert_eq!(plan("--quick --only rpc").only.as_deref(), Some("rpc"));
        assert!(!plan("--only rpc").is_whole() && !plan("--quick").is_whole());
        assert_eq!(plan("--compare a.json --resume").compare, Some("a.json".into()));
        assert_eq!(Options::parse(&["--document"]).ok(), Some(Options::Document));
        assert_eq!(Options::parse(&["--drivers"]).ok(), Some(Options::Drivers));
        for wrong in [
            "--quick --drivers",
            "--quick --document",
            "--document --quick",
            "--only",
            "--only --quick",
            "--fast",
            "--instructions --fast",
        ] {
            assert!(Options::parse(&wrong.split_whitespace().collect::<Vec<_>>()).is_err(), "{wrong}");
        }
        assert_eq!(Options::parse(&["--quick", "--help"]).ok(), Some(Options::Help));
    }
}
