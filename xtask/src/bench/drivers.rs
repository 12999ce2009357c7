//! `cargo xtask bench --drivers`: the processes of our examples next to one of a driver in Go.

use std::path::Path;
use std::process::Command;

use serde_json::{Map, Value};

use super::{programs, table};
use crate::Failure;
use crate::step::timed;

const ROUNDS: &str = "5";

pub(crate) fn run(root: &Path) -> Result<(), Failure> {
    let bench = programs::bench(root)?;
    let release = programs::drivers(root, &["dirs", "hostpath"])?;
    let mut drivers =
        vec![("dirs", release.join("dirs")), ("hostpath, directories", release.join("hostpath"))];
    match programs::mock_driver(root)? {
        Some(program) => drivers.push(("Kubernetes' mock driver, in Go", program)),
        None => println!("NOT MEASURED: a driver in Go: there is no Go toolchain (`go`)"),
    }
    let named = drivers.iter().map(|(name, program)| format!("{name}={}", program.display()));
    let mut command = Command::new(bench);
    command.args(["drivers", ROUNDS]).args(named);
    let mut output = Vec::new();
    timed("measure the drivers", || {
        let ran = command.stderr(std::process::Stdio::inherit()).output()?;
        output = ran.stdout;
        if ran.status.success() { Ok(()) } else { Err(Failure::new(ran.status.to_string())) }
    })?;
    let found: Map<String, Value> = serde_json::from_slice(&output)?;
    let names: Vec<&str> = drivers.iter().map(|(name, _)| *name).collect();
    print!("{}", in_markdown(&names, &found));
    Ok(())
}

/// A row for each number, and a column for each driver.
fn in_markdown(names: &[&str], found: &Map<String, Value>) -> String {
    let mut out = format!("| | {} |\n|---|{}\n", names.join(" | "), "---|".repeat(names.len()));
    let columns: Vec<&Value> = names.iter().filter_map(|name| found.get(*name)).collect();
    let rows = columns.first().and_then(|column| column.as_object()).into_iter().flat_map(Map::keys);
    for row in rows {
        let cells = columns.iter().map(|column| match column[row].as_f64() {
            Some(value) if value >= 1e3 => format!("{value:.0}"),
            Some(value) => table::number(value),
            None => String::new(),
        });
        out += &format!("| {row} | {} |\n", cells.collect::<Vec<_>>().join(" | "));
    }
    out
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_driver_has_a_column() {
        let found =
            json!({ "ours": { "bytes": 4_000_000.0, "ms": 1.5 }, "theirs": { "bytes": 9e6, "ms": 12.0 } });
        let table = in_markdown(&["ours", "theirs"], found.as_object().expect("an object"));
        assert_eq!(
            table,
            "| | ours | theirs |\n|---|---|---|\n| bytes | 4000000 | 9000000 |\n| ms | 1.50 | 12.0 |\n"
        );
    }
}
