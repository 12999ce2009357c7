//! The spec's requirements (`docs/spec-coverage/`), and the code and tests that cite them.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::{fs, io};

/// The crates whose code implements requirements, and that have tests for them.
const KEEPERS: [&str; 3] = ["csi-proto", "csi-core", "csi-mount"];

/// Folders with more tests.
const SHOWN_BY: [&str; 3] = ["examples", "benches", "xtask/tests"];

/// The tests of the conformance kit have the ids as strings.
const CONFORMANCE: &str = "tools/csi-conformance/src";

pub(crate) struct Requirement {
    page: String,
    id: String,
    text: String,
    keeper: String,
}

impl Requirement {
    /// Whether the spec requires it of a plugin.
    fn is_must(&self) -> bool {
        !self.text.contains("Should:") && !self.text.contains("Practice:")
    }
}

/// A test of the kit with the level MUST, and the ids that it cites.
struct KitMust {
    test: String,
    ids: Vec<String>,
}

/// The requirements in the tables, the places that cite them, and the problems.
#[derive(Default)]
pub(crate) struct Coverage {
    requirements: Vec<Requirement>,
    /// The id and the kind.
    exceptions: Vec<(String, String)>,
    code: BTreeMap<String, BTreeSet<String>>,
    tests: BTreeMap<String, BTreeSet<String>>,
    kit: Vec<KitMust>,
}

impl Coverage {
    /// Reads the tables and the sources of a workspace.
    pub(crate) fn read(root: &Path) -> io::Result<Self> {
        let mut this = Self::default();
        let folder = root.join("docs/spec-coverage");
        for path in files(&folder, "md")? {
            let page = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
            let text = fs::read_to_string(&path)?;
            for cells in rows(&text) {
                match (page.as_str(), cells.as_slice()) {
                    ("README", [id, kind, _reason]) => this.exceptions.push((id.clone(), kind.clone())),
                    (_, [id, text, keeper]) => this.requirements.push(Requirement {
                        page: page.clone(),
                        id: id.clone(),
                        text: text.clone(),
                        keeper: keeper.clone(),
                    }),
                    _ => {}
                }
            }
        }
        for member in KEEPERS.iter().chain(&SHOWN_BY) {
            for path in files(&root.join(member), "rs")? {
                let name = path.strip_prefix(root).unwrap_or(&path).display().to_string();
                let is_test_file = name.split('/').any(|part| part == "tests") || name.ends_with("/tests.rs");
                this.read_source(&name, &fs::read_to_string(&path)?, is_test_file);
            }
        }
        for path in files(&root.join(CONFORMANCE), "rs")? {
            let name = path.strip_prefix(root).unwrap_or(&path).display().to_string();
            this.read_registry(&name, &fs::read_to_string(&path)?);
        }
        Ok(this)
    }

    fn read_source(&mut self, name: &str, text: &str, is_test_file: bool) {
        let lines: Vec<&str> = text.lines().map(str::trim).collect();
        for (at, line) in lines.iter().enumerate() {
            let Some(ids) = cited(line) else { continue };
            let is_test = is_test_file || stands_before_a_test(&lines[at..]);
            let found = if is_test { &mut self.tests } else { &mut self.code };
            for id in ids {
                found.entry(id.to_owned()).or_default().insert(format!("{name}:{}", at + 1));
            }
        }
    }

    /// Finds ids in quotes. A word with a dot whose first part is no topic of the tables is not an id.
    fn read_registry(&mut self, name: &str, text: &str) {
        let topics: BTreeSet<String> =
            self.requirements.iter().map(|one| topic(&one.id).to_owned()).collect();
        let mut group = "";
        for (at, line) in text.lines().enumerate() {
            if let Some((_, rest)) = line.split_once("tests! { \"") {
                group = rest.split('"').next().unwrap_or_default();
            }
            let quoted: Vec<&str> = line.split('"').skip(1).step_by(2).collect();
            let cited = quoted.into_iter().filter(|word| is_id(word) && topics.contains(topic(word)));
            let ids: Vec<String> = cited.map(str::to_owned).collect();
            for id in &ids {
                self.tests.entry(id.clone()).or_default().insert(format!("{name}:{}", at + 1));
            }
            if let Some(row) = line.trim_start().strip_prefix("Must \"") {
                let name = row.split("\", ").nth(1).and_then(|rest| rest.split([',', ' ']).next());
                let test = format!("{group}.{}", name.unwrap_or_default().replace('_', "-"));
                self.kit.push(KitMust { test, ids });
            }
        }
    }

    fn requirement(&self, id: &str) -> Option<&Requirement> {
        self.requirements.iter().find(|one| one.id == id)
    }

    /// All problems, one line each.
    pub(crate) fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        let mut known = BTreeSet::new();
        for Requirement { id, keeper, page, .. } in &self.requirements {
            if !is_id(id) {
                problems
                    .push(format!("{page}: `{id}` is not an id: words and dashes, a dot, words and dashes"));
            }
            if !known.insert(id.as_str()) {
                problems.push(format!("{page}: {id} occurs twice"));
            }
            if !["framework", "vendor", "both"].contains(&keeper.as_str()) {
                problems.push(format!("{page}: {id} is kept by `{keeper}`: framework, vendor or both"));
            }
            if !self.code.contains_key(id) {
                problems.push(format!("{page}: {id} is cited by no code (`// spec: {id}`)"));
            }
            if !self.tests.contains_key(id) && !self.is(id, "open") && !self.is(id, "no test") {
                problems.push(format!("{page}: {id} is cited by no test (`// spec: {id}`)"));
            }
        }
        for (id, kind) in &self.exceptions {
            if !known.contains(id.as_str()) {
                problems.push(format!("README: an exception for {id}, which is not a requirement"));
            }
            if !["departure", "no test", "open"].contains(&kind.as_str()) {
                problems.push(format!("README: {id} is `{kind}`: departure, no test or open"));
            }
        }
        for KitMust { test, ids } in &self.kit {
            if !ids.iter().filter_map(|id| self.requirement(id)).any(Requirement::is_must) {
                problems.push(format!("the kit: {test} is a MUST, and none of its requirements is one"));
            }
        }
        for (id, places) in self.code.iter().chain(&self.tests) {
            if !known.contains(id.as_str()) {
                let places: Vec<_> = places.iter().map(String::as_str).collect();
                problems.push(format!("{}: {id} is not a requirement", places.join(", ")));
            }
        }
        problems
    }

    fn is(&self, id: &str, kind: &str) -> bool {
        self.exceptions.iter().any(|(excepted, of)| excepted == id && of == kind)
    }

    /// Each requirement with the number of places that cite it, and the number of requirements.
    pub(crate) fn table(&self) -> String {
        let mut text = String::new();
        for Requirement { id, keeper, .. } in &self.requirements {
            let number = |found: &BTreeMap<String, BTreeSet<String>>| found.get(id).map_or(0, BTreeSet::len);
            let code = number(&self.code);
            let tests = number(&self.tests);
            let kinds = self.exceptions.iter().filter(|(excepted, _)| excepted == id);
            let mut notes: Vec<&str> = kinds.map(|(_, kind)| kind.as_str()).collect();
            if tests > 0 && self.is(id, "open") {
                notes.push("but shown: its row in README.md can go");
            }
            let notes = notes.join(", ");
            _ = writeln!(text, "{id:<60} {keeper:<10} code {code:>2}  tests {tests:>2}  {notes}");
        }
        _ = writeln!(
            text,
            "\n{} requirements\n\nthe kit: each MUST, and what it stands on",
            self.requirements.len()
        );
        for KitMust { test, ids } in &self.kit {
            for one in ids.iter().filter_map(|id| self.requirement(id)).filter(|one| one.is_must()) {
                _ = writeln!(text, "{test:<52} {}: {}", one.id, one.text);
            }
        }
        _ = writeln!(text, "{} of the kit's tests are a MUST", self.kit.len());
        text
    }
}

/// The cells of a table's rows, without the heading.
fn rows(text: &str) -> impl Iterator<Item = Vec<String>> {
    text.lines()
        .filter(|line| line.starts_with("| ") && !line.starts_with("| id |"))
        .map(|line| line.trim_matches('|').split(" | ").map(|cell| cell.trim().to_owned()).collect())
}

/// The ids in a line, if the line is a citation.
fn cited(line: &str) -> Option<impl Iterator<Item = &str>> {
    let comment = line.strip_prefix("//")?.trim_start_matches(['/', '!']).trim_start();
    // In rustdoc a citation is a list item, so that each stays on its own line.
    let ids = comment.trim_start_matches("- ").strip_prefix("spec: ")?;
    Some(ids.split(',').map(|id| id.trim().trim_matches('`')).filter(|id| !id.is_empty()))
}

/// Whether the first lines after the comments are the attributes of a test.
fn stands_before_a_test(lines: &[&str]) -> bool {
    lines
        .iter()
        .skip_while(|line| line.starts_with("//"))
        .take_while(|line| line.starts_with("#["))
        .any(|line| line.starts_with("#[test]") || line.starts_with("#[tokio::test"))
}

fn topic(id: &str) -> &str {
    id.split('.').next().unwrap_or_default()
}

fn is_id(text: &str) -> bool {
    let is_words = |part: &str| {
        !part.is_empty()
            && part.split('-').all(|word| {
                !word.is_empty() && word.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit())
            })
    };
    text.split_once('.').is_some_and(|(topic, rule)| is_words(topic) && is_words(rule))
}

/// The files below a directory with this extension, sorted; none if the directory does not exist.
fn files(directory: &Path, extension: &str) -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    if directory.is_dir() {
        for entry in fs::read_dir(directory)? {
            let path = entry?.path();
            if path.is_dir() && !path.ends_with("target") {
                found.extend(files(&path, extension)?);
            } else if path.extension().is_some_and(|is| is == extension) {
                found.push(path);
            }
        }
    }
    found.sort();
    Ok(found)
}
