//! Runs the quickstart with its own directory for temporary files, and finds what it left.
#![allow(dead_code, reason = "a module of each test file, which uses its part")]

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _};
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::{Pid, geteuid};

/// The user id of an ordinary user.
const NOBODY: u32 = 65534;

/// A private directory for the temporary files of one test, and the user who runs the program.
pub(crate) struct Place {
    directory: tempfile::TempDir,
    user: u32,
    program: Program,
}

impl Place {
    /// For a run as root.
    pub(crate) fn of_root() -> Self {
        assert!(geteuid().is_root(), "this test attaches loop devices and mounts: run it as root");
        Self { directory: tempfile::tempdir().unwrap(), user: 0, program: Program::Original }
    }

    /// For a run as an ordinary user, whichever user runs the test.
    pub(crate) fn of_a_user() -> Self {
        let directory = tempfile::tempdir().unwrap();
        if !geteuid().is_root() {
            return Self { directory, user: geteuid().as_raw(), program: Program::Original };
        }
        chown(directory.path(), Some(NOBODY), Some(NOBODY)).unwrap();
        Self { directory, user: NOBODY, program: Program::copy() }
    }

    pub(crate) fn path(&self) -> &Path {
        self.directory.path()
    }

    /// The quickstart, with its temporary files in this directory.
    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(self.program.path());
        command.args(arguments).env("TMPDIR", self.path()).stdin(Stdio::null()).process_group(0);
        if geteuid().as_raw() != self.user {
            command.uid(self.user).gid(self.user);
        }
        command
    }

    /// Runs it to its end.
    pub(crate) fn run(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().unwrap()
    }

    /// Starts it.
    pub(crate) fn start(&self, arguments: &[&str]) -> Running {
        let mut child =
            self.command(arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap());
        Running { child, lines, text: String::new() }
    }

    /// Runs it, and presses Ctrl-C at the line that contains `marker` for the `count`th time. It is run again if it ended
    /// before the signal came, as on a machine that has other work.
    pub(crate) fn interrupt_at(&self, marker: &str, count: usize) -> (Option<i32>, String) {
        let end = Instant::now() + Duration::from_secs(120);
        loop {
            let mut running = self.start(&[]);
            running.until(marker, count);
            running.ctrl_c();
            let (status, text) = running.finish();
            if status != Some(0) || Instant::now() > end {
                return (status, text);
            }
        }
    }

    /// Checks that no mount, loop device, process or file of this place is left.
    pub(crate) fn assert_clean(&self, text: &str) {
        let left = self.left();
        assert!(left.is_empty(), "left: {left:#?}\n{text}");
    }

    /// The same, but waits up to 60 s for cleanup that runs on its own.
    pub(crate) fn until_clean(&self) {
        let end = Instant::now() + Duration::from_secs(120);
        while !self.left().is_empty() {
            assert!(Instant::now() < end, "left: {:#?}", self.left());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Everything that exists of this place.
    pub(crate) fn left(&self) -> Vec<String> {
        let here = self.path().to_str().unwrap();
        let is_here = |text: &str| text.contains(here);
        let mounts = fs::read_to_string("/proc/thread-self/mountinfo").unwrap();
        let mut left: Vec<String> = mounts.lines().filter(|line| is_here(line)).map(str::to_owned).collect();
        left.extend(loop_devices(here));
        for entry in fs::read_dir("/proc").unwrap() {
            // The driver has this path in its arguments.
            let line = fs::read(entry.unwrap().path().join("cmdline")).unwrap_or_default();
            let line = String::from_utf8_lossy(&line).replace('\0', " ");
            if is_here(&line) {
                left.push(line);
            }
        }
        left.extend(fs::read_dir(here).unwrap().map(|entry| entry.unwrap().path().display().to_string()));
        left
    }
}

/// The loop devices whose backing file has this text in its path, and the loop devices over those devices.
fn loop_devices(part: &str) -> Vec<String> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/sys/block").unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        let backing = fs::read_to_string(format!("/sys/block/{name}/loop/backing_file"));
        if backing.is_ok_and(|file| file.contains(part)) {
            found.push(format!("/dev/{name} over {part}"));
            let exactly = format!("/dev/{name}\n");
            found.extend(loop_devices(&exactly));
        }
    }
    found
}

/// The executable of the quickstart.
enum Program {
    /// As cargo built it.
    Original,
    /// A copy that everybody can execute: the original can be in a private home directory.
    Copy(tempfile::TempDir),
}

impl Program {
    fn copy() -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let copy = Self::Copy(folder);
        // Another process makes the copy, so that no child of another test holds it open for
        // writing (ETXTBSY).
        let copied = Command::new("cp").arg(Self::Original.path()).arg(copy.path()).status().unwrap();
        assert!(copied.success());
        copy
    }

    fn path(&self) -> PathBuf {
        match self {
            Self::Original => env!("CARGO_BIN_EXE_quickstart").into(),
            Self::Copy(folder) => folder.path().join("quickstart"),
        }
    }
}

/// A running quickstart.
pub(crate) struct Running {
    child: Child,
    lines: BufReader<std::process::ChildStdout>,
    /// What it printed until now.
    pub(crate) text: String,
}

impl Running {
    /// Reads its output up to the line that contains `marker` for the `count`th time.
    pub(crate) fn until(&mut self, marker: &str, count: usize) {
        for _ in 0..count {
            loop {
                let start = self.text.len();
                let read = self.lines.read_line(&mut self.text).unwrap();
                assert!(read > 0, "it ended before it printed {marker:?}:\n{}", self.text);
                if self.text[start..].contains(marker) {
                    break;
                }
            }
        }
    }

    /// The process id of the driver, from the printed line.
    pub(crate) fn driver(&self) -> Pid {
        let after = self.text.rsplit("process ").next().unwrap();
        Pid::from_raw(after.split_whitespace().next().unwrap().parse().unwrap())
    }

    /// Signals only this process.
    pub(crate) fn signal(&self, signal: Signal) {
        kill(self.id(), signal).unwrap();
    }

    /// Does what a terminal does: sends SIGINT to the whole process group.
    pub(crate) fn ctrl_c(&self) {
        killpg(self.id(), Signal::SIGINT).unwrap();
    }

    fn id(&self) -> Pid {
        Pid::from_raw(self.child.id().try_into().unwrap())
    }

    /// Waits until it ends. Returns its exit status and everything that it printed.
    pub(crate) fn finish(mut self) -> (Option<i32>, String) {
        self.lines.read_to_string(&mut self.text).unwrap();
        let mut errors = String::new();
        self.child.stderr.take().unwrap().read_to_string(&mut errors).unwrap();
        let status = self.child.wait().unwrap();
        (status.code(), self.text + &errors)
    }
}

/// Everything that it printed.
pub(crate) fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}
