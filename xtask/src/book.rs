//! `cargo xtask book`: the documents as a book with a search.
//!
//! `docs/SUMMARY.md` lists the pages, which are all over the tree. They are copied into the target folder, each
//! at its place in the tree, so that links between them hold. A link to anything else becomes plain text.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Component, Path, PathBuf};
use std::process::Command;

use crate::step::timed;
use crate::{Failure, needs, target};

const SUMMARY: &str = "docs/SUMMARY.md";

/// The version that this was tried with.
const INSTALL: &str = "cargo install mdbook --version 0.5.4 --locked --no-default-features --features search";

const CONFIG: &str = "\
[book]
title = \"CSI toolkit for Rust\"
language = \"en\"
src = \"src\"

[build]
build-dir = \"html\"
create-missing = false
# A page README.md keeps its name, so that links to it hold.
use-default-preprocessors = false

[output.html]
preferred-dark-theme = \"light\"
additional-css = [\"book.css\"]

[output.html.playground]
runnable = false
";

/// A phone is narrower than a picture whose text can be read: such a picture scrolls, as tables do.
const STYLE: &str = "\
main .table-wrapper { margin-block-end: 1.5rem; }
@media (max-width: 40rem) {
    main p:has(img) { overflow-x: auto; }
    main p img { min-width: 40rem; }
}
";

/// Builds the book into the target folder.
pub(crate) fn build(root: &Path) -> Result<(), Failure> {
    let folder = target::dir()?.join("book");
    if let Err(error) = fs::remove_dir_all(&folder)
        && error.kind() != std::io::ErrorKind::NotFound
    {
        return Err(error.into());
    }
    write_sources(root, &folder)?;
    let own = target::dir()?.join("tools/bin/mdbook");
    let Some(program) = needs::find("mdbook").or_else(|| own.is_file().then_some(own)) else {
        return Err(Failure::usage(format!("mdbook is missing; to install it: {INSTALL}")));
    };
    timed("book", || {
        let status = Command::new(program).arg("build").arg(&folder).status()?;
        if !status.success() {
            return Err(Failure::new(format!("mdbook: {status}")));
        }
        println!("    {}", folder.join("html/index.html").display());
        Ok(())
    })
}

fn write_sources(root: &Path, folder: &Path) -> Result<(), Failure> {
    let source = folder.join("src");
    let pages = pages(root)?;
    let place = |path: &Path| -> Result<PathBuf, Failure> {
        let place = source.join(path);
        fs::create_dir_all(place.parent().unwrap_or(&source))?;
        Ok(place)
    };
    for page in &pages {
        let text = fs::read_to_string(root.join(page))?;
        let mut files = BTreeSet::new();
        let text = map_links(&text, |link| {
            let path = resolve(page, link)?;
            if pages.contains(&path) {
                return Some(link.to_owned());
            }
            let is_shown = path
                .extension()
                .is_some_and(|end| ["svg", "yaml", "json", "txt"].iter().any(|one| end == *one));
            is_shown.then(|| {
                files.insert(path);
                link.to_owned()
            })
        });
        fs::write(place(page)?, text)?;
        for file in files {
            fs::copy(root.join(&file), place(&file)?)?;
        }
    }
    let summary = fs::read_to_string(root.join(SUMMARY))?;
    let summary = map_links(&summary, |link| Some(resolve(Path::new(SUMMARY), link)?.display().to_string()));
    fs::write(source.join("SUMMARY.md"), summary)?;
    fs::write(folder.join("book.toml"), CONFIG)?;
    fs::write(folder.join("book.css"), STYLE)?;
    Ok(())
}

/// The pages of the book, as paths in the tree.
fn pages(root: &Path) -> Result<Vec<PathBuf>, Failure> {
    let summary = fs::read_to_string(root.join(SUMMARY))?;
    Ok(links(&summary).iter().filter_map(|link| resolve(Path::new(SUMMARY), link)).collect())
}

/// The links of a document that are not in code.
fn links(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    map_links(text, |link| {
        found.push(link.to_owned());
        None
    });
    found
}

/// Replaces the link of each `[text](link)`. Without a new link, only the text stays. Code blocks stay as they
/// are, and so do links to other hosts and within the page.
fn map_links(text: &str, mut new: impl FnMut(&str) -> Option<String>) -> String {
    let mut out = String::new();
    for (at, block) in text.split("```").enumerate() {
        if at > 0 {
            out.push_str("```");
        }
        if at % 2 == 1 {
            out.push_str(block);
            continue;
        }
        let mut rest = block;
        while let Some(middle) = rest.find("](") {
            let (Some(end), Some(start)) = (rest[middle..].find(')'), rest[..middle].rfind('[')) else {
                break;
            };
            let (label, link) = (&rest[start + 1..middle], &rest[middle + 2..middle + end]);
            let before = &rest[..start];
            let is_other = link.contains("://") || link.starts_with('#');
            match if is_other { Some(link.to_owned()) } else { new(link) } {
                Some(link) => out.extend([before, "[", label, "](", &link, ")"]),
                None => out.extend([before.strip_suffix('!').unwrap_or(before), label]),
            }
            rest = &rest[middle + end + 1..];
        }
        out.push_str(rest);
    }
    out
}

/// The file that a link of this page leads to, as a path in the tree; `None` outside of the tree.
fn resolve(page: &Path, link: &str) -> Option<PathBuf> {
    let link = link.split('#').next().unwrap_or(link);
    if link.is_empty() {
        return Some(page.to_owned());
    }
    let mut path = PathBuf::new();
    for part in page.parent()?.join(link).components() {
        match part {
            Component::ParentDir => path.pop().then_some(())?,
            Component::CurDir => {}
            part => path.push(part),
        }
    }
    Some(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn root() -> &'static Path {
        Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask is in the workspace")
    }

    fn documents(folder: &Path, found: &mut BTreeSet<PathBuf>) {
        for entry in fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path()) {
            if entry.is_dir() && !entry.ends_with("target") && !entry.ends_with(".git") {
                documents(&entry, found);
            } else if entry.extension().is_some_and(|end| end == "md") {
                found.insert(entry.strip_prefix(root()).expect("in the tree").to_owned());
            }
        }
    }

    /// The fragments of a page: its headings, as browsers of repositories and mdbook name them.
    fn fragments(text: &str) -> BTreeSet<String> {
        let prose: String = text.split("```").step_by(2).collect();
        let headings = prose.lines().filter(|line| line.starts_with('#'));
        let fragment = |heading: &str| {
            let heading = heading.trim_start_matches('#').trim().to_lowercase();
            let kept = heading.chars().filter(|c| c.is_alphanumeric() || [' ', '-', '_'].contains(c));
            kept.map(|c| if c == ' ' { '-' } else { c }).collect()
        };
        headings.map(fragment).collect()
    }

    #[test]
    fn every_link_leads_to_a_file_and_a_heading() {
        let mut all = BTreeSet::new();
        documents(root(), &mut all);
        assert!(all.len() > 25, "{all:?}");
        let (mut broken, mut count) = (Vec::new(), 0);
        for page in &all {
            let text = fs::read_to_string(root().join(page)).expect("a page");
            let within = text.split("](#").skip(1).filter_map(|rest| rest.split_once(')'));
            let within = within.map(|(fragment, _)| format!("#{fragment}"));
            for link in links(&text).into_iter().chain(within) {
                count += 1;
                let path = resolve(page, &link).filter(|path| root().join(path).exists());
                let is_right = path.is_some_and(|path| match link.split_once('#') {
                    Some((_, fragment)) => fs::read_to_string(root().join(path))
                        .is_ok_and(|text| fragments(&text).contains(fragment)),
                    None => true,
                });
                if !is_right {
                    broken.push(format!("{}: {link}", page.display()));
                }
            }
        }
        assert!(count > 100, "only {count} links were found");
        assert!(broken.is_empty(), "{broken:#?}");
    }

    #[test]
    fn the_book_has_every_document() {
        let mut all = BTreeSet::new();
        documents(root(), &mut all);
        let pages: BTreeSet<PathBuf> = pages(root()).expect("the summary").into_iter().collect();
        // A crate's changelog, and the front page of a library, are shown by a registry.
        let is_of_registry = |path: &&PathBuf| {
            path.ends_with("CHANGELOG.md")
                || ["csi-proto", "csi-core", "csi-mount"]
                    .iter()
                    .any(|name| **path == Path::new(name).join("README.md"))
        };
        let left_out: Vec<_> = all
            .difference(&pages)
            .filter(|path| **path != Path::new(SUMMARY) && !is_of_registry(path))
            .collect();
        assert!(left_out.is_empty(), "{SUMMARY} lacks {left_out:?}");
    }

    #[test]
    fn a_link_out_of_the_book_becomes_text() {
        let text = "See [a](a.md), ![b](b.svg) and [c](https://docs.rs/c).\n```\n[d](d.md)\n```\n";
        let mapped = map_links(text, |link| (link == "a.md").then(|| "x/a.md".to_owned()));
        assert_eq!(mapped, "See [a](x/a.md), b and [c](https://docs.rs/c).\n```\n[d](d.md)\n```\n");
    }

    #[test]
    fn a_link_is_resolved_in_the_tree() {
        let page = Path::new("docs/a.md");
        assert_eq!(resolve(page, "../README.md#top"), Some("README.md".into()));
        assert_eq!(resolve(page, "b.md"), Some("docs/b.md".into()));
        assert_eq!(resolve(page, "../../etc"), None);
    }
}
