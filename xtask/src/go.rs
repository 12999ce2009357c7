//! Programs in Go that other people wrote, at fixed versions, built into the target folder.

use std::path::PathBuf;
use std::process::Command;

use crate::{Failure, target};

/// Returns the program of a Go package, and builds it first unless it is in the target folder.
pub(crate) fn installed(package: &str, version: &str) -> Result<PathBuf, Failure> {
    let name = package.rsplit('/').next().unwrap_or(package);
    let folder = target::dir()?.join("go").join(format!("{name}-{version}"));
    let program = folder.join(name);
    if program.is_file() {
        return Ok(program);
    }
    let package = format!("{package}@{version}");
    let status = Command::new("go").args(["install", &package]).env("GOBIN", folder).status()?;
    if !status.success() {
        return Err(Failure::new(format!("{status}; repeat it with:\n  go install {package}")));
    }
    Ok(program)
}
