//! docs/messages.md lists every message at WARN or ERROR, and no other.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use proc_macro2::{TokenStream, TokenTree};

/// Sources whose log an operator reads.
const SOURCES: [&str; 5] =
    ["csi-core/src", "csi-mount/src", "csi-kube/src", "examples/hostpath/src", "examples/nfs/src"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask is in the workspace").to_owned()
}

fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path()) {
        if entry.is_dir() {
            sources(&entry, found);
        } else if entry.extension().is_some_and(|extension| extension == "rs") {
            found.push(entry);
        }
    }
}

/// The text of a message: the last literal on the top level of the macro's arguments, before the arguments of
/// the text itself.
fn message(arguments: TokenStream) -> Option<String> {
    let mut after_comma = true;
    for tree in arguments {
        match tree {
            TokenTree::Literal(literal) if after_comma => match syn::Lit::new(literal) {
                syn::Lit::Str(text) => return Some(text.value()),
                _ => after_comma = false,
            },
            TokenTree::Punct(one) => after_comma = one.as_char() == ',',
            _ => after_comma = false,
        }
    }
    None
}

/// The messages of `warn!` and `error!` in these tokens.
fn messages(tokens: TokenStream, found: &mut BTreeSet<String>) {
    let tokens: Vec<TokenTree> = tokens.into_iter().collect();
    for (at, tree) in tokens.iter().enumerate() {
        let TokenTree::Group(group) = tree else { continue };
        let is_log = match tokens[..at] {
            [.., TokenTree::Ident(ref name), TokenTree::Punct(ref bang)] => {
                bang.as_char() == '!' && (name == "warn" || name == "error")
            }
            _ => false,
        };
        match is_log.then(|| message(group.stream())) {
            Some(Some(text)) => drop(found.insert(text)),
            Some(None) => panic!("a message without a text: {group}"),
            None => messages(group.stream(), found),
        }
    }
}

#[test]
fn every_warning_is_in_the_index() {
    let mut files = Vec::new();
    SOURCES.iter().for_each(|folder| sources(&root().join(folder), &mut files));
    let mut logged = BTreeSet::new();
    for file in files {
        let text = fs::read_to_string(&file).expect("a source file");
        messages(text.parse().expect("Rust"), &mut logged);
    }
    assert!(logged.len() > 40, "only {} messages were found", logged.len());
    let document = fs::read_to_string(root().join("docs/messages.md")).expect("the index");
    let rows = document.lines().filter_map(|line| line.strip_prefix("| `"));
    let listed: BTreeSet<String> =
        rows.map(|row| row.split('`').next().unwrap_or_default().to_owned()).collect();
    let missing: Vec<_> = logged.difference(&listed).collect();
    let stale: Vec<_> = listed.difference(&logged).collect();
    assert!(missing.is_empty(), "docs/messages.md lacks {missing:#?}");
    assert!(stale.is_empty(), "no source has {stale:#?}");
    for row in document.lines().filter(|line| line.starts_with("| `")) {
        assert_eq!(row.trim_matches('|').split(" | ").count(), 4, "{row}");
    }
}

#[test]
fn messages_are_found_in_every_form() {
    let source = r#"
        fn f() {
            tracing::warn!("plain");
            warn!(at = %path("field"), "after fields \
                   on two lines");
            match x { _ => tracing::error!(code = ?c, "{text}"), }
            tracing::info!("not this");
            error!("with {}", argument("inner"));
        }"#;
    let mut found = BTreeSet::new();
    messages(source.parse().expect("Rust"), &mut found);
    let due = ["after fields on two lines", "plain", "with {}", "{text}"];
    assert_eq!(found.iter().map(String::as_str).collect::<Vec<_>>(), due);
}
