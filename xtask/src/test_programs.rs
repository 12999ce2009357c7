//! The workspace's test programs, several at once: most of them wait more than they compute.
//!
//! `cargo test` runs them one after the other.

use std::collections::VecDeque;
use std::fmt;
use std::fs::File;
use std::io::{self, Read as _, Seek as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crate::artifacts::{self, Artifact};
use crate::progress::{self, Progress};
use crate::{Failure, target};

/// The file with the seconds of each part's last run, in cargo's target folder.
const TIMES: &str = "test-times";

/// A test program, or all documentation tests.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Part {
    /// `package/program`.
    name: String,
    program: PathBuf,
    args: Vec<String>,
    folder: PathBuf,
    /// What runs it again.
    repeat: String,
}

impl Part {
    fn of(artifact: &Artifact, test_args: &[String]) -> Self {
        let package = artifact.folder.file_name().unwrap_or_default().to_string_lossy();
        let which = match artifact.kind.as_str() {
            "test" => format!("--test {}", artifact.name),
            "bin" => format!("--bin {}", artifact.name),
            _ => "--lib".to_owned(),
        };
        let is_lib = which == "--lib";
        Self {
            name: format!("{package}/{}", if is_lib { "lib" } else { &artifact.name }),
            program: artifact.executable.clone(),
            args: test_args.to_vec(),
            folder: artifact.folder.clone(),
            repeat: format!("cargo test --package {package} --all-features {which}"),
        }
    }

    fn doctests(root: &Path) -> Self {
        let args = ["test", "--workspace", "--all-features", "--doc"];
        Self {
            name: "doctests".to_owned(),
            program: std::env::var_os("CARGO").map_or_else(|| "cargo".into(), PathBuf::from),
            args: args.map(str::to_owned).to_vec(),
            folder: root.to_owned(),
            repeat: format!("cargo {}", args.join(" ")),
        }
    }

    /// Runs it, and returns everything that it printed.
    fn run(&self) -> Result<(ExitStatus, Vec<u8>), Failure> {
        let mut output = tempfile::tempfile()?;
        let copy = |file: &File| io::Result::Ok(Stdio::from(file.try_clone()?));
        let status = Command::new(&self.program)
            .args(&self.args)
            .current_dir(&self.folder)
            .env("CARGO_MANIFEST_DIR", &self.folder)
            .stdin(Stdio::null())
            .stdout(copy(&output)?)
            .stderr(copy(&output)?)
            .status()
            .map_err(|error| Failure::new(format!("{}: {error}", self.program.display())))?;
        let mut text = Vec::new();
        output.rewind()?;
        output.read_to_end(&mut text)?;
        Ok((status, text))
    }
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

/// Builds with `cargo SELECTION --no-run`, and runs each program with `test_args`, and all documentation tests.
///
/// Prints what a program printed when it has ended.
///
/// # Errors
/// When a part failed, after all have run, with the commands that repeat those.
pub(crate) fn run(root: &Path, selection: &[&str], test_args: &[String]) -> Result<(), Failure> {
    let built = artifacts::build(root, &[selection, &["--no-run"]].concat(), &[])?;
    let programs = built.iter().filter(|artifact| artifact.is_test);
    let mut parts: Vec<Part> = programs.map(|artifact| Part::of(artifact, test_args)).collect();
    parts.push(Part::doctests(root));
    let file = target::dir()?.join(TIMES);
    let times = progress::read_times(&file);
    // The longest first: at the end no processor waits for one long part.
    parts.sort_by_key(|part| std::cmp::Reverse(times.get(&part.name).copied().unwrap_or(Duration::MAX)));
    let at_once = thread::available_parallelism().map_or(1, usize::from);
    let progress = Progress::new("part", parts.len(), times, at_once, Instant::now());
    let run = Run { progress: Mutex::new(progress), failed: Mutex::new(Vec::new()) };
    run.all(parts, at_once)?;
    let Run { progress, failed } = run;
    let table = progress.into_inner().unwrap_or_else(PoisonError::into_inner).close(&file, Instant::now())?;
    println!("{table}");
    match failed.into_inner().unwrap_or_else(PoisonError::into_inner).as_slice() {
        [] => Ok(()),
        failed => Err(Failure::new(failed.join("\n")).within("failed; each is repeated with:")),
    }
}

struct Run {
    progress: Mutex<Progress>,
    /// The commands that repeat what failed.
    failed: Mutex<Vec<String>>,
}

impl Run {
    fn all(&self, parts: Vec<Part>, at_once: usize) -> Result<(), Failure> {
        let parts = Mutex::new(VecDeque::from(parts));
        let next = || parts.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
        let work = || -> Result<(), Failure> {
            while let Some(part) = next() {
                self.one(&part)?;
            }
            Ok(())
        };
        thread::scope(|scope| {
            let workers: Vec<_> = (0..at_once).map(|_| scope.spawn(work)).collect();
            let mut results = workers.into_iter().map(|worker| {
                worker.join().unwrap_or_else(|_| Err(Failure::new("a thread that runs tests panicked")))
            });
            results.try_for_each(|result| result)
        })
    }

    fn one(&self, part: &Part) -> Result<(), Failure> {
        let progress = || self.progress.lock().unwrap_or_else(PoisonError::into_inner);
        let line = progress().begin(&part.name, Instant::now());
        println!("    {part} {line}");
        let (status, output) = part.run()?;
        progress().end(&part.name, Instant::now());
        // In one piece, though other threads print too.
        let mut text = format!("==> {part}: {status}\n").into_bytes();
        text.extend(output);
        io::stdout().write_all(&text)?;
        if !status.success() {
            self.failed.lock().unwrap_or_else(PoisonError::into_inner).push(format!("  {}", part.repeat));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(name: &str, script: &str) -> Part {
        Part {
            name: name.to_owned(),
            program: "/bin/sh".into(),
            args: vec!["-c".to_owned(), script.to_owned()],
            folder: "/".into(),
            repeat: format!("repeat {name}"),
        }
    }

    #[test]
    fn all_parts_run_and_those_that_failed_are_named() {
        let parts = vec![shell("bad", "exit 3"), shell("good", "true"), shell("worse", "kill -9 $$")];
        let progress = Progress::new("part", parts.len(), Default::default(), 2, Instant::now());
        let run = Run { progress: Mutex::new(progress), failed: Mutex::default() };
        run.all(parts, 2).expect("all were started");
        let mut failed = run.failed.into_inner().expect("no panic");
        failed.sort();
        assert_eq!(failed, ["  repeat bad", "  repeat worse"]);
    }

    #[test]
    fn what_a_part_prints_is_kept_in_its_order() {
        let (status, output) = shell("x", "echo a; echo b >&2; echo c").run().expect("it ran");
        assert!(status.success());
        assert_eq!(String::from_utf8_lossy(&output), "a\nb\nc\n");
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
}
