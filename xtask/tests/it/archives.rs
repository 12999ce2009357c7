//! The sources and tests in the archive of a published crate read no file outside of the crate while they run.
//!
//! What the compiler finds (files that it includes, modules, dependencies that the archive lacks) is found by the
//! gate's step `archives`, which checks the unpacked archives.

use std::collections::BTreeSet;
use std::path::{Component, Path, PathBuf};

use proc_macro2::{TokenStream, TokenTree};

use crate::tree::{cargo, folder, metadata, published, read, root, text};

/// The string literals and the identifiers of a source file, without documentation.
#[derive(Default)]
struct Named {
    texts: Vec<String>,
    identifiers: BTreeSet<String>,
}

impl Named {
    fn walk(&mut self, tokens: TokenStream) {
        for tree in tokens {
            match tree {
                TokenTree::Group(group) if is_documentation(group.stream()) => {}
                TokenTree::Group(group) => self.walk(group.stream()),
                TokenTree::Ident(name) => drop(self.identifiers.insert(name.to_string())),
                TokenTree::Literal(literal) => {
                    if let syn::Lit::Str(text) = syn::Lit::new(literal) {
                        self.texts.push(text.value());
                    }
                }
                TokenTree::Punct(_) => {}
            }
        }
    }
}

/// Whether these are the tokens of the attribute `doc = "text"`.
fn is_documentation(tokens: TokenStream) -> bool {
    let tokens: Vec<TokenTree> = tokens.into_iter().collect();
    matches!(
        tokens.as_slice(),
        [TokenTree::Ident(name), TokenTree::Punct(_), TokenTree::Literal(_)] if name == "doc"
    )
}

/// The path without `..`, which is not looked up: a folder can be missing.
fn normal(path: &Path) -> PathBuf {
    let mut normal = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => drop(normal.pop()),
            Component::CurDir => {}
            part => normal.push(part),
        }
    }
    normal
}

/// How a file of a crate leads out of it: by a text with `..` from the folder of the file or of the crate, or upwards
/// from the folder of the crate.
fn problems(folder: &Path, file: &str, source: &str) -> Vec<String> {
    let mut named = Named::default();
    named.walk(source.parse().expect("Rust"));
    let from = [folder.to_owned(), folder.join(file).parent().expect("a folder").to_owned()];
    let leads_out = |text: &&String| {
        text.split('/').any(|part| part == "..")
            && from.iter().map(|from| normal(&from.join(text.trim_start_matches('/')))).any(|path| {
                let is_outside = !path.starts_with(folder) && !folder.starts_with(&path);
                path.starts_with(root()) && is_outside && path.exists()
            })
    };
    let at = folder.join(file).display().to_string();
    let mut problems: Vec<String> =
        named.texts.iter().filter(leads_out).map(|text| format!("{at}: {text:?} leads out")).collect();
    let climbs = ["parent", "ancestors"].iter().any(|name| named.identifiers.contains(*name))
        || named.texts.iter().any(|text| text == "..");
    if climbs && named.texts.iter().any(|text| text == "CARGO_MANIFEST_DIR") {
        problems.push(format!("{at}: leaves the folder of the crate"));
    }
    problems
}

#[test]
fn nothing_in_an_archive_reads_a_file_outside_of_it() {
    let mut found = Vec::new();
    let mut tests = 0;
    for package in published(&metadata(&["--no-deps"])) {
        let folder = folder(package);
        let name = text(package, "name");
        let files = cargo(&["package", "--list", "--allow-dirty", "--offline", "--package", name]);
        for file in files.lines().filter(|file| file.ends_with(".rs")) {
            found.extend(problems(folder, file, &read(folder.join(file))));
            tests += usize::from(file.starts_with("tests/"));
        }
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
    assert!(tests > 100, "only {tests} test files are in the archives");
}

#[test]
fn each_way_out_is_found() {
    let problems = |source| problems(&root().join("csi-core"), "tests/case.rs", source);
    for (source, due) in [
        ("const A: &str = concat!(env!(\"CARGO_MANIFEST_DIR\"), \"/../docs/safety.md\");", "leads out"),
        ("fn a() { read(\"../docs/safety.md\"); }", "leads out"),
        ("fn a() { Path::new(env!(\"CARGO_MANIFEST_DIR\")).parent(); }", "leaves the folder"),
        ("fn a() { Path::new(env!(\"CARGO_MANIFEST_DIR\")).join(\"..\"); }", "leaves the folder"),
    ] {
        assert!(problems(source).iter().any(|problem| problem.contains(due)), "{source}");
    }
    for source in [
        "/// `../docs/safety.md`\nfn a() { crate::dirs::all(\"../x\"); }",
        "const A: &str = include_str!(concat!(env!(\"CARGO_MANIFEST_DIR\"), \"/docs/admission.md\"));",
        "const A: [&str; 2] = [\"..\", \"../../etc\"];",
    ] {
        assert_eq!(problems(source), [""; 0], "{source}");
    }
}
