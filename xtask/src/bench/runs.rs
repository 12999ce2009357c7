//! All runs: their order, and the results of each, so that an interrupted benchmark can be resumed.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use serde::Deserialize;
use serde_json::Value;

use super::options::Plan;
use super::programs::{MOUNT_UTILS, Programs};
use super::record::{Record, Run, Subject};
use super::{instructions, machine};
use crate::Failure;

/// The minimum number of rounds, even for the slowest contestant.
const LEAST_ROUNDS: &str = "3";
/// A run that takes longer is considered hung.
const RUN_TIMEOUT_SECONDS: &str = "180";

/// The output of `bench list`.
#[derive(Deserialize)]
struct List {
    subjects: Vec<Listed>,
}

#[derive(Deserialize)]
struct Listed {
    name: String,
    unit: String,
    sizes: Vec<u64>,
}

/// A process to run.
struct Job {
    name: String,
    unit: String,
    size: u64,
    repeat: usize,
}

impl Job {
    fn title(&self) -> String {
        let size =
            if self.unit.is_empty() { String::new() } else { format!(", {} {}", self.size, self.unit) };
        format!("{}{size}", self.name)
    }

    fn file(&self, folder: &Path) -> PathBuf {
        let slug: String =
            self.name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
        folder.join(format!("{slug}-{}-{}.json", self.size, self.repeat))
    }
}

/// Measures everything in the plan, and lists what failed.
pub(crate) fn measure(
    root: &Path,
    programs: &Programs,
    plan: &Plan,
    folder: &Path,
) -> Result<(Record, Vec<String>), Failure> {
    let runs = folder.join("runs");
    fs::create_dir_all(&runs)?;
    prepare(&runs, programs, plan)?;
    let machine = machine::describe(root);
    let list: List = serde_json::from_slice(&output(Command::new(&programs.bench).arg("list"))?)?;
    let place = Place::new()?;
    let mut failures = Vec::new();

    let jobs = jobs(&list, plan);
    if jobs.is_empty() {
        return Err(Failure::usage(
            "no subject's name contains this text; `--quick` without `--only` lists all names",
        ));
    }
    let begun = Instant::now();
    for (at, job) in jobs.iter().enumerate() {
        let left = begun.elapsed().as_secs_f64() / at.max(1) as f64 * (jobs.len() - at) as f64;
        let file = job.file(&runs);
        print!("[{:>3}/{}] {:<48}", at + 1, jobs.len(), job.title());
        io::stdout().flush()?;
        let one = Instant::now();
        let said =
            if file.exists() { Ok("kept".to_owned()) } else { run(programs, plan, job, &file, &place) };
        match said {
            Ok(said) => println!("{:>5.1} s  {said}  about {:.0} s left", one.elapsed().as_secs_f64(), left),
            Err(failure) => {
                println!("failed\n{failure}");
                failures.push(format!("{}: {failure}", job.title()));
            }
        }
        place.sweep();
    }

    let mut record = Record {
        machine,
        repeats: plan.repeats(),
        subjects: read(&list, plan, &runs)?,
        footprint: BTreeMap::new(),
        instructions: BTreeMap::new(),
    };
    if plan.only.is_none() {
        for (name, program) in [("dirs", &programs.dirs), ("bare", &programs.bare)] {
            println!("footprint of {name}");
            match footprint(programs, program, plan, name == "dirs", &place) {
                Ok(found) => drop(record.footprint.insert(name.to_owned(), found)),
                Err(failure) => failures.push(format!("footprint of {name}: {failure}")),
            }
            place.sweep();
        }
    }
    if plan.is_whole() {
        match instructions::count(&programs.bench) {
            Ok(counts) => record.instructions = counts,
            Err(failure) => failures.push(format!("instruction counts: {failure}")),
        }
    }
    Ok((record, failures))
}

/// Empties the folder of runs, unless they are to be kept and were made by the same program and plan.
fn prepare(runs: &Path, programs: &Programs, plan: &Plan) -> Result<(), Failure> {
    let program = fs::metadata(&programs.bench)?;
    let changed = program.modified()?.duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
    let now = format!("{} {changed} {}", program.len(), plan.milliseconds());
    let mark = runs.join("of");
    if plan.resume {
        return match fs::read_to_string(&mark) {
            Ok(before) if before == now => Ok(()),
            Ok(_) => Err(Failure::usage(
                "the program or the plan has changed since then: start again without --resume",
            )),
            Err(_) => Err(Failure::usage("nothing to resume: there is no interrupted run")),
        };
    }
    for entry in fs::read_dir(runs)? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "json") {
            fs::remove_file(path)?;
        }
    }
    Ok(fs::write(mark, now)?)
}

/// Every subject at every size, repeated as planned, in random order.
fn jobs(list: &List, plan: &Plan) -> Vec<Job> {
    let mut jobs: Vec<Job> = (0..plan.repeats())
        .flat_map(|repeat| {
            chosen(list, plan).flat_map(move |subject| {
                subject.sizes.iter().map(move |&size| Job {
                    name: subject.name.clone(),
                    unit: subject.unit.clone(),
                    size,
                    repeat,
                })
            })
        })
        .collect();
    let mut random = seed();
    for last in (1..jobs.len()).rev() {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        jobs.swap(last, (random % (last as u64 + 1)) as usize);
    }
    jobs
}

fn chosen<'l>(list: &'l List, plan: &'l Plan) -> impl Iterator<Item = &'l Listed> {
    let only = plan.only.as_deref().unwrap_or("");
    list.subjects.iter().filter(move |subject| subject.name.contains(only))
}

fn seed() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    now.as_nanos() as u64 | 1
}

/// Runs one process and stores its output. Returns the number of its rounds.
fn run(programs: &Programs, plan: &Plan, job: &Job, file: &Path, place: &Place) -> Result<String, Failure> {
    let mut command = limited(programs, place);
    command.args(["compare", &job.name, &job.size.to_string()]);
    command.args([&plan.milliseconds().to_string(), LEAST_ROUNDS, &seed().to_string()]);
    let said = output(&mut command)?;
    let run: Run = serde_json::from_slice(&said)?;
    // Written atomically, because a resumed benchmark trusts existing files.
    let part = file.with_extension("part");
    File::create(&part)?.write_all(&said)?;
    fs::rename(part, file)?;
    let rounds = run.contestants.iter().map(|contestant| contestant.nanoseconds.len()).max();
    Ok(format!("{:>4} rounds", rounds.unwrap_or(0)))
}

/// The program that measures, under timeout(1), which kills it after the limit.
fn limited(programs: &Programs, place: &Place) -> Command {
    let mut command = Command::new("timeout");
    command.args(["--foreground", "--signal=KILL", RUN_TIMEOUT_SECONDS]).arg(&programs.bench);
    command.env("TMPDIR", &place.0).env("LC_ALL", "C");
    if let Some(program) = &programs.mount_utils {
        command.env(MOUNT_UTILS, program);
    }
    command
}

fn output(command: &mut Command) -> Result<Vec<u8>, Failure> {
    let output = command.stdin(Stdio::null()).output()?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        return Err(Failure::new(format!("{}: {command:?}\n{said}", output.status)));
    }
    Ok(output.stdout)
}

fn read(list: &List, plan: &Plan, runs: &Path) -> Result<Vec<Subject>, Failure> {
    let mut subjects = Vec::new();
    for listed in chosen(list, plan) {
        for &size in &listed.sizes {
            let mut measured = Vec::<Run>::new();
            for repeat in 0..plan.repeats() {
                let (name, unit) = (listed.name.clone(), listed.unit.clone());
                let file = Job { name, unit, size, repeat }.file(runs);
                if file.exists() {
                    measured.push(serde_json::from_slice(&fs::read(file)?)?);
                }
            }
            subjects.extend(Subject::of(&listed.name, &listed.unit, size, &measured));
        }
    }
    Ok(subjects)
}

fn footprint(
    programs: &Programs,
    program: &Path,
    plan: &Plan,
    has_volumes: bool,
    place: &Place,
) -> Result<Value, Failure> {
    let (starts, calls, seconds) = if plan.quick { ("20", "1000", "2") } else { ("100", "10000", "10") };
    let mut command = limited(programs, place);
    command.arg("footprint").arg(program).args([starts, if has_volumes { calls } else { "0" }, seconds]);
    Ok(serde_json::from_slice(&output(&mut command)?)?)
}

/// The parent of the processes' directories, which are empty after their processes end.
struct Place(PathBuf);

impl Place {
    fn new() -> Result<Self, Failure> {
        let path = std::env::temp_dir().join(format!("csi-bench-{}", std::process::id()));
        fs::create_dir(&path)?;
        Ok(Self(path))
    }

    /// Removes the empty directories of a killed process. Its mounts vanished with its namespace.
    fn sweep(&self) {
        for entry in fs::read_dir(&self.0).into_iter().flatten().flatten() {
            let _ = fs::remove_dir(entry.path());
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.sweep();
        let _ = fs::remove_dir(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list() -> List {
        let subject = |name: &str, sizes: &[u64]| Listed {
            name: name.to_owned(),
            unit: "mounts".to_owned(),
            sizes: sizes.to_vec(),
        };
        List { subjects: vec![subject("bind", &[10, 100]), subject("rpc", &[1])] }
    }

    #[test]
    fn every_size_is_run_as_often_as_planned() {
        let mut jobs: Vec<_> =
            jobs(&list(), &Plan::default()).into_iter().map(|job| (job.name, job.size, job.repeat)).collect();
        jobs.sort();
        assert_eq!(jobs.len(), 9);
        jobs.dedup();
        assert_eq!(jobs.len(), 9);
        let only = Plan { quick: true, only: Some("rp".to_owned()), ..Plan::default() };
        assert_eq!(super::jobs(&list(), &only).len(), 1);
    }

    #[test]
    fn results_have_a_file_each() {
        let folder = Path::new("/runs");
        let files: std::collections::BTreeSet<_> =
            jobs(&list(), &Plan::default()).iter().map(|job| job.file(folder)).collect();
        assert_eq!(files.len(), 9);
        assert!(files.contains(Path::new("/runs/bind-100-2.json")));
    }
}
