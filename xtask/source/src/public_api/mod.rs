//! The public items of a crate, one line each (`docs/public-api/`).
//!
//! The list is read from the sources with `syn`, so it needs no compiler. It follows `pub mod` and `pub use`
//! from the crate's root, and expands the crate's own macros. A type in a signature is written as in the
//! source. The list does not show:
//!
//! - generated code (`csi-proto/src/generated/`; `cargo xtask codegen --check` compares it);
//! - what macros of other crates declare or derive, except the flags of `bitflags!` and the derived trait
//!   itself; what a macro declares inside an `impl` block;
//! - values of constants, and bodies of functions;
//! - modules with `#[doc(hidden)]`, and items that have no other path;
//! - traits that the compiler implements by itself, such as `Send`.

pub(crate) mod crate_source;
mod macros;
mod signature;

use std::collections::{BTreeMap, VecDeque};
use std::path::{Path, PathBuf};
use std::{fs, io};

use crate_source::{Crate, Target};
use signature::{Marks, fields_text, function, text};
use syn::{Fields, ImplItem, Item, ItemImpl, TraitItem, Visibility};

use crate::rust_source::Names;

/// The folders of the published libraries. The last part of each is the crate's name.
pub(crate) const CRATES: [&str; 8] = [
    "csi-proto",
    "csi-core",
    "csi-mount",
    "tools/csi-cli",
    "tools/csi-conformance",
    "kubernetes/csi-controllers",
    "kubernetes/csi-deploy",
    "kubernetes/csi-kube",
];

/// The name of the crate in this folder.
pub(crate) fn name(folder: &str) -> &str {
    folder.rsplit('/').next().unwrap_or(folder)
}

/// The file that has the list of a crate.
pub(crate) fn document(root: &Path, folder: &str) -> PathBuf {
    root.join("docs/public-api").join(name(folder)).with_extension("txt")
}

/// Writes the list of each published library.
pub(crate) fn write(root: &Path) -> crate::Result<()> {
    for folder in CRATES {
        let document = document(root, folder);
        fs::create_dir_all(document.parent().unwrap_or(root))?;
        fs::write(document, list(root, folder)?.join("\n") + "\n")?;
    }
    Ok(())
}

/// The lines of a crate's list.
pub(crate) fn list(root: &Path, folder: &str) -> io::Result<Vec<String>> {
    let source = Crate::read(&root.join(folder).join("src"))?;
    let name = name(folder).replace('-', "_");
    let mut listing =
        Listing { source: &source, paths: BTreeMap::new(), cfgs: BTreeMap::new(), lines: Vec::new() };
    listing.items(&name);
    listing.implementations(&name);
    let mut lines = listing.lines;
    lines.sort();
    lines.dedup();
    Ok(lines.into_iter().map(|(.., line)| line).collect())
}

struct Listing<'a> {
    source: &'a Crate,
    /// The shortest public path of each module and item.
    paths: BTreeMap<Target, String>,
    /// The conditions of each item, by its path.
    cfgs: BTreeMap<String, Vec<String>>,
    /// Lines, and by what they are sorted: the path, and whether it is an implementation of a trait.
    lines: Vec<(Names, bool, String)>,
}

impl Listing<'_> {
    fn line(&mut self, path: &str, line: String) {
        let path = path.split("::").map(str::to_owned).collect();
        self.lines.push((path, line.starts_with("impl"), line));
    }

    /// Lists all items, breadth first: the shortest path of an item is found first.
    fn items(&mut self, name: &str) {
        self.paths.insert(Target::Module(Names::new()), name.to_owned());
        let mut modules = VecDeque::from([(Names::new(), name.to_owned())]);
        while let Some((at, public)) = modules.pop_front() {
            for export in self.source.exports(&at) {
                let path = format!("{public}::{}", export.name);
                let cfgs = export.cfgs.concat();
                let known = export.target.as_ref().and_then(|target| self.paths.get(target)).cloned();
                match (export.target, known.or(export.foreign)) {
                    (_, Some(original)) => self.line(&path, format!("use {path} = {original}{cfgs}")),
                    (Some(Target::Module(module)), None) => {
                        self.line(&path, format!("mod {path}{cfgs}"));
                        self.paths.insert(Target::Module(module.clone()), path.clone());
                        modules.push_back((module, path));
                    }
                    (Some(Target::Item(at, index)), None) => {
                        self.item(&path, &self.source.modules[&at].items[index], &cfgs);
                        self.paths.insert(Target::Item(at, index), path.clone());
                        self.cfgs.insert(path, export.cfgs);
                    }
                    (None, None) => {}
                }
            }
        }
        for item in &self.source.exported_macros {
            self.line(&format!("{name}::{item}"), format!("macro {name}::{item}!"));
        }
    }

    fn item(&mut self, path: &str, item: &Item, cfgs: &str) {
        match item {
            Item::Struct(item) => {
                let is_hidden = item.fields.iter().any(|field| !is_public(&field.vis));
                let rest = if is_hidden { " { .. }" } else { "" };
                let generics = text(&item.generics);
                let bounds = text(&item.generics.where_clause);
                self.line(path, format!("struct {path}{generics}{bounds}{rest}{}{cfgs}", Marks(&item.attrs)));
                self.fields(path, &item.fields);
                self.derived(path, &item.attrs, &item.generics);
            }
            Item::Enum(item) => {
                let head = [text(&item.generics), text(&item.generics.where_clause)].concat();
                self.line(path, format!("enum {path}{head}{}{cfgs}", Marks(&item.attrs)));
                for variant in &item.variants {
                    let value = variant.discriminant.as_ref().map(|(_, value)| format!(" = {}", text(value)));
                    let name = &variant.ident;
                    let fields = fields_text(&variant.fields);
                    let value = value.unwrap_or_default();
                    let marks = Marks(&variant.attrs);
                    let line = format!("variant {path}::{name}{fields}{value}{marks}");
                    self.line(&format!("{path}::{name}"), line);
                }
                self.derived(path, &item.attrs, &item.generics);
            }
            Item::Trait(item) => {
                let above = if item.supertraits.is_empty() { "" } else { ": " };
                let bounds = [text(&item.supertraits), text(&item.generics.where_clause)].concat();
                let generics = text(&item.generics);
                let marks = Marks(&item.attrs);
                self.line(path, format!("trait {path}{generics}{above}{bounds}{marks}{cfgs}"));
                item.items.iter().for_each(|item| self.trait_item(path, item));
            }
            Item::Fn(item) => {
                self.line(path, format!("{}{}{cfgs}", function(path, &item.sig), Marks(&item.attrs)));
            }
            Item::Const(item) => {
                self.line(path, format!("const {path}: {}{}{cfgs}", text(&item.ty), Marks(&item.attrs)));
            }
            Item::Static(item) => {
                self.line(path, format!("static {path}: {}{}{cfgs}", text(&item.ty), Marks(&item.attrs)));
            }
            Item::Type(item) => {
                let generics = text(&item.generics);
                let ty = text(&item.ty);
                self.line(path, format!("type {path}{generics} = {ty}{}{cfgs}", Marks(&item.attrs)));
            }
            _ => {}
        }
    }

    fn fields(&mut self, path: &str, fields: &Fields) {
        for (index, field) in fields.iter().enumerate().filter(|(_, field)| is_public(&field.vis)) {
            let name = field.ident.as_ref().map_or_else(|| index.to_string(), ToString::to_string);
            let line = format!("field {path}::{name}: {}{}", text(&field.ty), Marks(&field.attrs));
            self.line(&format!("{path}::{name}"), line);
        }
    }

    fn trait_item(&mut self, path: &str, item: &TraitItem) {
        let given = |has: bool| if has { " (default)" } else { "" };
        let (name, line) = match item {
            TraitItem::Fn(item) => {
                let path = format!("{path}::{}", item.sig.ident);
                let line = function(&path, &item.sig) + given(item.default.is_some());
                (&item.sig.ident, format!("{line}{}", Marks(&item.attrs)))
            }
            TraitItem::Const(item) => {
                let line = format!("const {path}::{}: {}", item.ident, text(&item.ty));
                (&item.ident, line + given(item.default.is_some()))
            }
            TraitItem::Type(item) => {
                let above = if item.bounds.is_empty() { "" } else { ": " };
                let bounds = text(&item.bounds);
                (&item.ident, format!("type {path}::{}{}{above}{bounds}", item.ident, text(&item.generics)))
            }
            _ => return,
        };
        self.line(&format!("{path}::{name}"), line);
    }

    fn derived(&mut self, path: &str, attributes: &[syn::Attribute], generics: &syn::Generics) {
        let (parameters, arguments, _) = generics.split_for_impl();
        for attribute in attributes.iter().filter(|attribute| attribute.path().is_ident("derive")) {
            // What is no trait is not derived, and rustc says so.
            let _ = attribute.parse_nested_meta(|derived| {
                let name = &derived.path.segments[derived.path.segments.len() - 1].ident;
                let line = format!("impl{} {name} for {path}{}", text(&parameters), text(&arguments));
                self.line(path, line);
                Ok(())
            });
        }
    }

    fn implementations(&mut self, name: &str) {
        for (at, module) in &self.source.modules {
            for item in &module.items {
                let Item::Impl(item) = item else { continue };
                match &item.trait_ {
                    None => self.inherent(at, item, &module.cfgs),
                    Some((_, path, _)) => self.of_trait(at, item, path, name, &module.cfgs),
                }
            }
        }
    }

    /// The conditions that the line of the type itself does not have.
    fn more_cfgs(&self, path: &str, cfgs: &[String]) -> String {
        let known = self.cfgs.get(path).map_or(&[][..], Vec::as_slice);
        cfgs.iter().filter(|cfg| !known.contains(cfg)).cloned().collect()
    }

    fn inherent(&mut self, at: &Names, item: &ItemImpl, cfgs: &[String]) {
        let Seen::Public(path) = self.seen_type(at, &item.self_ty) else { return };
        let cfgs = self.more_cfgs(&path, cfgs);
        let head = [text(&item.generics), text(&item.generics.where_clause)].concat();
        let within = match &*head {
            "" => String::new(),
            _ => format!(
                " in impl{} {}{}",
                text(&item.generics),
                text(&item.self_ty),
                text(&item.generics.where_clause)
            ),
        };
        for member in &item.items {
            let (name, line, attributes) = match member {
                ImplItem::Fn(member) if is_public(&member.vis) => {
                    let name = &member.sig.ident;
                    (name, function(&format!("{path}::{name}"), &member.sig), &member.attrs)
                }
                ImplItem::Const(member) if is_public(&member.vis) => {
                    let name = &member.ident;
                    (name, format!("const {path}::{name}: {}", text(&member.ty)), &member.attrs)
                }
                _ => continue,
            };
            let line = format!("{line}{within}{}{}{cfgs}", Marks(attributes), Marks(&item.attrs));
            self.line(&format!("{path}::{name}"), line);
        }
    }

    /// Lists an implementation of a trait that callers can name, for a type that they can name. One of the
    /// two, or an argument of the trait, is this crate's.
    fn of_trait(&mut self, at: &Names, item: &ItemImpl, of: &syn::Path, name: &str, cfgs: &[String]) {
        let seen_trait = self.seen(at, of);
        let seen_type = self.seen_type(at, &item.self_ty);
        let Some(last) = of.segments.last() else { return };
        let arguments = match &last.arguments {
            syn::PathArguments::AngleBracketed(all) => all.args.iter().collect(),
            _ => Vec::new(),
        };
        let mut arguments = arguments.into_iter().map(|argument| match argument {
            syn::GenericArgument::Type(argument) => self.seen_type(at, argument),
            _ => Seen::Foreign,
        });
        let is_ours = matches!(seen_type, Seen::Public(_))
            || matches!(seen_trait, Seen::Public(_))
            || arguments.clone().any(|argument| matches!(argument, Seen::Public(_)));
        let is_private = [&seen_trait, &seen_type].iter().any(|seen| matches!(seen, Seen::Private))
            || arguments.any(|argument| matches!(argument, Seen::Private));
        if is_private || !is_ours {
            return;
        }
        let types = item.items.iter().filter_map(|member| match member {
            ImplItem::Type(member) => Some(format!("{} = {}", member.ident, text(&member.ty))),
            _ => None,
        });
        let path = match seen_type {
            Seen::Public(path) => path,
            _ => name.to_owned(),
        };
        let ty = match &*item.self_ty {
            syn::Type::Path(ty) if path != name => {
                path.clone() + &ty.path.segments.last().map(|last| text(&last.arguments)).unwrap_or_default()
            }
            ty => text(ty),
        };
        let generics = text(&item.generics);
        let bounds = text(&item.generics.where_clause);
        let types: Vec<_> = types.collect();
        let types = if types.is_empty() { String::new() } else { format!(" ({})", types.join(", ")) };
        let marks = Marks(&item.attrs);
        let cfgs = self.more_cfgs(&path, cfgs);
        let line = format!("impl{generics} {} for {ty}{bounds}{types}{marks}{cfgs}", text(last));
        self.line(&path, line);
    }

    fn seen_type(&self, at: &Names, ty: &syn::Type) -> Seen {
        match ty {
            syn::Type::Path(ty) => self.seen(at, &ty.path),
            syn::Type::Reference(ty) => self.seen_type(at, &ty.elem),
            _ => Seen::Foreign,
        }
    }

    fn seen(&self, at: &Names, path: &syn::Path) -> Seen {
        let names: Names = path.segments.iter().map(|segment| segment.ident.to_string()).collect();
        let targets = self.source.resolve(at, &names, 0);
        let is_type = |target: &&Target| match target {
            Target::Module(_) => false,
            Target::Item(at, index) => !matches!(self.source.modules[at].items[*index], Item::Fn(_)),
        };
        let mut types = targets.iter().filter(is_type).peekable();
        if types.peek().is_none() {
            return Seen::Foreign;
        }
        types
            .find_map(|target| self.paths.get(target))
            .map_or(Seen::Private, |path| Seen::Public(path.clone()))
    }
}

/// What callers see of a type or a trait.
enum Seen {
    Public(String),
    Private,
    /// It is another crate's.
    Foreign,
}

fn is_public(visibility: &Visibility) -> bool {
    matches!(visibility, Visibility::Public(_))
}
