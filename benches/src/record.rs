//! The record of the measurements.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::Result;

/// The record from which the document is made, relative to the workspace.
const FILE: &str = "docs/benchmarks.json";

/// All runs of one `cargo xtask bench`.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Record {
    /// The machine, its kernel and its programs, as names and values.
    pub(crate) machine: Vec<(String, String)>,
    /// The number of runs of each subject.
    pub(crate) repeats: usize,
    pub(crate) subjects: Vec<Subject>,
    /// The output of `bench footprint` for each program; empty if it was not run.
    pub(crate) footprint: BTreeMap<String, Value>,
}

/// One subject at one size.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Subject {
    pub(crate) name: String,
    pub(crate) unit: String,
    pub(crate) size: u64,
    pub(crate) contestants: Vec<Contestant>,
}

/// One contestant of a comparison.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Contestant {
    pub(crate) name: String,
    /// `ours`, `bare`, `program`, `crate`, `mount-utils`.
    pub(crate) kind: String,
    pub(crate) nanoseconds: Spread,
    /// The ratio of its time to ours, within each round.
    pub(crate) ratio: Spread,
}

/// The median of all rounds of all runs, and the quartiles.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Spread {
    pub(crate) median: f64,
    pub(crate) low: f64,
    pub(crate) high: f64,
}

/// The measurements of one process.
pub(crate) type Run = Vec<Timed>;

/// The rounds of one contestant.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Timed {
    pub(crate) name: String,
    pub(crate) kind: String,
    pub(crate) nanoseconds: Vec<f64>,
}

impl Record {
    pub(crate) fn read(root: &Path) -> Result<Self> {
        Ok(serde_json::from_slice(&fs::read(root.join(FILE))?)?)
    }

    pub(crate) fn write(&self, root: &Path) -> Result {
        println!("written: {FILE}");
        Ok(fs::write(root.join(FILE), serde_json::to_string_pretty(self)? + "\n")?)
    }
}

/// A number of a program's footprint, by its path in the output of `bench footprint`.
pub(crate) fn footprint_number(record: &Record, program: &str, path: &str) -> Option<f64> {
    let found = record.footprint.get(program)?;
    path.split('/').try_fold(found, |value, key| value.get(key))?.as_f64()
}

impl Subject {
    /// Computes a subject from its runs; `None` if they measured nothing.
    pub(crate) fn of(name: &str, unit: &str, size: u64, runs: &[Run]) -> Option<Self> {
        let first = runs.first()?;
        let ours = first.iter().position(|contestant| contestant.kind == "ours")?;
        let mut contestants = Vec::new();
        for (at, Timed { name, kind, .. }) in first.iter().enumerate() {
            let times = runs.iter().flat_map(|run| &run[at].nanoseconds);
            let ratios = runs.iter().flat_map(|run| {
                let ours = &run[ours].nanoseconds;
                run[at].nanoseconds.iter().zip(ours).map(|(time, ours)| time / ours)
            });
            contestants.push(Contestant {
                name: name.clone(),
                kind: kind.clone(),
                nanoseconds: Spread::of(times.copied())?,
                ratio: Spread::of(ratios)?,
            });
        }
        Some(Self { name: name.to_owned(), unit: unit.to_owned(), size, contestants })
    }

    pub(crate) fn of_kind(&self, kind: &str) -> impl Iterator<Item = &Contestant> {
        self.contestants.iter().filter(move |contestant| contestant.kind == kind)
    }

    /// `publish read-only, 1000 mounts`
    pub(crate) fn title(&self) -> String {
        title(&self.name, &self.unit, self.size)
    }
}

pub(crate) fn title(name: &str, unit: &str, size: u64) -> String {
    if unit.is_empty() { name.to_owned() } else { format!("{name}, {size} {unit}") }
}

impl Spread {
    fn of(values: impl Iterator<Item = f64>) -> Option<Self> {
        let mut sorted: Vec<f64> = values.collect();
        sorted.sort_unstable_by(f64::total_cmp);
        let quantile = |part| quantile(&sorted, part);
        Some(Self { median: quantile(0.5)?, low: quantile(0.25)?, high: quantile(0.75)? })
    }
}

/// A quantile, interpolated between neighbours, with four significant digits: more would be noise.
fn quantile(sorted: &[f64], part: f64) -> Option<f64> {
    let place = (sorted.len().checked_sub(1)? as f64) * part;
    let below = sorted[place.floor() as usize];
    let above = sorted[place.ceil() as usize];
    format!("{:.3e}", below + (above - below) * place.fract()).parse().ok()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    fn run(contestants: &[(&str, &[f64])]) -> Run {
        let timed = contestants.iter().map(|(kind, times)| Timed {
            name: (*kind).to_owned(),
            kind: (*kind).to_owned(),
            nanoseconds: times.to_vec(),
        });
        timed.collect()
    }

    /// A record of one subject, in which ours takes this multiple of the bare time.
    pub(crate) fn record(name: &str, size: u64, ours: f64) -> Record {
        let run = run(&[("bare", &[100.0; 3]), ("ours", &[100.0 * ours; 3]), ("program", &[30_000.0; 3])]);
        let subject = Subject::of(name, "mounts", size, &[run]).expect("a subject");
        Record { machine: Vec::new(), repeats: 1, subjects: vec![subject], footprint: BTreeMap::new() }
    }

    #[test]
    fn ratios_are_within_rounds() {
        // Changes of the machine in a round affect both. A slow contestant takes part in the first rounds only.
        let runs =
            [run(&[("ours", &[2.0, 20.0, 200.0]), ("bare", &[1.0, 10.0, 100.0]), ("program", &[20.0])])];
        let subject = Subject::of("x", "", 0, &runs).expect("a subject");
        let ratios: Vec<_> = subject.contestants.iter().map(|one| (one.ratio.low, one.ratio.high)).collect();
        assert_eq!(ratios, [(1.0, 1.0), (0.5, 0.5), (10.0, 10.0)]);
    }

    #[test]
    fn medians_and_quartiles() {
        let spread = Spread::of([4.0, 1.0, 5.0, 2.0, 3.0].into_iter()).expect("values");
        assert_eq!((spread.low, spread.median, spread.high), (2.0, 3.0, 4.0));
        assert_eq!(quantile(&[1.0, 2.0], 0.5), Some(1.5));
        assert_eq!(quantile(&[1.234_56], 0.5), Some(1.235));
        assert!(Spread::of(std::iter::empty()).is_none());
    }
}
