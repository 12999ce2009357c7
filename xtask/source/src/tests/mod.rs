//! The layers, the public items and the generated code are what the tree says.

mod layers;
mod public_items;

use crate::{codegen, root};

#[test]
fn the_generated_code_is_that_of_a_new_run() {
    codegen::check(root()).expect("no difference");
}
