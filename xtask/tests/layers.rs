//! Folders are layers: each one imports only from folders that ARCHITECTURE.md lists above it.

#[path = "../src/rust_source.rs"]
mod rust_source;
mod tree;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use rust_source::{Names, imports, in_crate, is_test};
use syn::visit::{self, Visit};
use syn::{Item, ItemMod, ItemUse, Visibility};
use tree::root;

/// What one file imports and re-exports.
#[derive(Default)]
struct Module {
    /// The names that it defines.
    items: BTreeSet<String>,
    /// The names that it re-exports, with the original path of each.
    reexports: BTreeMap<String, Names>,
    /// Modules that it re-exports completely.
    globs: Vec<Names>,
    /// Every path of this crate that its code names, without tests.
    named: BTreeSet<Names>,
}

/// Reads a file as the module at this path.
#[derive(Default)]
struct Reader {
    at: Names,
    module: Module,
    /// The names that its `use` declare, with the path of each.
    imported: BTreeMap<String, Names>,
    /// The paths that do not begin with `crate`, `self` or `super`: some begin with an imported name.
    relative: Vec<Names>,
}

impl<'ast> Visit<'ast> for Reader {
    fn visit_item(&mut self, item: &'ast Item) {
        let name = match item {
            Item::Const(item) => Some(&item.ident),
            Item::Enum(item) => Some(&item.ident),
            Item::Fn(item) => Some(&item.sig.ident),
            Item::Macro(item) => item.ident.as_ref(),
            Item::Static(item) => Some(&item.ident),
            Item::Struct(item) => Some(&item.ident),
            Item::Trait(item) => Some(&item.ident),
            Item::Type(item) => Some(&item.ident),
            _ => None,
        };
        self.module.items.extend(name.map(ToString::to_string));
        visit::visit_item(self, item);
    }

    fn visit_item_mod(&mut self, module: &'ast ItemMod) {
        if is_test(&module.attrs) {
            return;
        }
        if module.content.is_none() {
            return visit::visit_item_mod(self, module);
        }
        self.at.push(module.ident.to_string());
        visit::visit_item_mod(self, module);
        self.at.pop();
    }

    fn visit_item_use(&mut self, item: &'ast ItemUse) {
        let is_public = !matches!(item.vis, Visibility::Inherited);
        for import in imports(&item.tree) {
            // A path without `crate` can begin with a module that this file declares.
            let path = in_crate(&self.at, &import.path)
                .or_else(|| is_public.then(|| [&self.at[..], &import.path].concat()));
            let Some(path) = path else { continue };
            self.imported.insert(import.name.clone(), path.clone());
            if is_public && import.name == "*" {
                self.module.globs.push(path.clone());
            } else if is_public {
                self.module.reexports.insert(import.name, path.clone());
            }
            self.module.named.insert(path);
        }
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let names: Names = path.segments.iter().map(|segment| segment.ident.to_string()).collect();
        match in_crate(&self.at, &names) {
            Some(path) => drop(self.module.named.insert(path)),
            None => self.relative.push(names),
        }
        visit::visit_path(self, path);
    }
}

impl Reader {
    fn into_module(mut self) -> Module {
        for names in &self.relative {
            let Some(start) = names.first().and_then(|name| self.imported.get(name)) else { continue };
            self.module.named.insert([start, &names[1..]].concat());
        }
        self.module
    }
}

fn modules(src: &Path) -> BTreeMap<Names, Module> {
    let files = rust_source::read(src).expect("a readable crate");
    let modules = files.into_iter().map(|(at, file)| {
        let mut reader = Reader { at: at.clone(), ..Reader::default() };
        reader.visit_file(&file);
        (at, reader.into_module())
    });
    modules.collect()
}

/// The module that defines what a path names, through all re-exports.
fn owner(path: &[String], modules: &BTreeMap<Names, Module>, depth: usize) -> Option<Names> {
    let length = (0..=path.len()).rev().find(|length| modules.contains_key(&path[..*length]))?;
    let (at, rest) = path.split_at(length);
    let Some(name) = rest.first().filter(|_| depth < 8) else { return Some(at.to_vec()) };
    let module = &modules[at];
    if module.items.contains(name) {
        return Some(at.to_vec());
    }
    if let Some(given) = module.reexports.get(name) {
        return owner(given, modules, depth + 1);
    }
    let in_glob = |glob: &Names| {
        let found = owner(&[&glob[..], &rest[..1]].concat(), modules, depth + 1)?;
        let has = modules[&found].items.contains(name) || found.last() == Some(name);
        has.then_some(found)
    };
    module.globs.iter().find_map(in_glob).or_else(|| Some(at.to_vec()))
}

/// The folders of a crate as ARCHITECTURE.md lists them, lowest first.
fn layers(name: &str) -> Vec<String> {
    let text = tree::read("ARCHITECTURE.md");
    let heading = format!("### {name}");
    let part = text.split_once(&format!("{heading}\n")).unwrap_or_else(|| panic!("no {heading:?}")).1;
    let rows =
        part.lines().skip_while(|line| !line.starts_with("| `")).take_while(|line| line.starts_with('|'));
    let cells = rows.map(|row| row.split('`').nth(1).expect("a name in backticks"));
    cells.map(|cell| cell.trim_end_matches('/').trim_end_matches(".rs").to_owned()).collect()
}

fn no_import_runs_upward(name: &str, least: usize) {
    let layers = layers(name);
    let modules = modules(&root().join(name).join("src"));
    let floor = |top: &String| {
        let floor = layers.iter().position(|layer| layer == top);
        floor.unwrap_or_else(|| panic!("{name}: {top} is not among the layers of ARCHITECTURE.md"))
    };
    let mut imports = 0;
    let mut upward = Vec::new();
    for (from, module) in modules.iter().filter(|(from, _)| !from.is_empty()) {
        for path in &module.named {
            let Some(to) = owner(path, &modules, 0).filter(|to| !to.is_empty()) else { continue };
            imports += usize::from(to[0] != from[0]);
            if floor(&to[0]) > floor(&from[0]) {
                upward.push(format!("{} imports {}", from.join("::"), path.join("::")));
            }
        }
    }
    assert!(imports >= least, "{name}: only {imports} imports between folders were found");
    assert!(upward.is_empty(), "{name}: {upward:#?}");
}

/// Each file, and the files that define what it names. A folder's own file, `mod.rs` or `lib.rs`, and the files below it
/// may name each other.
fn files_named(modules: &BTreeMap<Names, Module>) -> BTreeMap<&Names, BTreeSet<Names>> {
    let named = |from: &Names, module: &Module| -> BTreeSet<Names> {
        let owners = module.named.iter().filter_map(|path| owner(path, modules, 0));
        owners.filter(|to| !to.starts_with(from) && !from.starts_with(to)).collect()
    };
    modules.iter().map(|(from, module)| (from, named(from, module))).collect()
}

/// All files that can be reached from a file, by what they name.
fn reached(from: &Names, named: &BTreeMap<&Names, BTreeSet<Names>>) -> BTreeSet<Names> {
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
        "kubernetes/csi-deploy",
        "kubernetes/csi-kube",
        "tools/csi-cli",
        "tools/csi-conformance",
    ] {
        let modules = modules(&root().join(name).join("src"));
        let named = files_named(&modules);
        let reached: BTreeMap<&Names, BTreeSet<Names>> =
            modules.keys().map(|file| (file, reached(file, &named))).collect();
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
