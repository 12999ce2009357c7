//! `cargo xtask ci`: the gate.
//!
//! Warnings are fatal only here. They are made fatal by arguments of clippy and rustdoc, because other
//! RUSTFLAGS would rebuild every dependency.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Instant;

use serde::Deserialize;

use crate::needs::{Install, Work};
use crate::step::{self, Step, time_line, timed};
use crate::{
    Failure, bench, codegen, container, elf, kernels, needs, package, sanity, target, templates, test,
};

const HELM: &str = "helm.sh/helm/v4/cmd/helm";
const HELM_VERSION: &str = "v4.3.1";

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
    needs::refuse(missing)?;

    let all = |done: Result<(), Failure>| done.map(|()| Vec::new());
    let steps: Vec<(&str, Check<'_>)> = vec![
        ("format", Box::new(|| all(Step::cargo("format", ["fmt", "--all", "--check"]).run(root)))),
        ("generated code is up to date", Box::new(|| all(codegen::run(root, codegen::Mode::Check)))),
        ("lints", Box::new(|| all(lints().try_for_each(|step| step.run(root))))),
        ("tests and doctests", Box::new(|| test::run_all(root))),
        ("docs", Box::new(|| all(docs(root)))),
        ("each feature alone", Box::new(|| all(features(root)))),
        ("archives", Box::new(|| all(package::check_together(root)))),
        ("mount-utils in the benches", Box::new(|| bench::check_mount_utils(root))),
        ("instructions of parsers and calls", Box::new(|| all(bench::check_instructions(root)))),
        ("static build", Box::new(|| all(static_build(root)))),
        ("containers", Box::new(|| container::run(root))),
        ("templates", Box::new(|| templates::run(root))),
        ("charts in Helm", Box::new(|| helm(root))),
        ("csi-sanity", Box::new(|| sanity::run(root))),
        (
            "oldest and newest kernel available",
            Box::new(|| kernels::run(root, &kernels::Choice::Gate, "", Install::Nothing)),
        ),
    ];
    let left_out = run_steps(steps)?;
    println!("all checks passed");
    left_out.iter().for_each(|line| println!("{line}"));
    Ok(())
}

/// The work of one step. It returns what it left out.
type Check<'a> = Box<dyn FnOnce() -> Result<Vec<String>, Failure> + 'a>;

/// Runs the steps up to the first failure, and prints their times.
fn run_steps(steps: Vec<(&str, Check<'_>)>) -> Result<Vec<String>, Failure> {
    let begun = Instant::now();
    let count = steps.len();
    let mut table = String::new();
    let mut left_out = Vec::new();
    let result = steps.into_iter().enumerate().try_for_each(|(at, (name, check))| {
        println!("==> step {} of {count}: {name}", at + 1);
        let step = Instant::now();
        let checked = check();
        table += &time_line(name, step.elapsed());
        left_out.extend(checked?);
        Ok(())
    });
    println!("{table}{}", time_line("all", begun.elapsed()));
    result.map(|()| left_out)
}

fn docs(root: &Path) -> Result<(), Failure> {
    Step::cargo("docs", ["doc", "--workspace", "--no-deps", "--all-features"])
        .env("RUSTDOCFLAGS", "-D warnings")
        .run(root)
}

/// Checks each feature of each package alone.
pub(crate) fn features(root: &Path) -> Result<(), Failure> {
    let metadata = ["metadata", "--format-version=1", "--no-deps"];
    let metadata = step::output(step::cargo().args(metadata).current_dir(root))?;
    let workspace: Workspace = serde_json::from_slice(&metadata)?;
    workspace.packages.iter().try_for_each(|member| each_feature_alone(root, member))
}

/// What cargo tells of the workspace.
#[derive(Deserialize)]
struct Workspace {
    packages: Vec<Member>,
}

#[derive(Deserialize)]
struct Member {
    name: String,
    features: BTreeMap<String, Vec<String>>,
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
    let mut features = member.features.keys().filter(|name| *name != "default").peekable();
    if features.peek().is_none() {
        return Ok(());
    }
    let check = |name: String, features: &[&str]| {
        let args = ["clippy", "--package", &member.name, "--no-default-features"];
        Step::cargo(name, [&args, features, &["--", "-D", "warnings"]].concat()).run(root)
    };
    check(format!("{} without features", member.name), &[])?;
    features.try_for_each(|feature| {
        check(format!("{} with {feature} alone", member.name), &["--features", feature])
    })
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

/// Builds Helm, and runs the tests in which it reads the charts of csi-deploy. Returns why nothing was run, if so.
pub(crate) fn helm(root: &Path) -> Result<Vec<String>, Failure> {
    if needs::find("go").is_none() {
        return Ok(vec!["NOT RUN: csi-deploy's charts in Helm: there is no Go toolchain (`go`)".to_owned()]);
    }
    println!("==> helm {HELM_VERSION}");
    let helm = target::installed_by_go(HELM, HELM_VERSION)?.display().to_string();
    // With the features of the tests' step, which built the dependencies.
    let test = ["test", "--workspace", "--all-features", "--test", "helm"];
    Step::cargo("charts in Helm", test).env("HELM", helm).run(root)?;
    Ok(Vec::new())
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
