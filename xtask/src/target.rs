//! Cargo's target folder, and how static programs are built.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::Failure;

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
