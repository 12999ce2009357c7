//! `cargo xtask bench`: builds the programs that measure or are measured, and runs the one that measures, which is in
//! `benches/`.

use std::path::{Path, PathBuf};

use crate::needs::{Install, Privilege, Work};
use crate::step::Step;
use crate::{Failure, needs, target};

/// The environment variable with the path of the program that does the jobs of `k8s.io/mount-utils`.
const MOUNT_UTILS: &str = "BENCH_MOUNT_UTILS";
/// That with the folder of the drivers whose footprint is measured.
const DRIVERS: &str = "BENCH_DRIVERS";

/// Runs `cargo xtask bench` with these options.
pub(crate) fn run(root: &Path, options: &[&str]) -> Result<(), Failure> {
    let bench = bench("bench", options);
    let bench = match options {
        ["--instructions", ..] => {
            needs::refuse(needs::missing_programs(Work::Counting))?;
            bench
        }
        [] | ["--quick"] => measuring(root, bench)?.env(DRIVERS, drivers(root)?.display().to_string()),
        ["--only", _] | ["--quick", "--only", _] => measuring(root, bench)?,
        ["--document" | "--help" | "-h"] => bench,
        _ => return Err(Failure::usage("unknown options; see `cargo xtask bench --help`")),
    };
    bench.run(root)
}

/// Checks that this machine has what is measured, and gives it to the program.
fn measuring(root: &Path, bench: Step) -> Result<Step, Failure> {
    needs::provide(&[Work::Measurement], Install::Missing)?;
    let mut missing = needs::missing()?;
    missing.extend(needs::missing_programs(Work::Measurement));
    needs::refuse(missing)?;
    let Some(program) = mount_utils(root)? else {
        println!("NOT MEASURED: k8s.io/mount-utils: there is no Go toolchain (`go`)");
        return Ok(bench);
    };
    Ok(bench.env(MOUNT_UTILS, program.display().to_string()))
}

/// The program that measures, as cargo runs it.
fn bench(name: &str, options: &[&str]) -> Step {
    let cargo = ["run", "--profile", "bench", "--package", "benches", "--bin", "bench", "--"];
    Step::cargo(name, cargo.iter().chain(options).copied())
}

/// Builds drivers as they are shipped, and returns their folder. Their link-time optimisation takes minutes.
fn drivers(root: &Path) -> Result<PathBuf, Failure> {
    let triple = target::host_triple()?;
    let folder = target::static_dir()?;
    let folder_text = folder.display().to_string();
    let args = ["build", "--release", "--target", &triple, "--target-dir", &folder_text];
    Step::cargo("build drivers, static", args.into_iter().chain(["--package", "dirs", "--package", "bare"]))
        .env("RUSTFLAGS", target::STATIC)
        .run(root)?;
    Ok(folder.join(triple).join("release"))
}

fn mount_utils(root: &Path) -> Result<Option<PathBuf>, Failure> {
    target::built_by_go(root, "benches/mount-utils")
}

/// Compares the instructions of parsers and calls with the recorded ones.
pub(crate) fn check_instructions(root: &Path) -> Result<(), Failure> {
    bench("instructions of parsers and calls, compared with the record", &["--instructions"]).run(root)
}

/// Runs the jobs of `k8s.io/mount-utils` once each, so that they keep working. Returns why nothing was run, if
/// so.
pub(crate) fn check_mount_utils(root: &Path) -> Result<Vec<String>, Failure> {
    let not_run = |why: &str| Ok(vec![format!("NOT RUN: mount-utils in the benchmarks: {why}")]);
    if Privilege::of_this_process()? != Privilege::Mount {
        return not_run("it needs root with CAP_SYS_ADMIN");
    }
    let Some(program) = mount_utils(root)? else {
        return not_run("there is no Go toolchain (`go`)");
    };
    Step::cargo(
        "mount-utils in the benchmarks",
        ["test", "--workspace", "--all-features", "--test", "root_smoke"],
    )
    .env(MOUNT_UTILS, program.display().to_string())
    .run(root)?;
    Ok(Vec::new())
}
