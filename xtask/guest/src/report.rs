//! Lines for `xtask`: the start of each test, its end, and its output.

use std::cell::RefCell;
use std::fs::{self, File};
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::Result;
use crate::child::wait;

const PORT: &str = "/dev/ttyS1";
const OUTPUT: &str = "/run/output";

/// How much of a program's output is reported, from its end.
const TAIL: usize = 16 << 10;

/// The tests whose output is reported.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Output {
    Always,
    OfFailures,
}

/// The second serial port.
pub(crate) struct Report(RefCell<File>);

impl Report {
    pub(crate) fn open() -> Result<Self> {
        let port = File::options().write(true).open(PORT).map_err(|error| format!("{PORT}: {error}"))?;
        let report = Self(RefCell::new(port));
        report.line(&["kernel", fs::read_to_string("/proc/sys/kernel/osrelease")?.trim()])?;
        Ok(report)
    }

    fn line(&self, words: &[&str]) -> Result<()> {
        Ok(self.0.borrow_mut().write_all(format!("@\t{}\n", words.join("\t")).as_bytes())?)
    }

    /// If this line is missing, the machine did not finish.
    pub(crate) fn end(&self) -> Result<()> {
        self.line(&["end"])
    }

    pub(crate) fn module_failed(&self, path: &Path, error: nix::Error) -> Result<()> {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        self.line(&["module", &name, error.desc()])
    }

    /// A suite without tests must not count as a success.
    pub(crate) fn no_tests(&self, suite: &str) -> Result<()> {
        self.line(&["failed", suite, "(none)", "0", "the program does not have these tests"])
    }

    /// Runs a program to its end or the time limit, and reports both.
    pub(crate) fn run(
        &self,
        suite: &str,
        test: &str,
        mut command: Command,
        limit: Duration,
        output: Output,
    ) -> Result<()> {
        self.line(&["begin", suite, test])?;
        let file = File::create(OUTPUT)?;
        command.env("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin");
        command.env("HOME", "/root").stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file);
        let start = Instant::now();
        let ended = wait(&mut command, limit);
        let millis = start.elapsed().as_millis().to_string();
        if output == Output::Always || ended.is_err() {
            let said = fs::read(OUTPUT)?;
            for line in String::from_utf8_lossy(&said[said.len().saturating_sub(TAIL)..]).lines() {
                writeln!(self.0.borrow_mut(), "> {line}")?;
            }
        }
        match ended {
            Ok(()) => self.line(&["ok", suite, test, &millis]),
            Err(why) => self.line(&["failed", suite, test, &millis, &why]),
        }
    }
}
