//! A program that does not end in time: what its processes wait for, and their end.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::io;
use std::process::{Child, ExitStatus};
use std::thread::sleep;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// The variable in the environment of a program and of all that it starts.
pub(crate) const MARK: &str = "XTASK_TEST_PART";
/// How often it is checked whether a program has ended.
const INTERVAL: Duration = Duration::from_millis(20);
/// How long killed processes can take to end. A process that waits for a dead filesystem never does.
const KILL_LIMIT: Duration = Duration::from_secs(60);

/// A program that is killed when this value is dropped. It can have ended before.
pub(crate) struct Killed(pub(crate) Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Waits for the end of a program. Returns `None` if it still runs after the limit.
pub(crate) fn wait_within(child: &mut Child, limit: Duration) -> io::Result<Option<ExitStatus>> {
    let end = Instant::now() + limit;
    loop {
        let ended = child.try_wait()?;
        if ended.is_some() || Instant::now() >= end {
            return Ok(ended);
        }
        sleep(INTERVAL);
    }
}

/// Kills a program and all that it started. Returns what each of their threads waited for.
pub(crate) fn end(child: &mut Child, mark: &str) -> io::Result<String> {
    let found = processes(child.id(), mark);
    let mut report = String::new();
    found.iter().for_each(|process| describe(*process, &mut report));
    let end = Instant::now() + KILL_LIMIT;
    let mut left = found;
    while !left.is_empty() && Instant::now() < end {
        for process in &left {
            // An error means that the process has already ended.
            let _ = kill(Pid::from_raw(*process), Signal::SIGKILL);
        }
        let ended = child.try_wait()?;
        // A process that was being started is in none of the earlier lists.
        left = match ended {
            Some(_) => marked(mark),
            None => processes(child.id(), mark),
        };
        sleep(INTERVAL);
    }
    if !left.is_empty() {
        let _ = writeln!(report, "killed, and not ended after {KILL_LIMIT:?}: {left:?}");
    }
    Ok(report)
}

/// The program, its descendants, and the processes with its mark: a daemon has another parent.
fn processes(program: u32, mark: &str) -> Vec<i32> {
    let parents: BTreeMap<i32, i32> = all().into_iter().filter_map(|pid| Some((pid, parent(pid)?))).collect();
    let mut found = vec![program.cast_signed()];
    let mut next = 0;
    while let Some(process) = found.get(next).copied() {
        found.extend(parents.iter().filter(|(_, parent)| **parent == process).map(|(pid, _)| *pid));
        next += 1;
    }
    for process in marked(mark) {
        if !found.contains(&process) {
            found.push(process);
        }
    }
    found
}

/// The living processes whose environment has the mark.
fn marked(mark: &str) -> Vec<i32> {
    let wanted = format!("{MARK}={mark}");
    let is_marked = |pid: &i32| {
        let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        environment.split(|byte| *byte == 0).any(|variable| variable == wanted.as_bytes())
    };
    all().into_iter().filter(is_marked).collect()
}

fn all() -> Vec<i32> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect()
}

fn parent(pid: i32) -> Option<i32> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let number = status.lines().find_map(|line| line.strip_prefix("PPid:"))?;
    number.trim().parse().ok()
}

/// Writes the program of a process, and of each thread its name, its state, its system call and, for root, its
/// stack in the kernel (proc(5)). The harness names a thread after its test.
fn describe(pid: i32, report: &mut String) {
    let text = |path: String| {
        let bytes = fs::read(path).unwrap_or_default();
        String::from_utf8_lossy(&bytes).replace('\0', " ").trim().to_owned()
    };
    let _ = writeln!(report, "process {pid}: {}", text(format!("/proc/{pid}/cmdline")));
    let Ok(tasks) = fs::read_dir(format!("/proc/{pid}/task")) else { return };
    for task in tasks.flatten() {
        let of_thread = |name: &str| text(task.path().join(name).display().to_string());
        let status = of_thread("status");
        let state = status.lines().find_map(|line| line.strip_prefix("State:")).unwrap_or_default().trim();
        let name = of_thread("comm");
        let thread = task.file_name();
        let waits_in = of_thread("wchan");
        let call = of_thread("syscall");
        let _ = writeln!(
            report,
            "  thread {} {name}: {state}, in {waits_in}, system call {call}",
            thread.display()
        );
        for frame in of_thread("stack").lines() {
            let _ = writeln!(report, "    {frame}");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    /// The program has a child, and a daemon with another parent, session and process group.
    #[test]
    fn a_program_ends_with_all_that_it_started() {
        const STARTED: [&str; 3] = ["sleep 1001\n", "sleep 1002\n", "sleep 1003\n"];
        let mark = format!("unit test of {}", std::process::id());
        let script = "sleep 1001 & setsid --fork sleep 1002; exec sleep 1003";
        let mut program =
            Command::new("/bin/sh").args(["-c", script]).env(MARK, &mark).spawn().expect("a shell");
        let described = |found: &[i32]| {
            let mut report = String::new();
            found.iter().for_each(|process| describe(*process, &mut report));
            report
        };
        let limit = Instant::now() + Duration::from_secs(120);
        let found = loop {
            let found = processes(program.id(), &mark);
            let report = described(&found);
            if STARTED.iter().all(|command| report.contains(command)) {
                break found;
            }
            assert!(Instant::now() < limit, "{report}");
            sleep(INTERVAL);
        };
        let report = end(&mut program, &mark).expect("it was killed");
        for command in STARTED {
            assert!(report.contains(command), "{report}");
        }
        assert!(report.contains(" sleep: ") && report.contains(", system call "), "{report}");
        assert!(!report.contains("not ended"), "{report}");
        assert!(program.try_wait().expect("its status").is_some());
        let lives =
            |process: &&i32| fs::read(format!("/proc/{process}/environ")).is_ok_and(|text| !text.is_empty());
        let left: Vec<&i32> = found.iter().filter(lives).collect();
        assert!(left.is_empty(), "{left:?} run on");
    }
}
