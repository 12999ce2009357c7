//! The programs that measure or are measured.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::step::Step;
use crate::{Failure, needs, target};

/// All programs.
pub(crate) struct Programs {
    /// The program that measures.
    pub(crate) bench: PathBuf,
    /// A whole driver, linked statically.
    pub(crate) dirs: PathBuf,
    /// The smallest program that answers a Probe, linked statically.
    pub(crate) bare: PathBuf,
    /// `k8s.io/mount-utils`, if there is a Go toolchain.
    pub(crate) mount_utils: Option<PathBuf>,
}

/// The environment variable with the path of `mount_utils`.
pub(crate) const MOUNT_UTILS: &str = "BENCH_MOUNT_UTILS";
/// The source of `mount_utils`, in the workspace.
pub(crate) const MOUNT_UTILS_SOURCE: &str = "benches/mount-utils";

/// Builds the programs. The drivers are built only if their footprint is measured, because their link-time
/// optimisation takes minutes.
pub(crate) fn build(root: &Path, with_drivers: bool) -> Result<Programs, Failure> {
    let bench = bench(root)?;
    let release = if with_drivers { drivers(root, &["dirs", "bare"])? } else { PathBuf::new() };
    let mount_utils = mount_utils(root)?;
    if mount_utils.is_none() {
        println!("NOT MEASURED: k8s.io/mount-utils: there is no Go toolchain (`go`)");
    }
    Ok(Programs { bench, dirs: release.join("dirs"), bare: release.join("bare"), mount_utils })
}

/// Builds drivers as they are shipped, and returns their folder.
pub(crate) fn drivers(root: &Path, packages: &[&str]) -> Result<PathBuf, Failure> {
    let triple = target::host_triple()?;
    let folder = target::static_dir()?;
    let folder_text = folder.display().to_string();
    let args = ["build", "--release", "--target", &triple, "--target-dir", &folder_text];
    let packages = packages.iter().flat_map(|package| ["--package", package]);
    Step::cargo("build drivers, static", args.into_iter().chain(packages))
        .env("RUSTFLAGS", target::STATIC)
        .run(root)?;
    Ok(folder.join(triple).join("release"))
}

/// Builds the program that does the jobs of `k8s.io/mount-utils`; `None` without a Go toolchain.
pub(crate) fn mount_utils(root: &Path) -> Result<Option<PathBuf>, Failure> {
    build_in_go(root, MOUNT_UTILS_SOURCE)
}

/// Builds the mock driver of Kubernetes' own tests; `None` without a Go toolchain.
pub(crate) fn mock_driver(root: &Path) -> Result<Option<PathBuf>, Failure> {
    build_in_go(root, "benches/mock-driver")
}

/// Builds a static, stripped program from this folder of the workspace.
fn build_in_go(root: &Path, source: &str) -> Result<Option<PathBuf>, Failure> {
    if needs::find("go").is_none() {
        return Ok(None);
    }
    let program = target::dir()?.join("go").join(source.rsplit('/').next().unwrap_or(source));
    let mut command = Command::new("go");
    command.args(["build", "-ldflags=-s -w", "-o"]).arg(&program).arg(".").env("CGO_ENABLED", "0");
    let status = command.current_dir(root.join(source)).status()?;
    if !status.success() {
        return Err(Failure::new(format!("{status}; repeat it in {source} with:\n  go build")));
    }
    Ok(Some(program))
}

/// Builds the program that measures.
pub(crate) fn bench(root: &Path) -> Result<PathBuf, Failure> {
    let folder = target::dir()?;
    let folder_text = folder.display().to_string();
    let args = ["build", "--profile", "bench", "--package", "benches", "--bins"];
    Step::cargo("build benches", args.into_iter().chain(["--target-dir", &folder_text])).run(root)?;
    Ok(folder.join("release/bench"))
}
