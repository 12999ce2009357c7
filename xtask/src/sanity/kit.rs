//! The other way round: our test kit against a driver in Go, the mock driver of Kubernetes' own tests.
//!
//! Its findings are listed in benches/mock-driver/README.md. A finding that is not listed is either a new defect of that
//! driver or a defect of the kit, so somebody has to look at it.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::Path;
use std::process::Command;

use super::driver::Process;
use crate::{Failure, target};

const DOCUMENT: &str = "benches/mock-driver/README.md";
/// The head of the table of findings.
const HEAD: &str = "| test of the kit | level | the mock driver |";

/// The level of each finding, by test.
type Findings = BTreeMap<String, String>;

/// Runs the kit, and compares its findings with the listed ones.
pub(crate) fn run(root: &Path, logs: &Path) -> Result<(), Failure> {
    let Some(program) = target::built_by_go(root, "benches/mock-driver")? else {
        return Err(Failure::usage("`go` is missing"));
    };
    let place = tempfile::tempdir()?;
    let of = |name: &str| place.path().join(name);
    ["staging", "target"].iter().try_for_each(|name| fs::create_dir(of(name)))?;
    let endpoint = format!("unix://{}", of("csi.sock").display());
    let mut command = Command::new(program);
    command.env("CSI_ENDPOINT", &endpoint);
    let _driver = Process::start(&mut command, &of("csi.sock"), logs.join("mock-driver.log"))?;
    let report = of("report.tap");
    // Its targets are directories; it mounts nothing.
    let status = Command::new(target::dir()?.join("debug/csi-conformance"))
        .args(["--endpoint", &endpoint, "--no-mount-access", "--tap"])
        .arg(&report)
        .args([Path::new("--staging"), &of("staging"), Path::new("--target"), &of("target")])
        .stdout(File::create(logs.join("mock-driver-kit.log"))?)
        .status()?;
    let report = fs::read_to_string(&report)
        .map_err(|error| Failure::new(format!("the kit: {status}, and no report: {error}")))?;
    let found = findings(&report);
    let mut listed = listed(&fs::read_to_string(root.join(DOCUMENT))?);
    listed.retain(|test, row| !row.is_of_chance || found.contains_key(test));
    let listed: Findings = listed.into_iter().map(|(test, row)| (test, row.level)).collect();
    if found != listed {
        let only = |of: &Findings, other: &Findings| {
            let rows = of.iter().filter(|(test, level)| other.get(*test) != Some(level));
            rows.map(|(test, level)| format!("\n  {test} ({level})")).collect::<String>()
        };
        return Err(Failure::new(format!(
            "{DOCUMENT} lists other findings of the kit on the mock driver; the kit's output is in {}\nnew:{}\n\
             listed only:{}",
            logs.display(),
            only(&found, &listed),
            only(&listed, &found)
        )));
    }
    println!("the kit on Kubernetes' mock driver: {} findings, all listed in {DOCUMENT}", listed.len());
    Ok(())
}

/// The failed tests of a report in TAP: a line `not ok 9 - id: rule`, and later `level: "MUST"`.
fn findings(report: &str) -> Findings {
    let mut found = Findings::new();
    let mut failed = None;
    for line in report.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words.as_slice() {
            ["not", "ok", _, "-", test, ..] => failed = Some(test.trim_end_matches(':').to_owned()),
            ["ok", ..] => failed = None,
            ["level:", ..] => {
                let level = line.split('"').nth(1).unwrap_or_default().to_owned();
                found.extend(failed.take().map(|test| (test, level)));
            }
            _ => {}
        }
    }
    found
}

/// A finding of the document.
struct Row {
    level: String,
    /// A race, which not every run shows.
    is_of_chance: bool,
}

/// The rows of the table in the document, by test.
fn listed(document: &str) -> BTreeMap<String, Row> {
    let rows = document.split_once(HEAD).map_or("", |(_, rest)| rest);
    let rows = rows.lines().skip(2).take_while(|line| line.starts_with('|'));
    let row = |line: &str| {
        let mut cells = line.split('|').map(|cell| cell.trim().trim_matches('`').to_owned()).skip(1);
        let test = cells.next()?;
        let level = cells.next()?;
        Some((test, Row { level, is_of_chance: cells.next()?.starts_with("sometimes") }))
    };
    rows.filter_map(row).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn findings_are_read_from_a_report_and_from_the_document() {
        let report = "TAP version 13\nok 1 - a.b: rule\n  ---\n  level: \"MUST\"\n  ...\n\
                      not ok 2 - c.d: rule # TODO\n  ---\n  level: \"good practice\"\n  ...\n";
        let document = format!(
            "text\n\n{HEAD}\n|---|---|---|\n| `c.d` | good practice | why |\n| `e.f` | MUST | sometimes: why |\n\n| x | y |\n"
        );
        let expected = Findings::from([("c.d".to_owned(), "good practice".to_owned())]);
        assert_eq!(findings(report), expected);
        let listed = listed(&document);
        let rows: Vec<_> =
            listed.iter().map(|(test, row)| (&**test, &*row.level, row.is_of_chance)).collect();
        assert_eq!(rows, [("c.d", "good practice", false), ("e.f", "MUST", true)]);
    }
}
