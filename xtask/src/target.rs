//! Cargo's target folder, how static programs are built, and programs in Go: our own, and those that other people
//! wrote, at fixed versions.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::{Failure, needs, step};

/// RUSTFLAGS of a program without shared libraries.
pub(crate) const STATIC: &str = "-C target-feature=+crt-static";

/// The environment of cargo for static programs of tests. They are stripped, because all of them are unpacked
/// into the memory of an emulated machine. Every build has the same environment, so dependencies are built once.
pub(crate) const STATIC_TESTS: [(&str, &str); 3] =
    [("RUSTFLAGS", STATIC), ("CARGO_PROFILE_DEV_STRIP", "symbols"), ("CARGO_PROFILE_TEST_STRIP", "symbols")];

/// A separate target folder for [`STATIC`]: with other RUSTFLAGS cargo would rebuild everything.
pub(crate) fn static_dir() -> Result<PathBuf, Failure> {
    Ok(dir()?.join("static"))
}

/// Cargo's target folder: this program is in `<target>/debug/`, wherever the user put the target folder.
pub(crate) fn dir() -> Result<PathBuf, Failure> {
    let exe = std::env::current_exe()?;
    let target = exe.parent().and_then(Path::parent);
    target
        .map(Path::to_path_buf)
        .ok_or_else(|| Failure::new(format!("{} is not in a target folder", exe.display())))
}

pub(crate) fn host_triple() -> Result<String, Failure> {
    let output = Command::new("rustc").arg("-vV").output()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let host = text.lines().find_map(|line| line.strip_prefix("host: "));
    host.map(str::to_owned).ok_or_else(|| Failure::new(format!("rustc -vV reports no host:\n{text}")))
}

/// Returns the program of a Go package, and builds it first unless it is in the target folder.
pub(crate) fn installed_by_go(package: &str, version: &str) -> Result<PathBuf, Failure> {
    let name = package.rsplit('/').next().unwrap_or(package);
    let folder = dir()?.join("go").join(format!("{name}-{version}"));
    let program = folder.join(name);
    if program.is_file() {
        return Ok(program);
    }
    let package = format!("{package}@{version}");
    step::output(Command::new("go").args(["install", &package]).env("GOBIN", folder))?;
    Ok(program)
}

/// Builds a static, stripped program in Go from this folder of the workspace; `None` without a Go toolchain.
pub(crate) fn built_by_go(root: &Path, source: &str) -> Result<Option<PathBuf>, Failure> {
    if needs::find("go").is_none() {
        return Ok(None);
    }
    let program = dir()?.join("go").join(source.rsplit('/').next().unwrap_or(source));
    let mut command = Command::new("go");
    command.args(["build", "-ldflags=-s -w", "-o"]).arg(&program).arg(".").env("CGO_ENABLED", "0");
    step::output(command.current_dir(root.join(source)))?;
    Ok(Some(program))
}
