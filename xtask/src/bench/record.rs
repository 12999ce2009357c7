//! The record of the measurements.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::statistics::Spread;
use crate::Failure;

/// All runs of one `cargo xtask bench`.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Record {
    /// The machine, its kernel and its programs, as names and values.
    pub(crate) machine: Vec<(String, String)>,
    /// The number of runs of each subject.
    pub(crate) repeats: usize,
    pub(crate) subjects: Vec<Subject>,
    /// The output of `bench footprint` for each program; empty if it was not run.
    #[serde(default)]
    pub(crate) footprint: BTreeMap<String, Value>,
    /// The instructions of one repetition; empty if they were not counted.
    #[serde(default)]
    pub(crate) instructions: BTreeMap<String, u64>,
}

/// One subject at one size.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Subject {
    pub(crate) name: String,
    pub(crate) unit: String,
    pub(crate) size: u64,
    pub(crate) contestants: Vec<Contestant>,
}

/// One contestant of a comparison.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Contestant {
    pub(crate) name: String,
    /// `ours`, `bare`, `program`, `crate`, `mount-utils`.
    pub(crate) kind: String,
    pub(crate) nanoseconds: Spread,
    /// The ratio to the bare work, or to ours if there is none, within each round.
    pub(crate) ratio: Spread,
    /// The ratio to ours.
    pub(crate) to_ours: Spread,
}

/// The measurements of one process.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Run {
    pub(crate) contestants: Vec<Timed>,
}

/// The rounds of one contestant.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Timed {
    pub(crate) name: String,
    pub(crate) kind: String,
    pub(crate) nanoseconds: Vec<f64>,
}

impl Record {
    pub(crate) fn read(path: &Path) -> Result<Self, Failure> {
        let bytes = fs::read(path).map_err(|error| Failure::usage(format!("{}: {error}", path.display())))?;
        serde_json::from_slice(&bytes).map_err(|error| {
            Failure::usage(format!("{} is not a record of `cargo xtask bench`: {error}", path.display()))
        })
    }

    pub(crate) fn to_json(&self) -> Result<String, Failure> {
        Ok(serde_json::to_string_pretty(&rounded(serde_json::to_value(self)?))? + "\n")
    }

    pub(crate) fn subject(&self, name: &str, size: u64) -> Option<&Subject> {
        self.subjects.iter().find(|subject| subject.name == name && subject.size == size)
    }
}

impl Subject {
    /// Computes a subject from its runs; `None` if they measured nothing.
    pub(crate) fn of(name: &str, unit: &str, size: u64, runs: &[Run]) -> Option<Self> {
        let first = runs.first()?;
        let ours = first.contestants.iter().position(|contestant| contestant.kind == "ours")?;
        let bare = first.contestants.iter().position(|contestant| contestant.kind == "bare").unwrap_or(ours);
        let contestants = first.contestants.iter().enumerate().map(|(at, contestant)| {
            let times: Vec<Vec<f64>> =
                runs.iter().map(|run| run.contestants[at].nanoseconds.clone()).collect();
            let to = |base: usize| {
                let ratios = runs.iter().map(|run| {
                    let [mine, other] = [at, base].map(|at| &run.contestants[at].nanoseconds);
                    mine.iter().zip(other).map(|(mine, other)| mine / other).collect()
                });
                Spread::of(&ratios.collect::<Vec<Vec<f64>>>())
            };
            Some(Contestant {
                name: contestant.name.clone(),
                kind: contestant.kind.clone(),
                nanoseconds: Spread::of(&times)?,
                ratio: to(bare)?,
                to_ours: to(ours)?,
            })
        });
        let contestants: Option<Vec<Contestant>> = contestants.collect();
        Some(Self { name: name.to_owned(), unit: unit.to_owned(), size, contestants: contestants? })
    }

    pub(crate) fn of_kind(&self, kind: &str) -> impl Iterator<Item = &Contestant> {
        self.contestants.iter().filter(move |contestant| contestant.kind == kind)
    }

    pub(crate) fn ours(&self) -> Option<&Contestant> {
        self.of_kind("ours").next()
    }

    /// The kind that ratios are relative to.
    pub(crate) fn base(&self) -> &'static str {
        if self.of_kind("bare").next().is_some() { "bare" } else { "ours" }
    }

    /// `publish read-only, 1000 mounts`
    pub(crate) fn title(&self) -> String {
        if self.unit.is_empty() {
            return self.name.clone();
        }
        format!("{}, {} {}", self.name, self.size, self.unit)
    }
}

/// Rounds to four significant digits: more would be noise, and needless changes of the record.
fn rounded(value: Value) -> Value {
    match value {
        Value::Number(number) if number.is_f64() => {
            let text = format!("{:.3e}", number.as_f64().unwrap_or(0.0));
            text.parse::<f64>().map_or(Value::Number(number), Value::from)
        }
        Value::Array(items) => items.into_iter().map(rounded).collect(),
        Value::Object(fields) => {
            Value::Object(fields.into_iter().map(|(key, value)| (key, rounded(value))).collect())
        }
        other => other,
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn run(contestants: &[(&str, &str, &[f64])]) -> Run {
        let timed = contestants.iter().map(|(kind, name, times)| Timed {
            name: (*name).to_owned(),
            kind: (*kind).to_owned(),
            nanoseconds: times.to_vec(),
        });
        Run { contestants: timed.collect() }
    }

    /// A record of one subject, in which ours has these ratios to the bare work, one for each run.
    pub(crate) fn record(name: &str, size: u64, ratios: &[f64]) -> Record {
        let runs = ratios.iter().map(|ratio| {
            run(&[
                ("bare", "bare", &[100.0; 3]),
                ("ours", "ours", &[100.0 * ratio; 3]),
                ("program", "program", &[30_000.0; 3]),
            ])
        });
        let subject = Subject::of(name, "mounts", size, &runs.collect::<Vec<_>>()).expect("a subject");
        Record {
            machine: Vec::new(),
            repeats: ratios.len(),
            subjects: vec![subject],
            footprint: BTreeMap::new(),
            instructions: BTreeMap::new(),
        }
    }

    #[test]
    fn ratios_are_within_rounds() {
        // Changes of the machine in a round affect both.
        let runs = [run(&[("bare", "b", &[1.0, 10.0, 100.0]), ("ours", "o", &[2.0, 20.0, 200.0])])];
        let subject = Subject::of("x", "", 0, &runs).unwrap();
        let ours = subject.ours().unwrap();
        assert_eq!((ours.ratio.low, ours.ratio.high), (2.0, 2.0));
        assert_eq!(subject.contestants[0].to_ours.median, 0.5);
    }

    #[test]
    fn without_bare_work_ratios_are_to_ours() {
        let runs = [run(&[("ours", "o", &[2.0, 2.0]), ("program", "p", &[20.0])])];
        let subject = Subject::of("x", "", 0, &runs).unwrap();
        assert_eq!((subject.base(), subject.contestants[1].ratio.median), ("ours", 10.0));
    }

    #[test]
    fn a_record_is_read_as_it_was_written() {
        let before = record("x", 10, &[1.23456, 2.0]);
        let after: Record = serde_json::from_str(&before.to_json().unwrap()).unwrap();
        assert_eq!(after.subjects[0].ours().unwrap().ratio.runs, [1.235, 2.0]);
        assert_eq!(after.subjects[0].title(), "x, 10 mounts");
    }
}
