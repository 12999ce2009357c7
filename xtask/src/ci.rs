//! `cargo xtask ci`: the gate.
//!
//! Warnings are fatal only here. They are made fatal by arguments of clippy and rustdoc, because other
//! RUSTFLAGS would rebuild every dependency.

use std::cell::RefCell;
use std::path::Path;
use std::time::Instant;

use crate::members::{Member, members};
use crate::needs::{Install, Work};
use crate::step::{Step, time_line, timed};
use crate::{
    Failure, bench, codegen, container, elf, helm, kernels, needs, package, sanity, target, templates, test,
};

/// The package whose binary must also build statically, and the test that runs it in an empty root.
const STATIC: &str = "block";
const STATIC_TEST: &str = "root_chroot";

/// The targets of clippy's steps. `--all-targets` does not include targets with `test = false`, which run
/// only in an emulated machine or on request. A pattern selects those.
const LINTED: [(&str, &[&str]); 2] =
    [("clippy", &["--all-targets"]), ("clippy of every test program", &["--test", "*"])];

pub(crate) fn run(root: &Path) -> Result<(), Failure> {
    let is_root = needs::Privilege::of_this_process()? != needs::Privilege::Ordinary;
    needs::provide(&[Work::Tests, Work::Kernels, Work::Containers, Work::Counting], Install::Missing)?;
    // Checked before ten minutes of building.
    let mut missing = needs::missing_programs(Work::Kernels);
    missing.extend(needs::missing_programs(Work::Counting));
    if is_root {
        missing.extend(needs::missing()?);
    }
    if !missing.is_empty() {
        missing.sort();
        missing.dedup();
        return Err(Failure::usage(format!("missing on this machine:\n  {}", missing.join("\n  "))));
    }

    let left_out = RefCell::new(Vec::new());
    let steps: Vec<(&str, Check<'_>)> = vec![
        ("format", Box::new(|| Step::cargo("format", ["fmt", "--all", "--check"]).run(root))),
        ("generated code is up to date", Box::new(|| codegen::run(root, codegen::Mode::Check))),
        ("lints", Box::new(|| lints().try_for_each(|step| step.run(root)))),
        (
            "tests and doctests",
            Box::new(|| test::run_all(root).map(|some| left_out.borrow_mut().extend(some))),
        ),
        ("docs", Box::new(|| docs(root))),
        ("each feature alone", Box::new(|| features(root))),
        ("archives", Box::new(|| package::check_together(root))),
        (
            "mount-utils in the benches",
            Box::new(|| bench::check_mount_utils(root).map(|some| left_out.borrow_mut().extend(some))),
        ),
        ("instructions of parsers and calls", Box::new(|| bench::check_instructions(root))),
        ("static build", Box::new(|| static_build(root))),
        ("containers", Box::new(|| container::run(root).map(|some| left_out.borrow_mut().extend(some)))),
        ("templates", Box::new(|| templates::run(root).map(|some| left_out.borrow_mut().extend(some)))),
        ("charts in Helm", Box::new(|| helm::run(root).map(|some| left_out.borrow_mut().extend(some)))),
        ("csi-sanity", Box::new(|| sanity::run(root).map(|some| left_out.borrow_mut().extend(some)))),
        (
            "oldest and newest kernel available",
            Box::new(|| {
                let not_run = kernels::run(root, &kernels::Choice::Gate, "", Install::Nothing)?;
                left_out.borrow_mut().extend(not_run);
                Ok(())
            }),
        ),
    ];
    run_steps(steps)?;
    println!("all checks passed");
    for line in left_out.into_inner() {
        println!("{line}");
    }
    Ok(())
}

/// The work of one step.
type Check<'a> = Box<dyn FnOnce() -> Result<(), Failure> + 'a>;

/// Runs the steps up to the first failure, and prints their times.
fn run_steps(steps: Vec<(&str, Check<'_>)>) -> Result<(), Failure> {
    let begun = Instant::now();
    let count = steps.len();
    let mut table = String::new();
    let mut result = Ok(());
    for (at, (name, check)) in steps.into_iter().enumerate() {
        println!("==> step {} of {count}: {name}", at + 1);
        let step = Instant::now();
        result = check();
        table += &time_line(name, step.elapsed());
        if result.is_err() {
            break;
        }
    }
    println!("{table}{}", time_line("all", begun.elapsed()));
    result
}

fn docs(root: &Path) -> Result<(), Failure> {
    Step::cargo("docs", ["doc", "--workspace", "--no-deps", "--all-features"])
        .env("RUSTDOCFLAGS", "-D warnings")
        .run(root)
}

/// Checks each feature of each package alone.
pub(crate) fn features(root: &Path) -> Result<(), Failure> {
    members(root)?.iter().try_for_each(|member| each_feature_alone(root, member))
}

fn lints() -> impl Iterator<Item = Step> {
    LINTED.into_iter().map(|(name, targets)| {
        let what = ["clippy", "--workspace", "--all-features"];
        let how = ["--", "-D", "warnings"];
        Step::cargo(name, what.iter().chain(targets).chain(&how).copied())
    })
}

/// Checks each feature alone, and no features. The other steps build all features together.
fn each_feature_alone(root: &Path, member: &Member) -> Result<(), Failure> {
    if member.features.is_empty() {
        return Ok(());
    }
    let check = |name: String, features: &str| {
        let args = ["clippy", "--package", &member.name, "--no-default-features", "--features", features];
        Step::cargo(name, args.into_iter().chain(["--", "-D", "warnings"])).run(root)
    };
    let none = ["clippy", "--package", &member.name, "--no-default-features", "--", "-D", "warnings"];
    Step::cargo(format!("{} without features", member.name), none).run(root)?;
    for feature in &member.features {
        check(format!("{} with {feature} alone", member.name), feature)?;
    }
    Ok(())
}

fn static_build(root: &Path) -> Result<(), Failure> {
    // The test builds the binary that it runs.
    let (name, what) = match needs::Privilege::of_this_process()? {
        needs::Privilege::Ordinary => ("static build", ["build", "--bins"].as_slice()),
        _ => ("static build, run in an empty root", ["test", "--test", STATIC_TEST].as_slice()),
    };
    let triple = target::host_triple()?;
    let target = target::static_dir()?;
    let target_text = target.display().to_string();
    let args = ["--package", STATIC, "--target", &triple, "--target-dir", &target_text];
    let step = Step::cargo(name, what.iter().chain(&args).copied());
    target::STATIC_TESTS.into_iter().fold(step, |step, (name, value)| step.env(name, value)).run(root)?;
    let program = target.join(&triple).join("debug").join(STATIC);
    timed("the static binary is static", || elf::check_static(&program))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    const MANIFEST: &str = "[workspace]\n[package]\nname = \"linted\"\nedition = \"2024\"\n\
        [[test]]\nname = \"on_request\"\ntest = false\n";

    #[test]
    fn a_test_program_that_cargo_test_leaves_out_is_linted() {
        let package = tempfile::tempdir().expect("a folder");
        let write = |file: &str, text: &str| fs::write(package.path().join(file), text).expect("a file");
        for folder in ["src", "tests"] {
            fs::create_dir(package.path().join(folder)).expect("a folder");
        }
        write("Cargo.toml", MANIFEST);
        write("src/lib.rs", "");
        let failed = |program: &str| {
            write("tests/on_request.rs", program);
            lints().filter(|step| step.run(package.path()).is_err()).count()
        };
        assert_eq!(failed(""), 0);
        assert_eq!(failed("fn nobody_calls_it() {}"), 1);
    }
}
