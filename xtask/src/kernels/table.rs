//! The table of results: a row per test, a column per kernel, with seconds in each cell.

use std::collections::BTreeSet;

use super::outcome::Run;

/// The cell of a test that did not run on a kernel.
const ABSENT: &str = "-";

pub(crate) fn render(runs: &[Run]) -> String {
    let mut tests: Vec<&str> = Vec::new();
    let mut seen = BTreeSet::new();
    for outcome in runs.iter().flat_map(|run| &run.outcomes) {
        if seen.insert(&outcome.test) {
            tests.push(&outcome.test);
        }
    }
    let width = tests.iter().map(|test| test.chars().count()).max().unwrap_or(0);
    let line = |name: &str, cells: Vec<String>| {
        let cells: String = cells.iter().map(|cell| format!(" {cell:>8}")).collect();
        format!("{name:<width$}{cells}\n")
    };
    let mut text = line("", runs.iter().map(|run| run.kernel.version.to_string()).collect());
    for test in &tests {
        let cell = |run: &Run| {
            // There is more than one if several suites have the test.
            let its: Vec<_> = run.outcomes.iter().filter(|outcome| outcome.test == *test).collect();
            match its.as_slice() {
                [] => ABSENT.to_owned(),
                all if all.iter().all(|outcome| outcome.is_ok()) => {
                    seconds(all.iter().map(|outcome| outcome.millis).sum())
                }
                _ => "FAILED".to_owned(),
            }
        };
        text.push_str(&line(test, runs.iter().map(cell).collect()));
    }
    let ok = |run: &Run| format!("{}/{}", run.outcomes.len() - run.failed().count(), run.outcomes.len());
    text.push_str(&line("ok", runs.iter().map(ok).collect()));
    text.push_str(&line("seconds, power on to off", runs.iter().map(seconds_of).collect()));
    text
}

fn seconds(millis: u64) -> String {
    format!("{:.1}", millis as f64 / 1000.0)
}

fn seconds_of(run: &Run) -> String {
    format!("{:.0}", run.elapsed.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::super::archive::{Kernel, Version};
    use super::*;

    #[test]
    fn tests_down_and_kernels_across() {
        let run = |minor, lines: &[&str]| {
            let kernel = Kernel { version: Version::new(6, minor), name: "k".into(), root: "/".into() };
            let mut run = Run::new(kernel);
            lines.iter().for_each(|line| _ = run.hear(line));
            run
        };
        let twice = ["@\tok\tp/t\ta\t1", "@\tfailed\tp/t\ta\t1\twhy", "@\tok\tp/t\tb\t0"];
        let runs = [run(1, &["@\tok\tp/t\ta\t1234"]), run(12, &twice)];
        let text = render(&runs);
        let rows: Vec<String> =
            text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
        assert_eq!(rows[..4], ["6.1 6.12", "p/t: a 1.2 FAILED", "p/t: b - 0.0", "ok 1/1 2/3"]);
    }
}
