//! docs/benchmarks.md: the measurements go between two marks; the text around them is written by hand.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use crate::limits;
use crate::record::{Record, Subject, footprint_number};
use crate::{Result, failure};

const FILE: &str = "docs/benchmarks.md";
const BEGIN: &str = "<!-- measured: written by `cargo xtask bench` -->";
const END: &str = "<!-- end of what was measured -->";

/// The kinds of contestants, in the order of their columns.
const KINDS: [&str; 5] = ["ours", "bare", "mount-utils", "program", "crate"];

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

pub(crate) fn write(root: &Path, record: &Record) -> Result {
    let text = fs::read_to_string(root.join(FILE))?;
    let text = between_marks(&text, &measured(record))
        .ok_or_else(|| failure(format!("{FILE} must contain both marks:\n{BEGIN}\n{END}")))?;
    println!("written: {FILE}");
    Ok(fs::write(root.join(FILE), text)?)
}

/// The text with `measured` between its marks; `None` if a mark is missing.
fn between_marks(text: &str, measured: &str) -> Option<String> {
    let (before, rest) = text.split_once(BEGIN)?;
    let (_, after) = rest.split_once(END)?;
    Some(format!("{before}{BEGIN}\n\n{measured}\n{END}{after}"))
}

/// The tables, as they are in the document.
pub(crate) fn measured(record: &Record) -> String {
    let mut out =
        format!("## Side by side\n\n| | {} |\n|---|{}\n", KINDS.join(" | "), "---|".repeat(KINDS.len()));
    for subject in &record.subjects {
        let cells = KINDS.map(|kind| cells(subject, kind));
        let _ = writeln!(out, "| {} | {} |", subject.title(), cells.join(" | "));
    }
    let limits::Checked { kept, missed } = limits::check(record);
    let _ = writeln!(out, "\n## Limits\n\n{kept} of {} limits are kept.", kept + missed.len());
    for line in missed {
        let _ = writeln!(out, "\n**Missed:** {line}");
    }
    if !record.footprint.is_empty() {
        out += &footprint(record);
    }
    out += "\n## Machine\n\n| | |\n|---|---|\n";
    for (name, value) in &record.machine {
        let _ = writeln!(out, "| {name} | {value} |");
    }
    out
}

fn footprint(record: &Record) -> String {
    let mut out =
        "\n## Footprint of a driver's process\n\n| | `dirs` | tonic alone |\n|---|---|---|\n".to_owned();
    for (path, what) in NUMBERS {
        let [dirs, bare] = ["dirs", "bare"].map(|program| match footprint_number(record, program, path) {
            Some(value) => ((value * 100.0).round() / 100.0).to_string(),
            None => String::new(),
        });
        let _ = writeln!(out, "| {what} | {dirs} | {bare} |");
    }
    out += "\nWhat many stages at once take: [abuse.md](abuse.md#a-burst).\n";
    out
}

/// The contestants of a kind, each with its time and the ratio of it to ours.
fn cells(subject: &Subject, kind: &str) -> String {
    let cells = subject.of_kind(kind).map(|one| {
        let time = duration(one.nanoseconds.median);
        match kind {
            "ours" => format!("{}: {time}", one.name),
            _ => format!("{}: {time}, **{}**", one.name, number(one.ratio.median)),
        }
    });
    cells.collect::<Vec<_>>().join("<br>")
}

/// With three significant digits.
fn number(value: f64) -> String {
    match value {
        value if value < 10.0 => format!("{value:.2}"),
        value if value < 100.0 => format!("{value:.1}"),
        value => format!("{value:.0}"),
    }
}

fn duration(nanoseconds: f64) -> String {
    match nanoseconds {
        value if value < 1e3 => format!("{value:.0} ns"),
        value if value < 1e6 => format!("{} µs", number(value / 1e3)),
        value if value < 1e9 => format!("{} ms", number(value / 1e6)),
        value => format!("{} s", number(value / 1e9)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::tests::record;

    #[test]
    fn the_document_says_what_its_record_does() {
        let root = crate::root();
        let written = fs::read_to_string(root.join(FILE)).expect("the document");
        let record = Record::read(root).expect("a record");
        assert!(
            between_marks(&written, &measured(&record)).expect("both marks") == written,
            "run `cargo xtask bench --document`"
        );
    }

    #[test]
    fn only_what_is_between_the_marks_is_replaced() {
        let text = format!("a\n{BEGIN}\nold\n{END}\nb\n");
        assert_eq!(between_marks(&text, "new\n"), Some(format!("a\n{BEGIN}\n\nnew\n\n{END}\nb\n")));
        assert_eq!(between_marks("a\n", "new"), None);
    }

    #[test]
    fn a_document_has_all_its_parts() {
        let mut record = record("publish read-only", 1000, 2.5);
        record.footprint.insert("dirs".to_owned(), serde_json::json!({ "bytes": 123_456, "publish": {} }));
        let text = measured(&record);
        let row = "| publish read-only, 1000 mounts | ours: 250 ns | bare: 100 ns, **0.40** |  | program: 30.0 µs, **120** |  |";
        for part in [row, "2 of 3 limits are kept.", "**Missed:** ", "| 123456 |  |"] {
            assert!(text.contains(part), "{part} in {text}");
        }
    }

    #[test]
    fn numbers_have_three_digits() {
        assert_eq!([1.234, 12.34, 123.4].map(number), ["1.23", "12.3", "123"]);
        assert_eq!([840.0, 8400.0, 84e6, 2.1e9].map(duration), ["840 ns", "8.40 µs", "84.0 ms", "2.10 s"]);
    }
}
