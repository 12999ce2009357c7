//! The programs that measure or are measured.

use std::path::{Path, PathBuf};

use crate::step::Step;
use crate::{Failure, target};

/// All programs.
pub(crate) struct Programs {
    /// The program that measures.
    pub(crate) bench: PathBuf,
    /// A whole driver, linked statically.
    pub(crate) dirs: PathBuf,
    /// The smallest program that answers a Probe, linked statically.
    pub(crate) bare: PathBuf,
}

/// Builds the programs. The drivers are built only if their footprint is measured, because their link-time
/// optimisation takes minutes.
pub(crate) fn build(root: &Path, with_drivers: bool) -> Result<Programs, Failure> {
    let bench = bench(root)?;
    let triple = target::host_triple()?;
    let folder = target::static_dir()?;
    let folder_text = folder.display().to_string();
    let args = ["build", "--release", "--package", "dirs", "--package", "bare", "--target", &triple];
    if with_drivers {
        Step::cargo("build drivers, static", args.into_iter().chain(["--target-dir", &folder_text]))
            .env("RUSTFLAGS", target::STATIC)
            .run(root)?;
    }
    let release = folder.join(triple).join("release");
    Ok(Programs { bench, dirs: release.join("dirs"), bare: release.join("bare") })
}

/// Builds only the program that measures.
pub(crate) fn bench(root: &Path) -> Result<PathBuf, Failure> {
    let folder = target::dir()?;
    let folder_text = folder.display().to_string();
    let args =
        ["build", "--profile", "bench", "--package", "benches", "--bins", "--target-dir", &folder_text];
    Step::cargo("build benches", args).run(root)?;
    Ok(folder.join("release/bench"))
}
