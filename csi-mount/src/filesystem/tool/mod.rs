//! Programs of the filesystems' own packages: found, run without a shell, and never left running.

pub(crate) mod program;

use std::ffi::{OsStr, OsString};
use std::io::{self, PipeReader, Read as _, Write as _};
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};

use crate::bounded::in_flight;
use crate::device::block_device::BlockDevice;
use crate::error::{Error, ErrorKind, Result};
use crate::sys::deadline::deadline;
use crate::sys::process::{die_with_parent, inherit};
use crate::sys::{descriptor_copies, memory};

/// How many bytes at the end of a program's output are kept.
const MAX_OUTPUT_BYTES: usize = 8 * 1024;
/// How often a running program is checked. Most run for milliseconds, so the first checks come sooner.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
const FIRST_POLL_INTERVAL: Duration = Duration::from_millis(1);
/// How long a killed program can take to end.
const KILL_TIME_LIMIT: Duration = Duration::from_secs(5);
/// Where the tools are on a system whose service runs with a short `PATH`.
const SYSTEM_DIRECTORIES: [&str; 4] = ["/usr/sbin", "/sbin", "/usr/local/sbin", "/usr/bin"];

/// A program and the package that contains it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Tool {
    pub(crate) program: &'static str,
    pub(crate) package: &'static str,
}

/// What a program gets in addition to its arguments.
#[derive(Default)]
pub(crate) struct ToolInput<'a> {
    /// Its standard input, passed only through a pipe; at most `INPUT` bytes. It can be secret.
    pub(crate) input: Option<&'a [u8]>,
    /// Variables of its environment.
    pub(crate) environment: &'a [(&'a str, &'a str)],
    /// An open file, which its arguments name by its [`path`](OpenFile::path).
    pub(crate) file: Option<OpenFile<'a>>,
    /// How often it is checked. The default is enough for its time and memory limits.
    pub(crate) poll_interval: Option<Duration>,
    /// Its standard output is kept apart, up to this many bytes.
    pub(crate) stdout_limit: Option<usize>,
}

/// An open file or device that a program works on, so that no path can lead it to another.
#[derive(Clone, Copy)]
pub(crate) struct OpenFile<'a> {
    pub(crate) fd: BorrowedFd<'a>,
    /// The name for it in the program's messages.
    pub(crate) name: &'a Path,
}

impl<'a> OpenFile<'a> {
    pub(crate) fn from_device(device: &'a BlockDevice) -> Self {
        Self { fd: device.as_fd(), name: device.path() }
    }

    /// The path by which the program that gets the descriptor opens it.
    pub(crate) fn path(self) -> String {
        format!("/proc/self/fd/{}", self.fd.as_raw_fd())
    }
}

/// The capacity of every pipe, so that the input is written before the program starts.
pub(crate) const INPUT: usize = 4096;

/// Time and memory limits of a program.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bounds {
    pub(crate) time: Duration,
    /// In bytes; none means no limit.
    pub(crate) memory: Option<u64>,
}

impl From<Duration> for Bounds {
    fn from(time: Duration) -> Self {
        Self { time, memory: None }
    }
}

/// The exit status and output of a program.
#[derive(Debug)]
pub(crate) struct Output {
    pub(crate) status: ExitStatus,
    /// The end of its standard output and standard error, in the order in which they arrived; of its standard
    /// error alone, if the other was kept apart.
    pub(crate) text: String,
    /// Its standard output, if it was kept apart.
    pub(crate) stdout: Vec<u8>,
}

impl Tool {
    /// The program's path: on `PATH`, or in a system directory.
    pub(crate) fn find(self) -> Result<PathBuf> {
        find(self.program, Some(self.package))
    }

    /// Runs the program until it ends, or until it exceeds its bounds and is killed with all that it
    /// started.
    ///
    /// It has no input, the C locale, none of this process's environment, and dies with this process.
    pub(crate) fn run<S: AsRef<OsStr>>(self, arguments: &[S], bounds: impl Into<Bounds>) -> Result<Output> {
        self.run_with_input(arguments, ToolInput::default(), bounds, |_| Ok(()))
    }

    /// As [`run`](Self::run), with `given` for the program to use. `watcher` is called at each check; its
    /// error ends the program.
    pub(crate) fn run_with_input<S: AsRef<OsStr>>(
        self,
        arguments: &[S],
        given: ToolInput<'_>,
        bounds: impl Into<Bounds>,
        watcher: impl FnMut(&RunningTool) -> Result<()>,
    ) -> Result<Output> {
        run(self.program, &self.find()?, arguments, given, bounds.into(), watcher)
    }

    /// The error for a program that failed: its exit status and the last lines that it printed.
    pub(crate) fn failed(self, path: &Path, output: &Output) -> Error {
        failed("run a program on", self.program, output).at(path)
    }

    /// The error for a program that was killed because of its memory use.
    pub(crate) fn out_of_memory(self, given: u64) -> Error {
        out_of_memory(self.program, given)
    }
}

/// The path of a program: on `PATH`, or in a system directory.
pub(crate) fn find(program: &str, package: Option<&str>) -> Result<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .filter(|directory| directory.is_absolute())
        .chain(SYSTEM_DIRECTORIES.into_iter().map(PathBuf::from))
        .map(|directory| directory.join(program))
        .find(|program| is_executable(program))
        .ok_or_else(|| {
            let reason = format!("{program} is neither on PATH nor in {}", SYSTEM_DIRECTORIES[0]);
            let error = Error::new(ErrorKind::MissingTool, "find a program", reason);
            match package {
                Some(package) => error.hint(format!("install the package {package}")),
                None => error,
            }
        })
}

/// Runs the program at a path; see [`Tool::run_with_input`].
pub(crate) fn run<S: AsRef<OsStr>>(
    name: &str,
    path: &Path,
    arguments: &[S],
    given: ToolInput<'_>,
    bounds: Bounds,
    watcher: impl FnMut(&RunningTool) -> Result<()>,
) -> Result<Output> {
    let pipe = || io::pipe().map_err(|error| failed_to_run(name, error));
    let (reader, writer) = pipe()?;
    let mut streams = vec![Stream::new(reader)];
    let stdout = match given.stdout_limit {
        Some(_) => {
            let (reader, writer) = pipe()?;
            streams.push(Stream::new(reader));
            writer
        }
        None => writer.try_clone().map_err(|error| failed_to_run(name, error))?,
    };
    let mut command = Command::new(path);
    command
        .args(arguments)
        .env_clear()
        .env("LC_ALL", "C")
        .env("PATH", search_path())
        .envs(given.environment.iter().copied())
        .current_dir("/")
        .stdin(input(given.input).map_err(|error| failed_to_run(name, error))?)
        .stdout(stdout)
        .stderr(writer)
        .process_group(0);
    die_with_parent(&mut command);
    if let Some(file) = given.file {
        inherit(&mut command, file.fd);
    }
    tracing::debug!(program = name, "run");
    let child = descriptor_copies::spawn(&mut command).map_err(|error| failed_to_run(name, error))?;
    // This process had the only other write ends; now the pipes end when the program does.
    drop(command);
    if bounds.memory.is_some() {
        memory::prefer_for_oom_kill(child.id());
    }
    let running = RunningTool { name: name.to_owned(), child, start: Instant::now(), reaped: false };
    let mut output = running.finish(streams, &given, bounds, watcher)?;
    if let Some(file) = given.file {
        output.text = output.text.replace(&file.path(), &file.name.to_string_lossy());
    }
    Ok(output)
}

fn input(bytes: Option<&[u8]>) -> io::Result<Stdio> {
    let Some(bytes) = bytes else { return Ok(Stdio::null()) };
    let (reader, mut writer) = io::pipe()?;
    writer.write_all(bytes)?;
    Ok(reader.into())
}

/// The error for a program that failed: its exit status and the last lines that it printed.
pub(crate) fn failed(operation: &'static str, name: &str, output: &Output) -> Error {
    let mut lines: Vec<&str> = output.text.lines().filter(|line| !line.trim().is_empty()).collect();
    let last = lines.split_off(lines.len().saturating_sub(4)).join(" | ");
    let reason = format!("{name} ended with {}: {last}", output.status);
    Error::new(ErrorKind::ToolFailed, operation, reason)
}

fn out_of_memory(name: &str, given: u64) -> Error {
    let reason = format!("{name} needed more than its {} MiB of memory", given >> 20);
    Error::new(ErrorKind::OutOfMemory, "run a program", reason)
}

fn failed_to_run(name: &str, error: io::Error) -> Error {
    Error::os("run", name, error)
}

/// What a program prints, as it arrives.
struct Stream {
    pipe: PipeReader,
    kept: Vec<u8>,
    is_open: bool,
}

impl Stream {
    fn new(pipe: PipeReader) -> Self {
        Self { pipe, kept: Vec::new(), is_open: true }
    }

    fn read_some(&mut self) -> io::Result<()> {
        let mut buffer = [0; 4096];
        let count = match self.pipe.read(&mut buffer) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => return Ok(()),
            count => count?,
        };
        self.kept.extend_from_slice(&buffer[..count]);
        self.is_open = count > 0;
        Ok(())
    }
}

/// A running program. If this is dropped before the program ends, it is killed with all that it started.
pub(crate) struct RunningTool {
    name: String,
    child: Child,
    start: Instant,
    reaped: bool,
}

impl RunningTool {
    /// Time since its start.
    pub(crate) fn elapsed(&self) -> Duration {
        self.start.elapsed()
    }

    /// Runs a function while the program is stopped. The program continues afterwards, unless it has ended.
    pub(crate) fn while_stopped<T>(&self, run: impl FnOnce() -> Result<T>) -> Result<T> {
        let group = Pid::from_child(&self.child);
        let signal = |signal| {
            kill_process_group(group, signal).map_err(|error| failed_to_run(&self.name, error.into()))
        };
        signal(Signal::STOP)?;
        // A process group has stopped when its last thread has. Without this wait, it could still be in a
        // system call.
        let look = WaitIdOptions::STOPPED | WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
        loop {
            match waitid(WaitId::Pid(group), look) {
                Ok(_) => break,
                Err(Errno::INTR) => {}
                Err(error) => return Err(failed_to_run(&self.name, error.into())),
            }
        }
        let done = run();
        signal(Signal::CONT)?;
        done
    }

    fn finish(
        mut self,
        mut streams: Vec<Stream>,
        given: &ToolInput<'_>,
        bounds: Bounds,
        mut watcher: impl FnMut(&Self) -> Result<()>,
    ) -> Result<Output> {
        let end = deadline(bounds.time);
        let look = given.poll_interval.unwrap_or(POLL_INTERVAL);
        let mut pause = FIRST_POLL_INTERVAL;
        // A process that the program started can hold the pipe for longer, so the end of the program is
        // checked too.
        loop {
            if let Some(given) = bounds.memory
                && memory::used_by_group(self.child.id()).is_some_and(|used| used > given)
            {
                let _ = self.kill();
                return Err(out_of_memory(&self.name, given));
            }
            let open = self.read_some(&mut streams, given, pause.min(left(end)))?;
            pause = (pause * 2).min(look);
            // At the end of the pipe there is nothing else to wait for.
            if self.has_ended(if open { Duration::ZERO } else { POLL_INTERVAL.min(left(end)) })? {
                break;
            }
            watcher(&self)?;
            if left(end).is_zero() {
                let reason = match self.kill() {
                    Some(_) => "it was killed",
                    None => "it does not end although it was killed; its device possibly does not answer",
                };
                let reason = format!("{} took longer than its time limit; {reason}", self.name);
                return Err(Error::new(ErrorKind::Unresponsive, "run a program", reason));
            }
        }
        // Processes that the program left behind are killed too.
        let Some(status) = self.kill() else {
            return Err(failed_to_run(&self.name, Errno::CHILD.into()));
        };
        let end = Instant::now() + KILL_TIME_LIMIT;
        while self.read_some(&mut streams, given, POLL_INTERVAL)? && !left(end).is_zero() {}
        let mut kept = streams.into_iter().map(|stream| stream.kept);
        let text = String::from_utf8_lossy(&kept.next().unwrap_or_default()).into_owned();
        Ok(Output { status, text, stdout: kept.next().unwrap_or_default() })
    }

    /// Reads what is available, and waits less than a second for it; false at the end of all pipes.
    fn read_some(&self, streams: &mut [Stream], given: &ToolInput<'_>, moment: Duration) -> Result<bool> {
        let moment = Timespec { tv_sec: 0, tv_nsec: moment.subsec_nanos().into() };
        let mut open: Vec<&mut Stream> = streams.iter_mut().filter(|stream| stream.is_open).collect();
        if open.is_empty() {
            return Ok(false);
        }
        let mut events: Vec<_> = open.iter().map(|stream| PollFd::new(&stream.pipe, PollFlags::IN)).collect();
        match poll(&mut events, Some(&moment)) {
            Ok(0) | Err(Errno::INTR) => return Ok(true),
            Ok(_) => {}
            Err(error) => return Err(failed_to_run(&self.name, error.into())),
        }
        let is_ready: Vec<bool> = events.iter().map(|event| !event.revents().is_empty()).collect();
        for (stream, _) in open.iter_mut().zip(is_ready).filter(|(_, is_ready)| *is_ready) {
            stream.read_some().map_err(|error| failed_to_run(&self.name, error))?;
        }
        let text = &mut streams[0].kept;
        text.drain(..text.len().saturating_sub(MAX_OUTPUT_BYTES));
        if let (Some(stdout), Some(limit)) = (streams.get(1), given.stdout_limit)
            && stdout.kept.len() > limit
        {
            let reason = format!("{} printed more than {limit} bytes; it was killed", self.name);
            return Err(Error::new(ErrorKind::OutOfRange, "run a program", reason));
        }
        Ok(streams.iter().any(|stream| stream.is_open))
    }

    /// Whether the program ends within this time. It is not reaped.
    fn has_ended(&self, time_left: Duration) -> Result<bool> {
        let end = deadline(time_left);
        let look = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        loop {
            match waitid(WaitId::Pid(Pid::from_child(&self.child)), look) {
                Ok(Some(_)) => return Ok(true),
                Ok(None) | Err(Errno::INTR) if left(end).is_zero() => return Ok(false),
                Ok(None) | Err(Errno::INTR) => std::thread::sleep(Duration::from_millis(1)),
                Err(error) => return Err(failed_to_run(&self.name, error.into())),
            }
        }
    }

    /// Kills what is left of the program and all that it started; none if it does not end in time.
    fn kill(&mut self) -> Option<ExitStatus> {
        // The program is not reaped yet, so the group's number is still its own. The group can already be
        // empty.
        let _ = kill_process_group(Pid::from_child(&self.child), Signal::KILL);
        self.reaped = true;
        match self.has_ended(KILL_TIME_LIMIT) {
            Ok(true) => self.child.wait().ok(),
            _ => {
                in_flight::reap_later(self.child.id().cast_signed());
                None
            }
        }
    }
}

impl Drop for RunningTool {
    fn drop(&mut self) {
        if !self.reaped {
            self.kill();
        }
    }
}

fn left(end: Instant) -> Duration {
    end.saturating_duration_since(Instant::now())
}

fn is_executable(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt as _;
    std::fs::metadata(path).is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 != 0)
}

pub(crate) fn search_path() -> OsString {
    std::env::join_paths(SYSTEM_DIRECTORIES.iter().chain(&["/bin"])).unwrap_or_default()
}

#[cfg(test)]
mod tests;
