//! The archive of each published crate builds and tests alone (`cargo test --all-features` in it).
//!
//! Its sources and tests read no file outside of the crate, declare no module that the archive lacks, and use
//! no dev-dependency that cargo leaves out of the archive: one on a path without a version.

use std::collections::BTreeSet;
use std::path::{Component, Path, PathBuf};
use std::process::Command;

use proc_macro2::{TokenStream, TokenTree};
use serde_json::Value;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask is in the workspace")
}

fn cargo(args: &[&str]) -> String {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo).args(args).current_dir(root()).output().expect("cargo runs");
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}

/// A published crate.
struct Package {
    name: String,
    folder: PathBuf,
    /// The files of its archive, as paths in the crate.
    files: BTreeSet<String>,
    /// Crates that it uses in this workspace and not in its archive, by their names in code.
    left_out: BTreeSet<String>,
    /// Crates of this workspace that its archive needs, but that are not published.
    unpublished: BTreeSet<String>,
}

fn packages() -> Vec<Package> {
    let metadata: Value =
        serde_json::from_str(&cargo(&["metadata", "--no-deps", "--format-version=1"])).expect("JSON");
    let all = metadata["packages"].as_array().expect("packages");
    let name = |package: &Value| package["name"].as_str().expect("a name").to_owned();
    let published: Vec<&Value> = all.iter().filter(|package| package["publish"].is_null()).collect();
    let names: BTreeSet<String> = published.iter().map(|package| name(package)).collect();
    let package = |package: &&Value| {
        let folder =
            Path::new(package["manifest_path"].as_str().expect("a path")).parent().expect("a folder");
        let list = cargo(&["package", "--list", "--allow-dirty", "--offline", "--package", &name(package)]);
        let own = name(package);
        let inside = package["dependencies"].as_array().expect("dependencies").iter();
        let inside = inside.filter(|other| other["path"].is_string() && name(other) != own);
        let (left_out, needed): (Vec<&Value>, Vec<&Value>) = inside.partition(|other| other["req"] == "*");
        let in_code = |other: &Value| other["rename"].as_str().map_or_else(|| name(other), str::to_owned);
        Package {
            name: own,
            folder: folder.to_owned(),
            files: list.lines().map(str::to_owned).collect(),
            left_out: left_out.into_iter().map(|other| in_code(other).replace('-', "_")).collect(),
            unpublished: needed.into_iter().map(name).filter(|other| !names.contains(other)).collect(),
        }
    };
    published.iter().map(package).collect()
}

/// What a source file names.
#[derive(Default)]
struct Named {
    /// The string literals, without documentation.
    texts: Vec<String>,
    /// Names at the beginning of a path, and after `use` and `extern crate`.
    roots: BTreeSet<String>,
    identifiers: BTreeSet<String>,
    /// Modules in other files: the name, and the file if an attribute has it.
    modules: Vec<(String, Option<String>)>,
}

impl Named {
    fn read(text: &str) -> Self {
        let mut named = Self::default();
        named.walk(text.parse().expect("Rust"));
        named
    }

    fn walk(&mut self, tokens: TokenStream) {
        let tokens: Vec<TokenTree> = tokens.into_iter().collect();
        let ident = |at: usize| match tokens.get(at) {
            Some(TokenTree::Ident(ident)) => Some(ident.to_string()),
            _ => None,
        };
        let is =
            |at: usize, due| matches!(tokens.get(at), Some(TokenTree::Punct(one)) if one.as_char() == due);
        let mut path = None;
        for (at, tree) in tokens.iter().enumerate() {
            match tree {
                TokenTree::Group(group) => {
                    let inner = group.stream();
                    path = path_attribute(inner.clone()).or(path);
                    if !is_documentation(inner.clone()) {
                        self.walk(inner);
                    }
                }
                TokenTree::Literal(literal) => self.texts.extend(text(literal)),
                TokenTree::Ident(name) => {
                    let name = name.to_string();
                    let before = at.checked_sub(1).and_then(ident);
                    let is_begin = !(at > 1 && is(at - 1, ':') && is(at - 2, ':'));
                    let is_imported = matches!(before.as_deref(), Some("use" | "crate"));
                    if is_imported || is_begin && is(at + 1, ':') && is(at + 2, ':') {
                        self.roots.insert(name.clone());
                    }
                    if before.as_deref() == Some("mod") && is(at + 1, ';') {
                        self.modules.push((name.clone(), path.take()));
                    }
                    self.identifiers.insert(name);
                }
                TokenTree::Punct(one) if one.as_char() == ';' => path = None,
                TokenTree::Punct(_) => {}
            }
        }
    }
}

fn text(literal: &proc_macro2::Literal) -> Option<String> {
    match syn::Lit::new(literal.clone()) {
        syn::Lit::Str(text) => Some(text.value()),
        _ => None,
    }
}

/// The tokens of an attribute `name = "text"`.
fn attribute(tokens: TokenStream, name: &str) -> Option<String> {
    match tokens.into_iter().collect::<Vec<_>>().as_slice() {
        [TokenTree::Ident(ident), TokenTree::Punct(_), TokenTree::Literal(literal)] if ident == name => {
            text(literal)
        }
        _ => None,
    }
}

fn path_attribute(tokens: TokenStream) -> Option<String> {
    attribute(tokens, "path")
}

fn is_documentation(tokens: TokenStream) -> bool {
    attribute(tokens, "doc").is_some()
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

impl Package {
    /// The texts in a file that lead to a file of the workspace outside of the crate: from the folder of the
    /// file as in `include_str!` and `#[path]`, or from the crate's folder, in which its tests run.
    fn texts_that_lead_out(&self, file: &str, named: &Named) -> Vec<String> {
        let from = [self.folder.clone(), self.folder.join(file).parent().expect("a folder").to_owned()];
        let leads_out = |text: &&String| {
            text.split('/').any(|part| part == "..")
                && from.iter().map(|from| normal(&from.join(text.trim_start_matches('/')))).any(|path| {
                    let is_outside = !path.starts_with(&self.folder) && !self.folder.starts_with(&path);
                    path.starts_with(root()) && is_outside && path.exists()
                })
        };
        named.texts.iter().filter(leads_out).cloned().collect()
    }

    /// All problems of a file, one line each.
    fn problems(&self, file: &str, source: &str) -> Vec<String> {
        let named = Named::read(source);
        let at = format!("{}/{file}", self.name);
        let mut problems = Vec::new();
        for text in self.texts_that_lead_out(file, &named) {
            problems.push(format!("{at}: {text:?} leads out of the crate"));
        }
        let climbs = ["parent", "ancestors"].iter().any(|name| named.identifiers.contains(*name))
            || named.texts.iter().any(|text| text == "..");
        if named.texts.iter().any(|text| text == "CARGO_MANIFEST_DIR") && climbs {
            problems.push(format!("{at}: leaves the folder of the crate"));
        }
        for name in named.roots.intersection(&self.left_out) {
            problems.push(format!("{at}: uses {name}, which the archive does not have as a dependency"));
        }
        for (module, path) in &named.modules {
            let folder = &file[..file.rfind('/').map_or(0, |end| end + 1)];
            let ends = match path {
                Some(path) => vec![path.trim_start_matches("../").to_owned()],
                None => vec![format!("{module}.rs"), format!("{module}/mod.rs")],
            };
            let is_there = |end: &String| {
                let is = |one: &&String| format!("/{one}").ends_with(&format!("/{end}"));
                let is_near = |one: &&String| path.is_some() || one.starts_with(folder);
                self.files.iter().filter(is_near).any(|one| is(&one))
            };
            if !ends.iter().any(is_there) {
                problems.push(format!("{at}: the archive does not have the module {module}"));
            }
        }
        problems
    }
}

#[test]
fn every_archive_builds_and_tests_alone() {
    let packages = packages();
    let names: BTreeSet<&str> = packages.iter().map(|package| package.name.as_str()).collect();
    let due = [
        "csi-cli",
        "csi-conformance",
        "csi-core",
        "csi-deploy",
        "csi-flexvolume",
        "csi-kube",
        "csi-mount",
        "csi-proto",
    ];
    assert_eq!(names, BTreeSet::from(due));
    let (mut problems, mut tests) = (Vec::new(), 0);
    for package in &packages {
        for other in &package.unpublished {
            problems.push(format!("{}: depends on {other}, which is not published", package.name));
        }
        for file in package.files.iter().filter(|file| file.ends_with(".rs")) {
            let source = std::fs::read_to_string(package.folder.join(file)).expect("a source file");
            problems.extend(package.problems(file, &source));
            tests += usize::from(file.starts_with("tests/"));
        }
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
    assert!(tests > 100, "only {tests} test files are in the archives");
}

#[test]
fn each_way_out_is_found() {
    let package = Package {
        name: "csi-core".to_owned(),
        folder: root().join("csi-core"),
        files: ["src/lib.rs", "tests/near.rs", "tests/common/mod.rs"].map(str::to_owned).into(),
        left_out: ["dirs".to_owned()].into(),
        unpublished: BTreeSet::new(),
    };
    for (source, due) in [
        ("#[doc = include_str!(\"../../README.md\")] struct Readme;", "leads out"),
        ("const A: &[u8] = include_bytes!(\"../../Cargo.toml\");", "leads out"),
        ("const A: &str = concat!(env!(\"CARGO_MANIFEST_DIR\"), \"/../docs/safety.md\");", "leads out"),
        ("fn a() { read(\"../docs/safety.md\"); }", "leads out"),
        ("#[path = \"../../csi-mount/src/error.rs\"] mod error;", "leads out"),
        ("fn a() { Path::new(env!(\"CARGO_MANIFEST_DIR\")).parent(); }", "leaves the folder"),
        ("fn a() { Path::new(env!(\"CARGO_MANIFEST_DIR\")).join(\"..\"); }", "leaves the folder"),
        ("fn a() { dirs::plugin(root); }", "uses dirs"),
        ("use dirs::plugin;", "uses dirs"),
        ("use dirs as driver;", "uses dirs"),
        ("fn a() { assert!(dirs::plugin(root).is_ok()); }", "uses dirs"),
        ("mod support;", "the module support"),
        ("#[path = \"support/proxy.rs\"] mod proxy;", "the module proxy"),
    ] {
        let problems = package.problems("tests/case.rs", source);
        assert!(problems.iter().any(|problem| problem.contains(due)), "{source}: {problems:?}");
    }
    for source in [
        "/// `../docs/safety.md`, and dirs::plugin\nfn a() { let dirs = crate::dirs::all(\"../x\"); }",
        "const A: &str = include_str!(concat!(env!(\"CARGO_MANIFEST_DIR\"), \"/docs/admission.md\"));",
        "const A: [&str; 2] = [\"..\", \"../../etc\"];",
        "mod common; mod near; mod inline { fn a() {} }",
        "#[path = \"../src/lib.rs\"] mod other;",
    ] {
        assert_eq!(package.problems("tests/case.rs", source), [""; 0], "{source}");
    }
}
