//! The modules of a crate, with macros expanded, and what a path in a module names.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use syn::visit::{self, Visit};
use syn::{Attribute, Item, ItemMacro};

use super::is_public;
use super::macros::Macro;
use super::signature::text;
use crate::rust_source::{self, Import, Names, imports, in_crate, is_test};

/// The longest chain of re-exports that is followed.
const DEPTH: usize = 8;

pub(crate) struct Crate {
    pub(crate) modules: BTreeMap<Names, Module>,
    macros: BTreeMap<String, Macro>,
    /// The macros with `#[macro_export]`.
    pub(crate) exported_macros: Vec<String>,
}

#[derive(Default)]
pub(crate) struct Module {
    pub(crate) items: Vec<Item>,
    /// The conditions on which the module and those around it exist.
    pub(crate) cfgs: Vec<String>,
    imports: Vec<(Import, bool, Vec<String>)>,
}

/// What a path in the crate names: a module, or an item of a module by its position.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Target {
    Module(Names),
    Item(Names, usize),
}

/// A public name of a module.
pub(crate) struct Export {
    pub(crate) name: String,
    pub(crate) target: Option<Target>,
    /// The path of a name that is another crate's, or in generated code.
    pub(crate) foreign: Option<String>,
    pub(crate) cfgs: Vec<String>,
}

impl Crate {
    pub(crate) fn read(src: &Path) -> io::Result<Self> {
        let mut files = rust_source::read(src)?;
        let mut this =
            Self { modules: BTreeMap::new(), macros: BTreeMap::new(), exported_macros: Vec::new() };
        files.values().for_each(|file| this.visit_file(file));
        this.add(Names::new(), Vec::new(), None, &mut files)
            .map_err(|error| io::Error::other(format!("{}: {error}", src.display())))?;
        Ok(this)
    }

    fn add(
        &mut self,
        at: Names,
        cfgs: Vec<String>,
        inline: Option<Vec<Item>>,
        files: &mut BTreeMap<Names, syn::File>,
    ) -> syn::Result<()> {
        let items = inline.or_else(|| Some(files.remove(&at)?.items)).unwrap_or_default();
        let mut module = Module { cfgs, ..Module::default() };
        for item in self.expanded(items)? {
            match item {
                Item::Use(item) => {
                    let own = cfgs_of(&item.attrs);
                    let each = imports(&item.tree).into_iter();
                    module.imports.extend(each.map(|import| (import, is_public(&item.vis), own.clone())));
                }
                Item::Mod(mut item) if !is_test(&item.attrs) => {
                    let cfgs = [&module.cfgs[..], &cfgs_of(&item.attrs)].concat();
                    let below = [&at[..], &[item.ident.to_string()]].concat();
                    self.add(below, cfgs, item.content.take().map(|(_, items)| items), files)?;
                    module.items.push(Item::Mod(item));
                }
                item => module.items.push(item),
            }
        }
        self.modules.insert(at, module);
        Ok(())
    }

    /// The items, with those that macros declare.
    fn expanded(&self, items: Vec<Item>) -> syn::Result<Vec<Item>> {
        let mut all = Vec::new();
        for item in items {
            let Item::Macro(item @ ItemMacro { ident: None, .. }) = item else {
                all.push(item);
                continue;
            };
            let name = item.mac.path.segments.last().map(|last| last.ident.to_string()).unwrap_or_default();
            if let Some(own) = self.macros.get(&name) {
                let declared = own
                    .expand(&item.mac.tokens)
                    .map_err(|error| syn::Error::new(error.span(), format!("{name}!: {error}")))?;
                all.extend(self.expanded(declared)?);
            } else if name == "bitflags" {
                all.extend(flags(&item.mac.tokens)?);
            }
        }
        Ok(all)
    }

    /// The public names of a module, with those of modules that it re-exports completely.
    pub(crate) fn exports(&self, at: &Names) -> Vec<Export> {
        let Some(module) = self.modules.get(at) else { return Vec::new() };
        let mut exports = Vec::new();
        for (index, item) in module.items.iter().enumerate() {
            let Some((name, attributes, visibility)) = declared(item) else { continue };
            if is_public(visibility) && !is_test(attributes) && !is_hidden_module(item) {
                let target = self.target(at, index);
                // An item's own line has its own conditions.
                let own = if matches!(item, Item::Mod(_)) { cfgs_of(attributes) } else { Vec::new() };
                let cfgs = [&module.cfgs[..], &own].concat();
                exports.push(Export { name, target: Some(target), foreign: None, cfgs });
            }
        }
        for (import, _, cfgs) in module.imports.iter().filter(|(_, is_public, _)| *is_public) {
            let cfgs = [&module.cfgs[..], cfgs].concat();
            let name = import.name.clone();
            let targets = self.resolve(at, &import.path, 0);
            if targets.is_empty() {
                let foreign = Some(import.path.join("::"));
                exports.push(Export { name, target: None, foreign, cfgs });
                continue;
            }
            for target in targets {
                match target {
                    Target::Module(from) if name == "*" => exports.extend(self.exports(&from)),
                    // A function of the same name is meant.
                    Target::Module(from) if !self.is_public_module(&from) => {}
                    target => {
                        let name = name.clone();
                        let cfgs = cfgs.clone();
                        exports.push(Export { name, target: Some(target), foreign: None, cfgs });
                    }
                }
            }
        }
        exports
    }

    fn is_public_module(&self, at: &Names) -> bool {
        let Some((name, above)) = at.split_last() else { return true };
        let items = &self.modules[above].items;
        items.iter().any(|item| match item {
            Item::Mod(module) => module.ident == name && is_public(&module.vis),
            _ => false,
        })
    }

    fn target(&self, at: &Names, index: usize) -> Target {
        match &self.modules[at].items[index] {
            Item::Mod(module) => Target::Module([&at[..], &[module.ident.to_string()]].concat()),
            _ => Target::Item(at.clone(), index),
        }
    }

    /// Everything that a path in a module names: a function and a module can have the same name. Nothing if
    /// it is another crate's.
    pub(crate) fn resolve(&self, at: &Names, path: &[String], depth: usize) -> Vec<Target> {
        let (mut found, rest) = match in_crate(at, path) {
            Some(path) => (vec![Target::Module(Names::new())], path),
            None => (vec![Target::Module(at.clone())], path.to_vec()),
        };
        for name in &rest {
            found = found
                .iter()
                .flat_map(|target| match target {
                    Target::Module(at) => self.named(at, name, depth),
                    Target::Item(..) => Vec::new(),
                })
                .collect();
        }
        found
    }

    fn named(&self, at: &Names, name: &str, depth: usize) -> Vec<Target> {
        let Some(module) = self.modules.get(at).filter(|_| depth < DEPTH) else { return Vec::new() };
        let is_it = |item: &Item| declared(item).is_some_and(|(declared, ..)| declared == name);
        let items = module.items.iter().enumerate().filter(|(_, item)| is_it(item));
        let mut found: Vec<_> = items.map(|(index, _)| self.target(at, index)).collect();
        for (import, ..) in &module.imports {
            if import.name == name {
                found.extend(self.resolve(at, &import.path, depth + 1));
            } else if import.name == "*" {
                for target in self.resolve(at, &import.path, depth + 1) {
                    if let Target::Module(from) = target {
                        found.extend(self.named(&from, name, depth + 1));
                    }
                }
            }
        }
        found.sort();
        found.dedup();
        found
    }
}

/// Collects the macros.
impl<'ast> Visit<'ast> for Crate {
    fn visit_item_macro(&mut self, item: &'ast ItemMacro) {
        if let Some(name) = &item.ident {
            if item.attrs.iter().any(|attribute| attribute.path().is_ident("macro_export")) {
                self.exported_macros.push(name.to_string());
            }
            // An invocation of a macro that cannot be read is an error.
            let own = Macro::read(item.mac.tokens.clone()).unwrap_or_default();
            self.macros.insert(name.to_string(), own);
        }
        visit::visit_item_macro(self, item);
    }
}

fn cfgs_of(attributes: &[Attribute]) -> Vec<String> {
    let cfgs = attributes.iter().filter(|attribute| attribute.path().is_ident("cfg"));
    cfgs.map(|attribute| format!(" #[{}]", text(&attribute.meta))).collect()
}

fn declared(item: &Item) -> Option<(String, &[Attribute], &syn::Visibility)> {
    let (name, attributes, visibility) = match item {
        Item::Const(item) => (&item.ident, &item.attrs, &item.vis),
        Item::Enum(item) => (&item.ident, &item.attrs, &item.vis),
        Item::Fn(item) => (&item.sig.ident, &item.attrs, &item.vis),
        Item::Mod(item) => (&item.ident, &item.attrs, &item.vis),
        Item::Static(item) => (&item.ident, &item.attrs, &item.vis),
        Item::Struct(item) => (&item.ident, &item.attrs, &item.vis),
        Item::Trait(item) => (&item.ident, &item.attrs, &item.vis),
        Item::Type(item) => (&item.ident, &item.attrs, &item.vis),
        _ => return None,
    };
    Some((name.to_string(), attributes, visibility))
}

/// Whether the item is a module that the documentation leaves out.
fn is_hidden_module(item: &Item) -> bool {
    let Item::Mod(module) = item else { return false };
    module
        .attrs
        .iter()
        .any(|attribute| attribute.path().is_ident("doc") && text(&attribute.meta) == "doc(hidden)")
}

/// The struct and the constants that `bitflags!` declares.
fn flags(tokens: &proc_macro2::TokenStream) -> syn::Result<Vec<Item>> {
    let rules = syn::parse_quote! {
        ($(#[$doc:meta])* $vis:vis struct $name:ident: $type:ty {
            $($(#[$each_doc:meta])* const $flag:ident = $value:expr;)*
        }) => {
            $(#[$doc])* $vis struct $name($type);
            impl $name { $(pub const $flag: Self = $value;)* }
        };
    };
    Macro::read(rules)?.expand(tokens)
}
