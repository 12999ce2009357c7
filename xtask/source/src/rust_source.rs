//! The source of a crate, parsed and by module.

use std::collections::BTreeMap;
use std::path::Path;
use std::{fs, io};

use syn::{Attribute, Item, UseTree};

/// A path as names from the crate's root on: `sys`, `features`, `has`.
pub(crate) type Names = Vec<String>;

/// One name that a `use` declares.
pub(crate) struct Import {
    /// The path as it is written.
    pub(crate) path: Names,
    /// The name, perhaps after `as`; `*` for all names of a module.
    pub(crate) name: String,
}

/// Reads the files of a crate from `lib.rs` on, without modules that contain only tests, and without a
/// module `generated`.
pub(crate) fn read(src: &Path) -> io::Result<BTreeMap<Names, syn::File>> {
    let mut files = BTreeMap::new();
    read_file(src, &src.join("lib.rs"), Vec::new(), &mut files)?;
    Ok(files)
}

fn read_file(src: &Path, path: &Path, at: Names, files: &mut BTreeMap<Names, syn::File>) -> io::Result<()> {
    let failed = |error: &dyn std::fmt::Display| io::Error::other(format!("{}: {error}", path.display()));
    let text = fs::read_to_string(path).map_err(|error| failed(&error))?;
    let file = syn::parse_file(&text).map_err(|error| failed(&error))?;
    read_declared(src, &file.items, &at, files)?;
    files.insert(at, file);
    Ok(())
}

fn read_declared(
    src: &Path,
    items: &[Item],
    at: &Names,
    files: &mut BTreeMap<Names, syn::File>,
) -> io::Result<()> {
    for item in items {
        let Item::Mod(module) = item else { continue };
        let at = [&at[..], &[module.ident.to_string()]].concat();
        if is_test(&module.attrs) || at == ["generated"] {
            continue;
        }
        if let Some((_, items)) = &module.content {
            read_declared(src, items, &at, files)?;
            continue;
        }
        let folder = src.join(at.join("/"));
        let of_folder = folder.join("mod.rs");
        let path = if of_folder.exists() { of_folder } else { folder.with_extension("rs") };
        read_file(src, &path, at, files)?;
    }
    Ok(())
}

/// Whether an item exists only in tests: `#[cfg(test)]`.
pub(crate) fn is_test(attributes: &[Attribute]) -> bool {
    let is = |attribute: &Attribute| {
        attribute.path().is_ident("cfg")
            && attribute.parse_args::<syn::Ident>().is_ok_and(|word| word == "test")
    };
    attributes.iter().any(is)
}

/// The path from the crate's root on, of a path in the module `at`. None if it does not begin with `crate`,
/// `self` or `super`.
pub(crate) fn in_crate(at: &[String], path: &[String]) -> Option<Names> {
    let ups = path.iter().take_while(|name| *name == "super").count();
    match path.first()?.as_str() {
        "crate" => Some(path[1..].to_vec()),
        "self" => Some([at, &path[1..]].concat()),
        "super" => Some([&at[..at.len().checked_sub(ups)?], &path[ups..]].concat()),
        _ => None,
    }
}

/// All names that a `use` declares.
pub(crate) fn imports(tree: &UseTree) -> Vec<Import> {
    let mut imports = Vec::new();
    collect_imports(tree, &[], &mut imports);
    imports
}

fn collect_imports(tree: &UseTree, before: &[String], imports: &mut Vec<Import>) {
    let below = |name: &syn::Ident| match name.to_string() {
        name if name == "self" => before.to_vec(),
        name => [before, &[name]].concat(),
    };
    let (path, name) = match tree {
        UseTree::Path(path) => {
            let before = [before, &[path.ident.to_string()]].concat();
            return collect_imports(&path.tree, &before, imports);
        }
        UseTree::Group(group) => {
            return group.items.iter().for_each(|tree| collect_imports(tree, before, imports));
        }
        UseTree::Name(name) => (below(&name.ident), below(&name.ident).pop().unwrap_or_default()),
        UseTree::Rename(rename) => (below(&rename.ident), rename.rename.to_string()),
        UseTree::Glob(_) => (before.to_vec(), "*".to_owned()),
    };
    imports.push(Import { path, name });
}
