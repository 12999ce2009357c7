//! A long `cargo test`, with a line for each test program: its number and the total, the elapsed time, and
//! the expected time.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use crate::{Failure, target};

/// The file with the seconds of each test program's last run, in cargo's target folder.
const TIMES: &str = "test-times";

/// Runs `cargo ARGS`, a `cargo test`, which prints as usual.
pub(crate) fn run(root: &Path, args: &[String]) -> Result<ExitStatus, Failure> {
    // Built first, which also counts the test programs. The run itself reports build errors.
    let before_dashes = args.iter().position(|arg| arg == "--").unwrap_or(args.len());
    let mut build: Vec<String> = args[..before_dashes].to_vec();
    build.push("--no-run".into());
    let mut count = 0;
    let built =
        cargo(root, &build, |line| count += usize::from(line.trim_start().starts_with("Executable ")))?;
    if !built.success() {
        return Ok(built);
    }
    let file = target::dir()?.join(TIMES);
    let mut progress = Progress::new("test program", count, read_times(&file), Instant::now());
    let status = cargo(root, args, |line| {
        if let Some(program) = program_of(line) {
            println!("    {}", progress.next(program, Instant::now()));
        }
    })?;
    progress.end(Instant::now());
    write_times(&file, &progress.times)?;
    Ok(status)
}

/// Runs cargo, and passes each line of its own output to `look` after printing it.
fn cargo(root: &Path, args: &[String], mut look: impl FnMut(&str)) -> Result<ExitStatus, Failure> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut child = Command::new(cargo).args(args).current_dir(root).stderr(Stdio::piped()).spawn()?;
    if let Some(stderr) = child.stderr.take() {
        for line in BufReader::new(stderr).split(b'\n') {
            let line = line?;
            let line = String::from_utf8_lossy(&line);
            eprintln!("{line}");
            look(&line);
        }
    }
    Ok(child.wait()?)
}

/// The test program that cargo announces in this line: `Running tests/x.rs
/// (target/debug/deps/x-0123456789abcdef)`.
///
/// Documentation tests are announced as `Doc-tests name` and are not counted.
fn program_of(line: &str) -> Option<&str> {
    let path = line.trim_start().strip_prefix("Running ")?.rsplit_once('(')?.1.strip_suffix(')')?;
    let name = path.rsplit('/').next()?;
    // The hash changes with the code.
    Some(name.rsplit_once('-').map_or(name, |(name, _)| name))
}

/// How far a run of several parts is, and how long each part took.
#[derive(Debug)]
pub(crate) struct Progress {
    /// What a part is called.
    noun: &'static str,
    count: usize,
    done: usize,
    start: Instant,
    running: Option<(String, Instant)>,
    /// The times of this run, and of the last run for programs that have not run yet.
    times: BTreeMap<String, Duration>,
    /// The programs that have run in this run.
    ran: Vec<String>,
}

impl Progress {
    pub(crate) fn new(
        noun: &'static str,
        count: usize,
        times: BTreeMap<String, Duration>,
        start: Instant,
    ) -> Self {
        Self { noun, count, done: 0, start, running: None, times, ran: Vec::new() }
    }

    /// The line for the part that starts now.
    pub(crate) fn next(&mut self, program: &str, now: Instant) -> String {
        self.end(now);
        self.done += 1;
        let before: Duration =
            self.times.iter().filter(|(name, _)| !self.ran.contains(name)).map(|(_, time)| time).sum();
        self.running = Some((program.to_owned(), now));
        let so_far = minutes(now - self.start);
        // In the first run of all, each part counts as much as the average of those that ran.
        let parts = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
        let average = (now - self.start).checked_div(parts(self.ran.len())).unwrap_or_default();
        let left = match before {
            Duration::ZERO => average * parts(self.count.saturating_sub(self.ran.len())),
            before => before,
        };
        let left = if left.is_zero() { String::new() } else { format!(", about {} left", minutes(left)) };
        let (noun, done) = (self.noun, self.done);
        format!("[{noun} {done} of {}, {so_far} so far{left}]", self.count.max(done))
    }

    pub(crate) fn end(&mut self, now: Instant) {
        if let Some((name, since)) = self.running.take() {
            self.times.insert(name.clone(), now - since);
            self.ran.push(name);
        }
    }

    /// The parts that ran in this run and the time of each, as a table, and writes all times to a file for the
    /// next run.
    pub(crate) fn close(&self, file: &Path, now: Instant) -> Result<String, Failure> {
        write_times(file, &self.times)?;
        let row = |name: &str, time: Duration| format!("{:>8.1} s  {name}\n", time.as_secs_f64());
        let rows = self.ran.iter().map(|name| row(name, self.times[name]));
        Ok(rows.chain([row("all", now - self.start)]).collect())
    }
}

fn minutes(time: Duration) -> String {
    let seconds = time.as_secs();
    if seconds < 60 { format!("{seconds} s") } else { format!("{} min", seconds.div_ceil(60)) }
}

pub(crate) fn read_times(file: &Path) -> BTreeMap<String, Duration> {
    let text = fs::read_to_string(file).unwrap_or_default();
    let lines = text.lines().filter_map(|line| line.rsplit_once(' '));
    lines
        .filter_map(|(name, seconds)| {
            Some((name.to_owned(), Duration::try_from_secs_f64(seconds.parse().ok()?).ok()?))
        })
        .collect()
}

fn write_times(file: &Path, times: &BTreeMap<String, Duration>) -> Result<(), Failure> {
    let lines: Vec<String> =
        times.iter().map(|(name, time)| format!("{name} {:.1}\n", time.as_secs_f64())).collect();
    Ok(fs::write(file, lines.concat())?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cargo_announces_programs_and_documentation() {
        let line = "     Running tests/mount_bind.rs (target/debug/deps/mount_bind-17a4b6ff02fdd1a6)";
        assert_eq!(program_of(line), Some("mount_bind"));
        assert_eq!(
            program_of("     Running unittests src/lib.rs (/t/debug/deps/csi_core-17a4)"),
            Some("csi_core")
        );
        assert_eq!(program_of("   Doc-tests csi_core"), None);
        assert_eq!(program_of("test x ... ok"), None);
    }

    #[test]
    fn what_is_left_is_what_the_others_took_the_last_time() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let first = BTreeMap::new();
        let mut progress = Progress::new("test program", 2, first, start);
        assert_eq!(progress.next("a", at(0)), "[test program 1 of 2, 0 s so far]");
        assert_eq!(progress.next("b", at(90)), "[test program 2 of 2, 2 min so far, about 2 min left]");
        progress.end(at(100));
        let mut again = Progress::new("test program", 2, progress.times, start);
        assert_eq!(again.next("a", at(0)), "[test program 1 of 2, 0 s so far, about 2 min left]");
        assert_eq!(again.next("b", at(80)), "[test program 2 of 2, 2 min so far, about 10 s left]");
        again.end(at(85));
        assert_eq!(again.times["b"], Duration::from_secs(5));
    }

    #[test]
    fn the_table_has_the_parts_of_this_run_and_all_of_it() {
        let folder = tempfile::tempdir().expect("a folder");
        let (file, start) = (folder.path().join("times"), Instant::now());
        let earlier = BTreeMap::from([("other".to_owned(), Duration::from_secs(9))]);
        let mut progress = Progress::new("step", 1, earlier, start);
        progress.next("docs", start);
        let end = start + Duration::from_secs(3);
        progress.end(end);
        let table = progress.close(&file, end).expect("written");
        assert_eq!(table, "     3.0 s  docs\n     3.0 s  all\n");
        assert_eq!(read_times(&file).len(), 2);
    }

    #[test]
    fn times_are_read_as_they_were_written() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join(TIMES);
        let times = BTreeMap::from([("a".to_owned(), Duration::from_millis(1500))]);
        write_times(&file, &times).expect("written");
        assert_eq!(read_times(&file), times);
        assert_eq!(read_times(&folder.path().join("none")), BTreeMap::new());
    }
}
