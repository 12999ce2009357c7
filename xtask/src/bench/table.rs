//! The record as tables: text for a terminal, Markdown for the documents.

use std::fmt::Write as _;

use super::goals::Verdict;
use super::record::{Contestant, Record, Subject};
use super::statistics::Spread;

/// A table of all contestants of all subjects.
pub(crate) fn text(record: &Record) -> String {
    let mut out = format!("{:<44}{:>12}{:>12}  quartiles\n", "", "median", "ratio");
    for subject in &record.subjects {
        let _ = writeln!(out, "{}", subject.title());
        for contestant in &subject.contestants {
            let Contestant { name, kind, nanoseconds, ratio, .. } = contestant;
            let name = if *kind == "ours" { format!("{name} (ours)") } else { name.clone() };
            let [time, low, high] = [nanoseconds.median, ratio.low, ratio.high];
            let _ = writeln!(
                out,
                "  {name:<42}{:>12}{:>12}  {} – {}",
                duration(time),
                number(ratio.median),
                number(low),
                number(high)
            );
        }
    }
    out
}

/// The goals, and whether each is reached.
pub(crate) fn goals(verdicts: &[Verdict]) -> String {
    let mut out = String::new();
    for Verdict { what, wanted, found, is_reached } in verdicts {
        let said = if *is_reached { "reached" } else { "MISSED" };
        let _ = writeln!(out, "{said:<9}{what:<64}{wanted}: {found}");
    }
    out
}

pub(crate) fn goals_in_markdown(verdicts: &[Verdict]) -> String {
    let mut out = "| | limit | measured | |\n|---|---|---|---|\n".to_owned();
    for Verdict { what, wanted, found, is_reached } in verdicts {
        let said = if *is_reached { "reached" } else { "**missed**" };
        let _ = writeln!(out, "| {what} | {wanted} | {found} | {said} |");
    }
    out
}

/// The subjects that `k8s.io/mount-utils` takes part in, with the factor between it and ours; `None` if it was
/// not measured.
pub(crate) fn beside_mount_utils(record: &Record) -> Option<String> {
    let mut out =
        "| | mount-utils | ours | bare | ratio of mount-utils to ours |\n|---|---|---|---|---|\n".to_owned();
    let mut slower = Vec::new();
    let mut is_empty = true;
    for subject in &record.subjects {
        let Some(theirs) = subject.of_kind("mount-utils").next() else { continue };
        let of = |kind: &str| {
            let found = subject.of_kind(kind).next();
            found.map(|one| format!("{}: {}", one.name, duration(one.nanoseconds.median))).unwrap_or_default()
        };
        let [theirs_cell, ours, bare] = ["mount-utils", "ours", "bare"].map(of);
        let factor = theirs.to_ours.median;
        let _ = writeln!(
            out,
            "| {} | {theirs_cell} | {ours} | {bare} | **{}** |",
            subject.title(),
            number(factor)
        );
        if factor < 1.0 {
            slower.push(subject.title());
        }
        is_empty = false;
    }
    let verdict = match slower.as_slice() {
        [] => "Ours is slower in no row.".to_owned(),
        slower => format!("**Ours is slower in these rows:** {}.", slower.join("; ")),
    };
    (!is_empty).then(|| format!("{verdict}\n\n{out}"))
}

/// A row for each subject: the bare work, ours, and the others, each with its time and its ratio.
pub(crate) fn in_markdown(record: &Record) -> String {
    let mut out =
        "| | mount-utils | bare | ours | program | crates |\n|---|---|---|---|---|---|\n".to_owned();
    for subject in &record.subjects {
        let cell = |kind: &str| {
            let all = subject.of_kind(kind).map(|contestant| cell(subject, contestant));
            all.collect::<Vec<_>>().join("<br>")
        };
        let kinds = ["mount-utils", "bare", "ours", "program", "crate"].map(cell);
        let _ = writeln!(out, "| {} | {} |", subject.title(), kinds.join(" | "));
    }
    out
}

/// `Bind: 84.9 µs, **1.93** [1.85 – 2.25]`
fn cell(subject: &Subject, contestant: &Contestant) -> String {
    let Contestant { name, kind, nanoseconds, ratio: Spread { median, low, high, .. }, .. } = contestant;
    let time = duration(nanoseconds.median);
    if kind == subject.base() {
        return format!("{name}: {time}");
    }
    format!("{name}: {time}, **{}** [{} – {}]", number(*median), number(*low), number(*high))
}

/// With three significant digits.
pub(crate) fn number(value: f64) -> String {
    match value {
        value if value < 10.0 => format!("{value:.2}"),
        value if value < 100.0 => format!("{value:.1}"),
        value => format!("{value:.0}"),
    }
}

pub(crate) fn duration(nanoseconds: f64) -> String {
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
    use crate::bench::record::tests::record;

    #[test]
    fn numbers_have_three_digits() {
        assert_eq!([1.234, 12.34, 123.4].map(number), ["1.23", "12.3", "123"]);
        assert_eq!([840.0, 8400.0, 84e6].map(duration), ["840 ns", "8.40 µs", "84.0 ms"]);
        assert_eq!(duration(2.1e9), "2.10 s");
    }

    #[test]
    fn a_row_has_all_kinds() {
        let rows = in_markdown(&record("x", 10, &[2.0]));
        let row = "| x, 10 mounts |  | bare: 100 ns | ours: 200 ns, **2.00** [2.00 – 2.00] | program: 30.0 µs, **300** [300 – 300] |  |";
        assert_eq!(rows.lines().last(), Some(row));
        assert!(text(&record("x", 10, &[2.0])).contains("ours (ours)"));
    }

    #[test]
    fn what_is_slower_than_mount_utils_is_said() {
        let said = |theirs: f64| {
            let mut record = record("x", 10, &[2.0]);
            let subject = &mut record.subjects[0];
            let mut contestant = subject.contestants[0].clone();
            contestant.kind = "mount-utils".to_owned();
            contestant.to_ours.median = theirs;
            subject.contestants.push(contestant);
            beside_mount_utils(&record).expect("a table")
        };
        assert!(said(3.0).starts_with("Ours is slower in no row.") && said(3.0).contains("**3.00**"));
        assert!(said(0.5).starts_with("**Ours is slower in these rows:** x, 10 mounts."));
        assert_eq!(beside_mount_utils(&record("x", 10, &[2.0])), None);
    }
}
