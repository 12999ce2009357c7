//! `cargo xtask test`: runs every test that this user can run, and says which are left out.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use crate::artifacts::Artifact;
use crate::needs::{self, Install, Privilege, Work};
use crate::step::timed;
use crate::test_programs::Unsteady;
use crate::{Failure, print_left_out, test_programs, whole};

/// Packages in which all integration tests mount or attach devices.
const MOUNTING: &[&str] = &["csi-mount"];

/// The integration tests of these packages that mount nothing.
const SIMULATED: &[&str] = &["machine_simulated"];

/// The prefix of integration tests elsewhere that need root.
const ROOT_PREFIX: &str = "root_";

/// The module name of unit tests that need root.
const ROOT_MODULE: &str = "needs_root";

/// Installs what is missing if it can, runs all tests that this user and machine can run, and says what it
/// left out.
///
/// # Errors
/// When a test failed, or when root, who should run all tests, could not run all of them.
pub(crate) fn run(root: &Path, install: Install, unsteady: Unsteady) -> Result<(), Failure> {
    needs::provide(&[Work::Tests], install)?;
    let runnable = Runnable::build(root)?;
    let is_ordinary = Privilege::of_this_process()? == Privilege::Ordinary;
    let said = runnable.run(root, unsteady)?;
    said.iter().for_each(|line| println!("{line}"));
    if is_ordinary { print_left_out(Ok(runnable.left_out)) } else { whole(Ok(runnable.left_out)) }
}

/// Runs the tests, and returns what is to be said at the end: what was not run, and why, and what is unsteady.
pub(crate) fn run_all(root: &Path, unsteady: Unsteady) -> Result<Vec<String>, Failure> {
    let runnable = Runnable::build(root)?;
    let said = runnable.run(root, unsteady)?;
    Ok(runnable.left_out.into_iter().chain(said).collect())
}

/// Runs all tests this many times beside busy loops, and lists those that were red in a round.
///
/// # Errors
/// When one was.
pub(crate) fn rounds(root: &Path, rounds: usize, busy: usize) -> Result<(), Failure> {
    needs::provide(&[Work::Tests], Install::Missing)?;
    let runnable = Runnable::build(root)?;
    let mut red: BTreeMap<String, Vec<usize>> = BTreeMap::new();
    for round in 1..=rounds {
        println!("==> round {round} of {rounds}, beside {busy} busy loops");
        let failed = beside(busy, || test_programs::failed(root, &runnable.programs, &runnable.args, busy))?;
        println!("==> round {round}: {} red: {}", failed.len(), failed.join(", "));
        failed.into_iter().for_each(|test| red.entry(test).or_default().push(round));
    }
    if red.is_empty() {
        println!("no test was red in {rounds} rounds");
        return Ok(());
    }
    let lines: Vec<String> = red.iter().map(|(test, rounds)| format!("  {test}: in {rounds:?}")).collect();
    Err(Failure::new(format!("red in a round:\n{}", lines.join("\n"))))
}

/// Does work beside threads that compute all the time.
fn beside<T>(busy: usize, work: impl FnOnce() -> T) -> T {
    let has_ended = AtomicBool::new(false);
    thread::scope(|scope| {
        for _ in 0..busy {
            scope.spawn(|| {
                while !has_ended.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
        }
        let done = work();
        has_ended.store(true, Ordering::Relaxed);
        done
    })
}

/// What this user and machine can run.
struct Runnable {
    programs: Vec<Artifact>,
    args: Vec<String>,
    left_out: Vec<String>,
}

impl Runnable {
    fn build(root: &Path) -> Result<Self, Failure> {
        let missing = needs::missing()?;
        let programs = test_programs::build(root)?;
        if missing.is_empty() {
            return Ok(Self { programs, args: Vec::new(), left_out: Vec::new() });
        }
        let (left_out, programs): (Vec<Artifact>, Vec<Artifact>) = programs.into_iter().partition(needs_root);
        let args = vec!["--skip".to_owned(), format!("{ROOT_MODULE}::")];
        Ok(Self { programs, args, left_out: vec![left_out_because(&left_out, &missing)] })
    }

    fn run(&self, root: &Path, unsteady: Unsteady) -> Result<Vec<String>, Failure> {
        let mut said = Vec::new();
        timed("tests and doctests", || {
            said = test_programs::run(root, &self.programs, &self.args, unsteady)?;
            Ok(())
        })?;
        Ok(said)
    }
}

/// Whether a test program is for root, with all that [`needs::missing`] asks for.
fn needs_root(program: &Artifact) -> bool {
    let name = program.name.as_str();
    let mounts = MOUNTING.contains(&&*program.package()) && !SIMULATED.contains(&name);
    program.kind == "test" && (mounts || name.starts_with(ROOT_PREFIX))
}

/// The number of test programs that were left out, by package, and what they need.
fn left_out_because(left_out: &[Artifact], missing: &[String]) -> String {
    let mut counts: BTreeMap<Cow<'_, str>, usize> = BTreeMap::new();
    for program in left_out {
        *counts.entry(program.package()).or_default() += 1;
    }
    let counts: Vec<String> = counts.iter().map(|(package, count)| format!("{package} {count}")).collect();
    format!(
        "NOT RUN: {} test programs ({}), and the unit tests in modules named {ROOT_MODULE}.\nThey need:\n  {}",
        left_out.len(),
        counts.join(", "),
        missing.join("\n  ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_needs_root_is_left_out() {
        let programs = [
            ("csi-core", "lib", "csi_core"),
            ("csi-core", "test", "parse"),
            ("csi-core", "test", "root_flow"),
            ("csi-mount", "lib", "csi_mount"),
            ("csi-mount", "test", "bind"),
            ("csi-mount", "test", "machine_simulated"),
            ("dirs", "test", "bind"),
            ("dirs", "test", "root_life"),
        ];
        let programs = programs.map(|(package, kind, name)| Artifact {
            folder: Path::new("/w").join(package),
            kind: kind.to_owned(),
            name: name.to_owned(),
            is_test: true,
            executable: "/t/x".into(),
        });
        let (left_out, run): (Vec<_>, Vec<_>) = programs.into_iter().partition(needs_root);
        let names: Vec<&str> = run.iter().map(|program| program.name.as_str()).collect();
        assert_eq!(names, ["csi_core", "parse", "csi_mount", "machine_simulated", "bind"]);
        let said = left_out_because(&left_out, &["root: run it with sudo".to_owned()]);
        assert!(said.starts_with("NOT RUN: 3 test programs (csi-core 1, csi-mount 1, dirs 1)"), "{said}");
        assert!(said.ends_with("They need:\n  root: run it with sudo"), "{said}");
    }
}
