//! Runs the quickstart in a directory of its own for temporary files, and looks for what it left.
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

/// An ordinary user's number.
const NOBODY: u32 = 65534;

/// A directory for temporary files that one test has for itself, and who works in it.
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

    /// For a run as an ordinary user, whoever runs the test.
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

    /// The quickstart, with its temporary files here.
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

    /// Sees that there is no mount, loop device, process or file of this place.
    pub(crate) fn assert_clean(&self, text: &str) {
        let left = self.left();
        assert!(left.is_empty(), "left: {left:#?}\n{text}");
    }

    /// The same, for what goes on its own.
    pub(crate) fn until_clean(&self) {
        let end = Instant::now() + Duration::from_secs(60);
        while !self.left().is_empty() {
            assert!(Instant::now() < end, "left: {:#?}", self.left());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// All that there is of this place.
    pub(crate) fn left(&self) -> Vec<String> {
        let here = self.path().to_str().unwrap();
        let is_here = |text: &str| text.contains(here);
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
        let mut left: Vec<String> = mounts.lines().filter(|line| is_here(line)).map(str::to_owned).collect();
        left.extend(loop_devices(here));
        for entry in fs::read_dir("/proc").unwrap() {
            // The driver has the place in its arguments.
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

/// The loop devices over files that have this in their path, and those over these.
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

/// The file of the quickstart.
enum Program {
    /// As cargo built it.
    Original,
    /// A copy where everybody can run it: the original may be in somebody's home.
    Copy(tempfile::TempDir),
}

impl Program {
    fn copy() -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let copy = Self::Copy(folder);
        // Copied by another process, so that no child of another test holds it open for writing.
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

/// A quickstart that runs.
pub(crate) struct Running {
    child: Child,
    lines: BufReader<std::process::ChildStdout>,
    /// What it printed so far.
    pub(crate) text: String,
}

impl Running {
    /// Reads what it prints up to the line that holds `marker` for the `count`th time.
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

    /// The driver's process, which a line told.
    pub(crate) fn driver(&self) -> Pid {
        let after = self.text.rsplit("process ").next().unwrap();
        Pid::from_raw(after.split_whitespace().next().unwrap().parse().unwrap())
    }

    /// Signals the process, and no other.
    pub(crate) fn signal(&self, signal: Signal) {
        kill(self.id(), signal).unwrap();
    }

    /// What a terminal does: SIGINT to the whole group of processes.
    pub(crate) fn ctrl_c(&self) {
        killpg(self.id(), Signal::SIGINT).unwrap();
    }

    fn id(&self) -> Pid {
        Pid::from_raw(self.child.id().try_into().unwrap())
    }

    /// Waits for its end; its exit status, and all that it printed.
    pub(crate) fn finish(mut self) -> (Option<i32>, String) {
        self.lines.read_to_string(&mut self.text).unwrap();
        let mut errors = String::new();
        self.child.stderr.take().unwrap().read_to_string(&mut errors).unwrap();
        let status = self.child.wait().unwrap();
        (status.code(), self.text + &errors)
    }
}

/// What it printed.
pub(crate) fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}
