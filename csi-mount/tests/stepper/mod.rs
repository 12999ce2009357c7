//! Runs a part of a test in a process of its own, and kills that process before any one of its system calls.
#![allow(dead_code, reason = "each test file uses a part")]

use std::collections::HashMap;
use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, ChildStderr, Command, Stdio};

use nix::sys::ptrace::{self, Options};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

const JOB: &str = "CSI_MOUNT_CRASH_JOB";
const READY: &str = "ready for the job";

/// What the process is to do, if this is one that was started by [`Job`]; ends it afterwards.
pub(crate) fn do_job(jobs: impl FnOnce(&[&str]) -> csi_mount::Result<()>) {
    let Some(job) = std::env::var_os(JOB) else { return };
    let job = job.into_string().unwrap();
    eprintln!("{READY} {}", rustix::thread::gettid().as_raw_nonzero());
    // The tracer is there when this returns.
    std::io::stdin().lock().read_line(&mut String::new()).unwrap();
    let failed = jobs(&job.split('\n').collect::<Vec<_>>()).map_err(|error| eprintln!("{error}")).is_err();
    std::process::exit(i32::from(failed));
}

/// What becomes of the programs that a job starts.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Programs {
    /// Their system calls count too, and they die with the job.
    Followed,
    /// Up to their start only: they are daemons, which outlive it.
    LetGo,
}

/// A job for a new process of this test program.
pub(crate) struct Job<'a> {
    pub(crate) programs: Programs,
    /// The name of the test that calls [`do_job`].
    pub(crate) test: &'a str,
    pub(crate) words: &'a [&'a str],
}

/// How a traced job ended.
#[derive(Clone, Copy)]
pub(crate) enum End {
    /// Killed before the system call.
    Killed,
    /// It came to its end before that, with so many system calls.
    Finished { calls: u64 },
}

/// Before which of its system calls a step is killed: the first, and then each so-many-th.
///
/// `CSI_CRASH_STRIDE` says how many calls are between two points, 1 being all of them; `CSI_CRASH_POINTS` how many points
/// there are at most, where a machine is slow.
pub(crate) struct Points {
    call: u64,
    stride: u64,
    at_most: Option<u64>,
    killed: u32,
}

impl Points {
    /// With this stride where the environment says nothing.
    pub(crate) fn new(stride: u64) -> Self {
        let number = |name| std::env::var(name).ok().map(|text| text.parse().expect("a number"));
        let at_most = number("CSI_CRASH_POINTS");
        // The first run is to the end then, and tells how many calls there are.
        let call = if at_most.is_some() { u64::MAX } else { 1 };
        Self { call, stride: number("CSI_CRASH_STRIDE").unwrap_or(stride), at_most, killed: 0 }
    }

    /// Before which call to kill it now.
    pub(crate) fn call(&self) -> u64 {
        self.call
    }

    /// Goes on to the next point; false when there is none.
    pub(crate) fn next(&mut self, step: &str, end: End) -> bool {
        match (end, self.at_most.take()) {
            (End::Finished { calls }, Some(at_most)) => {
                self.stride = self.stride.max(calls.div_ceil(at_most));
                self.call = 1;
                true
            }
            (End::Finished { calls }, None) => {
                let killed = self.killed;
                println!("{step}: killed at {killed} points of {calls} system calls, every one converged");
                assert!(killed > 3, "only {killed} points");
                false
            }
            (End::Killed, _) => {
                self.killed += 1;
                self.call += self.stride;
                true
            }
        }
    }
}

impl Job<'_> {
    /// Starts it, and says which of its threads will do it.
    fn start(&self) -> (Child, Pid, BufReader<ChildStderr>) {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", self.test, "--nocapture", "--test-threads=1"])
            .env(JOB, self.words.join("\n"))
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut errors = BufReader::new(child.stderr.take().unwrap());
        let mut line = String::new();
        let thread = loop {
            assert!(errors.read_line(&mut line).unwrap() > 0, "{} does not start its job", self.test);
            if let Some(thread) = line.trim().strip_prefix(READY) {
                break Pid::from_raw(thread.trim().parse().unwrap());
            }
            line.clear();
        };
        (child, thread, errors)
    }

    /// Runs it to its end, which must be a good one.
    pub(crate) fn run(&self) {
        let (mut child, _, mut errors) = self.start();
        child.stdin.take().unwrap().write_all(b"\n").unwrap();
        let mut text = String::new();
        std::io::Read::read_to_string(&mut errors, &mut text).unwrap();
        assert!(child.wait().unwrap().success(), "{:?}: {text}", self.words);
    }

    /// As [`start`](Self::start), and goes on from its first system call as this thread says.
    fn start_traced(&self) -> (Child, Pid, Pid, BufReader<ChildStderr>) {
        let (mut child, thread, errors) = self.start();
        let process = Pid::from_raw(child.id().try_into().unwrap());
        let options = Options::PTRACE_O_TRACESYSGOOD
            | Options::PTRACE_O_TRACEFORK
            | Options::PTRACE_O_TRACEVFORK
            | Options::PTRACE_O_TRACECLONE
            | Options::PTRACE_O_TRACEEXEC
            | Options::PTRACE_O_EXITKILL;
        ptrace::seize(thread, options).unwrap();
        ptrace::interrupt(thread).unwrap();
        child.stdin.as_mut().unwrap().write_all(b"\n").unwrap();
        (child, process, thread, errors)
    }

    /// Kills it when a child of its is about to run a program, which the child comes to after `meanwhile`.
    pub(crate) fn kill_before_exec(&self, meanwhile: impl FnOnce()) {
        let (_child, process, thread, _errors) = self.start_traced();
        let mut meanwhile = Some(meanwhile);
        let flags = WaitPidFlag::__WALL | WaitPidFlag::__WNOTHREAD;
        while let Ok(status) = waitpid(None, Some(flags)) {
            match status {
                WaitStatus::PtraceSyscall(pid) if pid != thread && is_in_exec(pid) => {
                    kill(process, Signal::SIGKILL).unwrap();
                    meanwhile.take().expect("one child runs a program")();
                    ptrace::detach(pid, None).unwrap();
                }
                WaitStatus::PtraceSyscall(pid) | WaitStatus::PtraceEvent(pid, ..) => go_on(pid, None),
                WaitStatus::Stopped(pid, signal) => go_on(pid, Some(signal)),
                _ => {}
            }
        }
        assert!(meanwhile.is_none(), "it starts no program");
    }

    /// Kills it before its system call of this number, counted over it and all that it starts.
    pub(crate) fn kill_before(&self, call: u64) -> End {
        let (mut child, process, thread, mut errors) = self.start_traced();
        let end = trace(process, thread, call, self.programs);
        // Reaped above, which this value does not know.
        drop(child.stdin.take());
        if let End::Finished { .. } = end {
            let mut text = String::new();
            std::io::Read::read_to_string(&mut errors, &mut text).unwrap();
            assert!(text.is_empty(), "{:?}: {text}", self.words);
        }
        end
    }
}

/// Follows the thread that does the job, and its children, until all are gone.
fn trace(process: Pid, thread: Pid, call: u64, programs: Programs) -> End {
    // Whether each is inside a system call.
    let mut inside: HashMap<Pid, bool> = HashMap::new();
    let (mut count, mut is_killed) = (0, false);
    loop {
        // Only what this thread traces: other tests have processes too.
        let flags = WaitPidFlag::__WALL | WaitPidFlag::__WNOTHREAD;
        let Ok(status) = waitpid(None, Some(flags)) else {
            return if is_killed { End::Killed } else { End::Finished { calls: count } };
        };
        match status {
            WaitStatus::PtraceSyscall(pid) => {
                let is_inside = inside.entry(pid).or_default();
                *is_inside = !*is_inside;
                count += u64::from(*is_inside);
                if *is_inside && count == call && !is_killed {
                    // What it started dies exactly here too, and otherwise of itself.
                    if pid != thread {
                        kill(pid, Signal::SIGKILL).unwrap();
                    }
                    kill(process, Signal::SIGKILL).unwrap();
                    is_killed = true;
                }
                go_on(pid, None);
            }
            WaitStatus::Stopped(pid, signal) => go_on(pid, Some(signal)),
            WaitStatus::PtraceEvent(pid, _, nix::libc::PTRACE_EVENT_EXEC) if programs == Programs::LetGo => {
                let _ = ptrace::detach(pid, None);
            }
            WaitStatus::PtraceEvent(pid, ..) => go_on(pid, None),
            _ => {}
        }
    }
}

/// Of one that is stopped in a system call.
fn is_in_exec(pid: Pid) -> bool {
    let call = std::fs::read_to_string(format!("/proc/{pid}/syscall")).unwrap_or_default();
    call.split(' ').next() == Some(&nix::libc::SYS_execve.to_string())
}

fn go_on(pid: Pid, signal: Option<Signal>) {
    // It may have been killed meanwhile.
    let _ = ptrace::syscall(pid, signal);
}
