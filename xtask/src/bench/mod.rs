//! `cargo xtask bench`: runs all that `benches/` measures, in random order, several times, and makes one
//! record.
//!
//! The program `bench` of that package measures, with one process per run. This module orders and repeats the
//! runs, writes the record, checks the goals, and makes the tables and charts.

mod chart;
mod compare;
mod document;
mod drivers;
mod goals;
mod instructions;
mod machine;
mod options;
mod programs;
mod record;
mod runs;
mod statistics;
mod table;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use crate::needs::{Install, Work};
use crate::step::Step;
use crate::{Failure, needs, target};

pub(crate) use instructions::check as check_instructions;
pub(crate) use options::{HELP, Options};
pub(crate) use programs::mock_driver;
use record::Record;

/// The folder for results that are not for the documents.
const FOLDER: &str = "bench";

pub(crate) fn run(root: &Path, options: &Options) -> Result<(), Failure> {
    if let Options::Help = options {
        print!("{HELP}");
        return Ok(());
    }
    if let Options::Instructions { record } = options {
        return instructions::run(root, *record);
    }
    if let Options::Drivers = options {
        return drivers::run(root);
    }
    if let Options::Document = options {
        let record = Record::read(&document::record_of(root))?;
        return print_written(document::write(root, &record, &goals::judge(&record))?);
    }
    let Options::Measure(plan) = options else { return Ok(()) };
    // Read first: a bad record must be found before minutes of measuring.
    let before = plan.compare.as_deref().map(Record::read).transpose()?;
    needs::provide(&[Work::Measurement], Install::Missing)?;
    let mut missing = needs::missing()?;
    missing.extend(needs::missing_programs(Work::Measurement));
    missing.sort();
    missing.dedup();
    if !missing.is_empty() {
        return Err(Failure::usage(format!("missing on this machine:\n  {}", missing.join("\n  "))));
    }
    let programs = programs::build(root, plan.only.is_none())?;
    let begun = Instant::now();
    let folder = target::dir()?.join(FOLDER);
    let (record, failures) = runs::measure(root, &programs, plan, &folder)?;
    let file = folder.join("latest.json");
    fs::write(&file, record.to_json()?)?;
    // Read back with the rounding of the file, so that the document can be made from the file again.
    let record = Record::read(&file)?;

    println!("\n{}", table::text(&record));
    let verdicts = goals::judge(&record);
    println!("{}", table::goals(&verdicts));
    println!("measured in {:.0} s; recorded in {}", begun.elapsed().as_secs_f64(), file.display());
    if plan.is_whole() && failures.is_empty() {
        print_written(document::write(root, &record, &verdicts)?)?;
    }
    if !failures.is_empty() {
        let list = failures.join("\n  ");
        return Err(Failure::new(format!("these did not run, so docs/ is unchanged:\n  {list}")));
    }
    before.map_or(Ok(()), |before| compare::report(&before, &record))
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

fn print_written(written: Vec<PathBuf>) -> Result<(), Failure> {
    written.iter().for_each(|path| println!("written: {}", path.display()));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_document_says_what_its_record_does() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("a parent");
        let record = Record::read(&document::record_of(root)).expect("a record");
        for (path, text) in document::files(root, &record, &goals::judge(&record)).expect("both marks") {
            let written = fs::read_to_string(&path).expect("a file");
            assert!(written == text, "{}: run `cargo xtask bench --document`", path.display());
        }
    }
}
