//! The program behind `cargo xtask bench`, which starts it for each run: each subject has its own process, so
//! no run is affected by the memory of another. The results are JSON, one value per line.

use std::process::ExitCode;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use benches::footprint::{self, Plan};
use benches::{ALL, Interleaved, Limits, counted, enter_namespace};
use serde_json::json;

const HELP: &str = "\
The program that `cargo xtask bench` runs for measurements.

Usage: bench <command>

  list                                     print all subjects, sizes and counted jobs as JSON
  compare SUBJECT SIZE MILLISECONDS LEAST
                                           measure a subject at a size: rounds in which all contestants run in
                                           turns, at least LEAST rounds, no new one after MILLISECONDS
  count NAME TIMES                         run a job this many times, for valgrind
  footprint PROGRAM STARTS CALLS SECONDS   measure the process of a driver
";

fn list() {
    let subjects = ALL
        .iter()
        .map(|subject| json!({ "name": subject.name, "unit": subject.unit, "sizes": subject.sizes }))
        .collect::<Vec<_>>();
    let counted = counted::ALL.iter().map(|counted| json!({ "name": counted.name, "times": counted.times }));
    let counted: Vec<_> = counted.collect();
    println!("{}", json!({ "subjects": subjects, "counted": counted }));
}

fn compare(subject: &str, size: usize, limits: Limits) -> Option<()> {
    let subject = ALL.iter().find(|known| known.name == subject)?;
    enter_namespace();
    let seed = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let mut engine = Interleaved::new(limits, seed.as_nanos() as u64);
    subject.run(size, &mut engine);
    let contestants = engine
        .taken
        .iter()
        .map(|taken| {
            json!({
                "name": taken.name,
                "kind": taken.kind.name(),
                "nanoseconds": taken.nanoseconds,
            })
        })
        .collect::<Vec<_>>();
    println!("{}", json!({ "contestants": contestants }));
    Some(())
}

fn run(arguments: &[&str]) -> Option<()> {
    match *arguments {
        ["list"] => list(),
        ["compare", subject, size, milliseconds, least] => {
            let limits = Limits {
                time: Duration::from_millis(milliseconds.parse().ok()?),
                least_rounds: least.parse().ok()?,
                most_rounds: 1000,
            };
            compare(subject, size.parse().ok()?, limits)?;
        }
        ["count", name, times] => {
            counted::ALL.iter().find(|counted| counted.name == name)?.run(times.parse().ok()?);
        }
        ["footprint", program, starts, calls, seconds] => {
            enter_namespace();
            let plan = Plan {
                starts: starts.parse().ok()?,
                calls: calls.parse().ok()?,
                idle: Duration::from_secs_f64(seconds.parse().ok()?),
            };
            println!("{}", footprint::measure(program.as_ref(), plan));
        }
        _ => return None,
    }
    Some(())
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    if matches!(arguments.as_slice(), ["help" | "--help" | "-h"]) {
        print!("{HELP}");
        return ExitCode::SUCCESS;
    }
    match run(&arguments) {
        Some(()) => ExitCode::SUCCESS,
        None => {
            eprint!("{HELP}");
            ExitCode::from(2)
        }
    }
}
