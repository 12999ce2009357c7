//! One program, waited for; and everybody's orphans, which the first process has to bury.

use std::os::unix::process::CommandExt as _;
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill, killpg};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

const POLL: Duration = Duration::from_millis(2);

/// How long a program that was killed may take to be gone; one that hangs in the kernel never is.
const GRACE: Duration = Duration::from_secs(5);

/// Starts a program and waits until it ends well. Whatever it leaves running is killed.
///
/// # Errors
/// Why it did not, in words.
pub(crate) fn wait(command: &mut Command, limit: Duration) -> Result<(), String> {
    let child = command.process_group(0).spawn().map_err(|error| format!("start it: {error}"))?;
    let pid = Pid::from_raw(i32::try_from(child.id()).map_err(|error| error.to_string())?);
    let ended = ended_within(pid, limit);
    // Everybody but this process, and there is nobody else's: not even a daemon in a session of its own outlives its test.
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
            // Gone meanwhile is as good.
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
            // An orphan's.
            Ok(status) if status.pid().is_some() => {}
            _ if Instant::now() >= end => return None,
            _ => sleep(POLL),
        }
    }
}
