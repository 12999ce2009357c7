//! The changes between two records.

use super::record::{Record, Subject};
use crate::Failure;

/// A relative change smaller than this is ignored, even if both records are stable.
const LEAST: f64 = 0.05;

/// A subject that is in both records.
#[derive(Debug, PartialEq)]
struct Change {
    title: String,
    before: f64,
    after: f64,
    verdict: Verdict,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    Faster,
    Slower,
    /// Within the spread of the runs of either record.
    Noise,
}

/// Prints the changes, and fails if something became slower.
pub(crate) fn report(before: &Record, after: &Record) -> Result<(), Failure> {
    let changes = changes(before, after);
    println!(
        "since the record: ratio of ours to the bare work, or to the program if there is no bare work\n"
    );
    println!("{:<48}{:>9}{:>9}{:>9}", "", "before", "now", "change");
    for change in &changes {
        let said = match change.verdict {
            Verdict::Faster => "faster",
            Verdict::Slower => "SLOWER",
            Verdict::Noise => "",
        };
        let Change { title, before, after, .. } = change;
        println!("{title:<48}{before:>9.2}{after:>9.2}{:>8.0}%  {said}", (after / before - 1.0) * 100.0);
    }
    let titles = |changes: Vec<Change>| {
        let slower = changes.into_iter().filter(|change| change.verdict == Verdict::Slower);
        slower.map(|change| change.title).collect::<Vec<_>>()
    };
    match titles(changes).as_slice() {
        [] => Ok(()),
        slower => Err(Failure::new(format!("slower than recorded: {}", slower.join("; ")))),
    }
}

fn changes(before: &Record, after: &Record) -> Vec<Change> {
    let change = |after: &Subject| {
        let before = before.subject(&after.name, after.size)?;
        let [(old, old_range), (new, new_range)] = [relative(before)?, relative(after)?];
        let moved = (new / old - 1.0).abs() > LEAST;
        let verdict = match (old_range, new_range) {
            ((_, high), (low, _)) if moved && low > high => Verdict::Slower,
            ((low, _), (_, high)) if moved && high < low => Verdict::Faster,
            _ => Verdict::Noise,
        };
        Some(Change { title: after.title(), before: old, after: new, verdict })
    };
    after.subjects.iter().filter_map(change).collect()
}

/// The median ratio of this toolkit to another contestant of the same run, and its range. With a single run
/// it is the range of its rounds.
fn relative(subject: &Subject) -> Option<(f64, (f64, f64))> {
    let range = |spread: &super::statistics::Spread| match spread.runs.len() {
        0 | 1 => (spread.low, spread.high),
        _ => spread.range(),
    };
    if subject.base() == "bare" {
        let ratio = &subject.ours()?.ratio;
        return Some((ratio.median, range(ratio)));
    }
    let other = subject.contestants.iter().find(|contestant| contestant.kind != "ours")?;
    let (low, high) = range(&other.to_ours);
    Some((1.0 / other.to_ours.median, (1.0 / high, 1.0 / low)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::record::tests::record;

    fn verdict(before: &[f64], after: &[f64]) -> Verdict {
        let changes = changes(&record("x", 10, before), &record("x", 10, after));
        assert_eq!(changes.len(), 1);
        changes[0].verdict
    }

    #[test]
    fn noise_is_no_change() {
        assert_eq!(verdict(&[1.0, 1.1, 1.3], &[1.2, 1.4, 1.5]), Verdict::Noise);
        assert_eq!(verdict(&[1.0, 1.0, 1.0], &[1.03, 1.03, 1.03]), Verdict::Noise);
        assert_eq!(verdict(&[1.0, 1.1, 1.2], &[1.3, 1.4, 1.5]), Verdict::Slower);
        assert_eq!(verdict(&[1.3, 1.4, 1.5], &[1.0, 1.1, 1.2]), Verdict::Faster);
    }

    #[test]
    fn only_what_is_in_both_is_compared() {
        assert_eq!(changes(&record("x", 10, &[1.0]), &record("x", 100, &[1.0])), []);
        assert!(report(&record("x", 10, &[1.0]), &record("x", 10, &[2.0])).is_err());
        assert!(report(&record("x", 10, &[2.0]), &record("x", 10, &[1.0])).is_ok());
    }
}
