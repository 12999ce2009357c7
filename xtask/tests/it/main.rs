//! The documents, the layers and the public items are what the tree says.

#[path = "../../src/coverage.rs"]
mod coverage;
#[path = "../../src/public_api/mod.rs"]
mod public_api;
#[path = "../../src/rust_source.rs"]
mod rust_source;
mod tree;

mod archives;
mod documents;
mod error_mapping;
mod layers;
mod messages;
mod operator_pages;
mod public_items;
mod published;
mod spec_coverage;
