//! docs/benchmarks.md: the measurements go between two marks; the text around them is written by hand.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::goals::Verdict;
use super::record::Record;
use super::{chart, table};
use crate::Failure;

const BEGIN: &str = "<!-- measured: written by `cargo xtask bench` -->";
/// Instead of the table, if the record has no mount-utils.
const NOT_MEASURED: &str = "Not measured in this record. It is measured on a machine with a Go toolchain.\n";
const END: &str = "<!-- end of what was measured -->";

/// The record from which the document is made.
pub(crate) fn record_of(root: &Path) -> PathBuf {
    root.join("docs/benchmarks.json")
}

/// Writes the document, its charts and the record, and returns their paths.
pub(crate) fn write(root: &Path, record: &Record, verdicts: &[Verdict]) -> Result<Vec<PathBuf>, Failure> {
    let write = |(path, text): (PathBuf, String)| {
        fs::write(&path, text)?;
        Ok(path)
    };
    files(root, record, verdicts)?.into_iter().map(write).collect()
}

/// The contents and paths of the document, its charts and the record.
pub(crate) fn files(
    root: &Path,
    record: &Record,
    verdicts: &[Verdict],
) -> Result<Vec<(PathBuf, String)>, Failure> {
    let docs = root.join("docs");
    let path = docs.join("benchmarks.md");
    let text =
        fs::read_to_string(&path).map_err(|error| Failure::new(format!("{}: {error}", path.display())))?;
    let text = between_marks(&text, &measured(record, verdicts)).ok_or_else(|| {
        Failure::new(format!("{} must contain both marks:\n{BEGIN}\n{END}", path.display()))
    })?;
    Ok(vec![
        (path, text),
        (docs.join("benchmarks.svg"), chart::bars(record)),
        (docs.join("benchmarks-scale.svg"), chart::scale(record)),
        (record_of(root), record.to_json()?),
    ])
}

/// The text with `measured` between its marks; `None` if a mark is missing.
fn between_marks(text: &str, measured: &str) -> Option<String> {
    let (before, rest) = text.split_once(BEGIN)?;
    let (_, after) = rest.split_once(END)?;
    Some(format!("{before}{BEGIN}\n\n{measured}\n{END}{after}"))
}

fn measured(record: &Record, verdicts: &[Verdict]) -> String {
    let mut out = "## Compared with mount-utils\n\n".to_owned();
    out.push_str(&table::beside_mount_utils(record).unwrap_or_else(|| NOT_MEASURED.to_owned()));
    let reached = verdicts.iter().filter(|verdict| verdict.is_reached).count();
    let _ = writeln!(out, "\n## Limits\n\n{reached} of {} limits are kept.\n", verdicts.len());
    out.push_str(&table::goals_in_markdown(verdicts));
    out.push_str("\n## Side by side\n\n![Times as multiples of the bare work](benchmarks.svg)\n\n");
    let _ = writeln!(
        out,
        "Each cell has the median time, and the ratio to the bare work with its quartiles. Where there is no \
         bare work, the ratio is to ours. The rounds are those of {} runs.\n",
        record.repeats
    );
    out.push_str(&table::in_markdown(record));
    out.push_str("\n## Time by size\n\n![Time by size](benchmarks-scale.svg)\n");
    out.push_str(&footprint(record));
    out.push_str(&instructions(record));
    out.push_str("\n## Machine\n\n| | |\n|---|---|\n");
    for (name, value) in &record.machine {
        let _ = writeln!(out, "| {name} | {value} |");
    }
    out
}

/// The paths of the footprint's numbers in the output of `bench footprint`, and their descriptions.
const NUMBERS: [(&str, &str); 14] = [
    ("bytes", "size of the stripped, static program, bytes"),
    ("first_probe_ms/median", "from start to the first answered Probe, ms"),
    ("idle/resident_kib", "resident, idle, KiB"),
    ("idle/private_kib", "private part of it, KiB"),
    ("idle/threads", "threads, idle"),
    ("idle/wakeups", "wake-ups while idle"),
    ("idle/cpu_us", "processor time while idle, µs"),
    ("after_calls/resident_kib", "resident after 10,000 calls, KiB"),
    ("after_calls/threads", "threads after 10,000 calls"),
    ("idle_after_calls/resident_kib", "resident 10 s after the calls, KiB"),
    ("idle_after_calls/wakeups", "wake-ups while idle after the calls"),
    ("publish/context_switches", "context switches of a publish and its unpublish"),
    ("publish/cpu_us", "processor time of a publish and its unpublish, µs"),
    ("publish/system_calls", "system calls of a publish and its unpublish"),
];

fn footprint(record: &Record) -> String {
    let mut out =
        "\n## Footprint of a driver's process\n\n| | `dirs` | tonic alone |\n|---|---|---|\n".to_owned();
    let cell = |program: &str, path: &str| {
        let found = record.footprint.get(program)?;
        let value = path.split('/').try_fold(found, |value, key| value.get(key)).and_then(Value::as_f64)?;
        Some(format!("{}", (value * 100.0).round() / 100.0))
    };
    for (path, what) in NUMBERS {
        let [dirs, bare] = ["dirs", "bare"].map(|program| cell(program, path).unwrap_or_default());
        let _ = writeln!(out, "| {what} | {dirs} | {bare} |");
    }
    out
}

fn instructions(record: &Record) -> String {
    let mut out = "\n## Instructions\n\n| | instructions of one run |\n|---|---|\n".to_owned();
    for (name, count) in &record.instructions {
        let _ = writeln!(out, "| {name} | {count} |");
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::goals;
    use crate::bench::record::tests::record;

    #[test]
    fn only_what_is_between_the_marks_is_replaced() {
        let text = format!("a\n{BEGIN}\nold\n{END}\nb\n");
        assert_eq!(between_marks(&text, "new\n"), Some(format!("a\n{BEGIN}\n\nnew\n\n{END}\nb\n")));
        assert_eq!(between_marks("a\n", "new"), None);
    }

    #[test]
    fn a_document_has_all_its_parts() {
        let mut record = record("publish read-only", 1000, &[2.5]);
        record.footprint.insert("dirs".to_owned(), serde_json::json!({ "bytes": 123_456, "publish": {} }));
        record.instructions.insert("read-request".to_owned(), 777);
        let text = measured(&record, &goals::judge(&record));
        for part in
            ["**missed**", "| 123456 |  |", "| read-request | 777 |", "publish read-only, 1000 mounts"]
        {
            assert!(text.contains(part), "{part} in {text}");
        }
    }
}
