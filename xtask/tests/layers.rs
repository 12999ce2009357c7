//! Folders are layers: each one imports only from folders that ARCHITECTURE.md lists above it.

#[path = "../src/rust_source.rs"]
mod rust_source;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use rust_source::{Names, imports, in_crate, is_test};
use syn::visit::{self, Visit};
use syn::{Item, ItemMod, ItemUse, Visibility};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask is in the workspace").to_owned()
}

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
struct Reader {
    at: Names,
    module: Module,
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
        self.module.named.extend(in_crate(&self.at, &names));
        visit::visit_path(self, path);
    }
}

fn read(src: &Path) -> BTreeMap<Names, Module> {
    let files = rust_source::read(src).expect("a readable crate");
    let modules = files.into_iter().map(|(at, file)| {
        let mut reader = Reader { at: at.clone(), module: Module::default() };
        reader.visit_file(&file);
        (at, reader.module)
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
    let text = fs::read_to_string(root().join("ARCHITECTURE.md")).expect("ARCHITECTURE.md");
    let heading = format!("### {name}");
    let part = text.split_once(&format!("{heading}\n")).unwrap_or_else(|| panic!("no {heading:?}")).1;
    let rows =
        part.lines().skip_while(|line| !line.starts_with("| `")).take_while(|line| line.starts_with('|'));
    let cells = rows.map(|row| row.split('`').nth(1).expect("a name in backticks"));
    cells.map(|cell| cell.trim_end_matches('/').trim_end_matches(".rs").to_owned()).collect()
}

fn no_import_runs_upward(name: &str, least: usize) {
    let (layers, modules) = (layers(name), read(&root().join(name).join("src")));
    let floor = |top: &String| {
        let floor = layers.iter().position(|layer| layer == top);
        floor.unwrap_or_else(|| panic!("{name}: {top} is not among the layers of ARCHITECTURE.md"))
    };
    let (mut imports, mut upward) = (0, Vec::new());
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

#[test]
fn no_import_of_csi_mount_runs_upward() {
    no_import_runs_upward("csi-mount", 300);
}

#[test]
fn no_import_of_csi_core_runs_upward() {
    no_import_runs_upward("csi-core", 150);
}
