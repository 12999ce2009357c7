//! Other processes in `/proc`, and whether one is in the middle of an `exec` (`execve(2)`).
//!
//! In an `exec` the kernel closes descriptors. One of a filesystem whose server or daemon does not answer holds the `exec`
//! up, and whoever reads `stat`, `environ`, `fd`, `ns`, `exe`, `root`, `cwd` or `maps` of the process in `/proc` waits
//! with it, on some kernels without an end and without a way to be killed (`exec_update_lock`; seen on Linux 6.18).
//! `statm`, `status`, `comm`, `cgroup` and `mountinfo` never wait. So this is asked first. Between the two a process
//! can begin an `exec`: this moment stays. Linux 7.2 waits at another moment, and no reader waits with it.

use std::fs;
use std::io;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// The processes in `/proc`. One can end at any time.
pub(crate) fn processes() -> io::Result<impl Iterator<Item = u32>> {
    Ok(fs::read_dir("/proc")?.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()))
}

/// The name of a process's program, at most 15 bytes.
pub(crate) fn program_name(process: u32) -> String {
    // The command line is not read: that waits for the process's memory, which can wait for a filesystem.
    fs::read_to_string(format!("/proc/{process}/comm")).unwrap_or_default().trim_end().to_owned()
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Program {
    /// The process has ended, or is a kernel thread.
    None,
    /// It has the memory of its next program, and no code in it yet.
    InExec,
    Running,
}

impl Program {
    pub(crate) fn of(process: u32) -> Self {
        Self::from_statm(&fs::read_to_string(format!("/proc/{process}/statm")).unwrap_or_default())
    }

    fn from_statm(statm: &str) -> Self {
        let mut fields = statm.split_ascii_whitespace();
        let size = fields.next();
        let code = fields.nth(2);
        match (size, code) {
            (None | Some("0"), _) => Self::None,
            (_, Some("0")) => Self::InExec,
            _ => Self::Running,
        }
    }

    /// Waits for the end of an `exec` up to this moment.
    pub(crate) fn after_exec(process: u32, deadline: Instant) -> Self {
        loop {
            let found = Self::of(process);
            if found != Self::InExec || Instant::now() >= deadline {
                return found;
            }
            sleep(Duration::from_micros(100));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_memory_of_a_process_shows_its_program() {
        assert_eq!(Program::of(std::process::id()), Program::Running);
        assert_eq!(Program::from_statm("1 1 0 0 0 1 0\n"), Program::InExec);
        for none in ["", "0 0 0 0 0 0 0\n"] {
            assert_eq!(Program::from_statm(none), Program::None, "{none:?}");
        }
    }
}
