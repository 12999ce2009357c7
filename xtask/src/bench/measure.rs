//! All runs: each subject at each size, in a process of its own.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Stdio};

use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::machine;
use super::programs::{MOUNT_UTILS, Programs};
use super::record::{Record, Run, Subject, title};
use crate::Failure;

/// The minimum number of rounds, even for the slowest contestant.
const LEAST_ROUNDS: &str = "3";
/// A run that takes longer is considered hung.
const RUN_TIMEOUT_SECONDS: &str = "180";

/// What to measure, and for how long.
pub(crate) struct Plan<'a> {
    /// One run of 0.3 s of each subject, instead of three of 1.5 s.
    pub(crate) is_quick: bool,
    /// Only subjects whose name contains this.
    pub(crate) only: Option<&'a str>,
}

/// The output of `bench list`.
#[derive(Deserialize)]
struct List {
    subjects: Vec<Listed>,
}

#[derive(Deserialize)]
struct Listed {
    name: String,
    unit: String,
    sizes: Vec<u64>,
}

/// Measures everything in the plan.
pub(crate) fn measure(root: &Path, programs: &Programs, plan: &Plan<'_>) -> Result<Record, Failure> {
    let list: List = json(Command::new(&programs.bench).arg("list"))?;
    let is_chosen = |listed: &&Listed| plan.only.is_none_or(|text| listed.name.contains(text));
    let jobs: Vec<(&Listed, u64)> = list
        .subjects
        .iter()
        .filter(is_chosen)
        .flat_map(|listed| listed.sizes.iter().map(move |size| (listed, *size)))
        .collect();
    if jobs.is_empty() {
        return Err(Failure::usage("no subject's name contains this text"));
    }
    let repeats = if plan.is_quick { 1 } else { 3 };
    let milliseconds = if plan.is_quick { "300" } else { "1500" };
    let machine = machine::describe(root);

    let mut runs: Vec<Vec<Run>> = jobs.iter().map(|_| Vec::new()).collect();
    for repeat in 1..=repeats {
        for (at, (listed, size)) in jobs.iter().enumerate() {
            println!("{repeat} of {repeats}: {}", title(&listed.name, &listed.unit, *size));
            let mut command = limited(programs);
            command.args(["compare", &listed.name, &size.to_string(), milliseconds, LEAST_ROUNDS]);
            runs[at].push(json(&mut command)?);
        }
    }
    let subjects = jobs.iter().zip(&runs);
    let subjects =
        subjects.filter_map(|((listed, size), runs)| Subject::of(&listed.name, &listed.unit, *size, runs));
    let mut record = Record { machine, repeats, subjects: subjects.collect(), footprint: BTreeMap::new() };
    if plan.only.is_none() {
        let (starts, calls, seconds) =
            if plan.is_quick { ("20", "1000", "2") } else { ("100", "10000", "10") };
        for (name, program, calls) in [("dirs", &programs.dirs, calls), ("bare", &programs.bare, "0")] {
            println!("footprint of {name}");
            let mut command = limited(programs);
            command.arg("footprint").arg(program).args([starts, calls, seconds]);
            record.footprint.insert(name.to_owned(), json(&mut command)?);
        }
    }
    Ok(record)
}

/// The program that measures, under timeout(1), which kills it after the limit.
fn limited(programs: &Programs) -> Command {
    let mut command = Command::new("timeout");
    command.args(["--foreground", "--signal=KILL", RUN_TIMEOUT_SECONDS]).arg(&programs.bench);
    command.env("LC_ALL", "C");
    if let Some(program) = &programs.mount_utils {
        command.env(MOUNT_UTILS, program);
    }
    command
}

/// What the program prints.
fn json<T: DeserializeOwned>(command: &mut Command) -> Result<T, Failure> {
    let output = command.stdin(Stdio::null()).output()?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(Failure::new(format!("{}: {command:?}\n{said}", output.status)));
    }
    Ok(serde_json::from_slice(&output.stdout)?)
}
