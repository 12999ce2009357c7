//! The documents and the published packages are what the tree says.

#[path = "../../src/coverage.rs"]
mod coverage;
mod tree;

mod archives;
mod documents;
mod error_mapping;
mod messages;
mod operator_pages;
mod published;
mod spec_coverage;
