//! Free extents that read as zeros: this driver has erased them, and nobody else has changed the group since.
//!
//! A command of an administrator can leave data in free extents, as pvmove does. What is not known here is erased before a volume
//! gets it.

use std::collections::BTreeSet;

use crate::lvm::report::{Found, Report};

/// What is known about the free extents.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Zeros {
    /// By which lvm counts the group's changes, when this was true.
    seqno: u64,
    runs: BTreeSet<Run>,
}

/// Extents of a disk, one next to another.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Run {
    /// The UUID of the physical volume.
    disk: String,
    first: u64,
    /// The last one too.
    last: u64,
}

impl Zeros {
    pub(super) fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// Forgets everything if the group was changed, but for this many changes by this driver.
    pub(super) fn follow(&mut self, report: &Report, own: u64) {
        if report.seqno != self.seqno + own {
            self.runs.clear();
        }
        self.seqno = report.seqno;
    }

    /// A logical volume that was erased is removed.
    pub(super) fn add(&mut self, report: &Report, removed: &Found) {
        self.runs.extend(runs(report, removed).into_iter().flatten());
        let mut joined: Vec<Run> = Vec::new();
        for run in std::mem::take(&mut self.runs) {
            match joined.last_mut() {
                Some(last) if last.disk == run.disk && last.last + 1 == run.first => last.last = run.last,
                _ => joined.push(run),
            }
        }
        self.runs.extend(joined);
    }

    /// A logical volume is made. Returns whether all of it reads as zeros.
    pub(super) fn take(&mut self, report: &Report, made: &Found) -> bool {
        let Some(taken) = runs(report, made) else {
            self.runs.clear();
            return false;
        };
        let mut is_all = true;
        for run in &taken {
            is_all &= self.runs.iter().any(|zeros| zeros.covers(run));
            self.runs =
                std::mem::take(&mut self.runs).into_iter().flat_map(|zeros| zeros.without(run)).collect();
        }
        is_all
    }

    /// As lines of a file; none if nothing is known.
    pub(super) fn to_lines(&self) -> String {
        let line = |run: &Run| format!("zeros {} {} {} {}\n", self.seqno, run.disk, run.first, run.last);
        self.runs.iter().map(line).collect()
    }

    /// Reads one of these lines. None if it is something else.
    pub(super) fn read_line(&mut self, line: &str) -> Option<()> {
        let words: Vec<&str> = line.strip_prefix("zeros ")?.split(' ').collect();
        let [seqno, disk, first, last] = words[..] else { return None };
        self.seqno = seqno.parse().ok()?;
        self.runs.insert(Run { disk: disk.to_owned(), first: first.parse().ok()?, last: last.parse().ok()? });
        Some(())
    }
}

impl Run {
    fn covers(&self, other: &Self) -> bool {
        self.disk == other.disk && self.first <= other.first && other.last <= self.last
    }

    /// What is left of it.
    fn without(self, other: &Self) -> impl Iterator<Item = Self> {
        let is_apart = self.disk != other.disk || self.last < other.first || other.last < self.first;
        let before = (!is_apart && self.first < other.first)
            .then(|| Self { last: other.first.saturating_sub(1), ..self.clone() });
        let after =
            (!is_apart && other.last < self.last).then(|| Self { first: other.last + 1, ..self.clone() });
        is_apart.then_some(self).into_iter().chain(before).chain(after)
    }
}

/// The extents of a thick logical volume. None if they are not understood.
fn runs(report: &Report, found: &Found) -> Option<Vec<Run>> {
    let run = |text: &String| {
        let (device, extents) = text.rsplit_once(':')?;
        let (first, last) = extents.split_once('-')?;
        let disk = report.disks.iter().find(|disk| disk.name == device)?.uuid.clone();
        Some(Run { disk, first: first.parse().ok()?, last: last.parse().ok()? })
    };
    found.extents.iter().map(run).collect()
}
