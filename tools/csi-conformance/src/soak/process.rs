//! A process's memory and descriptors, from proc_pid_status(5) and proc_pid_fd(5).

use std::time::{Duration, Instant};

#[derive(Debug, Clone, Copy)]
pub(super) struct Sample {
    pub(super) at: Duration,
    pub(super) memory: u64,
    pub(super) descriptors: u64,
}

/// How much memory can grow in addition to a tenth, in KiB: an allocator keeps freed memory.
const MEMORY: u64 = 4096;
/// How many descriptors can be added: connections open and close.
const DESCRIPTORS: u64 = 16;

impl Sample {
    pub(super) fn of(pid: u32, start: Instant) -> Option<Self> {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
        let memory = line.split_whitespace().next()?.parse().ok()?;
        let descriptors = std::fs::read_dir(format!("/proc/{pid}/fd")).ok()?.count() as u64;
        Some(Self { at: start.elapsed(), memory, descriptors })
    }
}

/// The medians of the second tenth, after the warm-up, and of the last tenth.
pub(super) fn ends(samples: &[Sample]) -> Option<(Sample, Sample)> {
    let tenth = samples.len() / 10;
    if tenth == 0 {
        return None;
    }
    let median = |part: &[Sample]| -> Option<Sample> {
        let middle = |of: fn(&Sample) -> u64| {
            let mut all: Vec<u64> = part.iter().map(of).collect();
            all.sort_unstable();
            all.get(all.len() / 2).copied()
        };
        Some(Sample {
            at: part.first()?.at,
            memory: middle(|sample| sample.memory)?,
            descriptors: middle(|sample| sample.descriptors)?,
        })
    };
    Some((median(&samples[tenth..2 * tenth])?, median(&samples[samples.len() - tenth..])?))
}

pub(super) fn growth(samples: &[Sample]) -> Option<String> {
    let (first, last) = ends(samples)?;
    if last.memory > first.memory + first.memory / 10 + MEMORY {
        return Some(format!("memory grew from {} to {} KiB", first.memory, last.memory));
    }
    let more = last.descriptors > first.descriptors + DESCRIPTORS;
    more.then(|| format!("descriptors grew from {} to {}", first.descriptors, last.descriptors))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_grows_is_told_and_what_warms_up_is_not() {
        let samples = |memory: fn(u64) -> u64, descriptors: fn(u64) -> u64| -> Vec<Sample> {
            let one =
                |at| Sample { at: Duration::from_secs(at), memory: memory(at), descriptors: descriptors(at) };
            (0..100).map(one).collect()
        };
        assert_eq!(growth(&samples(|at| 10_000 + at.min(8) * 1000, |_| 10)), None);
        assert!(
            growth(&samples(|at| 10_000 + at * 100, |_| 10)).is_some_and(|why| why.starts_with("memory"))
        );
        assert!(growth(&samples(|_| 10_000, |at| 10 + at)).is_some_and(|why| why.starts_with("descriptors")));
        assert_eq!(growth(&[]), None);
    }
}
