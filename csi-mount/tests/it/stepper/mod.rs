//! Runs a part of a test in a separate process, and kills that process before any one of its system calls.
#![allow(dead_code, reason = "each test file uses a part")]

mod changes;

use std::cell::RefCell;
use std::collections::HashMap;
use std::fs::File;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::process::{Child, ChildStderr, Command, Stdio};

use nix::sys::ptrace::{self, Options};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

const JOB: &str = "CSI_MOUNT_CRASH_JOB";
const READY: &str = "ready for the job";

/// Runs the job if [`Job`] started this process, and then ends the process.
pub(crate) fn do_job(jobs: impl FnOnce(&[&str]) -> csi_mount::Result<()>) {
    let Some(job) = std::env::var_os(JOB) else { return };
    let job = job.into_string().unwrap();
    eprintln!("{READY} {}", rustix::thread::gettid().as_raw_nonzero());
    // The tracer is attached when this returns.
    std::io::stdin().lock().read_line(&mut String::new()).unwrap();
    let failed = jobs(&job.split('\n').collect::<Vec<_>>()).map_err(|error| eprintln!("{error}")).is_err();
    std::process::exit(i32::from(failed));
}

/// What happens to the programs that a job starts.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Programs {
    /// Their system calls also count, and they die with the job.
    Followed,
    /// They are traced only until they start: they are daemons, which outlive the job.
    LetGo,
    /// Their system calls also count until the job has ended. Those that are then alive are released.
    Daemons,
}

/// Which processes are killed before the system call.
#[derive(Clone, Copy)]
pub(crate) enum Kill<'a> {
    /// The job, and the process that makes the call.
    Job,
    /// Only the process that makes the call: the job, or one that it started.
    Caller,
    /// The processes that this function kills. The job continues to its end.
    Others(&'a dyn Fn()),
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
    /// It ended before that, with this many system calls.
    Finished { calls: u64 },
}

/// The points at which a step is killed: pairs of a system call and a continuation, in call order.
///
/// A run takes the first pair and then each n-th one. `CSI_CRASH_STRIDE` sets n; 1 takes all pairs.
/// `CSI_CRASH_POINTS` sets the largest number of points, for a slow machine.
pub(crate) struct Points {
    pair: u64,
    stride: u64,
    at_most: Option<u64>,
    /// The number of points that the stride is for, until a second stride is chosen.
    aim: Option<u64>,
    /// The points so far, for each continuation.
    killed: Vec<u32>,
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().expect("a number"))
}

/// Every how many of the states of a test a run takes: this many, unless `CSI_CRASH_STRIDE` is set.
pub(crate) fn stride(usual: usize) -> usize {
    number("CSI_CRASH_STRIDE").map_or(usual, |stride| usize::try_from(stride).unwrap())
}

impl Points {
    /// Points with one continuation, and with this stride unless the environment sets one.
    pub(crate) fn new(stride: u64) -> Self {
        Self::of(number("CSI_CRASH_STRIDE").unwrap_or(stride), number("CSI_CRASH_POINTS"), 1)
    }

    /// Points with this many continuations. There are about `points` of them unless the environment sets a
    /// number. The stride is chosen so that all continuations are used.
    pub(crate) fn with_continuations(points: u64, continuations: usize) -> Self {
        match number("CSI_CRASH_STRIDE") {
            Some(stride) => Self::of(stride, None, continuations),
            None => Self::of(1, Some(number("CSI_CRASH_POINTS").unwrap_or(points)), continuations),
        }
    }

    /// Whatever the environment says.
    pub(crate) fn of(stride: u64, at_most: Option<u64>, continuations: usize) -> Self {
        let mut points = Self { pair: 0, stride, at_most, aim: at_most, killed: vec![0; continuations] };
        points.set_stride(stride);
        points
    }

    fn set_stride(&mut self, least: u64) {
        let continuations = self.continuations();
        let is_common = |by: u64, stride: u64| stride.is_multiple_of(by) && continuations.is_multiple_of(by);
        let has_all = |stride: u64| !(2..=continuations).any(|by| is_common(by, stride));
        self.stride = (least..).find(|stride| *stride == 1 || has_all(*stride)).unwrap();
    }

    fn continuations(&self) -> u64 {
        self.killed.len() as u64
    }

    /// Returns the number of the call before which the step is killed now.
    pub(crate) fn call(&self) -> u64 {
        match self.at_most {
            // The first run then goes to the end, and shows how many calls there are.
            Some(_) => u64::MAX,
            None => 1 + self.pair / self.continuations(),
        }
    }

    pub(crate) fn continuation(&self) -> usize {
        (self.pair % self.continuations()) as usize
    }

    /// Moves to the next point. Returns the result if no point is left.
    pub(crate) fn step(&mut self, end: End) -> Option<Swept> {
        match (end, self.at_most.take()) {
            (End::Finished { calls }, Some(at_most)) => {
                self.set_stride(self.stride.max((calls * self.continuations()).div_ceil(at_most)));
                None
            }
            (End::Finished { calls }, None) => {
                let killed: u32 = self.killed.iter().sum();
                // A step that waits often, as on a busy machine, has more calls. If the first run had many more than
                // this one, the points are too far apart, and are chosen again.
                if let Some(aim) = self.aim.take()
                    && u64::from(killed) * 3 < aim * 2
                {
                    let before = self.stride;
                    self.set_stride((calls * self.continuations()).div_ceil(aim));
                    if self.stride < before {
                        self.pair = 0;
                        return None;
                    }
                }
                Some(Swept { calls, killed: std::mem::take(&mut self.killed) })
            }
            (End::Killed, _) => {
                let continuation = self.continuation();
                self.killed[continuation] += 1;
                self.pair += self.stride;
                None
            }
        }
    }

    /// Like [`step`](Self::step), for one continuation. Returns false if no point is left.
    pub(crate) fn next(&mut self, step: &str, end: End) -> bool {
        let Some(result) = self.step(end) else { return true };
        let killed = result.points();
        println!("{step}: killed at {killed} points of {} system calls, every one converged", result.calls);
        assert!(killed > 3, "only {killed} points");
        false
    }
}

/// The number of points at which a step was killed.
pub(crate) struct Swept {
    pub(crate) calls: u64,
    /// The number for each continuation.
    pub(crate) killed: Vec<u32>,
}

impl Swept {
    pub(crate) fn points(&self) -> u32 {
        self.killed.iter().sum()
    }
}

impl Job<'_> {
    /// Starts the process. Also returns the thread that runs the job.
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

    /// Runs the job to its end. The job must succeed.
    pub(crate) fn run(&self) {
        let (mut child, _, mut errors) = self.start();
        child.stdin.take().unwrap().write_all(b"\n").unwrap();
        let mut text = String::new();
        std::io::Read::read_to_string(&mut errors, &mut text).unwrap();
        assert!(child.wait().unwrap().success(), "{:?}: {text}", self.words);
    }

    /// Like [`start`](Self::start), and traces the job's thread from its first system call on.
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

    /// Kills the job when its child process is about to run a program. The child continues after `meanwhile`.
    pub(crate) fn kill_before_exec(&self, meanwhile: impl FnOnce()) {
        let (_child, process, thread, _errors) = self.start_traced();
        let mut meanwhile = Some(meanwhile);
        while let Ok(status) = waitpid(None, any_of_this_thread()) {
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

    /// Kills the job before its system call with this number. The calls of all that it starts also count.
    pub(crate) fn kill_before(&self, call: u64) -> End {
        self.stop_before(call, Kill::Job)
    }

    /// Like [`kill_before`](Self::kill_before), but only calls count that can change something outside of the
    /// process. A kill before any other call leaves what a kill before the next of these leaves.
    pub(crate) fn kill_before_change(&self, change: u64) -> End {
        self.stop(change, &changes::is_in_change, Kill::Job)
    }

    /// Kills the job before its write to a device, or flush of one, with this number (`pwrite64`,
    /// `fdatasync`).
    pub(crate) fn kill_before_write(&self, write: u64) -> End {
        self.stop(write, &is_in_write, Kill::Job)
    }

    /// Kills the job before its change of a device of the device mapper, or its write to a disk of lvm, with this number.
    pub(crate) fn kill_before_mapping(&self, change: u64) -> End {
        self.stop(change, &changes::is_in_mapping, Kill::Job)
    }

    /// Runs the job to its end. Returns what it wrote to the device at this path, and when it flushed it.
    pub(crate) fn record(&self, device: &Path) -> Vec<DiskEvent> {
        let events = RefCell::new(Vec::new());
        let record = |pid| {
            events.borrow_mut().extend(disk_event(pid, device));
            false
        };
        self.stop(u64::MAX, &record, Kill::Job);
        events.into_inner()
    }

    /// Kills these processes before the system call with this number, and returns when the job has ended. A
    /// job that is not killed must succeed.
    pub(crate) fn stop_before(&self, call: u64, kill: Kill<'_>) -> End {
        self.stop(call, &|_| true, kill)
    }

    fn stop(&self, call: u64, counts: &dyn Fn(Pid) -> bool, kill: Kill<'_>) -> End {
        let (mut child, process, thread, mut errors) = self.start_traced();
        let end = Tracer { process, thread, kill, programs: self.programs, counts }.run(call);
        // The child was reaped above, without this value.
        drop(child.stdin.take());
        if let End::Finished { .. } = end {
            let mut text = String::new();
            std::io::Read::read_to_string(&mut errors, &mut text).unwrap();
            assert!(text.is_empty(), "{:?}: {text}", self.words);
        }
        end
    }
}

/// Only what this thread traces: other tests also have processes.
fn any_of_this_thread() -> Option<WaitPidFlag> {
    Some(WaitPidFlag::__WALL | WaitPidFlag::__WNOTHREAD)
}

/// Traces the thread that runs the job, and its children.
struct Tracer<'a> {
    process: Pid,
    thread: Pid,
    kill: Kill<'a>,
    programs: Programs,
    /// Whether a call counts that a thread is about to make.
    counts: &'a dyn Fn(Pid) -> bool,
}

impl Tracer<'_> {
    /// Runs until all processes have ended or are released.
    fn run(&self, call: u64) -> End {
        // Whether each thread is inside a system call.
        let mut inside: HashMap<Pid, bool> = HashMap::new();
        let mut count = 0;
        let mut is_killed = false;
        while let Ok(status) = waitpid(None, any_of_this_thread()) {
            match status {
                WaitStatus::PtraceSyscall(pid) => {
                    let is_inside = inside.entry(pid).or_default();
                    *is_inside = !*is_inside;
                    if *is_inside && (self.counts)(pid) {
                        count += 1;
                        if count == call && !is_killed {
                            self.kill(pid);
                            is_killed = true;
                        }
                    }
                    go_on(pid, None);
                }
                WaitStatus::Stopped(pid, signal) => go_on(pid, Some(signal)),
                WaitStatus::PtraceEvent(pid, _, nix::libc::PTRACE_EVENT_EXEC)
                    if self.programs == Programs::LetGo =>
                {
                    let _ = ptrace::detach(pid, None);
                }
                // A stop that the job itself requested lasts until the job continues it.
                WaitStatus::PtraceEvent(pid, Signal::SIGSTOP, nix::libc::PTRACE_EVENT_STOP) => {
                    let _ = csi_mount::internal::ptrace_listen(pid.as_raw());
                }
                WaitStatus::PtraceEvent(pid, ..) => {
                    inside.entry(pid).or_default();
                    go_on(pid, None);
                }
                WaitStatus::Exited(pid, _) | WaitStatus::Signaled(pid, ..) => {
                    inside.remove(&pid);
                    if pid == self.thread && self.programs == Programs::Daemons {
                        let_go(inside.into_keys());
                        break;
                    }
                }
                _ => {}
            }
        }
        if is_killed { End::Killed } else { End::Finished { calls: count } }
    }

    fn kill(&self, caller: Pid) {
        let is_job = process_of(caller) == Some(self.process);
        match self.kill {
            Kill::Others(kill_them) => kill_them(),
            Kill::Caller if !is_job => kill(caller, Signal::SIGKILL).unwrap(),
            Kill::Job | Kill::Caller => {
                // A process that the job started also dies exactly here. Otherwise it ends on its own.
                if !is_job {
                    kill(caller, Signal::SIGKILL).unwrap();
                }
                kill(self.process, Signal::SIGKILL).unwrap();
            }
        }
    }
}

/// Lets these processes, and those that they have just started, continue without a tracer.
fn let_go(tracees: impl Iterator<Item = Pid>) {
    for pid in tracees {
        // An error means that the process has already ended.
        let _ = ptrace::interrupt(pid);
    }
    while let Ok(status) = waitpid(None, any_of_this_thread()) {
        let signal = match status {
            WaitStatus::Stopped(_, signal) => Some(signal),
            _ => None,
        };
        if let Some(pid) = status.pid() {
            let _ = ptrace::detach(pid, signal);
        }
    }
}

/// Returns the process that a thread belongs to.
fn process_of(thread: Pid) -> Option<Pid> {
    let status = std::fs::read_to_string(format!("/proc/{thread}/status")).ok()?;
    let number = status.lines().find_map(|line| line.strip_prefix("Tgid:"))?;
    number.trim().parse().ok().map(Pid::from_raw)
}

/// Whether a thread that is stopped in a system call is in execve.
fn is_in_exec(pid: Pid) -> bool {
    call_of(pid) == Some(nix::libc::SYS_execve)
}

fn is_in_write(pid: Pid) -> bool {
    matches!(call_of(pid), Some(nix::libc::SYS_pwrite64 | nix::libc::SYS_fdatasync))
}

/// What a disk is asked to do.
pub(crate) enum DiskEvent {
    Write { place: u64, bytes: Vec<u8> },
    Flush,
}

/// What the system call that a thread is about to make does to this device.
fn disk_event(pid: Pid, device: &Path) -> Option<DiskEvent> {
    const BLKZEROOUT: u64 = 0x127f;
    let (call, words) = call_with_words(pid)?;
    let descriptor = words.first()?;
    if std::fs::read_link(format!("/proc/{pid}/fd/{descriptor}")).ok()? != device {
        return None;
    }
    let read = |address: u64, length: u64| {
        let mut bytes = vec![0; usize::try_from(length).unwrap()];
        let memory = File::open(format!("/proc/{pid}/mem")).unwrap();
        memory.read_exact_at(&mut bytes, address).unwrap();
        bytes
    };
    match call {
        nix::libc::SYS_pwrite64 => {
            Some(DiskEvent::Write { place: words[3], bytes: read(words[1], words[2]) })
        }
        nix::libc::SYS_ioctl if words[1] == BLKZEROOUT => {
            let numbers = read(words[2], 16);
            let [place, length] =
                [0, 8].map(|at| u64::from_ne_bytes(numbers[at..at + 8].try_into().unwrap()));
            Some(DiskEvent::Write { place, bytes: vec![0; usize::try_from(length).unwrap()] })
        }
        nix::libc::SYS_fdatasync | nix::libc::SYS_fsync => Some(DiskEvent::Flush),
        _ => None,
    }
}

/// The number of the system call that a thread is stopped in.
fn call_of(pid: Pid) -> Option<nix::libc::c_long> {
    call_with_words(pid).map(|(call, _)| call)
}

/// The system call that a thread is stopped in, and its arguments.
fn call_with_words(pid: Pid) -> Option<(nix::libc::c_long, Vec<u64>)> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/syscall")).ok()?;
    let (call, words) = text.split_once(' ')?;
    let words =
        words.split_whitespace().filter_map(|word| u64::from_str_radix(word.strip_prefix("0x")?, 16).ok());
    Some((call.parse().ok()?, words.collect()))
}

fn go_on(pid: Pid, signal: Option<Signal>) {
    // It can have been killed in the meantime.
    let _ = ptrace::syscall(pid, signal);
}
