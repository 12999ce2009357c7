//! Facts of a process from /proc.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

/// A process at one moment.
#[derive(Debug)]
pub(super) struct Seen {
    pub(super) resident_kib: u64,
    /// The part of it that is not mapped from the program's file.
    pub(super) private_kib: u64,
    pub(super) threads: u64,
    /// The work of each thread so far, by thread id.
    work: BTreeMap<OsString, Work>,
}

/// The work of a thread or of a whole process.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Work {
    /// Context switches.
    pub(super) switches: u64,
    /// Time on a processor.
    pub(super) cpu: Duration,
}

impl Seen {
    pub(super) fn of(pid: u32) -> Self {
        let directory = PathBuf::from(format!("/proc/{pid}"));
        let status = fs::read_to_string(directory.join("status")).expect("it runs");
        let mut work = BTreeMap::new();
        for task in fs::read_dir(directory.join("task")).expect("its threads").flatten() {
            // A thread can end meanwhile.
            let text = |name| fs::read_to_string(task.path().join(name)).unwrap_or_default();
            let status = text("status");
            let switches =
                field(&status, "voluntary_ctxt_switches") + field(&status, "nonvoluntary_ctxt_switches");
            let first = text("schedstat").split(' ').next().and_then(|first| first.parse().ok());
            let cpu = Duration::from_nanos(first.unwrap_or(0));
            work.insert(task.file_name(), Work { switches, cpu });
        }
        Self {
            resident_kib: field(&status, "VmRSS"),
            private_kib: field(&status, "RssAnon"),
            threads: field(&status, "Threads"),
            work,
        }
    }

    /// The work of the process since `before`. `None` if a thread has ended meanwhile: its work is lost.
    pub(super) fn since(&self, before: &Self) -> Option<Work> {
        if before.work.keys().any(|thread| !self.work.contains_key(thread)) {
            return None;
        }
        Some(self.work.iter().fold(Work::default(), |sum, (thread, work)| {
            let earlier = before.work.get(thread).copied().unwrap_or_default();
            Work {
                switches: sum.switches + work.switches.saturating_sub(earlier.switches),
                cpu: sum.cpu + work.cpu.saturating_sub(earlier.cpu),
            }
        }))
    }
}

fn field(status: &str, name: &str) -> u64 {
    let value = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    value.and_then(|value| value.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_is_seen() {
        let seen = Seen::of(std::process::id());
        assert!(
            seen.resident_kib >= seen.private_kib && seen.private_kib > 0 && seen.threads > 0,
            "{seen:?}"
        );
        assert_eq!(seen.since(&seen), Some(Work::default()));
    }

    #[test]
    fn what_an_ended_thread_did_is_not_forgotten_in_silence() {
        let work = |switches, micros| Work { switches, cpu: Duration::from_micros(micros) };
        let seen = |threads: &[(&str, Work)]| Seen {
            resident_kib: 0,
            private_kib: 0,
            threads: 0,
            work: threads.iter().map(|(thread, work)| ((*thread).into(), *work)).collect(),
        };
        let before = seen(&[("1", work(5, 50)), ("2", work(1, 10))]);
        let more = seen(&[("1", work(6, 70)), ("2", work(1, 10)), ("3", work(2, 2))]);
        assert_eq!(more.since(&before), Some(work(3, 22)));
        assert_eq!(seen(&[("1", work(6, 70))]).since(&before), None);
    }

    #[test]
    fn a_field_is_its_whole_name() {
        assert_eq!(
            field("nonvoluntary_ctxt_switches:\t7\nvoluntary_ctxt_switches:\t3\n", "voluntary_ctxt_switches"),
            3
        );
        assert_eq!(field("VmRSS:\t  12 kB\n", "VmRSS"), 12);
        assert_eq!(field("", "VmRSS"), 0);
    }
}
