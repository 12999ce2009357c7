//! The names in the documents exist in the tree.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path, PathBuf};

use crate::tree::{files, read, root, rows};

/// Everything between backticks.
fn quoted(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

/// Whether a file has a test function of this name.
fn has_test(source: &str, name: &str) -> bool {
    let head = format!("fn {name}(");
    let mut attributes = false;
    source.lines().map(str::trim).any(|line| {
        if line.trim_start_matches("async ").starts_with(&head) {
            return attributes;
        }
        // Other attributes can stand between.
        attributes = line.starts_with("#[test]")
            || line.starts_with("#[tokio::test")
            || attributes && line.starts_with("#[");
        false
    })
}

/// The cells of a document's numbered table: four per row, and the last names existing tests, of csi-mount
/// unless it says otherwise.
fn rows_with_tests(document: &str, count: usize) -> Vec<Vec<String>> {
    let rows = rows(&read(document), "| | ");
    assert_eq!(rows.len(), count, "{document}");
    let mut sources = BTreeMap::new();
    let mut missing = Vec::new();
    for (index, cells) in rows.iter().enumerate() {
        assert_eq!((cells.len(), &*cells[0]), (4, &*(index + 1).to_string()), "{cells:?}");
        let tests: Vec<_> = quoted(&cells[3]).filter_map(|word| word.split_once(".rs::")).collect();
        assert!(!tests.is_empty(), "no test: {cells:?}");
        for (file, name) in tests {
            let is_full = ["csi-", "examples/", "kubernetes/", "tools/", "xtask/"]
                .iter()
                .any(|start| file.starts_with(start));
            let path = root().join(if is_full { "" } else { "csi-mount" }).join(format!("{file}.rs"));
            let source: &String = sources.entry(path.clone()).or_insert_with(|| read(&path));
            if !has_test(source, name) {
                missing.push(format!("{}: {file}.rs::{name}", cells[0]));
            }
        }
    }
    assert!(missing.is_empty(), "{document}: no such tests: {missing:#?}");
    rows
}

#[test]
fn every_test_in_the_table_of_field_failures_exists() {
    for row in rows_with_tests("docs/field-failures.md", 35) {
        assert!(row[1].contains('#') || row[1].contains("a driver"), "no thread: {row:?}");
    }
}

#[test]
fn every_test_in_the_table_of_promises_exists() {
    rows_with_tests("docs/safety.md", 20);
}

#[test]
fn every_test_in_the_table_of_fuse_programs_in_pods_exists() {
    rows_with_tests("csi-mount/docs/fuse-tests.md", 12);
}

/// A test of csi-mount computes the rows.
#[test]
fn the_table_of_missed_data_is_the_computed_one() {
    let document = read("docs/safety.md");
    let rows = read("csi-mount/src/filesystem/probe/missed_data.txt");
    assert_eq!(rows.lines().count(), 6);
    for row in rows.lines() {
        assert!(document.lines().any(|line| line == row), "docs/safety.md lacks {row}");
    }
}

#[test]
fn no_test_is_ignored() {
    let mut sources = Vec::new();
    for member in
        ["csi-proto", "csi-core", "csi-mount", "kubernetes", "tools", "examples", "benches", "xtask"]
    {
        sources.extend(files(member, "rs"));
    }
    // What `csi new` writes is a vendor's, who may not be root.
    sources.retain(|file| !file.starts_with(root().join("tools/csi-cli/templates")));
    assert!(sources.len() > 150, "{} files", sources.len());
    let ignored =
        sources.iter().filter(|file| read(file).lines().any(|line| line.trim().starts_with("#[ignore")));
    let ignored: Vec<_> = ignored.collect();
    assert!(ignored.is_empty(), "{ignored:?}");
}

/// Packages come from the sources that the machine's own clients are configured for.
#[test]
fn no_file_names_a_host_to_fetch_from() {
    // Hosts in addresses that identify or explain something; nothing is downloaded from them.
    const KNOWN: [&str; 4] = ["www.isthe.com", "docs.rs", "example.org", "localhost"];
    let mut paths = vec![root().join(".ci/run"), root().join("Cargo.toml")];
    for extension in ["rs", "md", "toml", "yaml", "yml", "sh"] {
        paths.extend(files("", extension));
    }
    let mut hosts = BTreeMap::new();
    for path in paths {
        let text = read(&path).replace("{{organisation}}", "example.org");
        for rest in ["http://", "https://"].into_iter().flat_map(|scheme| text.split(scheme).skip(1)) {
            let is_of_host = |c: char| c.is_ascii_alphanumeric() || ['.', '-'].contains(&c);
            let host = rest.split(|c| !is_of_host(c)).next().unwrap_or_default().to_owned();
            hosts.entry(host).or_insert_with(|| path.clone());
        }
    }
    assert!(hosts.contains_key("docs.rs"), "this file has it, so files are read: {hosts:?}");
    hosts.retain(|host, _| {
        !host.is_empty() && !KNOWN.contains(&host.as_str()) && !host.ends_with(".example.org")
    });
    assert!(hosts.is_empty(), "{hosts:?}");
}

/// Every row names kernels, and the files with tests that it names run on the emulated kernels.
#[test]
fn every_fallback_names_tests_that_run_on_other_kernels() {
    let suites = read("xtask/src/kernels/suites.rs");
    let rows = rows(&read("docs/kernel-features.md"), "| feature ");
    assert_eq!(rows.len(), 27);
    let mut count = 0;
    for row in rows {
        let [feature, _, _, _, tests, kernels] = row.as_slice() else { panic!("six columns: {row:?}") };
        assert!(!kernels.is_empty(), "{feature}: on which kernel?");
        // Only files are checked here. Unit tests and single tests have their names in brackets or after words.
        let is_file = |name: &&str| {
            ["", "it/", "machines/"]
                .iter()
                .any(|folder| root().join(format!("csi-mount/tests/{folder}{name}.rs")).exists())
        };
        let files: Vec<&str> = quoted(tests).filter(is_file).collect();
        let is_run = |name: &&str| suites.contains(&format!("test: \"{name}\""));
        assert!(files.iter().all(is_run), "{feature}: {files:?}");
        count += files.len();
    }
    assert!(count > 20, "{count} files");
}

/// Lines of code: without blank lines and comments.
#[test]
fn the_short_examples_are_as_short_as_the_readme_says() {
    let readme = read("README.md");
    let sources: [(&str, usize, &[&str]); 4] = [
        ("block), ", 115, &["lib.rs", "main.rs"]),
        ("dirs), in ", 40, &["lib.rs", "main.rs"]),
        // Without its program.
        ("fuse), ", 80, &["lib.rs"]),
        ("secrets), ", 40, &["lib.rs"]),
    ];
    for (link, most, files) in sources {
        assert!(readme.contains(&format!("(examples/{link}{most} lines")), "{link}{most}");
        let folder = root().join("examples").join(link.split(')').next().unwrap_or_default()).join("src");
        let text: String = files.iter().map(|file| read(folder.join(file))).collect();
        let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with("//"));
        let count = lines.count();
        assert!((20..=most).contains(&count), "{}: {count} lines of code", folder.display());
    }
}

/// A hint is followed in a hurry: none names a way to lose what a device or directory holds.
#[test]
fn no_hint_advises_to_destroy_data() {
    let forbidden = [
        "erase",
        "wipefs",
        "blkdiscard",
        " dd",
        "mkfs.",
        "-f ",
        "--force",
        "xfs_repair -L",
        "zero-log",
        "rm -",
        "delete",
    ];
    let mut hints = 0;
    for package in ["csi-mount", "csi-core"] {
        for file in files(format!("{package}/src"), "rs") {
            let text = read(&file);
            for (at, _) in text.match_indices("hint(") {
                let hint = &text[at..];
                let end = hint.find(");").unwrap_or(hint.len()).min(hint.find("))").unwrap_or(hint.len()));
                hints += 1;
                for word in forbidden {
                    // A pod holds no data of the volume.
                    let texts = hint[..end].split('"').skip(1).step_by(2);
                    let mut texts = texts.map(|text| text.replace("delete its pod", ""));
                    let advises = texts.any(|text| text.contains(word));
                    assert!(!advises, "{}: {}", file.display(), &hint[..end]);
                }
            }
        }
    }
    assert!(hints > 100, "{hints}");
}

const SUMMARY: &str = "docs/SUMMARY.md";

/// The documents, as paths in the tree.
fn documents() -> Vec<PathBuf> {
    let found = files("", "md");
    found.iter().filter_map(|path| path.strip_prefix(root()).ok().map(Path::to_owned)).collect()
}

/// The text outside of code blocks.
fn prose(text: &str) -> String {
    text.split("```").step_by(2).collect()
}

/// The links of a page, without those to other hosts.
fn links(text: &str) -> Vec<String> {
    let prose = prose(text);
    let links = prose.split("](").skip(1).filter_map(|rest| rest.split(')').next());
    links.filter(|link| !link.contains("://")).map(str::to_owned).collect()
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
            part => path.push(part),
        }
    }
    Some(path)
}

/// The fragments of a page: its headings, as browsers of repositories and mdbook name them.
fn fragments(text: &str) -> BTreeSet<String> {
    let prose = prose(text);
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
    let mut broken = Vec::new();
    let mut count = 0;
    for page in documents() {
        for link in links(&read(&page)) {
            count += 1;
            let path = resolve(&page, &link).map(|path| root().join(path)).filter(|path| path.exists());
            let is_right = path.is_some_and(|path| match link.split_once('#') {
                Some((_, fragment)) => fragments(&read(&path)).contains(fragment),
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
fn the_summary_has_every_document() {
    let summary = read(SUMMARY);
    let pages: Vec<PathBuf> =
        links(&summary).iter().filter_map(|link| resolve(Path::new(SUMMARY), link)).collect();
    // A crate's changelog, and the front page of a library, are shown by a registry.
    let of_registry = ["csi-proto/README.md", "csi-core/README.md", "csi-mount/README.md"];
    let left_out: Vec<PathBuf> = documents()
        .into_iter()
        .filter(|path| !path.ends_with("CHANGELOG.md") && path != Path::new(SUMMARY))
        .filter(|path| !of_registry.iter().any(|page| path == Path::new(page)) && !pages.contains(path))
        .collect();
    assert!(left_out.is_empty(), "{SUMMARY} lacks {left_out:?}");
}
