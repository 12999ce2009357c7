//! Lines for `xtask`: the start of each test, its end, and its output.

use std::cell::RefCell;
use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill, killpg};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

use crate::Result;

const POLL: Duration = Duration::from_millis(2);

/// How long to wait for the end of a killed program. A program that hangs in the kernel does not end.
const GRACE: Duration = Duration::from_secs(5);

const PORT: &str = "/dev/ttyS1";
const OUTPUT: &str = "/run/output";

/// How much of a program's output is reported, from its end.
const TAIL: usize = 16 << 10;

/// The tests whose output is reported.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Output {
    Always,
    OfFailures,
}

/// The second serial port.
pub(crate) struct Report(RefCell<File>);

impl Report {
    pub(crate) fn open() -> Result<Self> {
        let port = File::options().write(true).open(PORT).map_err(|error| format!("{PORT}: {error}"))?;
        let report = Self(RefCell::new(port));
        report.line(&["kernel", fs::read_to_string("/proc/sys/kernel/osrelease")?.trim()])?;
        Ok(report)
    }

    fn line(&self, words: &[&str]) -> Result<()> {
        Ok(self.0.borrow_mut().write_all(format!("@\t{}\n", words.join("\t")).as_bytes())?)
    }

    /// If this line is missing, the machine did not finish.
    pub(crate) fn end(&self) -> Result<()> {
        self.line(&["end"])
    }

    pub(crate) fn module_failed(&self, path: &Path, error: nix::Error) -> Result<()> {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        self.line(&["module", &name, error.desc()])
    }

    /// A suite without tests must not count as a success.
    pub(crate) fn no_tests(&self, suite: &str) -> Result<()> {
        self.line(&["failed", suite, "(none)", "0", "the program does not have these tests"])
    }

    /// Runs a program to its end or the time limit, and reports both.
    pub(crate) fn run(
        &self,
        suite: &str,
        test: &str,
        mut command: Command,
        limit: Duration,
        output: Output,
    ) -> Result<()> {
        self.line(&["begin", suite, test])?;
        let file = File::create(OUTPUT)?;
        command.env("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin");
        command.env("HOME", "/root").stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file);
        let start = Instant::now();
        let ended = wait(&mut command, limit);
        let millis = start.elapsed().as_millis().to_string();
        if output == Output::Always || ended.is_err() {
            let said = fs::read(OUTPUT)?;
            for line in String::from_utf8_lossy(&said[said.len().saturating_sub(TAIL)..]).lines() {
                writeln!(self.0.borrow_mut(), "> {line}")?;
            }
        }
        match ended {
            Ok(()) => self.line(&["ok", suite, test, &millis]),
            Err(why) => self.line(&["failed", suite, test, &millis, &why]),
        }
    }
}

/// Starts a program and waits for its success. Processes that it leaves running are killed. Orphaned processes are
/// reaped, as the first process of a system must.
///
/// # Errors
/// Says why it failed.
fn wait(command: &mut Command, limit: Duration) -> Result<(), String> {
    let child = command.process_group(0).spawn().map_err(|error| format!("start it: {error}"))?;
    let pid = Pid::from_raw(i32::try_from(child.id()).map_err(|error| error.to_string())?);
    let ended = ended_within(pid, limit);
    // Kills all processes except this one, so that not even a daemon in its own session outlives its test.
    let _ = kill(Pid::from_raw(-1), Signal::SIGKILL);
    ended
}

fn ended_within(pid: Pid, limit: Duration) -> Result<(), String> {
    match status_within(pid, limit) {
        Some(WaitStatus::Exited(_, 0)) => Ok(()),
        Some(WaitStatus::Exited(_, status)) => Err(format!("exit status {status}")),
        Some(WaitStatus::Signaled(_, signal, _)) => Err(format!("killed by {signal}")),
        Some(other) => Err(format!("{other:?}")),
        None => {
            let stack = std::fs::read_to_string(format!("/proc/{pid}/stack")).unwrap_or_default();
            // The program can end meanwhile.
            let _ = killpg(pid, Signal::SIGKILL);
            let _ = kill(pid, Signal::SIGKILL);
            let stays = if status_within(pid, GRACE).is_none() { ", and it cannot be killed" } else { "" };
            let place = stack.lines().next().unwrap_or("?").trim();
            Err(format!("not finished after {} s{stays}; in the kernel at {place}", limit.as_secs()))
        }
    }
}

fn status_within(pid: Pid, limit: Duration) -> Option<WaitStatus> {
    let end = Instant::now() + limit;
    loop {
        match waitpid(None, Some(WaitPidFlag::WNOHANG)) {
            Ok(status) if status.pid() == Some(pid) => return Some(status),
            // The status is that of an orphan.
            Ok(status) if status.pid().is_some() => {}
            _ if Instant::now() >= end => return None,
            _ => sleep(POLL),
        }
    }
}
