//! All runs: each subject at each size, in a process of its own.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use benches::ALL;
use serde::de::DeserializeOwned;

use crate::machine;
use crate::record::{Record, Run, Subject, title};
use crate::{Result, failure};

/// The minimum number of rounds, even for the slowest contestant.
const LEAST_ROUNDS: &str = "3";
/// A run that takes longer is considered hung.
const RUN_TIMEOUT_SECONDS: &str = "180";
/// The environment variable with the folder of the drivers whose footprint is measured.
const DRIVERS: &str = "BENCH_DRIVERS";

/// What to measure, and for how long.
pub(crate) struct Plan<'a> {
    /// One run of 0.3 s of each subject, instead of three of 1.5 s.
    pub(crate) is_quick: bool,
    /// Only subjects whose name contains this.
    pub(crate) only: Option<&'a str>,
}

/// Measures everything in the plan.
pub(crate) fn measure(root: &Path, plan: &Plan<'_>) -> Result<Record> {
    let chosen = ALL.iter().filter(|subject| plan.only.is_none_or(|text| subject.name.contains(text)));
    let jobs: Vec<_> =
        chosen.flat_map(|subject| subject.sizes.iter().map(move |size| (subject, *size as u64))).collect();
    if jobs.is_empty() {
        return Err(failure("no subject's name contains this text"));
    }
    let repeats = if plan.is_quick { 1 } else { 3 };
    let milliseconds = if plan.is_quick { "300" } else { "1500" };
    let machine = machine::describe(root);

    let mut runs: Vec<Vec<Run>> = jobs.iter().map(|_| Vec::new()).collect();
    for repeat in 1..=repeats {
        for (at, (subject, size)) in jobs.iter().enumerate() {
            println!("{repeat} of {repeats}: {}", title(subject.name, subject.unit, *size));
            runs[at].push(run(&["compare", subject.name, &size.to_string(), milliseconds, LEAST_ROUNDS])?);
        }
    }
    let subjects = jobs.iter().zip(&runs);
    let subjects =
        subjects.filter_map(|((subject, size), runs)| Subject::of(subject.name, subject.unit, *size, runs));
    let mut record = Record { machine, repeats, subjects: subjects.collect(), footprint: BTreeMap::new() };
    if plan.only.is_none() {
        let drivers = std::env::var_os(DRIVERS).map(PathBuf::from);
        let drivers = drivers.ok_or_else(|| failure(format!("{DRIVERS} names no folder of drivers")))?;
        let (starts, calls, seconds) =
            if plan.is_quick { ("20", "1000", "2") } else { ("100", "10000", "10") };
        for (name, calls) in [("dirs", calls), ("bare", "0")] {
            println!("footprint of {name}");
            let program = drivers.join(name).display().to_string();
            record.footprint.insert(name.to_owned(), run(&["footprint", &program, starts, calls, seconds])?);
        }
    }
    Ok(record)
}

/// Runs this program with these arguments, under timeout(1), which kills it after the limit. Returns what it prints.
fn run<T: DeserializeOwned>(arguments: &[&str]) -> Result<T> {
    let mut command = Command::new("timeout");
    command.args(["--foreground", "--signal=KILL", RUN_TIMEOUT_SECONDS]).arg(std::env::current_exe()?);
    let output = command.args(arguments).env("LC_ALL", "C").stdin(Stdio::null()).output()?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(failure(format!("{command:?}: {}\n{said}", output.status)));
    }
    Ok(serde_json::from_slice(&output.stdout)?)
}
