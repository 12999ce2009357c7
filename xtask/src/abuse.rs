//! `cargo xtask abuse`: runs `abuse`, built like the measured programs, and writes its table into the
//! documents.

use std::path::Path;

use crate::Failure;
use crate::step::Step;

/// The default options.
const DOCUMENT: [&str; 2] = ["--write", "docs/abuse.md"];

pub(crate) fn run(root: &Path, options: &[&str]) -> Result<(), Failure> {
    let options = if options.is_empty() { &DOCUMENT } else { options };
    let cargo = ["run", "--profile", "bench", "--package", "abuse", "--"];
    Step::cargo("abuse", cargo.iter().chain(options).copied()).run(root)
}
