//! The outcome of a system call, observed from outside.

use std::fmt;
use std::io::{self, BufRead as _, BufReader, Read as _};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use super::calls::{self, Call};

const NAME: &str = "HANG_TABLE_CALL";
const AT: &str = "HANG_TABLE_AT";
const BEGIN: &str = "begin";

/// How long a killed process can take to end.
const KILLING: Duration = Duration::from_secs(10);

/// How a call ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fate {
    /// By itself, with 0 or an error number.
    Answered { after: Duration, error: i32 },
    /// When its process was killed.
    Killed { after: Duration },
    /// Not even when its process was killed.
    Stuck,
}

impl Fate {
    /// Whether the call ended, and not because the mount gave up on its server.
    pub(crate) fn is_no_answer_of_a_server(&self) -> bool {
        use nix::libc::{EIO, ESTALE, ETIMEDOUT};
        matches!(self, Self::Answered { error, .. } if ![EIO, ESTALE, ETIMEDOUT].contains(error))
    }
}

impl fmt::Display for Fate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let answer = |error| match error {
            0 => "answers".to_owned(),
            number => rustix::io::Errno::from_raw_os_error(number).to_string(),
        };
        match *self {
            // A mount that gives up does so after two seconds.
            Self::Answered { after, error } if after < Duration::from_secs(1) => f.write_str(&answer(error)),
            Self::Answered { after, error } => {
                write!(f, "{} after {:.1} s", answer(error), after.as_secs_f64())
            }
            Self::Killed { after } if after < Duration::from_secs(1) => f.write_str("hangs, can be killed"),
            Self::Killed { after } => write!(f, "hangs, killed after {:.1} s", after.as_secs_f64()),
            Self::Stuck => f.write_str("hangs, and CAN'T BE KILLED"),
        }
    }
}

/// The code of a process that [`Asked::start`] started: it reports that it begins, makes the call, and
/// reports the outcome.
pub(crate) fn do_as_asked() {
    let Ok(name) = std::env::var(NAME) else { return };
    let at = std::env::var_os(AT).unwrap();
    let call = calls::all().find(|call| call.name == name).unwrap();
    // Waits until the test lets it begin.
    io::stdin().read_to_end(&mut Vec::new()).unwrap();
    println!("\n{BEGIN}");
    let start = Instant::now();
    let error = (call.make)(Path::new(&at)).err().map_or(0, |error| error.raw_os_error().unwrap_or(-1));
    println!("\nfate {} {error}", start.elapsed().as_millis());
    std::process::exit(0);
}

/// A call that a process was told to make. The time until the process begins it is not part of the call.
pub(crate) struct Asked {
    child: Child,
    output: BufReader<ChildStdout>,
}

impl Asked {
    /// Starts another process that makes the call. `test` is the test that calls [`do_as_asked`].
    pub(crate) fn start(call: &Call, at: &Path, test: &str) -> Self {
        let (asked, go) = Self::held(call, at, test);
        drop(go);
        asked
    }

    /// Like [`start`](Self::start), but the call begins when the returned `ChildStdin` is dropped.
    pub(crate) fn held(call: &Call, at: &Path, test: &str) -> (Self, ChildStdin) {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", test, "--nocapture", "--test-threads=1"])
            .env(NAME, call.name)
            .env(AT, at)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (go, output) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        (Self { child, output: BufReader::new(output) }, go)
    }

    /// Waits until the call has begun.
    pub(crate) fn begun(mut self) -> Begun {
        self.line(|line| (line == BEGIN).then_some(())).expect("it says that it begins");
        Begun(self)
    }

    /// Returns the first line for which `of` returns a value.
    fn line<T>(&mut self, of: impl Fn(&str) -> Option<T>) -> Option<T> {
        self.output.by_ref().lines().find_map(|line| of(&line.unwrap()))
    }
}

/// A call that a process has begun.
pub(crate) struct Begun(Asked);

impl Begun {
    /// Waits for the call until the deadline, then kills the process.
    pub(crate) fn fate(mut self, deadline: Instant) -> Fate {
        if self.has_ended_by(deadline) {
            let words = self.0.line(|line| Some(line.strip_prefix("fate ")?.to_owned()));
            let words = words.expect("it tells its fate");
            let (after, error) = words.split_once(' ').unwrap();
            let after = Duration::from_millis(after.parse().unwrap());
            return Fate::Answered { after, error: error.parse().unwrap() };
        }
        let start = Instant::now();
        self.0.child.kill().unwrap();
        if self.has_ended_by(start + KILLING) { Fate::Killed { after: start.elapsed() } } else { Fate::Stuck }
    }

    fn has_ended_by(&mut self, deadline: Instant) -> bool {
        loop {
            match self.0.child.try_wait() {
                Ok(Some(_)) => return true,
                Ok(None) if Instant::now() < deadline => sleep(Duration::from_millis(5)),
                Ok(None) => return false,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => panic!("{error}"),
            }
        }
    }
}
