//! The limits of the toolkit's cost.

use crate::record::{Record, Subject, footprint_number};

/// Ours must be at least this factor as fast as each contestant of this kind, at each of these sizes.
const FACTORS: &[(&str, &[u64], &str, f64)] = &[
    ("publish read-only", &[10, 1000, 10_000], "mount-utils", 1.0),
    ("unmount", &[10, 1000, 10_000], "mount-utils", 1.0),
    ("mount_state", &[10, 1000, 10_000], "mount-utils", 1.0),
    // It reads `/proc/mounts`, which is shorter: no ids of mounts, no propagation, no root within the filesystem.
    ("table of mounts", &[10, 1000, 10_000], "mount-utils", 0.8),
    ("probe blank", &[64, 10_240], "mount-utils", 1.0),
    ("probe ext4", &[0], "mount-utils", 1.0),
    ("probe xfs", &[0], "mount-utils", 1.0),
    ("first stage", &[64, 10_240], "mount-utils", 1.0),
    ("stage an existing ext4", &[10, 1000, 10_000], "mount-utils", 1.0),
    ("grow xfs, mounted", &[10, 1000, 10_000], "mount-utils", 1.0),
    ("publish read-only", &[1000], "bare", 0.5),
    ("publish read-only", &[10_000], "bare", 0.8),
    // Three system calls for one: an open that asks no filesystem, statx, close.
    ("mount_state", &[10, 10_000], "bare", 0.33),
    ("table of mounts", &[10_000], "bare", 0.8),
    ("probe blank", &[64, 10_240], "bare", 0.5),
    ("probe ext4", &[0], "bare", 0.5),
    ("probe xfs", &[0], "bare", 0.5),
    ("probe random data", &[0], "bare", 0.4),
    ("first stage", &[64, 10_240], "bare", 0.66),
    ("rpc question", &[1], "bare", 0.8),
    ("rpc publish", &[32], "bare", 0.64),
    ("publish read-only", &[1000], "program", 100.0),
    ("probe blank", &[64, 10_240], "program", 5.0),
    ("probe ext4", &[0], "program", 5.0),
    ("probe xfs", &[0], "program", 5.0),
    // One of them reads `/proc/mounts`.
    ("table of mounts", &[10_000], "crate", 0.8),
];

/// Numbers of the footprint of `dirs`, and the most that they can be.
const FOOTPRINT: &[(&str, f64)] = &[
    ("first_probe_ms/median", 3.0),
    ("idle/resident_kib", 4096.0),
    ("after_calls/resident_kib", 6144.0),
    ("bytes", 4.0 * 1024.0 * 1024.0),
    // Once a second it looks whether its socket still exists.
    ("idle/wakeups", 100.0),
    ("idle_after_calls/wakeups", 100.0),
];

/// Which limits were checked.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Checked {
    pub(crate) kept: usize,
    /// A line for each limit that is not kept.
    pub(crate) missed: Vec<String>,
}

impl Checked {
    fn add(&mut self, is_kept: bool, line: impl FnOnce() -> String) {
        if is_kept {
            self.kept += 1;
        } else {
            self.missed.push(line());
        }
    }
}

/// Checks every limit for which the record has numbers.
pub(crate) fn check(record: &Record) -> Checked {
    let mut checked = Checked::default();
    for (name, sizes, kind, least) in FACTORS {
        let is_limited = |subject: &&Subject| subject.name == *name && sizes.contains(&subject.size);
        for subject in record.subjects.iter().filter(is_limited) {
            for other in subject.of_kind(kind) {
                let found = other.ratio.median;
                checked.add(found >= *least, || {
                    format!("{}: {} takes {found} of our time, at least {least}", subject.title(), other.name)
                });
            }
        }
    }
    for (path, most) in FOOTPRINT {
        if let Some(found) = footprint_number(record, "dirs", path) {
            checked.add(found <= *most, || format!("footprint, {path}: {found}, at most {most}"));
        }
    }
    checked
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::tests::record;

    #[test]
    fn a_limit_is_kept_or_missed() {
        // In this record the program takes 300 times the bare time.
        for (ours, kept) in [(1.9, 2), (2.1, 1), (3.5, 0)] {
            let checked = check(&record("publish read-only", 1000, ours));
            assert_eq!((checked.kept, checked.missed.len()), (kept, 2 - kept), "{checked:?}");
        }
        assert_eq!(check(&record("something else", 1, 9.0)), Checked::default());
    }

    #[test]
    fn the_footprint_is_of_the_driver() {
        let mut record = record("x", 1, 1.0);
        let footprint = serde_json::json!({ "bytes": 5e6, "idle": { "wakeups": 0 } });
        record.footprint.insert("dirs".to_owned(), footprint);
        let checked = check(&record);
        assert_eq!((checked.kept, checked.missed.len()), (1, 1));
    }
}
