//! The instructions of the parsers and of a call. A busy machine does not change the counts, so they show
//! slower code.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;

use benches::counted::{self, Counted};

use crate::{Result, failure};

/// The recorded counts, relative to the workspace.
const RECORDED: &str = "benches/instructions.json";
/// A count can exceed the recorded one by this factor: other compilers and C libraries differ by less.
const TOLERANCE: f64 = 1.10;

type Counts = BTreeMap<String, u64>;

/// Records the counts.
pub(crate) fn record(root: &Path) -> Result {
    let counts = count()?;
    fs::write(root.join(RECORDED), serde_json::to_string_pretty(&counts)? + "\n")?;
    println!("written: {RECORDED}");
    Ok(())
}

/// Compares the counts with the recorded ones.
pub(crate) fn compare(root: &Path) -> Result {
    let before: Counts = serde_json::from_slice(&fs::read(root.join(RECORDED))?)?;
    let now = count()?;
    println!("\n{:<24}{:>14}{:>14}{:>9}", "instructions of one", "recorded", "now", "ratio");
    for (name, count) in &now {
        let recorded = before.get(name);
        let ratio =
            recorded.map_or("new".to_owned(), |recorded| format!("{:.3}", *count as f64 / *recorded as f64));
        let recorded = recorded.map_or(String::new(), u64::to_string);
        println!("{name:<24}{recorded:>14}{count:>14}{ratio:>9}");
    }
    match grown(&before, &now).as_slice() {
        [] => Ok(()),
        names => Err(failure(format!(
            "over a tenth more instructions than recorded: {}\nif this is intended: cargo xtask bench \
             --instructions --record",
            names.join(", ")
        ))),
    }
}

/// The names whose count exceeds the tolerance, or that have no recorded count.
fn grown<'n>(before: &Counts, now: &'n Counts) -> Vec<&'n str> {
    let is_grown = |name: &String, count: u64| {
        before.get(name).is_none_or(|recorded| count as f64 > *recorded as f64 * TOLERANCE)
    };
    now.iter().filter(|(name, count)| is_grown(name, **count)).map(|(name, _)| name.as_str()).collect()
}

/// The instructions of one repetition of each work.
fn count() -> Result<Counts> {
    let mut counts = Counts::new();
    for Counted { name, times, .. } in counted::ALL {
        println!("instructions of {name}");
        // The instructions before and after the work are in both counts, and not in the difference.
        let more = times * 3;
        let (few, many) = thread::scope(|scope| {
            let few = scope.spawn(|| collected(name, *times).map_err(|error| error.to_string()));
            let many = collected(name, more);
            (few.join().expect("no panic in it"), many)
        });
        let few = few?;
        let many = many?;
        counts.insert((*name).to_owned(), many.saturating_sub(few) / (more - times));
    }
    Ok(counts)
}

fn collected(name: &str, times: u64) -> Result<u64> {
    let mut command = Command::new("valgrind");
    command.args(["--tool=callgrind", "--callgrind-out-file=/dev/null"]).arg(std::env::current_exe()?);
    let output = command.args(["count", name, &times.to_string()]).stdin(Stdio::null()).output();
    let output = output.map_err(|error| failure(format!("valgrind, which counts instructions: {error}")))?;
    let said = String::from_utf8_lossy(&output.stderr);
    parse(&said)
        .filter(|_| output.status.success())
        .ok_or_else(|| failure(format!("{}: {command:?}\n{said}", output.status)))
}

/// Parses a line such as `==12== Collected : 51735`.
fn parse(said: &str) -> Option<u64> {
    said.lines().find_map(|line| line.split_once("Collected :")?.1.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_callgrind_says() {
        assert_eq!(parse("==12== Events    : Ir\n==12== Collected : 51735\n==12==\n"), Some(51_735));
        assert_eq!(parse("valgrind: no such program"), None);
    }

    #[test]
    fn only_what_grew_by_over_a_tenth_is_named() {
        let counts =
            |list: &[(&str, u64)]| list.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect();
        let before = counts(&[("same", 100), ("grown", 100), ("less", 100), ("gone", 1)]);
        let now = counts(&[("same", 109), ("grown", 111), ("less", 50), ("new", 1)]);
        assert_eq!(grown(&before, &now), ["grown", "new"]);
    }
}
