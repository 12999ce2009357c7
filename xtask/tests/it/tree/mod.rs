//! The files of the workspace, for the tests that compare documents and code.

#![allow(dead_code, reason = "each test program uses a part of it")]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

pub(crate) fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask is in the workspace")
}

/// The text of a file, by its path in the workspace or its full path.
pub(crate) fn read(path: impl AsRef<Path>) -> String {
    let path = root().join(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The files below a folder of the workspace that have this extension, without target folders.
pub(crate) fn files(folder: impl AsRef<Path>, extension: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    collect(&root().join(folder), extension, &mut found);
    found
}

fn collect(folder: &Path, extension: &str, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.is_dir() && !path.ends_with("target") {
            collect(&path, extension, found);
        } else if path.extension().is_some_and(|is| is == extension) {
            found.push(path);
        }
    }
}

/// The cells of the rows of each table in a Markdown text whose heading begins like this.
pub(crate) fn rows(text: &str, heading: &str) -> Vec<Vec<String>> {
    let tables = text.split("\n\n").filter(|part| part.starts_with(heading));
    let cells = |row: &str| row.trim_matches('|').split(" | ").map(|cell| cell.trim().to_owned()).collect();
    tables.flat_map(|table| table.lines().skip(2)).map(cells).collect()
}

/// The output of cargo in the workspace.
pub(crate) fn cargo(args: &[&str]) -> String {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo).args(args).current_dir(root()).output().expect("cargo runs");
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}

/// What is built here: packages for other platforms do not have to be on this machine.
pub(crate) fn metadata(args: &[&str]) -> Value {
    let platform = "--filter-platform=x86_64-unknown-linux-gnu";
    let all = ["metadata", "--format-version=1", "--offline", "--all-features", platform];
    serde_json::from_str(&cargo(&[&all[..], args].concat())).expect("JSON")
}

pub(crate) fn list<'a>(value: &'a Value, name: &str) -> impl Iterator<Item = &'a Value> {
    value[name].as_array().unwrap_or_else(|| panic!("no list {name}")).iter()
}

pub(crate) fn text<'a>(value: &'a Value, name: &str) -> &'a str {
    value[name].as_str().unwrap_or_else(|| panic!("no text {name} in {}", value["name"]))
}

pub(crate) fn published(metadata: &Value) -> impl Iterator<Item = &Value> {
    let members: BTreeSet<&str> = list(metadata, "workspace_members").filter_map(Value::as_str).collect();
    let is_published =
        move |package: &&Value| package["publish"].is_null() && members.contains(text(package, "id"));
    list(metadata, "packages").filter(is_published)
}

/// The folder of a package.
pub(crate) fn folder(package: &Value) -> &Path {
    Path::new(text(package, "manifest_path")).parent().expect("a folder")
}
