//! Folders are layers: each one imports only from folders that ARCHITECTURE.md lists above it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use syn::visit::{self, Visit};
use syn::{ItemMod, ItemUse};

use crate::public_api::crate_source::{Crate, Target};
use crate::root;
use crate::rust_source::{self, Names, imports, is_test};

/// The paths that a file names, without tests, and the module of each.
#[derive(Default)]
struct Reader {
    at: Names,
    paths: BTreeSet<(Names, Names)>,
}

impl<'ast> Visit<'ast> for Reader {
    fn visit_item_mod(&mut self, module: &'ast ItemMod) {
        if is_test(&module.attrs) {
            return;
        }
        self.at.push(module.ident.to_string());
        visit::visit_item_mod(self, module);
        self.at.pop();
    }

    fn visit_item_use(&mut self, item: &'ast ItemUse) {
        self.paths.extend(imports(&item.tree).into_iter().map(|import| (self.at.clone(), import.path)));
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let names = path.segments.iter().map(|segment| segment.ident.to_string()).collect();
        self.paths.insert((self.at.clone(), names));
        visit::visit_path(self, path);
    }
}

/// Each file of a crate, as its module, and the files that define what it names, through all re-exports.
fn files(name: &str) -> BTreeMap<Names, BTreeSet<Names>> {
    let src = root().join(name).join("src");
    let source = Crate::read(&src).expect("a readable crate");
    let files = rust_source::read(&src).expect("a readable crate");
    let file_of = |path: &[String]| {
        let length = (0..=path.len()).rev().find(|length| files.contains_key(&path[..*length]));
        path[..length.unwrap_or_default()].to_vec()
    };
    let named = |(from, file): (&Names, &syn::File)| {
        let mut reader = Reader { at: from.clone(), ..Reader::default() };
        reader.visit_file(file);
        let mut named = BTreeSet::new();
        for (at, path) in reader.paths {
            // The end can be what a type has, or a macro.
            let found = (1..=path.len()).rev().map(|length| source.resolve(&at, &path[..length], 0));
            let found = found.into_iter().find(|found| !found.is_empty()).unwrap_or_default();
            named.extend(found.iter().map(|(Target::Module(at) | Target::Item(at, _))| file_of(at)));
        }
        (from.clone(), named)
    };
    files.iter().map(named).collect()
}

/// The folders of a crate as ARCHITECTURE.md lists them, lowest first.
fn layers(name: &str) -> Vec<String> {
    let text = fs::read_to_string(root().join("ARCHITECTURE.md")).expect("a readable text");
    let heading = format!("### {name}");
    let part = text.split_once(&format!("{heading}\n")).unwrap_or_else(|| panic!("no {heading:?}")).1;
    let rows =
        part.lines().skip_while(|line| !line.starts_with("| `")).take_while(|line| line.starts_with('|'));
    let cells = rows.map(|row| row.split('`').nth(1).expect("a name in backticks"));
    cells.map(|cell| cell.trim_end_matches('/').trim_end_matches(".rs").to_owned()).collect()
}

fn no_import_runs_upward(name: &str, least: usize) {
    let layers = layers(name);
    let files = files(name);
    let floor = |top: &String| {
        let floor = layers.iter().position(|layer| layer == top);
        floor.unwrap_or_else(|| panic!("{name}: {top} is not among the layers of ARCHITECTURE.md"))
    };
    let mut imports = 0;
    let mut upward = Vec::new();
    for (from, named) in files.iter().filter(|(from, _)| !from.is_empty()) {
        for to in named.iter().filter(|to| !to.is_empty()) {
            imports += usize::from(to[0] != from[0]);
            if floor(&to[0]) > floor(&from[0]) {
                upward.push(format!("{} imports {}", from.join("::"), to.join("::")));
            }
        }
    }
    assert!(imports >= least, "{name}: only {imports} imports between folders were found");
    assert!(upward.is_empty(), "{name}: {upward:#?}");
}

/// All files that can be reached from a file, by what they name.
fn reached(from: &Names, named: &BTreeMap<Names, BTreeSet<Names>>) -> BTreeSet<Names> {
    let mut reached = BTreeSet::new();
    let mut open = vec![from];
    while let Some(file) = open.pop() {
        for to in &named[file] {
            if reached.insert(to.clone()) {
                open.push(to);
            }
        }
    }
    reached
}

#[test]
fn no_files_name_each_other_in_a_circle() {
    let mut circles = BTreeSet::new();
    for name in [
        "csi-proto",
        "csi-mount",
        "csi-core",
        "kubernetes/csi-controllers",
        "kubernetes/csi-deploy",
        "kubernetes/csi-kube",
        "tools/csi-cli",
        "tools/csi-conformance",
    ] {
        let mut named = files(name);
        // A folder's own file, `mod.rs` or `lib.rs`, and the files below it may name each other.
        for (from, named) in &mut named {
            named.retain(|to| !to.starts_with(from) && !from.starts_with(to));
        }
        let reached: BTreeMap<&Names, BTreeSet<Names>> =
            named.keys().map(|file| (file, reached(file, &named))).collect();
        for (file, others) in &reached {
            let circle: Vec<String> = others
                .iter()
                .filter(|other| reached[*other].contains(*file))
                .map(|other| other.join("::"))
                .collect();
            if !circle.is_empty() {
                circles.insert(format!("{name}: {}", circle.join(", ")));
            }
        }
    }
    assert!(circles.is_empty(), "{circles:#?}");
}

#[test]
fn no_import_of_csi_mount_runs_upward() {
    no_import_runs_upward("csi-mount", 300);
}

#[test]
fn no_import_of_csi_core_runs_upward() {
    no_import_runs_upward("csi-core", 150);
}
