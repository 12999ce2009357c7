//! The program behind `cargo xtask bench`: it measures all subjects several times, checks the limits, and makes one
//! record and one page. It starts itself for each run: each subject has its own process, so no run is affected by the
//! memory of another.

mod document;
mod instructions;
mod limits;
mod machine;
mod measure;
mod record;

use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use benches::footprint;
use benches::{ALL, Interleaved, Limits, counted, enter_namespace};
use measure::{Plan, measure};
use record::{Record, Run, Timed};

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

For each run the program calls itself:

  compare SUBJECT SIZE MILLISECONDS LEAST
                                           measure a subject at a size: rounds in which all contestants run in
                                           turns, at least LEAST rounds, no new one after MILLISECONDS
  count NAME TIMES                         run a job this many times, for valgrind
  footprint PROGRAM STARTS CALLS SECONDS   measure the process of a driver
";

type Result<T = (), E = Box<dyn std::error::Error>> = std::result::Result<T, E>;

fn failure(message: impl Into<String>) -> Box<dyn std::error::Error> {
    message.into().into()
}

/// The folder of the workspace.
fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the package is in the workspace")
}

fn measure_all() -> Result {
    let record = measure(root(), &Plan { is_quick: false, only: None })?;
    record.write(root())?;
    document::write(root(), &record)
}

fn measure_some(plan: &Plan<'_>) -> Result {
    print!("{}", document::measured(&measure(root(), plan)?));
    Ok(())
}

fn compare(subject: &str, size: usize, limits: Limits) -> Result {
    let subject = ALL.iter().find(|known| known.name == subject).ok_or(HELP)?;
    enter_namespace();
    let seed = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let mut engine = Interleaved::new(limits, seed.as_nanos() as u64);
    subject.run(size, &mut engine);
    let timed = engine.taken.into_iter().map(|taken| Timed {
        name: taken.name.to_owned(),
        kind: taken.kind.name().to_owned(),
        nanoseconds: taken.nanoseconds,
    });
    println!("{}", serde_json::to_string(&timed.collect::<Run>())?);
    Ok(())
}

fn run(arguments: &[&str]) -> Result {
    match *arguments {
        ["help" | "--help" | "-h"] => print!("{HELP}"),
        [] => measure_all()?,
        ["--quick"] => measure_some(&Plan { is_quick: true, only: None })?,
        ["--only", text] => measure_some(&Plan { is_quick: false, only: Some(text) })?,
        ["--quick", "--only", text] => measure_some(&Plan { is_quick: true, only: Some(text) })?,
        ["--instructions"] => instructions::compare(root())?,
        ["--instructions", "--record"] => instructions::record(root())?,
        ["--document"] => document::write(root(), &Record::read(root())?)?,
        ["compare", subject, size, milliseconds, least] => {
            let limits = Limits {
                time: Duration::from_millis(milliseconds.parse()?),
                least_rounds: least.parse()?,
                most_rounds: 1000,
            };
            compare(subject, size.parse()?, limits)?;
        }
        ["count", name, times] => {
            counted::ALL.iter().find(|counted| counted.name == name).ok_or(HELP)?.run(times.parse()?);
        }
        ["footprint", program, starts, calls, seconds] => {
            enter_namespace();
            let plan = footprint::Plan {
                starts: starts.parse()?,
                calls: calls.parse()?,
                idle: Duration::from_secs_f64(seconds.parse()?),
            };
            println!("{}", footprint::measure(program.as_ref(), plan));
        }
        _ => return Err(failure(HELP)),
    }
    Ok(())
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match run(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
