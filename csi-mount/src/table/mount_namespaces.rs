//! The visible mount namespaces: those of the processes in `/proc`.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::Read as _;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::error::{Error, Result};
use crate::sys::exec::{Program, processes};

const PROC: &str = "/proc";
/// How many processes of a namespace are remembered, because one can end before its table is read.
const PROCESSES: usize = 8;
/// How long processes are waited for that are in the middle of an `exec`: it takes microseconds. One that waits for a
/// filesystem does not show its namespace; other processes there do.
const EXEC_TIME_LIMIT: Duration = Duration::from_millis(50);

#[derive(Debug)]
pub(crate) struct OtherNamespace {
    /// Its inode number, as `lsns(8)` shows it.
    pub(crate) id: u64,
    processes: Vec<u32>,
}

/// The mount table of a namespace, as a process there sees it.
#[derive(Debug)]
pub(crate) struct NamespaceTable {
    pub(crate) process: u32,
    /// In the form of `/proc/PID/mountinfo`.
    pub(crate) text: Vec<u8>,
}

impl OtherNamespace {
    /// The table as its first process that still exists sees it. None if all have ended.
    pub(crate) fn table(&self) -> Option<NamespaceTable> {
        let read = |process: &u32| {
            // The file has no length; the kernel generates it for each read.
            let mut text = Vec::with_capacity(16 * 1024);
            File::open(format!("/proc/{process}/mountinfo")).ok()?.read_to_end(&mut text).ok()?;
            Some(NamespaceTable { process: *process, text })
        };
        self.processes.iter().filter_map(read).find(|table| !table.text.is_empty())
    }
}

/// The mount namespaces of all processes, except the calling thread's. It is an error if the processes cannot
/// be listed, because then nothing is known.
pub(crate) fn others() -> Result<Vec<OtherNamespace>> {
    let failed = |error| Error::os("list the processes in", PROC, error);
    let own = namespace_of("thread-self");
    let kernel_threads = kernel_threads();
    let mut namespaces = BTreeMap::<u64, Vec<u32>>::new();
    let mut note = |process: u32| {
        // None: it has ended, or we are not allowed to see it.
        if let Some(namespace) = namespace_of(&process.to_string()).filter(|found| Some(*found) != own) {
            let processes = namespaces.entry(namespace).or_default();
            if processes.len() < PROCESSES {
                processes.push(process);
            }
        }
    };
    let mut in_exec = Vec::new();
    // A process that has ended meanwhile is skipped.
    for process in processes().map_err(failed)? {
        if kernel_threads.contains(&process) {
            continue;
        }
        if Program::of(process) == Program::InExec {
            in_exec.push(process);
        } else {
            note(process);
        }
    }
    let deadline = Instant::now() + EXEC_TIME_LIMIT;
    for process in in_exec {
        if Program::after_exec(process, deadline) != Program::InExec {
            note(process);
        }
    }
    Ok(namespaces.into_iter().map(|(id, processes)| OtherNamespace { id, processes }).collect())
}

/// The kernel threads, which are listed in one file and skipped, because there are many. They are in the
/// namespace of their parent, `kthreadd`, which is not in the list, so no namespace is lost except that of
/// `devtmpfs`. Empty if the kernel does not have the file (`CONFIG_PROC_CHILDREN`), or the pid namespace has
/// no such threads.
fn kernel_threads() -> BTreeSet<u32> {
    let is_kthreadd = || fs::read("/proc/2/comm").is_ok_and(|name| name == b"kthreadd\n");
    // A user process has a program, whatever its name is.
    let has_program = || fs::read_link("/proc/2/exe").is_ok();
    if !is_kthreadd() || has_program() {
        return BTreeSet::new();
    }
    let children = fs::read_to_string("/proc/2/task/2/children").unwrap_or_default();
    children.split_ascii_whitespace().filter_map(|process| process.parse().ok()).collect()
}

/// Parses `mnt:[4026531841]`.
fn namespace_of(process: &str) -> Option<u64> {
    let link = fs::read_link(Path::new(PROC).join(process).join("ns/mnt")).ok()?;
    link.to_str()?.strip_prefix("mnt:[")?.strip_suffix(']')?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A pid namespace without kernel threads has nothing to compare.
    #[test]
    fn only_kernel_threads_are_skipped() {
        for process in kernel_threads() {
            let stat = fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
            let flags = stat.rsplit(')').next().unwrap().split_whitespace().nth(9 - 3);
            let flags: Option<u64> = flags.and_then(|flags| flags.parse().ok());
            // None: it ended meanwhile.
            assert!(flags.is_none_or(|flags| flags & 0x0020_0000 != 0), "{stat}");
        }
        assert!(!kernel_threads().contains(&std::process::id()));
    }
}
