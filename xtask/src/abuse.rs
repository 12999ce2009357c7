//! `cargo xtask abuse`: the program `abuse`, built as what is measured is, and its place in the documents.

use std::path::Path;

use crate::Failure;
use crate::step::Step;

/// What is written when no option says otherwise.
const DOCUMENT: [&str; 2] = ["--write", "docs/abuse.md"];

pub(crate) fn run(root: &Path, options: &[&str]) -> Result<(), Failure> {
    let options = if options.is_empty() { &DOCUMENT } else { options };
    let cargo = ["run", "--profile", "bench", "--package", "abuse", "--"];
    Step::cargo("abuse", cargo.iter().chain(options).copied()).run(root)
}
