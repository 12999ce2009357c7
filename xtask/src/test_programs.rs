//! The workspace's test programs, several at once: most of them wait more than they compute.
//!
//! `cargo test` runs them one after the other.

use std::collections::{BTreeMap, VecDeque};
use std::fs::{self, File};
use std::io::{self, Read as _, Seek as _, Write as _};
use std::iter;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crate::artifacts::{self, Artifact};
use crate::step::{self, time_line};
use crate::{Failure, hung, target};

/// The file with the seconds of each part's last run, in cargo's target folder.
const TIMES: &str = "test-times";
/// How long a test program can take, also on a machine that has other work.
const LIMIT: Duration = Duration::from_secs(60 * 60);
/// How many of the slowest programs are listed at the end.
const SLOWEST: usize = 10;

/// A test program, or all documentation tests.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Part {
    /// `package/program`.
    name: String,
    /// None: cargo.
    program: Option<PathBuf>,
    args: Vec<String>,
    folder: PathBuf,
    /// What runs it again.
    repeat: String,
    /// After this time it is killed.
    limit: Duration,
}

impl Part {
    fn of(artifact: &Artifact, test_args: &[String]) -> Self {
        let package = artifact.package();
        let which = match artifact.kind.as_str() {
            "test" => format!("--test {}", artifact.name),
            "bin" => format!("--bin {}", artifact.name),
            _ => "--lib".to_owned(),
        };
        let is_lib = which == "--lib";
        Self {
            name: format!("{package}/{}", if is_lib { "lib" } else { &artifact.name }),
            program: Some(artifact.executable.clone()),
            args: test_args.to_vec(),
            folder: artifact.folder.clone(),
            repeat: format!("cargo test --package {package} --all-features {which}"),
            limit: LIMIT,
        }
    }

    fn doctests(root: &Path) -> Self {
        let args = ["test", "--workspace", "--all-features", "--doc"];
        Self {
            name: "doctests".to_owned(),
            program: None,
            args: args.map(str::to_owned).to_vec(),
            folder: root.to_owned(),
            repeat: format!("cargo {}", args.join(" ")),
            limit: LIMIT,
        }
    }

    fn command(&self) -> Command {
        let Some(program) = &self.program else { return step::cargo() };
        let mut command = Command::new(program);
        command.env("CARGO_MANIFEST_DIR", &self.folder);
        command
    }

    /// Runs it, and returns everything that it printed. The status is `None` if it did not end in time: it and
    /// all that it started were killed, and the output ends with what they waited for.
    fn run(&self) -> Result<(Option<ExitStatus>, Vec<u8>), Failure> {
        let mark = format!("{} of {}", self.name, std::process::id());
        let mut output = tempfile::tempfile()?;
        let copy = |file: &File| io::Result::Ok(Stdio::from(file.try_clone()?));
        let mut child = self
            .command()
            .args(&self.args)
            .current_dir(&self.folder)
            .env(hung::MARK, &mark)
            .stdin(Stdio::null())
            .stdout(copy(&output)?)
            .stderr(copy(&output)?)
            .spawn()
            .map_err(|error| Failure::new(format!("{}: {error}", self.name)))?;
        let status = hung::wait_within(&mut child, self.limit)?;
        let waited_for = match status {
            Some(_) => String::new(),
            None => hung::end(&mut child, &mark)?,
        };
        let mut text = Vec::new();
        output.rewind()?;
        output.read_to_end(&mut text)?;
        text.extend(waited_for.into_bytes());
        Ok((status, text))
    }
}

/// Builds the test programs that `cargo test` runs.
pub(crate) fn build(root: &Path) -> Result<Vec<Artifact>, Failure> {
    let built = artifacts::build(root, &["test", "--workspace", "--all-features", "--no-run"], &[])?;
    Ok(built.into_iter().filter(|artifact| artifact.is_test).collect())
}

/// Runs each program with `test_args`, and all documentation tests.
///
/// Prints what a program printed when it has ended, and at the end the slowest programs.
///
/// # Errors
/// When a part failed, after all have run, with the commands that repeat those.
pub(crate) fn run(root: &Path, programs: &[Artifact], test_args: &[String]) -> Result<(), Failure> {
    let mut parts: Vec<Part> = programs.iter().map(|artifact| Part::of(artifact, test_args)).collect();
    parts.push(Part::doctests(root));
    let file = target::dir()?.join(TIMES);
    let mut times = read_times(&file);
    // The longest first: at the end no processor waits for one long part.
    parts.sort_by_key(|part| std::cmp::Reverse(times.get(&part.name).copied().unwrap_or(Duration::MAX)));
    let at_once = thread::available_parallelism().map_or(1, usize::from);
    let mut ended = run_all(parts, at_once)?;
    times.extend(ended.iter().map(|part| (part.name.clone(), part.took)));
    write_times(&file, &times)?;
    ended.sort_by_key(|part| std::cmp::Reverse(part.took));
    let slowest: String = ended.iter().take(SLOWEST).map(|part| time_line(&part.name, part.took)).collect();
    println!("The slowest test programs:\n{slowest}");
    let failed: Vec<String> = ended.into_iter().filter_map(|part| part.repeat).collect();
    if failed.is_empty() {
        return Ok(());
    }
    Err(Failure::new(failed.join("\n")).within("failed; each is repeated with:"))
}

/// How long each part took the last time, in a file; nothing if there is none.
fn read_times(file: &Path) -> BTreeMap<String, Duration> {
    let text = fs::read_to_string(file).unwrap_or_default();
    let time = |line: &str| {
        let (part, seconds) = line.rsplit_once(' ')?;
        Some((part.to_owned(), Duration::try_from_secs_f64(seconds.parse().ok()?).ok()?))
    };
    text.lines().filter_map(time).collect()
}

fn write_times(file: &Path, times: &BTreeMap<String, Duration>) -> Result<(), Failure> {
    let lines = times.iter().map(|(part, time)| format!("{part} {:.1}\n", time.as_secs_f64()));
    Ok(fs::write(file, lines.collect::<String>())?)
}

/// How a part ended.
struct Ended {
    name: String,
    took: Duration,
    /// What repeats it, if it failed.
    repeat: Option<String>,
}

fn run_all(parts: Vec<Part>, at_once: usize) -> Result<Vec<Ended>, Failure> {
    let parts = Mutex::new(VecDeque::from(parts));
    let next = || parts.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
    let work = || iter::from_fn(next).map(|part| run_one(&part)).collect::<Result<Vec<_>, _>>();
    thread::scope(|scope| {
        let workers: Vec<_> = (0..at_once).map(|_| scope.spawn(work)).collect();
        let mut all = Vec::new();
        for worker in workers {
            let panicked = |_| Err(Failure::new("a thread that runs tests panicked"));
            all.extend(worker.join().unwrap_or_else(panicked)?);
        }
        Ok(all)
    })
}

fn run_one(part: &Part) -> Result<Ended, Failure> {
    println!("    {}", part.name);
    let begun = Instant::now();
    let (status, output) = part.run()?;
    let took = begun.elapsed();
    let how = match status {
        Some(status) => status.to_string(),
        None => "killed, because it did not end in time".to_owned(),
    };
    // In one piece, though other threads print too.
    let mut text = format!("==> {}: {how}, {:.1} s\n", part.name, took.as_secs_f64()).into_bytes();
    text.extend(output);
    io::stdout().write_all(&text)?;
    let is_well = status.is_some_and(|status| status.success());
    Ok(Ended { name: part.name.clone(), took, repeat: (!is_well).then(|| format!("  {}", part.repeat)) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(name: &str, script: &str) -> Part {
        Part {
            name: name.to_owned(),
            program: Some("/bin/sh".into()),
            args: vec!["-c".to_owned(), script.to_owned()],
            folder: "/".into(),
            repeat: format!("repeat {name}"),
            limit: Duration::from_secs(60),
        }
    }

    #[test]
    fn all_parts_run_and_those_that_failed_are_named() {
        let parts = vec![shell("bad", "exit 3"), shell("good", "true"), shell("worse", "kill -9 $$")];
        let ended = run_all(parts, 2).expect("all were started");
        let mut failed: Vec<_> = ended.into_iter().filter_map(|part| part.repeat).collect();
        failed.sort();
        assert_eq!(failed, ["  repeat bad", "  repeat worse"]);
    }

    #[test]
    fn what_a_part_prints_is_kept_in_its_order() {
        let (status, output) = shell("x", "echo a; echo b >&2; echo c").run().expect("it ran");
        assert!(status.expect("it ended").success());
        assert_eq!(String::from_utf8_lossy(&output), "a\nb\nc\n");
    }

    #[test]
    fn a_part_that_does_not_end_fails_with_what_it_waited_for() {
        let part = Part { limit: Duration::from_millis(200), ..shell("hung", "echo begun; exec sleep 1000") };
        let (status, output) = part.run().expect("it was started");
        let text = String::from_utf8_lossy(&output);
        assert_eq!(status, None, "{text}");
        assert!(text.contains("process ") && text.contains("  thread "), "{text}");
        assert_eq!(run_one(&part).expect("it was started").repeat.as_deref(), Some("  repeat hung"));
    }

    #[test]
    fn a_part_is_named_by_its_package_and_repeated_by_cargo() {
        let artifact = |kind: &str, name: &str| Artifact {
            folder: "/w/examples/dirs".into(),
            kind: kind.to_owned(),
            name: name.to_owned(),
            is_test: true,
            executable: "/t/x".into(),
        };
        let part = Part::of(&artifact("test", "kit"), &[]);
        assert_eq!(part.name, "dirs/kit");
        assert_eq!(part.repeat, "cargo test --package dirs --all-features --test kit");
        let part = Part::of(&artifact("lib", "dirs"), &[]);
        assert_eq!((part.name.as_str(), part.repeat.ends_with(" --lib")), ("dirs/lib", true));
    }

    #[test]
    fn times_are_read_as_they_were_written() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("times");
        let times = BTreeMap::from([("a part".to_owned(), Duration::from_millis(1500))]);
        write_times(&file, &times).expect("written");
        assert_eq!(read_times(&file), times);
        assert_eq!(read_times(&folder.path().join("none")), BTreeMap::new());
    }
}
