//! `cargo xtask bench`: runs all that `benches/` measures, several times, and makes one record and one page.
//!
//! The program `bench` of that package measures, with one process per run. This module repeats the runs,
//! writes the record, checks the limits, and makes the tables.

mod document;
mod instructions;
mod limits;
mod machine;
mod measure;
mod programs;
mod record;

use std::path::Path;

use crate::needs::{Install, Work};
use crate::step::Step;
use crate::{Failure, needs};

pub(crate) use instructions::check as check_instructions;
use measure::Plan;
pub(crate) use programs::mock_driver;
use record::Record;

const HELP: &str = "\
Compares the toolkit's cost with system calls, programs and other crates. Needs root; uses its own mount
namespaces.

Usage: cargo xtask bench [--quick] [--only TEXT]
       cargo xtask bench --instructions [--record]
       cargo xtask bench --document

  --quick         one short run of each subject
  --only TEXT     only subjects whose name contains TEXT, and no footprint
  --instructions  only count instructions of the parsers and of a call (valgrind) and compare them with the
                  record; for any user, also on a busy machine; fail if a count grew by more than a tenth
  --record        write the counts to benches/instructions.json instead
  --document      measure nothing: write docs/benchmarks.md again from docs/benchmarks.json

Without options it takes about ten minutes on an idle machine, and writes docs/benchmarks.json and the part of
docs/benchmarks.md between the two marks. Other runs print a table.
";

/// Runs `cargo xtask bench` with these options.
pub(crate) fn run(root: &Path, options: &[&str]) -> Result<(), Failure> {
    match options {
        ["--help" | "-h"] => {
            print!("{HELP}");
            Ok(())
        }
        ["--instructions"] => instructions::check(root),
        ["--instructions", "--record"] => instructions::record(root),
        ["--document"] => document::write(root, &Record::read(root)?),
        [] => measure_all(root),
        ["--quick"] => measure_some(root, &Plan { is_quick: true, only: None }),
        ["--only", text] => measure_some(root, &Plan { is_quick: false, only: Some(text) }),
        ["--quick", "--only", text] => measure_some(root, &Plan { is_quick: true, only: Some(text) }),
        _ => Err(Failure::usage(HELP)),
    }
}

fn measure_all(root: &Path) -> Result<(), Failure> {
    let record = measure(root, &Plan { is_quick: false, only: None })?;
    record.write(root)?;
    document::write(root, &record)
}

fn measure_some(root: &Path, plan: &Plan<'_>) -> Result<(), Failure> {
    print!("{}", document::measured(&measure(root, plan)?));
    Ok(())
}

fn measure(root: &Path, plan: &Plan<'_>) -> Result<Record, Failure> {
    needs::provide(&[Work::Measurement], Install::Missing)?;
    let mut missing = needs::missing()?;
    missing.extend(needs::missing_programs(Work::Measurement));
    missing.sort();
    missing.dedup();
    if !missing.is_empty() {
        return Err(Failure::usage(format!("missing on this machine:\n  {}", missing.join("\n  "))));
    }
    let programs = programs::build(root, plan.only.is_none())?;
    measure::measure(root, &programs, plan)
}

/// Runs the jobs of `k8s.io/mount-utils` once each, so that they keep working. Returns why nothing was run, if
/// so.
pub(crate) fn check_mount_utils(root: &Path) -> Result<Option<String>, Failure> {
    let not_run = |why: &str| Ok(Some(format!("NOT RUN: mount-utils in the benchmarks: {why}")));
    if needs::Privilege::of_this_process()? != needs::Privilege::Mount {
        return not_run("it needs root with CAP_SYS_ADMIN");
    }
    let Some(program) = programs::mount_utils(root)? else {
        return not_run("there is no Go toolchain (`go`)");
    };
    Step::cargo(
        "mount-utils in the benchmarks",
        ["test", "--workspace", "--all-features", "--test", "root_smoke"],
    )
    .env(programs::MOUNT_UTILS, program.display().to_string())
    .run(root)?;
    Ok(None)
}
