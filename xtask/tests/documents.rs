//! The names in the documents exist in the tree.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask is in the workspace").to_owned()
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

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

/// The cells of a document's first table: four per row, and the last names existing tests, of csi-mount
/// unless it says otherwise.
fn rows_with_tests(document: &str, count: usize) -> Vec<Vec<String>> {
    let text = read(&root().join(document));
    let table =
        text.lines().skip_while(|line| !line.starts_with('|')).take_while(|line| line.starts_with('|'));
    let rows = table.filter(|line| line.starts_with("| ") && !line.starts_with("| | "));
    let rows: Vec<Vec<String>> = rows
        .map(|row| row.trim_matches('|').split(" | ").map(|cell| cell.trim().to_owned()).collect())
        .collect();
    assert_eq!(rows.len(), count, "{document}");
    let (mut sources, mut missing) = (BTreeMap::new(), Vec::new());
    for (index, cells) in rows.iter().enumerate() {
        assert_eq!((cells.len(), &*cells[0]), (4, &*(index + 1).to_string()), "{cells:?}");
        let tests: Vec<_> = quoted(&cells[3]).filter_map(|word| word.split_once(".rs::")).collect();
        assert!(!tests.is_empty(), "no test: {cells:?}");
        for (file, name) in tests {
            let is_full = ["csi-", "examples/"].iter().any(|start| file.starts_with(start));
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
    rows_with_tests("docs/safety.md", 19);
}

/// A test of csi-mount computes the rows.
#[test]
fn the_table_of_missed_data_is_the_computed_one() {
    let document = read(&root().join("docs/safety.md"));
    let rows = read(&root().join("csi-mount/src/filesystem/probe/missed_data.txt"));
    assert_eq!(rows.lines().count(), 6);
    for row in rows.lines() {
        assert!(document.lines().any(|line| line == row), "docs/safety.md lacks {row}");
    }
}

fn files(directory: &Path, extension: &str, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(directory).expect("a directory").map(|entry| entry.expect("an entry").path()) {
        if entry.is_dir() && !entry.ends_with("target") {
            files(&entry, extension, found);
        } else if entry.extension().is_some_and(|is| is == extension) {
            found.push(entry);
        }
    }
}

#[test]
fn no_test_is_ignored() {
    let mut sources = Vec::new();
    for member in [
        "abuse",
        "csi-proto",
        "csi-core",
        "csi-deploy",
        "csi-flexvolume",
        "csi-mount",
        "csi-conformance",
        "csi-kube",
        "csi-cli",
        "examples",
        "benches",
        "test-support",
        "xtask",
    ] {
        files(&root().join(member), "rs", &mut sources);
    }
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
    const KNOWN: [&str; 6] =
        ["www.w3.org", "www.apache.org", "www.isthe.com", "docs.rs", "example.org", "localhost"];
    let mut paths = vec![root().join(".ci/run"), root().join("Cargo.toml")];
    for (folder, extensions) in [(".", &["rs", "md", "toml", "yaml", "yml", "sh"][..]), ("docs", &["svg"])] {
        extensions.iter().for_each(|extension| files(&root().join(folder), extension, &mut paths));
    }
    let mut hosts = BTreeMap::new();
    for path in paths {
        let text = read(&path);
        for rest in ["http://", "https://"].into_iter().flat_map(|scheme| text.split(scheme).skip(1)) {
            let is_of_host = |c: char| c.is_ascii_alphanumeric() || ['.', '-'].contains(&c);
            let host = rest.split(|c| !is_of_host(c)).next().unwrap_or_default().to_owned();
            hosts.entry(host).or_insert_with(|| path.clone());
        }
    }
    assert!(hosts.contains_key("www.w3.org"), "the charts have it, so files are read: {hosts:?}");
    hosts.retain(|host, _| {
        !host.is_empty() && !KNOWN.contains(&host.as_str()) && !host.ends_with(".example.org")
    });
    assert!(hosts.is_empty(), "{hosts:?}");
}

/// Every row names kernels, and the test programs that it names run on the emulated kernels.
#[test]
fn every_fallback_names_tests_that_run_on_other_kernels() {
    let text = read(&root().join("docs/kernel-features.md"));
    let suites = read(&root().join("xtask/src/kernels/suites.rs"));
    let rows: Vec<Vec<&str>> = text
        .lines()
        .filter(|line| line.starts_with("| ") && !line.starts_with("| feature"))
        .map(|row| row.trim_matches('|').split(" | ").map(str::trim).collect())
        .collect();
    assert_eq!(rows.len(), 22);
    for row in rows {
        let [feature, _, _, _, tests, kernels] = row.as_slice() else { panic!("six columns: {row:?}") };
        assert!(!kernels.is_empty(), "{feature}: on which kernel?");
        // Only programs are checked here. Unit tests and single tests have their names in brackets or
        // after words.
        let programs: Vec<&str> =
            quoted(tests).filter(|name| root().join(format!("csi-mount/tests/{name}.rs")).exists()).collect();
        let is_run = |name: &&str| suites.contains(&format!("test: \"{name}\""));
        assert!(programs.iter().all(is_run), "{feature}: {programs:?}");
    }
}

/// Lines of code: without blank lines and comments.
#[test]
fn the_short_examples_are_as_short_as_the_readme_says() {
    let readme = read(&root().join("README.md"));
    let sources: [(&str, usize, &[&str]); 4] = [
        ("block), ", 120, &["lib.rs", "main.rs"]),
        ("dirs), in ", 40, &["lib.rs", "main.rs"]),
        // Without its program.
        ("fuse), ", 60, &["lib.rs"]),
        ("secrets), ", 40, &["lib.rs"]),
    ];
    for (link, most, files) in sources {
        assert!(readme.contains(&format!("(examples/{link}{most} lines")), "{link}{most}");
        let folder = root().join("examples").join(link.split(')').next().unwrap_or_default()).join("src");
        let text: String = files.iter().map(|file| read(&folder.join(file))).collect();
        let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with("//"));
        let count = lines.count();
        assert!((20..=most).contains(&count), "{}: {count} lines of code", folder.display());
    }
}
