//! Runs a job in a process of its own, and cuts it off at one of the system calls that change the share.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::process::{Child, ChildStderr, Command, Stdio};

use nix::libc;
use nix::sys::ptrace::{self, Options};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

const JOB: &str = "NFS_CUT_OFF_JOB";
const READY: &str = "ready for the job";

/// How a step is cut off.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Cut {
    /// The process is killed before the call.
    Killed,
    /// The call takes place, but returns ETIMEDOUT, as from a server that does not answer.
    Lost,
    /// The call takes place, its reply is lost, and the client repeats it: the second result is returned.
    Twice,
}

pub(super) const CUTS: [Cut; 3] = [Cut::Killed, Cut::Lost, Cut::Twice];

/// Runs the job and exits, if this process was started by [`cut`]. Returns otherwise.
pub(super) fn do_job(job: impl FnOnce(&[&str]) -> csi_core::Result<()>) {
    let Some(words) = std::env::var_os(JOB) else { return };
    let words = words.into_string().unwrap();
    eprintln!("{READY} {}", nix::unistd::gettid());
    // The tracer is attached when this returns.
    std::io::stdin().lock().read_line(&mut String::new()).unwrap();
    let done = job(&words.split('\n').collect::<Vec<_>>());
    std::process::exit(i32::from(done.is_err()));
}

/// Runs the job in the test of this name, and cuts it off at the `call`th changing system call. Returns false
/// if the job has fewer calls.
pub(super) fn cut(test: &str, words: &[&str], call: u32, how: Cut) -> bool {
    let (mut child, thread, mut errors) = start(test, words);
    let options = Options::PTRACE_O_TRACESYSGOOD | Options::PTRACE_O_EXITKILL;
    ptrace::seize(thread, options).unwrap();
    ptrace::interrupt(thread).unwrap();
    child.stdin.as_mut().unwrap().write_all(b"\n").unwrap();
    let process = Pid::from_raw(child.id().try_into().unwrap());
    let is_cut = trace(thread, process, call, how);
    let status = child.wait().unwrap();
    let mut text = String::new();
    errors.read_to_string(&mut text).unwrap();
    let killed = is_cut && how == Cut::Killed;
    assert!(killed || matches!(status.code(), Some(0 | 1)), "{words:?}, {how:?} at {call}: {status} {text}");
    is_cut
}

fn start(test: &str, words: &[&str]) -> (Child, Pid, BufReader<ChildStderr>) {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture", "--test-threads=1"])
        .env(JOB, words.join("\n"))
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut errors = BufReader::new(child.stderr.take().unwrap());
    let thread = loop {
        let mut line = String::new();
        assert!(errors.read_line(&mut line).unwrap() > 0, "{test} does not start its job");
        if let Some(thread) = line.trim().strip_prefix(READY) {
            break Pid::from_raw(thread.trim().parse().unwrap());
        }
    };
    (child, thread, errors)
}

/// Traces the thread that runs the job to its end.
fn trace(thread: Pid, process: Pid, call: u32, how: Cut) -> bool {
    let mut is_inside = false;
    let mut count = 0;
    let mut answer = None;
    let mut is_cut = false;
    // Waits for this thread only: the caller waits for the process.
    while let Ok(status) = waitpid(thread, Some(WaitPidFlag::__WALL)) {
        let signal = match status {
            WaitStatus::PtraceSyscall(_) => {
                is_inside = !is_inside;
                if !is_inside && let Some(errno) = answer.take() {
                    answer_with(thread, errno);
                }
                if is_inside && let Some(again) = answered_again(thread) {
                    count += 1;
                    if count == call {
                        is_cut = true;
                        match how {
                            Cut::Killed => kill(process, Signal::SIGKILL).unwrap(),
                            Cut::Lost => answer = Some(libc::ETIMEDOUT),
                            Cut::Twice => answer = again,
                        }
                    }
                }
                None
            }
            WaitStatus::Stopped(_, signal) => Some(signal),
            WaitStatus::Exited(..) | WaitStatus::Signaled(..) => break,
            _ => None,
        };
        // The thread can have been killed already.
        let _ = ptrace::syscall(thread, signal);
    }
    is_cut
}

/// For a thread at the entry of a system call: `None` if the call does not change the share; otherwise the
/// error that a repeated call returns, if it returns one.
fn answered_again(thread: Pid) -> Option<Option<i32>> {
    let text = std::fs::read_to_string(format!("/proc/{thread}/syscall")).ok()?;
    let mut words = text.split(' ');
    let number: i64 = words.next()?.parse().ok()?;
    let flags = words.nth(2).and_then(|flags| i32::from_str_radix(flags.strip_prefix("0x")?, 16).ok());
    match number {
        libc::SYS_mkdirat | libc::SYS_symlinkat | libc::SYS_linkat => Some(Some(libc::EEXIST)),
        libc::SYS_unlinkat | libc::SYS_renameat | libc::SYS_renameat2 => Some(Some(libc::ENOENT)),
        libc::SYS_openat if flags? & libc::O_CREAT != 0 => Some(Some(libc::EEXIST)),
        libc::SYS_fsync => Some(None),
        _ => None,
    }
}

#[cfg(target_arch = "x86_64")]
fn answer_with(thread: Pid, errno: i32) {
    let mut registers = ptrace::getregs(thread).unwrap();
    registers.rax = i64::from(-errno).cast_unsigned();
    ptrace::setregs(thread, registers).unwrap();
}

#[cfg(target_arch = "aarch64")]
fn answer_with(thread: Pid, errno: i32) {
    let mut registers = ptrace::getregs(thread).unwrap();
    registers.regs[0] = i64::from(-errno).cast_unsigned();
    ptrace::setregs(thread, registers).unwrap();
}
