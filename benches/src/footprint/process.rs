//! Facts of a process from /proc.

use std::collections::BTreeMap;
use std::time::Duration;

use procfs::process::Process;

/// A process at one moment.
#[derive(Debug)]
pub(super) struct Seen {
    pub(super) resident_kib: u64,
    /// The part of it that is not mapped from the program's file.
    pub(super) private_kib: u64,
    pub(super) threads: u64,
    /// The work of each thread so far, by thread id.
    work: BTreeMap<i32, Work>,
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
        let process = Process::new(pid.try_into().expect("a process")).expect("it runs");
        let status = process.status().expect("it runs");
        let mut work = BTreeMap::new();
        for task in process.tasks().expect("its threads").flatten() {
            // A thread can end meanwhile.
            let Ok(status) = task.status() else { continue };
            let switches = [status.voluntary_ctxt_switches, status.nonvoluntary_ctxt_switches];
            let cpu = Duration::from_nanos(task.schedstat().map_or(0, |time| time.sum_exec_runtime));
            work.insert(task.tid, Work { switches: switches.into_iter().flatten().sum(), cpu });
        }
        Self {
            resident_kib: status.vmrss.unwrap_or(0),
            private_kib: status.rssanon.unwrap_or(0),
            threads: status.threads,
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
        let seen = |threads: &[(i32, Work)]| Seen {
            resident_kib: 0,
            private_kib: 0,
            threads: 0,
            work: threads.iter().copied().collect(),
        };
        let before = seen(&[(1, work(5, 50)), (2, work(1, 10))]);
        let more = seen(&[(1, work(6, 70)), (2, work(1, 10)), (3, work(2, 2))]);
        assert_eq!(more.since(&before), Some(work(3, 22)));
        assert_eq!(seen(&[(1, work(6, 70))]).since(&before), None);
    }
}
