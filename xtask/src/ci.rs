//! `cargo xtask ci`: the gate, in two rings.
//!
//! The first ring runs before each merge. The second one takes longer: it runs as a whole before a release, and before
//! that the parts whose folders have changed. All parts run, also after one has failed.
//!
//! Warnings are fatal only here. They are made fatal by arguments of clippy and rustdoc, because other
//! RUSTFLAGS would rebuild every dependency.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use serde::Deserialize;

use crate::needs::{Install, Work};
use crate::step::{self, Step, time_line, timed};
use crate::test_programs::Unsteady;
use crate::{Failure, bench, container, elf, kernels, needs, package, sanity, target, templates, test};

const HELM: &str = "helm.sh/helm/v4/cmd/helm";
const HELM_VERSION: &str = "v4.3.1";

/// The package whose binary must also build statically, and the test that runs it in an empty root.
const STATIC: &str = "block";
const STATIC_TEST: &str = "root_chroot";

/// The targets of clippy's steps. `--all-targets` does not include targets with `test = false`, which run
/// only in an emulated machine or on request. A pattern selects those.
const LINTED: [(&str, &[&str]); 2] =
    [("clippy", &["--all-targets"]), ("clippy of every test program", &["--test", "*"])];

/// How long packages are tried to be installed: the network of a machine that has just started can be down.
const INSTALL_LIMIT: Duration = Duration::from_secs(20 * 60);

/// What runs of the gate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Choice<'a> {
    FirstRing,
    All,
    /// The first ring, and the parts of the second whose folders have changed since this commit.
    Since(&'a str),
    /// The parts with this in their name.
    Only(&'a str),
}

/// A part of the gate.
struct Part {
    name: &'static str,
    /// The folders whose change asks for it, in the second ring.
    after: &'static [&'static str],
    /// What a machine can lack for it, in the second ring.
    needs: Option<Work>,
    /// It returns what it left out.
    check: fn(&Path, Unsteady) -> Result<Vec<String>, Failure>,
}

const PART: Part = Part { name: "", after: &[], needs: None, check: |_, _| Ok(Vec::new()) };

fn all(done: Result<(), Failure>) -> Result<Vec<String>, Failure> {
    done.map(|()| Vec::new())
}

const FIRST: &[Part] = &[
    Part {
        name: "format",
        check: |root, _| all(Step::cargo("format", ["fmt", "--all", "--check"]).run(root)),
        ..PART
    },
    Part { name: "lints", check: |root, _| all(lints().try_for_each(|step| step.run(root))), ..PART },
    Part { name: "docs", check: |root, _| all(docs(root)), ..PART },
    Part { name: "tests and doctests", check: test::run_all, ..PART },
    Part { name: "csi-sanity on hostpath", check: |root, _| sanity::run(root, Some("hostpath")), ..PART },
    Part {
        name: "newest kernel, in short",
        check: |root, _| kernels::run(root, &kernels::Choice::Short, "", Install::Nothing),
        ..PART
    },
];

const EVERYWHERE: &[&str] = &["csi-", "examples", "kubernetes", "tools", "Cargo"];
const MOUNT: &[&str] = &["csi-mount"];

const SECOND: &[Part] = &[
    Part { name: "each feature alone", after: EVERYWHERE, check: |root, _| all(features(root)), ..PART },
    Part {
        name: "archives",
        after: &["csi-", "kubernetes", "tools", "xtask", "Cargo"],
        check: |root, _| all(package::check_together(root)),
        ..PART
    },
    Part {
        name: "static build in an empty root",
        after: &["csi-mount", "csi-core", "examples/block", "Cargo"],
        check: |root, _| all(static_build(root)),
        ..PART
    },
    Part {
        name: "mount-utils in the benches",
        after: &["benches"],
        check: |root, _| bench::check_mount_utils(root),
        ..PART
    },
    Part {
        name: "instructions of parsers and calls",
        after: &["benches", "csi-core", "csi-mount", "csi-proto"],
        needs: Some(Work::Counting),
        check: |root, _| all(bench::check_instructions(root)),
    },
    Part {
        name: "containers",
        after: &["csi-mount", "csi-core", "examples", "kubernetes/csi-deploy", "xtask"],
        needs: Some(Work::Containers),
        check: |root, _| container::run(root),
    },
    Part {
        name: "templates",
        after: &["tools", "csi-core", "csi-mount", "kubernetes/csi-deploy"],
        check: |root, _| templates::run(root),
        ..PART
    },
    Part { name: "charts in Helm", after: &["kubernetes"], check: |root, _| helm(root), ..PART },
    Part {
        name: "csi-sanity on every example",
        after: &["csi-core", "csi-mount", "examples", "tools/csi-conformance"],
        check: |root, _| sanity::run(root, None),
        ..PART
    },
    Part {
        name: "mutants of the kit by group",
        after: &["tools/csi-conformance", "tools/test-support"],
        check: |root, _| {
            all(deep(root, "csi-conformance", "it", &["root_mutants::"], ("CSI_MUTANTS", "group")))
        },
        ..PART
    },
    Part {
        name: "the whole kit with other features and settings",
        after: &["tools/csi-conformance", "examples/hostpath"],
        check: |root, _| all(deep(root, "hostpath", "it", &["root_conformance::"], ("CSI_TEST_ROUNDS", "1"))),
        ..PART
    },
    Part {
        name: "a crash of the controllers at each write",
        after: &["kubernetes/csi-controllers", "tools/test-support"],
        check: |root, _| {
            all(deep(root, "csi-controllers", "cluster", &["situations::"], ("CSI_CRASH_STRIDE", "1")))
        },
        ..PART
    },
    Part {
        name: "five times as many kills and power cuts",
        after: MOUNT,
        // At every system call and write they take hours.
        check: |root, _| {
            let kills = ["crash::", "crash_flows::", "crash_fuse::", "--test-threads=6"];
            deep(root, "csi-mount", "it", &kills, ("CSI_CRASH_POINTS", "100"))?;
            all(deep(root, "csi-mount", "it", &["power_loss::"], ("CSI_CRASH_STRIDE", "42")))
        },
        ..PART
    },
    Part {
        name: "oldest and newest kernel",
        after: &[
            "csi-mount",
            "csi-core/src/node",
            "examples/nvme-tcp",
            "examples/iscsi",
            "xtask/src/kernels",
        ],
        check: |root, _| kernels::run(root, &kernels::Choice::Gate, "", Install::Nothing),
        ..PART
    },
];

pub(crate) fn run(root: &Path, choice: Choice<'_>, unsteady: Unsteady) -> Result<(), Failure> {
    let parts = chosen(root, choice)?;
    let is_root = needs::Privilege::of_this_process()? != needs::Privilege::Ordinary;
    let own = parts.iter().filter_map(|part| part.needs);
    let work: Vec<Work> = [Work::Tests, Work::Kernels].into_iter().chain(own).collect();
    needs::provide(&work, Install::Within(INSTALL_LIMIT))?;
    // Checked before ten minutes of building.
    let mut missing = needs::missing_programs(Work::Kernels);
    if is_root {
        missing.extend(needs::missing()?);
    }
    needs::refuse(missing)?;
    run_parts(root, &parts, unsteady)
}

fn chosen(root: &Path, choice: Choice<'_>) -> Result<Vec<&'static Part>, Failure> {
    let second = match choice {
        Choice::FirstRing => Vec::new(),
        Choice::All => SECOND.iter().collect(),
        Choice::Since(commit) => {
            let mut git = Command::new("git");
            git.args(["diff", "--name-only", commit, "--"]).current_dir(root);
            asked_for(&String::from_utf8_lossy(&step::output(&mut git)?))
        }
        Choice::Only(text) => {
            let named: Vec<&Part> =
                FIRST.iter().chain(SECOND).filter(|part| part.name.contains(text)).collect();
            if named.is_empty() {
                let names: String =
                    FIRST.iter().chain(SECOND).map(|part| format!("\n  {}", part.name)).collect();
                return Err(Failure::usage(format!(
                    "no part of the gate has {text} in its name; they are:{names}"
                )));
            }
            return Ok(named);
        }
    };
    Ok(FIRST.iter().chain(second).collect())
}

/// The parts of the second ring that a change of these files asks for.
fn asked_for(changed: &str) -> Vec<&'static Part> {
    let is_after =
        |part: &&Part| changed.lines().any(|file| part.after.iter().any(|folder| file.starts_with(folder)));
    SECOND.iter().filter(is_after).collect()
}

/// Runs all parts, and prints their times. The last lines say what failed, and what repeats it.
fn run_parts(root: &Path, parts: &[&Part], unsteady: Unsteady) -> Result<(), Failure> {
    let begun = Instant::now();
    let mut table = String::new();
    let mut said = Vec::new();
    let mut failed = Vec::new();
    for (at, part) in parts.iter().enumerate() {
        println!("==> part {} of {}: {}", at + 1, parts.len(), part.name);
        let start = Instant::now();
        let lacks = part.needs.map(needs::missing_programs).unwrap_or_default();
        let checked = if lacks.is_empty() {
            (part.check)(root, unsteady)
        } else {
            Ok(vec![format!("NOT RUN: {}: missing on this machine: {}", part.name, lacks.join("; "))])
        };
        table += &time_line(part.name, start.elapsed());
        match checked {
            Ok(lines) => said.extend(lines),
            Err(failure) => {
                println!("{failure}\n");
                failed.push(format!("FAILED: cargo xtask ci --only '{}'\n{failure}", part.name));
            }
        }
    }
    println!("{table}{}", time_line("all", begun.elapsed()));
    said.iter().for_each(|line| println!("{line}"));
    if !failed.is_empty() {
        return Err(Failure::new(failed.join("\n\n")));
    }
    println!("all checks passed");
    Ok(())
}

/// Runs tests in a larger size.
fn deep(
    root: &Path,
    package: &str,
    program: &str,
    tests: &[&str],
    size: (&'static str, &str),
) -> Result<(), Failure> {
    let args = ["test", "--package", package, "--all-features", "--test", program, "--"];
    Step::cargo(format!("{package} with {}={}", size.0, size.1), args.iter().chain(tests).copied())
        .env(size.0, size.1)
        .run(root)
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
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    fn names(parts: &[&Part]) -> Vec<&'static str> {
        parts.iter().map(|part| part.name).collect()
    }

    #[test]
    fn a_change_asks_for_the_parts_of_its_folder() {
        assert_eq!(names(&asked_for("docs/fuse.md\nREADME.md\n")), Vec::<&str>::new());
        assert_eq!(
            names(&asked_for("README.md\nkubernetes/csi-kube/src/lib.rs\n")),
            ["each feature alone", "archives", "charts in Helm"]
        );
        let of_mount = names(&asked_for("csi-mount/src/lib.rs\n"));
        assert!(of_mount.contains(&"oldest and newest kernel"), "{of_mount:?}");
        assert!(chosen(Path::new("/"), Choice::Only("no such part")).is_err());
        assert_eq!(names(&chosen(Path::new("/"), Choice::Only("Helm")).expect("one")), ["charts in Helm"]);
    }

    /// With UPDATE=1 it is written there.
    #[test]
    fn contributing_md_has_the_table() {
        const HEAD: &str = "| part of the second ring | runs after a change in |\n|---|---|\n";
        let folders = |part: &Part| part.after.iter().map(|folder| format!("`{folder}`")).collect::<Vec<_>>();
        let rows = SECOND.iter().map(|part| format!("| {} | {} |\n", part.name, folders(part).join(", ")));
        let wanted = format!("{HEAD}{}\n", rows.collect::<String>());
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../CONTRIBUTING.md");
        let text = fs::read_to_string(&file).expect("a document");
        let (before, rest) = text.split_once(HEAD).expect("the head of the table");
        let (_, after) = rest.split_once("\nEach part runs alone").expect("the text after it");
        let updated = format!("{before}{wanted}Each part runs alone{after}");
        if std::env::var_os("UPDATE").is_some() {
            return fs::write(&file, &updated).expect("written");
        }
        assert_eq!(text, updated, "`UPDATE=1 cargo test --package xtask contributing` writes it");
    }

    #[test]
    fn all_parts_run_and_the_end_says_what_failed() {
        static RAN: AtomicUsize = AtomicUsize::new(0);
        fn counted(failure: Option<&str>) -> Result<Vec<String>, Failure> {
            RAN.fetch_add(1, Ordering::SeqCst);
            failure.map_or(Ok(vec!["NOT RUN: a thing".to_owned()]), |text| Err(Failure::new(text)))
        }
        let parts = [
            Part { name: "bad", check: |_, _| counted(Some("why")), ..PART },
            Part { name: "good", check: |_, _| counted(None), ..PART },
            Part { name: "worse", check: |_, _| counted(Some("because")), ..PART },
        ];
        let parts: Vec<&Part> = parts.iter().collect();
        let failure = run_parts(Path::new("/"), &parts, Unsteady::Fails).expect_err("two failed").to_string();
        assert_eq!(RAN.load(Ordering::SeqCst), 3);
        let wanted =
            "FAILED: cargo xtask ci --only 'bad'\nwhy\n\nFAILED: cargo xtask ci --only 'worse'\nbecause";
        assert_eq!(failure, wanted);
    }

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
