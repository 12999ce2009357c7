//! Resources that this process uses, to show that they do not grow.
#![allow(dead_code, reason = "each test file uses a part")]

use std::fmt;
use std::fs;
use std::time::{Duration, Instant};

/// How many rounds a test runs: `few`, or the number in `CSI_TEST_ROUNDS`, which the full run sets.
pub(crate) fn rounds(few: u32) -> u32 {
    match std::env::var("CSI_TEST_ROUNDS") {
        Ok(rounds) => rounds.parse().expect("CSI_TEST_ROUNDS is a number"),
        Err(_) => few,
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Measure {
    pub(crate) descriptors: usize,
    pub(crate) threads: usize,
    /// Children of this process, including zombies.
    pub(crate) children: usize,
    /// Mounts of this thread's namespace.
    pub(crate) mounts: usize,
    /// Memory in use, in KiB.
    pub(crate) memory: usize,
}

impl Measure {
    /// Whether there are no more descriptors and threads than before.
    pub(crate) fn has_no_more_than(&self, before: &Self) -> bool {
        self.descriptors <= before.descriptors && self.threads <= before.threads
    }
}

impl fmt::Display for Measure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { descriptors, threads, children, mounts, memory } = self;
        write!(f, "{descriptors} fds, {threads} threads, {children} children, {mounts} mounts, {memory} KiB")
    }
}

pub(crate) fn measure() -> Measure {
    let count = |directory| fs::read_dir(directory).unwrap().count();
    let memory = fs::read_to_string("/proc/self/status").unwrap();
    let memory = memory.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    Measure {
        descriptors: count("/proc/self/fd"),
        threads: count("/proc/self/task"),
        children: children(),
        mounts: fs::read_to_string("/proc/thread-self/mountinfo").unwrap().lines().count(),
        memory: memory.trim().trim_end_matches(" kB").parse().unwrap(),
    }
}

/// Measures again until the condition holds, for a bounded time: a thread or a child process that is about to end
/// takes a while on a machine that has other work. What leaks stays.
pub(crate) fn measure_until(is_settled: impl Fn(&Measure) -> bool) -> Measure {
    let end = Instant::now() + Duration::from_secs(120);
    loop {
        let found = measure();
        if is_settled(&found) || Instant::now() >= end {
            return found;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

pub(crate) fn children() -> usize {
    child_processes().len()
}

pub(crate) fn child_processes() -> Vec<u32> {
    let own = std::process::id().to_string();
    let stats = fs::read_dir("/proc").unwrap().flatten();
    let stats = stats.filter_map(|entry| fs::read_to_string(entry.path().join("stat")).ok());
    // After the name in brackets come the state and the parent.
    let is_own =
        |stat: &String| stat.rsplit(") ").next().and_then(|rest| rest.split(' ').nth(1)) == Some(&own);
    stats.filter(is_own).map(|stat| stat.split(' ').next().unwrap().parse().unwrap()).collect()
}
