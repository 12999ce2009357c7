//! `csi` as a process, and drivers for it to call: a fake driver that records calls and gives prepared
//! answers, and the examples.

#![allow(dead_code, unused_imports, reason = "a module of each test file, which uses its part")]

mod driver;
mod messages;
mod server;

use std::io::{BufRead as _, BufReader, Read as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Output, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

pub(crate) use driver::{Driver, losetup, with_driver};
pub(crate) use messages::{
    Alternative, POOL, confirmed, controller_offers, dynamic, filled, filled_with, has_a_controller, method,
    node_offers, plugin_offers,
};
pub(crate) use server::{Answers, Fake, answer, forward, one};

/// A command line of `csi`, for the driver at this socket.
pub(crate) fn csi(socket: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_csi"));
    command.env("CSI_ENDPOINT", format!("unix://{}", socket.display()));
    command.env("NO_COLOR", "1").stdin(Stdio::null());
    command
}

pub(crate) fn run(socket: &Path, words: &[&str]) -> Output {
    csi(socket).args(words).output().unwrap()
}

impl Fake {
    /// `csi lifecycle`, with its temporary directory next to the socket.
    pub(crate) fn lifecycle(&self, words: &[&str]) -> Command {
        let mut command = csi(&self.socket());
        command.arg("lifecycle").args(words).env("TMPDIR", self.folder());
        command
    }
}

pub(crate) fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

pub(crate) fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

pub(crate) fn text(output: &Output) -> String {
    stdout(output) + &stderr(output)
}

/// All that it printed; panics unless it ended with this status.
#[track_caller]
pub(crate) fn ended(output: &Output, status: i32) -> String {
    let text = text(output);
    assert_eq!(output.status.code(), Some(status), "{text}");
    text
}

/// Its errors; panics unless it ended with this status.
#[track_caller]
pub(crate) fn errors(output: &Output, status: i32) -> String {
    ended(output, status);
    stderr(output)
}

/// Its standard output; panics unless it succeeded.
#[track_caller]
pub(crate) fn ok(output: &Output) -> String {
    ended(output, 0);
    stdout(output)
}

/// The commands that a life printed, which undo what is left.
#[track_caller]
pub(crate) fn undoing(text: &str) -> Vec<&str> {
    let parts = text.split_once("these commands undo what is left:\n");
    let (_, commands) = parts.unwrap_or_else(|| panic!("{text}"));
    commands.lines().take_while(|line| line.starts_with("  ")).map(str::trim).collect()
}

pub(crate) struct Running {
    child: Child,
    lines: BufReader<ChildStdout>,
}

impl Running {
    pub(crate) fn start(command: &mut Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap());
        Self { child, lines }
    }

    /// The next line, without its end; None at the end of the output.
    pub(crate) fn line(&mut self) -> Option<String> {
        let mut line = String::new();
        let read = self.lines.read_line(&mut line).unwrap();
        (read > 0).then(|| line.trim_end_matches('\n').to_owned())
    }

    pub(crate) fn until(&mut self, marker: &str) -> String {
        let mut text = String::new();
        loop {
            let line = self.line().unwrap_or_else(|| panic!("it ended before {marker:?}:\n{text}"));
            text.push_str(&line);
            text.push('\n');
            if line.contains(marker) {
                return text;
            }
        }
    }

    /// Whether one of its threads is opening a pipe and waits for the other end.
    pub(crate) fn waits_at_a_pipe(&self) -> bool {
        let tasks =
            std::fs::read_dir(format!("/proc/{}/task", self.child.id())).into_iter().flatten().flatten();
        let mut waits =
            tasks.map(|task| std::fs::read_to_string(task.path().join("wchan")).unwrap_or_default());
        waits.any(|place| place == "wait_for_partner")
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.child.id().try_into().unwrap()), signal).unwrap();
    }

    /// Its arguments, as every process can read them.
    pub(crate) fn arguments(&self) -> String {
        let line = std::fs::read(format!("/proc/{}/cmdline", self.child.id())).unwrap();
        String::from_utf8_lossy(&line).replace('\0', " ")
    }

    pub(crate) fn finish(mut self) -> (Option<i32>, String, String) {
        let mut rest = String::new();
        let mut errors = String::new();
        self.lines.read_to_string(&mut rest).unwrap();
        self.child.stderr.take().unwrap().read_to_string(&mut errors).unwrap();
        (self.child.wait().unwrap().code(), rest, errors)
    }
}

/// Polls until `look` returns a value.
pub(crate) fn until<T>(mut look: impl FnMut() -> Option<T>) -> T {
    let end = std::time::Instant::now() + std::time::Duration::from_secs(120);
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(std::time::Instant::now() < end, "it did not come in two minutes");
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
}
