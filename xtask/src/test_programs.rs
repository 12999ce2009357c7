//! The workspace's tests, each in a process of its own.
//!
//! `cargo test` runs the tests of a program as threads of one process, and one program after the other. A process of its
//! own has no other test's open files, forks and working directory, and tests of many programs run at once.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
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
/// The folder with what unsteady tests printed, in cargo's target folder.
const UNSTEADY: &str = "unsteady-tests";
/// How long a part can take, also on a machine that has other work.
const LIMIT: Duration = Duration::from_secs(60 * 60);
/// How many of the slowest parts are listed at the end.
const SLOWEST: usize = 20;
/// With more failures than this, the code is wrong, and none is run again.
const MAX_AGAIN: usize = 20;

/// Programs, and modules and tests of them, that wait for most of their time, so several run beside those that compute.
const WAITING: &[&str] = &[
    "abuse/quick",
    "csi-controllers/cluster turns::another_process_takes_over_from_one_that_died",
    "csi-mount/hang",
    "csi-mount/it crash_fuse",
    "csi-mount/it flow_fuse",
    "csi-mount/it fuse_mounter",
    "csi-mount/it loop_device_foreign",
    "csi-mount/it machine_kernel",
    "fuse/root_in_pod",
];
/// How many of their tests run at once.
const WAITING_AT_ONCE: usize = 6;
/// Tests that take for a moment what others need at any moment. They run at the end, one after the other.
const ALONE: &[&str] = &[
    // It binds the nodes of all loop devices, which are then in use.
    "csi-mount/it loop_device::a_number_whose_node_is_still_bound_is_not_used_again",
];
/// The longest of those that compute, which begin first where no earlier run says how long each part takes.
const LONG: &[&str] = &[
    "hostpath/it root_conformance",
    "csi-conformance/it root_mutants",
    "csi-controllers/cluster",
    "hostpath/without_sidecars",
    "hostpath/it root_crash",
    "doctests",
    "csi-mount/it interrupted",
    "csi-mount/it crash",
    "csi-mount/it power_loss",
];
/// Programs whose tests must not run at the same time, which they see to in one process.
const WHOLE: &[&str] = &["block/root_chroot"];

/// What a test counts for that fails and then passes when it runs alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unsteady {
    /// It is named at the end.
    IsNamed,
    Fails,
}

/// A test, all tests of a program, or all documentation tests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Part {
    /// `package/program`, and the test.
    pub(crate) name: String,
    /// None: cargo.
    program: Option<PathBuf>,
    args: Vec<String>,
    folder: PathBuf,
    /// What runs it again.
    repeat: String,
    /// After this time it is killed.
    limit: Duration,
    waits: bool,
}

impl Part {
    /// The tests of a program.
    fn of(artifact: &Artifact) -> Result<Vec<Self>, Failure> {
        let package = artifact.package();
        let which = match artifact.kind.as_str() {
            "test" => format!("--test {}", artifact.name),
            "bin" => format!("--bin {}", artifact.name),
            _ => "--lib".to_owned(),
        };
        let name = format!("{package}/{}", if which == "--lib" { "lib" } else { &artifact.name });
        let whole = Self {
            program: Some(artifact.executable.clone()),
            args: Vec::new(),
            folder: artifact.folder.clone(),
            repeat: format!("cargo test --package {package} --all-features {which}"),
            limit: LIMIT,
            waits: is_one_of(WAITING, &name),
            name,
        };
        if WHOLE.contains(&&*whole.name) {
            return Ok(vec![whole]);
        }
        let list = ["--list", "--format", "terse"];
        let list = step::output(whole.command().args(list).current_dir(&whole.folder))?;
        let list = String::from_utf8_lossy(&list).into_owned();
        Ok(list.lines().filter_map(|line| line.strip_suffix(": test")).map(|test| whole.only(test)).collect())
    }

    /// One test of these.
    fn only(&self, test: &str) -> Self {
        let name = format!("{} {test}", self.name);
        Self {
            waits: is_one_of(WAITING, &name),
            name,
            args: vec!["--exact".to_owned(), test.to_owned()],
            repeat: format!("{} -- --exact {test}", self.repeat),
            ..self.clone()
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
            waits: false,
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

/// Builds the test programs that `cargo test` runs, and lists their tests.
pub(crate) fn build(root: &Path) -> Result<Vec<Part>, Failure> {
    let built = artifacts::build(root, &["test", "--workspace", "--all-features", "--no-run"], &[])?;
    let mut parts = Vec::new();
    for artifact in built.iter().filter(|artifact| artifact.is_test) {
        parts.extend(Part::of(artifact)?);
    }
    Ok(parts)
}

/// Runs these tests and all documentation tests. Those that fail run again, alone. Returns a line for each that was
/// unsteady.
///
/// Prints what a test printed if it failed, and at the end the slowest ones.
///
/// # Errors
/// When a test failed, after all have run, with the commands that repeat those.
pub(crate) fn run(root: &Path, tests: &[Part], unsteady: Unsteady) -> Result<Vec<String>, Failure> {
    let ended = run_parts(root, tests, at_once())?;
    let count = ended.len();
    let failed: Vec<Ended> = ended.into_iter().filter(|ended| !ended.is_well).collect();
    let (passed, failed) = if failed.len() > MAX_AGAIN {
        (Vec::new(), failed.into_iter().map(|ended| ended.part).collect())
    } else {
        again(failed)?
    };
    println!("{} passed, {} failed\n", count - failed.len(), failed.len());
    let folder = target::dir()?.join(UNSTEADY);
    let lines: Vec<String> = passed
        .iter()
        .map(|test| format!("UNSTEADY: {}: it failed, and passed alone: {}", test.name, folder.display()))
        .collect();
    let mut repeats: Vec<String> = failed.iter().map(|test| format!("  {}", test.repeat)).collect();
    if unsteady == Unsteady::Fails {
        repeats.extend(passed.iter().map(|test| format!("  {}    (unsteady: it passed alone)", test.repeat)));
    }
    if repeats.is_empty() {
        return Ok(lines);
    }
    lines.iter().for_each(|line| println!("{line}"));
    Err(Failure::new(repeats.join("\n")).within("failed; each is repeated with:"))
}

/// Runs all once beside this many busy loops. Returns the names of those that failed.
pub(crate) fn failed(root: &Path, tests: &[Part], busy: usize) -> Result<Vec<String>, Failure> {
    // Otherwise the few that run at once would get a tenth of the processors, and a round would take hours.
    let ended = run_parts(root, tests, at_once() + busy / 2)?;
    Ok(ended.into_iter().filter(|ended| !ended.is_well).map(|ended| ended.part.name).collect())
}

/// Runs each of these alone. Returns those that pass now, whose outputs are kept, and those that fail again.
fn again(failed: Vec<Ended>) -> Result<(Vec<Part>, Vec<Part>), Failure> {
    let folder = target::dir()?.join(UNSTEADY);
    let mut both = (Vec::new(), Vec::new());
    for first in failed {
        println!("==> again, alone: {}", first.part.name);
        let second = run_one(&first.part)?;
        if !second.is_well {
            both.1.push(first.part);
            continue;
        }
        let file = first.part.name.replace(['/', ' ', ':'], "-");
        fs::create_dir_all(&folder)?;
        fs::write(folder.join(format!("{file}.failed")), first.output)?;
        fs::write(folder.join(format!("{file}.passed")), second.output)?;
        both.0.push(first.part);
    }
    Ok(both)
}

/// How many tests that compute run at once: two for each processor, because most wait half of their time, for the
/// kernel's mounts and devices.
fn at_once() -> usize {
    2 * thread::available_parallelism().map_or(1, usize::from)
}

fn run_parts(root: &Path, tests: &[Part], at_once: usize) -> Result<Vec<Ended>, Failure> {
    let programs: BTreeSet<_> = tests.iter().map(|test| &test.program).collect();
    println!(
        "{} tests of {} programs, each in a process of its own, and the doctests",
        tests.len(),
        programs.len()
    );
    let mut parts = [&[Part::doctests(root)], tests].concat();
    let file = target::dir()?.join(TIMES);
    let mut times = read_times(&file);
    // The longest first: at the end no processor waits for one long part.
    let guess = |part: &Part| if is_one_of(LONG, &part.name) { Duration::MAX } else { Duration::ZERO };
    parts.sort_by_key(|part| Reverse(times.get(&part.name).copied().unwrap_or_else(|| guess(part))));
    let (alone, parts): (Vec<Part>, Vec<Part>) =
        parts.into_iter().partition(|part| is_one_of(ALONE, &part.name));
    let (waiting, computing): (Vec<Part>, Vec<Part>) = parts.into_iter().partition(|part| part.waits);
    let mut ended = run_queues([(computing, at_once), (waiting, WAITING_AT_ONCE)])?;
    ended.extend(run_queues([(alone, 1)])?);
    times.extend(ended.iter().map(|ended| (ended.part.name.clone(), ended.took)));
    write_times(&file, &times)?;
    ended.sort_by_key(|ended| std::cmp::Reverse(ended.took));
    let slowest = ended.iter().take(SLOWEST).map(|ended| time_line(&ended.part.name, ended.took));
    println!("The slowest tests:\n{}", slowest.collect::<String>());
    Ok(ended)
}

/// Whether a part is one of these programs or tests, or of one of these modules.
fn is_one_of(names: &[&str], part: &str) -> bool {
    let is_within = |name: &&str| {
        part.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with([' ', ':']))
    };
    names.iter().any(is_within)
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
    part: Part,
    took: Duration,
    is_well: bool,
    output: Vec<u8>,
}

/// Runs the parts of each queue, so many at once.
fn run_queues<const N: usize>(queues: [(Vec<Part>, usize); N]) -> Result<Vec<Ended>, Failure> {
    let queues = queues.map(|(parts, at_once)| (Mutex::new(VecDeque::from(parts)), at_once));
    let work = |queue: &Mutex<VecDeque<Part>>| {
        let next = || queue.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
        iter::from_fn(next).map(|part| run_one(&part)).collect::<Result<Vec<_>, _>>()
    };
    thread::scope(|scope| {
        let all = queues.iter().flat_map(|(queue, at_once)| iter::repeat_n(queue, *at_once));
        let workers: Vec<_> = all.map(|queue| scope.spawn(move || work(queue))).collect();
        let mut all = Vec::new();
        for worker in workers {
            let panicked = |_| Err(Failure::new("a thread that runs tests panicked"));
            all.extend(worker.join().unwrap_or_else(panicked)?);
        }
        Ok(all)
    })
}

fn run_one(part: &Part) -> Result<Ended, Failure> {
    let begun = Instant::now();
    let (status, output) = part.run()?;
    let took = begun.elapsed();
    let is_well = status.is_some_and(|status| status.success());
    let how = match status {
        Some(_) if is_well => "ok".to_owned(),
        Some(status) => format!("FAILED ({status})"),
        None => "FAILED (killed, because it did not end in time)".to_owned(),
    };
    // In one piece, though other threads print too.
    let mut text = format!("{:>7.1} s  {} ... {how}\n", took.as_secs_f64(), part.name).into_bytes();
    if !is_well {
        text.extend(&output);
    }
    io::stdout().write_all(&text)?;
    Ok(Ended { part: part.clone(), took, is_well, output })
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
            waits: false,
        }
    }

    #[test]
    fn all_parts_run_and_those_that_failed_are_known() {
        let computing = vec![shell("bad", "exit 3"), shell("good", "true")];
        let ended =
            run_queues([(computing, 2), (vec![shell("worse", "kill -9 $$")], 1)]).expect("all were started");
        let mut failed: Vec<_> = ended.into_iter().filter(|it| !it.is_well).map(|it| it.part.name).collect();
        failed.sort();
        assert_eq!(failed, ["bad", "worse"]);
    }

    #[test]
    fn what_passes_alone_is_unsteady() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("ran");
        let once = format!("test -e '{0}' || {{ touch '{0}'; echo first; exit 1; }}", file.display());
        let parts = vec![shell("a test/that fails once", &once), shell("always", "exit 1")];
        let ended = run_queues([(parts, 1)]).expect("all were started");
        let (passed, failed) = again(ended).expect("all were started");
        let names = |parts: Vec<Part>| parts.into_iter().map(|part| part.name).collect::<Vec<_>>();
        assert_eq!(
            (names(passed), names(failed)),
            (vec!["a test/that fails once".into()], vec!["always".into()])
        );
        let kept = target::dir().expect("a folder").join(UNSTEADY).join("a-test-that-fails-once.failed");
        assert_eq!(fs::read_to_string(&kept).expect("its output"), "first\n");
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
        assert!(!run_one(&part).expect("it was started").is_well);
    }

    #[test]
    fn each_test_of_a_program_is_a_part_that_cargo_repeats() {
        let artifact = |kind: &str, folder: &str, name: &str| Artifact {
            folder: folder.into(),
            kind: kind.to_owned(),
            name: name.to_owned(),
            is_test: true,
            executable: std::env::current_exe().expect("this program"),
        };
        let this = env!("CARGO_MANIFEST_DIR");
        let parts = Part::of(&artifact("bin", this, "xtask")).expect("a list");
        let own = "test_programs::tests::each_test_of_a_program_is_a_part_that_cargo_repeats";
        let part = parts.iter().find(|part| part.name == format!("xtask/xtask {own}")).expect("this test");
        assert_eq!(
            part.repeat,
            format!("cargo test --package xtask --all-features --bin xtask -- --exact {own}")
        );
        assert_eq!(part.args, ["--exact", own]);
        let whole = Part::of(&artifact("test", "/w/examples/block", "root_chroot")).expect("no list");
        assert_eq!(whole[0].repeat, "cargo test --package block --all-features --test root_chroot");
    }

    #[test]
    fn a_list_has_programs_modules_and_single_tests() {
        let list = ["a/whole", "a/part slow", "a/part module"];
        let named = ["a/whole", "a/whole x", "a/part slow", "a/part module::x"];
        assert!(named.iter().all(|part| is_one_of(&list, part)));
        let others = ["a/whole2 x", "a/part", "a/part slower", "a/part module2::x"];
        assert!(!others.iter().any(|part| is_one_of(&list, part)));
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
