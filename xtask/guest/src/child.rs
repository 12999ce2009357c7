//! Runs one program, and reaps orphaned processes, as the first process of a system must.

use std::os::unix::process::CommandExt as _;
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill, killpg};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

const POLL: Duration = Duration::from_millis(2);

/// How long to wait for the end of a killed program. A program that hangs in the kernel does not end.
const GRACE: Duration = Duration::from_secs(5);

/// Starts a program and waits for its success. Processes that it leaves running are killed.
///
/// # Errors
/// Says why it failed.
pub(crate) fn wait(command: &mut Command, limit: Duration) -> Result<(), String> {
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
