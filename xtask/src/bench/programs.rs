//! The programs that are measured, or measure.

use std::path::{Path, PathBuf};

use crate::step::Step;
use crate::{Failure, target};

/// All of them.
pub(crate) struct Programs {
    /// Measures.
    pub(crate) bench: PathBuf,
    /// A whole driver, static.
    pub(crate) dirs: PathBuf,
    /// The least that answers a Probe, static.
    pub(crate) bare: PathBuf,
}

/// The drivers too where their footprint is measured: that takes minutes, being optimised at link time.
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

/// Only the one that measures.
pub(crate) fn bench(root: &Path) -> Result<PathBuf, Failure> {
    let folder = target::dir()?;
    let folder_text = folder.display().to_string();
    let args =
        ["build", "--profile", "bench", "--package", "benches", "--bins", "--target-dir", &folder_text];
    Step::cargo("build benches", args).run(root)?;
    Ok(folder.join("release/bench"))
}
