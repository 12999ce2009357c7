//! `k8s.io/mount-utils`, which most CSI drivers in Go use, as contestants.
//!
//! It runs in a process of its own (`benches/mount-utils`), in the mount namespace of this one. That process
//! lives as long as its subject and measures the time of its work itself, so neither its start nor the pipe
//! counts.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};

use crate::Contestant;
use crate::contest::Kind;

/// The environment variable with the path of the program. Without it these contestants do not take part.
const PROGRAM: &str = "BENCH_MOUNT_UTILS";

/// The running program.
#[derive(Debug)]
pub(crate) struct MountUtils {
    process: Child,
    requests: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl MountUtils {
    /// Starts the program; `None` if there is none.
    ///
    /// # Panics
    /// When it can't be started.
    fn start() -> Option<Self> {
        let program = std::env::var_os(PROGRAM)?;
        let mut command = Command::new(program);
        let mut process =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("start mount-utils");
        let requests = process.stdin.take().expect("its input");
        let answers = BufReader::new(process.stdout.take().expect("its output"));
        Some(Self { process, requests, answers })
    }

    /// Does a job this number of times, and returns the total duration.
    ///
    /// # Panics
    /// When the job fails.
    fn run(&mut self, times: u64, job: &str, arguments: &[&Path]) -> Duration {
        let mut request = vec![json!(job), json!(times)];
        request.extend(arguments.iter().map(|argument| json!(argument)));
        writeln!(self.requests, "{}", Value::from(request)).expect("ask mount-utils");
        let mut answer = String::new();
        self.answers.read_line(&mut answer).expect("hear mount-utils");
        let answer: Value = serde_json::from_str(&answer).expect("an answer of mount-utils");
        assert!(answer.get("error").is_none(), "mount-utils: {}", answer["error"]);
        Duration::from_nanos(answer["nanoseconds"].as_u64().expect("a time"))
    }
}

impl Drop for MountUtils {
    fn drop(&mut self) {
        drop(self.process.kill());
        drop(self.process.wait());
    }
}

/// A contestant whose work can be repeated without preparation.
pub(crate) fn looped<'a>(
    name: &'static str,
    job: &'static str,
    arguments: Vec<&'a Path>,
) -> Option<Contestant<'a>> {
    let mut program = MountUtils::start()?;
    let run = move |times| program.run(times, job, &arguments);
    Some(Contestant { kind: Kind::MountUtils, ..Contestant::ours(name, run) })
}

/// A contestant whose work must be prepared and undone each time. `work` gets a function that does the job
/// with these arguments, and calls it once.
pub(crate) fn each<'a, P>(
    name: &'static str,
    job: &'static str,
    mut prepare: impl FnMut() -> P + 'a,
    mut work: impl FnMut(&P, &mut dyn FnMut(&[&Path])) + 'a,
    mut undo: impl FnMut(P) + 'a,
) -> Option<Contestant<'a>> {
    let mut program = MountUtils::start()?;
    let run = move |times| {
        let mut taken = Duration::ZERO;
        for _ in 0..times {
            let prepared = prepare();
            work(&prepared, &mut |arguments| taken += program.run(1, job, arguments));
            undo(prepared);
        }
        taken
    };
    Some(Contestant { kind: Kind::MountUtils, ..Contestant::ours(name, run) })
}
