//! The toolkit's performance goals, and whether they are reached.

use serde_json::Value;

use super::record::{Record, Subject};

/// A goal.
enum Goal {
    /// Ours takes at most this multiple of the bare time.
    AtMost(&'static str, u64, f64),
    /// Ours is at least this factor faster than each contestant of this kind.
    Faster(&'static str, u64, &'static str, f64),
    /// Ours takes the same time at both sizes, within this fraction.
    Flat(&'static str, u64, u64, f64),
    /// From the first size to the second, ours gains at least this fraction of the gain of the bare work.
    Scales(&'static str, u64, u64, f64),
    /// Ours takes at most this number of milliseconds.
    Within(&'static str, u64, f64),
    /// A number of the footprint, in this unit, at most.
    Footprint(&'static str, &'static str, f64),
}

use Goal::{AtMost, Faster, Flat, Footprint, Scales, Within};

/// The kind of what most drivers in Go use.
const MOUNT_UTILS: &str = "mount-utils";

const GOALS: &[Goal] = &[
    Faster("publish read-only", 10, MOUNT_UTILS, 1.0),
    Faster("publish read-only", 1000, MOUNT_UTILS, 1.0),
    Faster("publish read-only", 10_000, MOUNT_UTILS, 1.0),
    Faster("unmount", 10, MOUNT_UTILS, 1.0),
    Faster("unmount", 1000, MOUNT_UTILS, 1.0),
    Faster("unmount", 10_000, MOUNT_UTILS, 1.0),
    Faster("mount_state", 10, MOUNT_UTILS, 1.0),
    Faster("mount_state", 1000, MOUNT_UTILS, 1.0),
    Faster("mount_state", 10_000, MOUNT_UTILS, 1.0),
    // It reads `/proc/mounts`, which is shorter: no ids of mounts, no propagation, no root within the filesystem.
    Faster("table of mounts", 10, MOUNT_UTILS, 0.8),
    Faster("table of mounts", 1000, MOUNT_UTILS, 0.8),
    Faster("table of mounts", 10_000, MOUNT_UTILS, 0.8),
    Faster("probe blank", 64, MOUNT_UTILS, 1.0),
    Faster("probe blank", 10_240, MOUNT_UTILS, 1.0),
    Faster("probe ext4", 0, MOUNT_UTILS, 1.0),
    Faster("probe xfs", 0, MOUNT_UTILS, 1.0),
    Faster("first stage", 64, MOUNT_UTILS, 1.0),
    Faster("first stage", 10_240, MOUNT_UTILS, 1.0),
    Faster("stage an existing ext4", 10, MOUNT_UTILS, 1.0),
    Faster("stage an existing ext4", 1000, MOUNT_UTILS, 1.0),
    Faster("stage an existing ext4", 10_000, MOUNT_UTILS, 1.0),
    Faster("grow xfs, mounted", 10, MOUNT_UTILS, 1.0),
    Faster("grow xfs, mounted", 1000, MOUNT_UTILS, 1.0),
    Faster("grow xfs, mounted", 10_000, MOUNT_UTILS, 1.0),
    AtMost("publish read-only", 1000, 2.0),
    AtMost("publish read-only", 10_000, 1.25),
    Faster("publish read-only", 1000, "program", 100.0),
    // Three system calls for one: an open that asks no filesystem, statx, close.
    AtMost("mount_state", 10, 3.0),
    AtMost("mount_state", 10_000, 3.0),
    Flat("mount_state", 10, 10_000, 0.2),
    AtMost("table of mounts", 10_000, 1.25),
    // One of them reads `/proc/mounts`.
    Faster("table of mounts", 10_000, "crate", 0.8),
    AtMost("probe blank", 64, 2.0),
    AtMost("probe blank", 10_240, 2.0),
    AtMost("probe ext4", 0, 2.0),
    AtMost("probe xfs", 0, 2.0),
    AtMost("probe random data", 0, 2.5),
    Faster("probe blank", 64, "program", 5.0),
    Faster("probe blank", 10_240, "program", 5.0),
    Faster("probe ext4", 0, "program", 5.0),
    Faster("probe xfs", 0, "program", 5.0),
    Within("probe blank", 10_240, 10.0),
    AtMost("first stage", 64, 1.5),
    AtMost("first stage", 10_240, 1.5),
    AtMost("rpc question", 1, 1.25),
    // One client mostly waits to be woken, on either server. With 32 the work of a call counts.
    Scales("rpc publish", 1, 32, 0.75),
    Footprint("first_probe_ms/median", "ms to the first answer", 3.0),
    Footprint("idle/resident_kib", "KiB resident, idle", 4096.0),
    Footprint("after_calls/resident_kib", "KiB resident after 10,000 calls", 6144.0),
    Footprint("bytes", "bytes of the stripped program", 4.0 * 1024.0 * 1024.0),
    // Once a second it looks whether its socket is still there.
    Footprint("idle/wakeups", "context switches in 10 idle seconds", 100.0),
    Footprint("idle_after_calls/wakeups", "context switches in 10 idle seconds, after 10,000 calls", 100.0),
];

/// A goal, and the measurement.
pub(crate) struct Verdict {
    pub(crate) what: String,
    pub(crate) wanted: String,
    pub(crate) found: String,
    pub(crate) is_reached: bool,
}

/// Judges every goal for which the record has numbers.
pub(crate) fn judge(record: &Record) -> Vec<Verdict> {
    GOALS.iter().filter_map(|goal| verdict(goal, record)).collect()
}

fn verdict(goal: &Goal, record: &Record) -> Option<Verdict> {
    match *goal {
        AtMost(name, size, factor) => {
            let subject = record.subject(name, size)?;
            let ratio = &subject.ours()?.ratio;
            Some(Verdict {
                what: format!("{}: ratio to the bare work", subject.title()),
                wanted: format!("at most {factor}"),
                found: format!("{:.2} [{:.2} – {:.2}]", ratio.median, ratio.low, ratio.high),
                is_reached: ratio.median <= factor,
            })
        }
        Faster(name, size, kind, factor) => {
            let subject = record.subject(name, size)?;
            let each: Vec<_> = subject.of_kind(kind).collect();
            if each.is_empty() {
                return None;
            }
            let least = each.iter().map(|other| other.to_ours.median).fold(f64::INFINITY, f64::min);
            let list = each.iter().map(|other| format!("{} {:.1}", other.name, other.to_ours.median));
            Some(Verdict {
                what: format!("{}: ratio of {kind} to ours", subject.title()),
                wanted: format!("at least {factor}"),
                found: list.collect::<Vec<_>>().join(", "),
                is_reached: least >= factor,
            })
        }
        Flat(name, first, last, part) => {
            let (first, last) = (record.subject(name, first)?, record.subject(name, last)?);
            let times = [first, last].map(|subject| Some(subject.ours()?.nanoseconds.median));
            let ratio = times[1]? / times[0]?;
            Some(Verdict {
                what: format!("{name}: ratio of {} to {} {}", last.size, first.size, first.unit),
                wanted: format!("{} to {}", 1.0 - part, 1.0 + part),
                found: format!("{ratio:.2}"),
                is_reached: (ratio - 1.0).abs() <= part,
            })
        }
        Scales(name, first, last, part) => {
            let (first, last) = (record.subject(name, first)?, record.subject(name, last)?);
            let gain = |kind: &str| {
                let of = |subject: &Subject| subject.of_kind(kind).next().map(|one| one.nanoseconds.median);
                Some(of(first)? / of(last)?)
            };
            let (ours, bare) = (gain("ours")?, gain("bare")?);
            Some(Verdict {
                what: format!(
                    "{name}: ratio of the calls per second, {} to {} {}",
                    last.size, first.size, first.unit
                ),
                wanted: format!("at least {part} of the bare server's"),
                found: format!("{ours:.2}, the bare server's {bare:.2}"),
                is_reached: ours >= bare * part,
            })
        }
        Within(name, size, most) => {
            let subject = record.subject(name, size)?;
            let found = subject.ours()?.nanoseconds.median / 1e6;
            Some(Verdict {
                what: format!("{}: milliseconds", subject.title()),
                wanted: format!("at most {most}"),
                found: format!("{found:.2}"),
                is_reached: found <= most,
            })
        }
        Footprint(path, unit, most) => {
            let dirs = record.footprint.get("dirs")?;
            let found =
                path.split('/').try_fold(dirs, |value, key| value.get(key)).and_then(Value::as_f64)?;
            Some(Verdict {
                what: format!("process of `dirs`: {unit}"),
                wanted: format!("at most {most}"),
                found: format!("{}", (found * 100.0).round() / 100.0),
                is_reached: found <= most,
            })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::record::tests::record;

    #[test]
    fn a_goal_is_reached_or_missed() {
        let found = |ratio: f64| {
            let verdicts = judge(&record("publish read-only", 1000, &[ratio]));
            let reached: Vec<bool> = verdicts.iter().map(|verdict| verdict.is_reached).collect();
            reached
        };
        // In this record the program takes 300 times the bare time.
        assert_eq!(found(1.9), [true, true]);
        assert_eq!(found(2.1), [false, true]);
        assert_eq!(found(3.5), [false, false]);
    }

    #[test]
    fn what_was_not_measured_is_not_judged() {
        assert!(judge(&record("something else", 1, &[1.0])).is_empty());
    }

    #[test]
    fn flat_is_the_same_at_both_sizes() {
        let mut both = record("mount_state", 10, &[1.0]);
        both.subjects.extend(record("mount_state", 10_000, &[1.3]).subjects);
        let flat = judge(&both).into_iter().find(|verdict| verdict.wanted == "0.8 to 1.2").expect("judged");
        assert!(!flat.is_reached && flat.found == "1.30", "{}", flat.found);
    }

    #[test]
    fn a_time_is_within_its_limit_or_not() {
        // In this record the bare work takes 100 ns.
        for (ratio, is_reached) in [(99_000.0, true), (101_000.0, false)] {
            let found = judge(&record("probe blank", 10_240, &[ratio]));
            let within = found.iter().find(|verdict| verdict.what.ends_with(": milliseconds"));
            assert_eq!(within.expect("judged").is_reached, is_reached);
        }
    }

    #[test]
    fn the_footprint_is_of_the_driver() {
        let mut record = record("x", 1, &[1.0]);
        record
            .footprint
            .insert("dirs".to_owned(), serde_json::json!({ "bytes": 5e6, "idle": { "wakeups": 0 } }));
        let verdicts = judge(&record);
        assert_eq!(verdicts.iter().map(|verdict| verdict.is_reached).collect::<Vec<_>>(), [false, true]);
    }
}
