//! `cargo xtask sanity`: csi-sanity, Kubernetes' test suite for CSI drivers, run against the examples, and our
//! test kit against a driver of Kubernetes. `cargo xtask templates` runs the suite against generated drivers.
//!
//! Suite and driver are written in Go. They are built into the target folder, at fixed versions, where a Go
//! toolchain exists.

mod driver;
mod judge;
mod kit;
mod modes;

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;

use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};

use driver::{Driver, Place};
use judge::{Outcome, judge, mended, passed_nowhere, unused};
use modes::{MODES, Mode, PENDING, RELEASES, Release, TEMPLATES};

use crate::needs::Privilege;
use crate::step::{Step, timed};
use crate::{Failure, needs, target};

const PACKAGE: &str = "github.com/kubernetes-csi/csi-test/v5/cmd/csi-sanity";

/// The suite's own time limit for one run. A run takes seconds.
const TIME_LIMIT: &str = "--ginkgo.timeout=10m";

/// The mutable parameter with which the suite modifies volumes, as the suite's file: hostpath has it.
const MUTABLE: &str = "description: changed\n";

/// Runs the suite against every mode of the examples, and the kit against a driver in Go; or the newest suite against
/// the example that is named. Returns why nothing was run, if so.
///
/// # Errors
/// A spec failed, or was skipped without a reason, or a driver left something behind.
pub(crate) fn run(root: &Path, only: Option<&str>) -> Result<Vec<String>, Failure> {
    let modes: Vec<Mode> =
        MODES.iter().filter(|mode| only.is_none_or(|only| mode.driver == only)).copied().collect();
    if modes.is_empty() {
        return Err(Failure::usage("csi-sanity knows no example of this name"));
    }
    if let Some(reason) = unavailable()? {
        return Ok(vec![format!(
            "NOT RUN: csi-sanity on {} modes of the examples, and the test kit on a driver in Go: {reason}",
            modes.len()
        )]);
    }
    if only.is_some() {
        return run_on_newest(root, &modes);
    }
    timed("csi-sanity: build", || RELEASES.iter().try_for_each(|release| program(release).map(drop)))?;
    programs(root)?;
    let logs = logs()?;
    timed("csi-sanity on the examples", || run_all(&RELEASES, &modes, Specs::EachPasses, &logs))?;
    timed("the test kit on Kubernetes' mock driver", || kit::run(root, &logs))?;
    Ok(Vec::new())
}

fn run_on_newest(root: &Path, modes: &[Mode]) -> Result<Vec<String>, Failure> {
    timed("csi-sanity: build", || newest().map(drop))?;
    programs(root)?;
    let logs = logs()?;
    let release = &RELEASES[RELEASES.len() - 1..];
    timed("csi-sanity", || run_all(release, modes, Specs::Some, &logs))?;
    Ok(Vec::new())
}

/// Builds the examples, with the features of the tests' step, which built them too.
fn programs(root: &Path) -> Result<(), Failure> {
    Step::cargo("programs", ["build", "--workspace", "--all-features", "--bins", "--examples"]).run(root)
}

/// Runs the newest suite against the drivers that `cargo xtask templates` has built. Returns why not, if so.
pub(crate) fn run_on_templates() -> Result<Vec<String>, Failure> {
    if let Some(reason) = unavailable()? {
        return Ok(vec![format!("NOT RUN: csi-sanity on the drivers of the templates: {reason}")]);
    }
    let newest = &RELEASES[RELEASES.len() - 1..];
    timed("csi-sanity: build", || newest.iter().try_for_each(|release| program(release).map(drop)))?;
    let logs = logs()?;
    timed("csi-sanity on the templates", || run_all(newest, TEMPLATES, Specs::Some, &logs))?;
    Ok(Vec::new())
}

/// Whether each spec of the suite must pass in one of the modes, and each reason for a skip be needed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Specs {
    EachPasses,
    Some,
}

fn logs() -> Result<PathBuf, Failure> {
    let logs = target::dir()?.join("sanity");
    fs::create_dir_all(&logs)?;
    Ok(logs)
}

/// Why the suite can't run on this machine.
fn unavailable() -> Result<Option<&'static str>, Failure> {
    Ok(match (needs::find("go"), Privilege::of_this_process()?) {
        (None, _) => Some("there is no Go toolchain (`go`)"),
        (_, Privilege::Mount) => None,
        _ => Some("it needs root with CAP_SYS_ADMIN"),
    })
}

/// The suite's program, built unless it is in the target folder.
fn program(release: &Release) -> Result<PathBuf, Failure> {
    target::installed_by_go(PACKAGE, release.version)
}

/// The program of the newest release.
pub(crate) fn newest() -> Result<PathBuf, Failure> {
    program(&RELEASES[RELEASES.len() - 1])
}

fn run_all(releases: &[Release], modes: &[Mode], specs: Specs, logs: &Path) -> Result<(), Failure> {
    let mut problems = 0;
    let mut tables = String::new();
    let mut skips: Vec<BTreeSet<String>> = vec![BTreeSet::new(); modes.len()];
    for release in releases {
        let mut outcomes = Vec::new();
        for (mode, skips) in modes.iter().zip(&mut skips) {
            if release.left_out.iter().any(|(driver, _)| *driver == mode.driver) {
                continue;
            }
            let outcome = run_alone(release, mode, logs)?;
            for problem in &outcome.problems {
                println!("\n---- csi-sanity {}: {}, {}: {problem}", release.version, mode.driver, mode.name);
            }
            skips.extend(outcome.skips.iter().cloned());
            outcomes.push((mode, outcome));
        }
        tables += &table(release, &outcomes);
        let outcomes: Vec<Outcome> = outcomes.into_iter().map(|(_, outcome)| outcome).collect();
        problems += outcomes.iter().map(|outcome| outcome.problems.len()).sum::<usize>();
        if specs == Specs::EachPasses {
            for spec in passed_nowhere(release, &outcomes) {
                problems += 1;
                tables += &format!("passed by no driver: {spec}\n");
            }
            // Not a problem: the suite's defect is mended, or the drivers tolerate it now.
            for spec in mended(release, &outcomes) {
                tables += &format!("no driver shows this defect of the suite, so its row can go: {spec}\n");
            }
        }
        tables += "\n";
    }
    print!("\n{tables}");
    PENDING.iter().for_each(|spec| println!("switched off in the suite: {spec}"));
    // The reasons are those of the examples with all releases.
    let judged = if specs == Specs::EachPasses { modes } else { &[] };
    for (mode, skips) in judged.iter().zip(&skips) {
        for message in unused(mode, skips) {
            problems += 1;
            println!("{}, {}: nothing is skipped with {message:?}: remove it", mode.driver, mode.name);
        }
    }
    if problems > 0 {
        return Err(Failure::new(format!("{problems} problems; the logs are in {}", logs.display())));
    }
    Ok(())
}

/// Runs a mode, and a second time if the suite failed by its own race.
fn run_alone(release: &Release, mode: &Mode, logs: &Path) -> Result<Outcome, Failure> {
    let first = run_on_thread(release, mode, logs)?;
    let is_race = |problem: &String| release.race.is_some_and(|race| problem.contains(race));
    if !first.problems.iter().any(is_race) {
        return Ok(first);
    }
    println!("    {}, {}: the suite did not connect; once more", mode.driver, mode.name);
    run_on_thread(release, mode, logs)
}

/// Runs a mode on its own thread, because the mount namespace is the thread's. Its children inherit it.
fn run_on_thread(release: &Release, mode: &Mode, logs: &Path) -> Result<Outcome, Failure> {
    let ran = thread::scope(|scope| scope.spawn(|| run_mode(release, mode, logs)).join());
    match ran.map_err(|_| Failure::new("the thread of a run panicked"))? {
        Ok(outcome) => Ok(outcome),
        Err(failure) => Ok(Outcome { problems: vec![failure.to_string()], ..Outcome::default() }),
    }
}

fn run_mode(release: &Release, mode: &Mode, logs: &Path) -> Result<Outcome, Failure> {
    unshare(CloneFlags::CLONE_NEWNS)?;
    mount(None::<&str>, "/", None::<&str>, MsFlags::MS_REC | MsFlags::MS_PRIVATE, None::<&str>)?;
    let place = Place::new()?;
    let name = mode.name.replace([' ', ','], "-");
    let log = |what| logs.join(format!("{}-{name}-{}.{what}", mode.driver, release.version));
    let program = target::dir()?.join("debug").join(mode.driver);
    let driver = Driver::start(&program, mode, release.spec, &place, log("driver.log"))?;
    fs::write(place.of("mutable.yaml"), MUTABLE)?;
    let flag = |name: &str, file: &str| format!("--{name}={}", place.of(file).display());
    let report = place.of("report.json");
    let output = File::create(log("suite.log"))?;
    let status = Command::new(self::program(release)?)
        .args(["--ginkgo.no-color", TIME_LIMIT])
        .args([flag("csi.endpoint", "csi.sock"), flag("csi.mountdir", "target")])
        .args([flag("csi.stagingdir", "staging"), flag("csi.testvolumemutableparameters", "mutable.yaml")])
        .arg(flag("ginkgo.json-report", "report.json"))
        .args(mode.suite)
        .stdin(Stdio::null())
        .stderr(output.try_clone()?)
        .stdout(output)
        .status()?;
    let text = fs::read_to_string(&report)
        .map_err(|error| Failure::new(format!("{status}, and no report: {error}")))?;
    let mut outcome = judge(release, mode, &text)?;
    outcome.problems.extend(driver.stop(&place)?);
    Ok(outcome)
}

fn table(release: &Release, outcomes: &[(&Mode, Outcome)]) -> String {
    let row = |driver: &str, mode: &str, counts: [&str; 4]| {
        let [passed, failed, defects, skipped] = counts;
        format!("{driver:<20}{mode:<26}{passed:>8}{failed:>10}{defects:>16}{skipped:>10}\n")
    };
    let mut text = format!("csi-sanity {}, drivers with --spec={}\n", release.version, release.spec);
    text += &row("driver", "mode", ["passed", "problems", "suite's defects", "skipped"]);
    for (mode, outcome) in outcomes {
        let skipped = outcome.skipped.values().sum::<usize>();
        let counts = [outcome.passed.len(), outcome.problems.len(), outcome.defects.len(), skipped];
        let counts = counts.map(|count| count.to_string());
        text += &row(mode.driver, mode.name, counts.each_ref().map(String::as_str));
    }
    for (mode, outcome) in outcomes {
        for (why, count) in &outcome.skipped {
            text += &format!("skipped: {}, {}: {count}: {why}\n", mode.driver, mode.name);
        }
    }
    for (driver, why) in release.left_out {
        text += &format!("not run: {driver}: {why}\n");
    }
    for defect in release.defects {
        text += &format!("defect of the suite: {}: {}\n", defect.spec, defect.why);
    }
    text
}
