//! What becomes of a system call, seen from outside.

use std::fmt;
use std::io::{self, Read as _};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use super::calls::{CALLS, Call, UNMOUNTS};

const NAME: &str = "HANG_TABLE_CALL";
const AT: &str = "HANG_TABLE_AT";

/// How long a killed process may take to go.
const KILLING: Duration = Duration::from_secs(10);

/// How a call ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fate {
    /// By itself: 0 or the error's number.
    Answered { after: Duration, error: i32 },
    /// When its process was killed.
    Killed { after: Duration },
    /// Not even then.
    Stuck,
}

impl fmt::Display for Fate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let answer = |error| match error {
            0 => "answers".to_owned(),
            number => rustix::io::Errno::from_raw_os_error(number).to_string(),
        };
        match *self {
            Self::Answered { after, error } if after < Duration::from_millis(500) => {
                f.write_str(&answer(error))
            }
            Self::Answered { after, error } => {
                write!(f, "{} after {:.1} s", answer(error), after.as_secs_f64())
            }
            Self::Killed { after } if after < Duration::from_secs(1) => f.write_str("hangs, can be killed"),
            Self::Killed { after } => write!(f, "hangs, killed after {:.1} s", after.as_secs_f64()),
            Self::Stuck => f.write_str("hangs, and CAN'T BE KILLED"),
        }
    }
}

/// What a process does that was started by [`Asked::start`]: makes the call, and tells how it went.
pub(crate) fn do_as_asked() {
    let Ok(name) = std::env::var(NAME) else { return };
    let at = std::env::var_os(AT).unwrap();
    let call = CALLS.iter().chain(UNMOUNTS).find(|call| call.name == name).unwrap();
    let start = Instant::now();
    let error = (call.make)(Path::new(&at)).err().map_or(0, |error| error.raw_os_error().unwrap_or(-1));
    println!("\nfate {} {error}", start.elapsed().as_millis());
    std::process::exit(0);
}

/// A call that a process is at.
pub(crate) struct Asked {
    child: Child,
}

impl Asked {
    /// Has another process make the call; `test` is the test that calls [`do_as_asked`].
    pub(crate) fn start(call: &Call, at: &Path, test: &str) -> Self {
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", test, "--nocapture", "--test-threads=1"])
            .env(NAME, call.name)
            .env(AT, at)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        Self { child }
    }

    /// Waits for it until then, and kills it.
    pub(crate) fn fate(mut self, deadline: Instant) -> Fate {
        if self.has_ended_by(deadline) {
            let mut text = String::new();
            self.child.stdout.take().unwrap().read_to_string(&mut text).unwrap();
            let words = text.lines().find_map(|line| line.strip_prefix("fate ")).expect("it tells its fate");
            let (after, error) = words.split_once(' ').unwrap();
            let after = Duration::from_millis(after.parse().unwrap());
            return Fate::Answered { after, error: error.parse().unwrap() };
        }
        let start = Instant::now();
        self.child.kill().unwrap();
        if self.has_ended_by(start + KILLING) { Fate::Killed { after: start.elapsed() } } else { Fate::Stuck }
    }

    fn has_ended_by(&mut self, deadline: Instant) -> bool {
        loop {
            match self.child.try_wait() {
                Ok(Some(_)) => return true,
                Ok(None) if Instant::now() < deadline => sleep(Duration::from_millis(5)),
                Ok(None) => return false,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => panic!("{error}"),
            }
        }
    }
}
