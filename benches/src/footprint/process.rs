//! What /proc tells of a process.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

/// A process at one moment.
#[derive(Debug)]
pub(super) struct Seen {
    pub(super) resident_kib: u64,
    /// Of that, what is not the file of the program.
    pub(super) private_kib: u64,
    pub(super) threads: u64,
    /// Context switches of all its threads so far.
    pub(super) switches: u64,
    /// On a processor so far.
    pub(super) cpu: Duration,
}

impl Seen {
    pub(super) fn of(pid: u32) -> Self {
        let directory = PathBuf::from(format!("/proc/{pid}"));
        let status = fs::read_to_string(directory.join("status")).expect("it runs");
        let (mut switches, mut cpu) = (0, 0);
        for task in fs::read_dir(directory.join("task")).expect("its threads").flatten() {
            // A thread may go meanwhile.
            let text = |name| fs::read_to_string(task.path().join(name)).unwrap_or_default();
            let status = text("status");
            switches +=
                field(&status, "voluntary_ctxt_switches") + field(&status, "nonvoluntary_ctxt_switches");
            cpu +=
                text("schedstat").split(' ').next().and_then(|first| first.parse::<u64>().ok()).unwrap_or(0);
        }
        Self {
            resident_kib: field(&status, "VmRSS"),
            private_kib: field(&status, "RssAnon"),
            threads: field(&status, "Threads"),
            switches,
            cpu: Duration::from_nanos(cpu),
        }
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
        assert!(seen.switches > 0 && seen.cpu > Duration::ZERO, "{seen:?}");
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
