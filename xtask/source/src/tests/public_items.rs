//! The lists of public items (`docs/public-api/`) are those of the source, so that a change of the public API
//! shows in review.

use std::collections::BTreeSet;
use std::fs;

use crate::{public_api, root};

/// Removed lines with `-`, added lines with `+`.
fn difference(before: &[String], after: &[String]) -> Vec<String> {
    let (before, after): (BTreeSet<_>, BTreeSet<_>) = (before.iter().collect(), after.iter().collect());
    let sign = |line| match (before.contains(line), after.contains(line)) {
        (true, false) => Some(format!("- {line}")),
        (false, true) => Some(format!("+ {line}")),
        _ => None,
    };
    before.union(&after).filter_map(|line| sign(*line)).collect()
}

#[test]
fn the_lists_show_the_public_items() {
    let mut changed = Vec::new();
    for name in public_api::CRATES {
        let text = fs::read_to_string(public_api::document(root(), name)).unwrap_or_default();
        let (before, after): (Vec<_>, _) = (
            text.lines().map(str::to_owned).collect(),
            public_api::list(root(), name).expect("a readable crate"),
        );
        assert!(after.len() > 1, "{name}: {after:#?}");
        changed.extend(difference(&before, &after));
    }
    assert!(
        changed.is_empty(),
        "The public API differs from docs/public-api. If the change is intended, run \
         `cargo xtask public-api`, commit what it writes, and mention the change in the changelog.\n{}",
        changed.join("\n")
    );
}

/// The list of a crate `a-b` with these files.
fn list(files: &[(&str, &str)]) -> Vec<String> {
    let root = tempfile::tempdir().expect("a folder");
    for (name, text) in files {
        let path = root.path().join("a-b/src").join(name);
        fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
        fs::write(path, text).expect("a file");
    }
    public_api::list(root.path(), "a-b").expect("a readable crate")
}

const THING: &str = "pub struct Thing(u8);\n\
    impl Thing { pub const fn size(&self, mut unit: &'static str) -> Option<u64> { None } fn own(&self) {} }";

#[test]
fn a_removed_method_and_a_changed_signature_are_shown() {
    let before = list(&[("lib.rs", THING)]);
    let method = "fn a_b::Thing::size(&self, unit: &'static str) -> Option<u64>";
    assert_eq!(before, ["struct a_b::Thing { .. }".to_owned(), format!("const {method}")]);
    let changed = |from, to| difference(&before, &list(&[("lib.rs", &THING.replace(from, to))]));
    assert_eq!(changed("pub const fn", "fn"), [format!("- const {method}")]);
    assert_eq!(changed("const fn", "fn"), [format!("- const {method}"), format!("+ {method}")]);
    let wider = method.replace("u64", "u128");
    assert_eq!(changed("u64", "u128"), [format!("+ const {wider}"), format!("- const {method}")]);
    // Neither is seen by a caller.
    assert_eq!(changed("fn own(&self) {}", ""), [""; 0]);
    assert_eq!(changed("mut unit", "unit"), [""; 0]);
}

#[test]
fn an_item_has_its_shortest_public_path() {
    let root = "mod deep; pub mod prelude; pub use deep::{one as first, inner::*}; pub use other::Foreign;";
    let deep = "pub mod inner; pub fn one() {} pub fn unreachable() {}";
    let lines = list(&[
        ("lib.rs", root),
        ("deep/mod.rs", deep),
        ("deep/inner.rs", "pub(crate) struct Hidden; pub trait Two { fn go(&self) -> u8 { 2 } fn must(); }"),
        ("prelude.rs", "#[cfg(feature = \"x\")]\npub use crate::{Two as _, Two as Second};"),
    ]);
    let due = [
        "use a_b::Foreign = other::Foreign",
        "trait a_b::Two",
        "fn a_b::Two::go(&self) -> u8 (default)",
        "fn a_b::Two::must()",
        "fn a_b::first()",
        "mod a_b::prelude",
        "use a_b::prelude::Second = a_b::Two #[cfg(feature = \"x\")]",
        "use a_b::prelude::_ = a_b::Two #[cfg(feature = \"x\")]",
    ];
    assert_eq!(lines, due);
}

#[test]
fn a_private_item_in_a_public_module_is_not_listed() {
    let module = "pub mod shown { struct A; pub(crate) fn b() {} pub(super) const C: u8 = 1; \
        impl A { pub fn d() {} } #[cfg(test)] pub mod tests { pub fn e() {} } trait Own {} \
        pub enum F<T> { G { h: T }, I(u8,) } \
        impl<T> Own for F<T> {} impl<T: Copy> From<T> for F<T> { fn from(_: T) -> Self { todo!() } } }";
    let due = [
        "mod a_b::shown",
        "enum a_b::shown::F<T>",
        "impl<T: Copy> From<T> for a_b::shown::F<T>",
        "variant a_b::shown::F::G { h: T }",
        "variant a_b::shown::F::I(u8)",
    ];
    assert_eq!(list(&[("lib.rs", module)]), due);
}

#[test]
fn what_only_a_hidden_module_shows_is_not_listed() {
    let source = "mod deep { pub struct Seen; pub struct Own; impl Own { pub fn new() -> Self { Own } } impl Clone for Own {} }
        pub use deep::Seen;
        #[doc(hidden)] pub mod internal { pub use crate::deep::Own; pub fn go(_: Own) {} pub mod below { pub fn on() {} } }";
    assert_eq!(list(&[("lib.rs", source)]), ["struct a_b::Seen"]);
}

#[test]
fn a_function_is_re_exported_without_the_private_module_of_its_name() {
    let source = "mod go { pub fn go() {} } pub use go::go; pub mod all { pub use crate::go; }";
    let due = ["mod a_b::all", "use a_b::all::go = a_b::go", "fn a_b::go()"];
    assert_eq!(list(&[("lib.rs", source)]), due);
}

#[test]
fn items_that_macros_declare_are_listed() {
    let source = "macro_rules! table {
            ($($(#[$doc:meta])* $name:ident { $($field:ident: $type:ty),* $(,)? })+) => { $(
                $(#[$doc])* #[derive(Clone, fmt::Debug)] #[non_exhaustive]
                pub struct $name { $(pub $field: $type,)* }
                impl std::fmt::Display for $name {}
            )+ };
        }
        table! { /// One.
            One { a: Vec<u8>, b: &'static [u8], } Two {} }
        bitflags::bitflags! { pub struct Flags: u8 { const A = 1; } }";
    let due = [
        "struct a_b::Flags { .. }",
        "const a_b::Flags::A: Self",
        "struct a_b::One #[non_exhaustive]",
        "impl Clone for a_b::One",
        "impl Debug for a_b::One",
        "impl Display for a_b::One",
        "field a_b::One::a: Vec<u8>",
        "field a_b::One::b: &'static [u8]",
        "struct a_b::Two #[non_exhaustive]",
        "impl Clone for a_b::Two",
        "impl Debug for a_b::Two",
        "impl Display for a_b::Two",
    ];
    assert_eq!(list(&[("lib.rs", source)]), due);
}

#[test]
fn a_macro_that_cannot_be_expanded_is_an_error() {
    let root = tempfile::tempdir().expect("a folder");
    fs::create_dir_all(root.path().join("a-b/src")).expect("a folder");
    let source = "macro_rules! one { ($name:ident) => { pub struct $name; }; }\none!(1);";
    fs::write(root.path().join("a-b/src/lib.rs"), source).expect("a file");
    let error = public_api::list(root.path(), "a-b").expect_err("no rule matches").to_string();
    assert!(error.contains("one!: "), "{error}");
}
