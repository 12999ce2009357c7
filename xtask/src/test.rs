//! `cargo xtask test`: runs every test that this user can run, and says which are left out.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use crate::needs::{self, Install, Privilege, Work};
use crate::step::timed;
use crate::test_programs::{Part, Unsteady};
use crate::{Failure, print_left_out, test_programs, whole};

/// The package in which all integration tests mount or attach devices, and the module of them that does not.
const MOUNTING: &str = "csi-mount/";
const SIMULATED: &str = "csi-mount/it machine_simulated::";

/// The prefix of integration tests elsewhere, and of modules of them, that need root.
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
        let failed = beside(busy, || test_programs::failed(root, &runnable.tests, busy))?;
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
    tests: Vec<Part>,
    left_out: Vec<String>,
}

impl Runnable {
    fn build(root: &Path) -> Result<Self, Failure> {
        let missing = needs::missing()?;
        let tests = test_programs::build(root)?;
        if missing.is_empty() {
            return Ok(Self { tests, left_out: Vec::new() });
        }
        let (left_out, tests): (Vec<Part>, Vec<Part>) =
            tests.into_iter().partition(|it| needs_root(&it.name));
        let left_out = left_out.iter().map(|test| &*test.name);
        Ok(Self { tests, left_out: vec![left_out_because(left_out, &missing)] })
    }

    fn run(&self, root: &Path, unsteady: Unsteady) -> Result<Vec<String>, Failure> {
        let mut said = Vec::new();
        timed("tests and doctests", || {
            said = test_programs::run(root, &self.tests, unsteady)?;
            Ok(())
        })?;
        Ok(said)
    }
}

/// Whether a test (`package/program path`) is for root, with all that [`needs::missing`] asks for.
fn needs_root(test: &str) -> bool {
    let (program, path) = test.split_once(' ').unwrap_or((test, ""));
    let (_, file) = program.split_once('/').unwrap_or_default();
    let mut modules = path.rsplit("::").skip(1);
    test.starts_with(MOUNTING) && file != "lib" && !test.starts_with(SIMULATED)
        || file.starts_with(ROOT_PREFIX)
        || modules.any(|module| module == ROOT_MODULE || module.starts_with(ROOT_PREFIX))
}

/// The number of tests that were left out, by package, and what they need.
fn left_out_because<'t>(left_out: impl Iterator<Item = &'t str>, missing: &[String]) -> String {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for (package, _) in left_out.filter_map(|test| test.split_once('/')) {
        *counts.entry(package).or_default() += 1;
    }
    let all: usize = counts.values().sum();
    let counts: Vec<String> = counts.iter().map(|(package, count)| format!("{package} {count}")).collect();
    format!(
        "NOT RUN: {all} tests ({}), those in files and modules named {ROOT_PREFIX}* and {ROOT_MODULE}, and the \
         integration tests of csi-mount.\nThey need:\n  {}",
        counts.join(", "),
        missing.join("\n  ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_needs_root_is_left_out() {
        let tests = [
            "block/root_chroot",
            "csi-core/it calls::root_of_all",
            "csi-core/it root_flow::it_mounts",
            "csi-core/lib node::needs_root::it_mounts",
            "csi-core/lib parses",
            "csi-mount/hang it_ends",
            "csi-mount/it bind::it_binds",
            "csi-mount/it machine_simulated::it_binds",
            "csi-mount/lib parses",
            "dirs/root_life it_mounts",
            "dirs/simulated it_mounts",
        ];
        let (left_out, run): (Vec<&str>, Vec<&str>) = tests.into_iter().partition(|test| needs_root(test));
        assert_eq!(run, [tests[1], tests[4], tests[7], tests[8], tests[10]]);
        let said = left_out_because(left_out.into_iter(), &["root: run it with sudo".to_owned()]);
        assert!(said.starts_with("NOT RUN: 6 tests (block 1, csi-core 2, csi-mount 2, dirs 1)"), "{said}");
        assert!(said.ends_with("They need:\n  root: run it with sudo"), "{said}");
    }
}
