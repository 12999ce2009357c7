//! What a registry shows of each published crate, and what its users get with it.

use std::collections::BTreeSet;
use std::process::Command;

use serde_json::Value;

use crate::tree::{cargo, folder, list, metadata, published, read, root, text};

#[test]
fn every_crate_describes_itself() {
    let metadata = metadata(&["--no-deps"]);
    let repository = text(published(&metadata).next().expect("a crate"), "repository").to_owned();
    let mut count = 0;
    for package in published(&metadata) {
        let name = text(package, "name");
        assert!(!text(package, "description").is_empty(), "{name}");
        assert_eq!(text(package, "license"), "Apache-2.0", "{name}");
        assert_eq!(text(package, "documentation"), format!("https://docs.rs/{name}"));
        assert_eq!(text(package, "repository"), repository, "{name}");
        // The registry takes five keywords of 20 characters, and five categories.
        let keywords: Vec<&str> = list(package, "keywords").filter_map(Value::as_str).collect();
        assert!((3..=5).contains(&keywords.len()), "{name}: {keywords:?}");
        assert!(keywords.iter().all(|word| word.len() <= 20), "{name}: {keywords:?}");
        assert!((1..=5).contains(&list(package, "categories").count()), "{name}");
        let docs = &package["metadata"]["docs"]["rs"];
        assert_eq!(docs["all-features"], true, "{name}");
        assert!(list(docs, "targets").count() > 0, "{name}");
        count += 1;
    }
    assert_eq!(count, 10);
}

/// The address of the repository is decided in one file.
#[test]
fn only_the_workspace_names_the_repository() {
    let metadata = metadata(&["--no-deps"]);
    let repository = text(published(&metadata).next().expect("a crate"), "repository").to_owned();
    let mut git = Command::new("git");
    git.args(["grep", "--files-with-matches", "--fixed-strings", &repository]).current_dir(root());
    let output = git.output().expect("git runs");
    // In an archive of the tree git finds nothing.
    if output.status.success() {
        assert_eq!(String::from_utf8_lossy(&output.stdout), "Cargo.toml\n");
    }
}

#[test]
fn every_archive_has_its_documents_and_no_link_leaves_it() {
    let licence = read("LICENSE");
    for package in published(&metadata(&["--no-deps"])) {
        let name = text(package, "name");
        let list = cargo(&["package", "--list", "--allow-dirty", "--offline", "--package", name]);
        let files: BTreeSet<&str> = list.lines().collect();
        for file in ["LICENSE", "README.md", "CHANGELOG.md"] {
            assert!(files.contains(file), "{name} has no {file}");
        }
        assert_eq!(read(folder(package).join("LICENSE")), licence, "{name}");
        for file in files.iter().filter(|file| file.ends_with(".md")) {
            let source = read(folder(package).join(file));
            let links = source.split("](").skip(1).filter_map(|rest| rest.split_once(')'));
            for (link, _) in links.filter(|(link, _)| !link.contains("://") && !link.starts_with('#')) {
                let folder = file.rfind('/').map_or("", |end| &file[..=end]);
                assert!(files.contains(&*format!("{folder}{link}")), "{name}/{file}: {link}");
            }
        }
    }
}

/// The lines that a reader copies: the version is this one, and the features exist.
#[test]
fn dependency_lines_in_documents_are_true() {
    let metadata = metadata(&["--no-deps"]);
    let mut documents = vec![root().join("README.md")];
    documents.extend(published(&metadata).map(|package| folder(package).join("README.md")));
    let mut count = 0;
    for document in documents {
        let source = read(&document);
        for package in published(&metadata) {
            let name = text(package, "name");
            for line in source.lines().filter_map(|line| line.strip_prefix(&format!("{name} = "))) {
                let (version, rest) = match line.strip_prefix("{ version = ") {
                    Some(table) => table.split_once(',').expect("more than a version"),
                    None => (line, ""),
                };
                let version = version.trim_matches('"');
                let full = text(package, "version");
                assert!(full.starts_with(&format!("{version}.")), "{}: {line}", document.display());
                let features = rest.split_once("features = [").map_or("", |(_, features)| features);
                for feature in features.split('"').skip(1).step_by(2) {
                    let known = package["features"].get(feature);
                    assert!(known.is_some(), "{}: {name} has no {feature}", document.display());
                }
                count += 1;
            }
        }
    }
    assert!(count >= 6, "only {count} lines were found");
}

/// The release profile in the documents is the workspace's own.
#[test]
fn the_release_profile_in_documents_is_the_workspaces() {
    let manifest = read("Cargo.toml");
    let profile = |text: &str| {
        let (_, rest) = text.split_once("[profile.release]\n").expect("a profile");
        let end = rest.find("```").or_else(|| rest.find("\n# ")).expect("an end");
        rest[..end].trim().to_owned()
    };
    for document in ["README.md", "csi-core/README.md"] {
        assert_eq!(profile(&read(document)), profile(&manifest), "{document}");
    }
}

/// A dependency that says which Rust it needs does not need a newer one than the crate that uses it.
#[test]
fn no_dependency_needs_a_newer_rust() {
    let number = |version: &str| {
        let mut parts = version.split('.').map(|part| part.parse::<u32>().expect("a number"));
        (parts.next().expect("a major version"), parts.next().unwrap_or_default())
    };
    let metadata = metadata(&[]);
    let nodes: Vec<&Value> = list(&metadata["resolve"], "nodes").collect();
    for user in published(&metadata) {
        let own = number(text(user, "rust_version"));
        let mut ids = BTreeSet::from([text(user, "id")]);
        let mut queue: Vec<&str> = ids.iter().copied().collect();
        while let Some(id) = queue.pop() {
            let node = nodes.iter().find(|node| node["id"] == id).expect("a node");
            let is_used =
                |dependency: &&Value| list(dependency, "dep_kinds").any(|kind| kind["kind"] != "dev");
            for dependency in list(node, "deps").filter(is_used) {
                if ids.insert(text(dependency, "pkg")) {
                    queue.push(text(dependency, "pkg"));
                }
            }
        }
        assert!(ids.len() > 10, "{ids:?}");
        for package in list(&metadata, "packages").filter(|package| ids.contains(text(package, "id"))) {
            if let Some(needed) = package["rust_version"].as_str() {
                let name = &package["name"];
                let user = &user["name"];
                assert!(number(needed) <= own, "{name}, which {user} uses, needs Rust {needed}");
            }
        }
    }
}

/// The parts of a licence expression that are joined by `OR`, each as the licences that it requires.
fn choices(expression: &str) -> Vec<Vec<String>> {
    let expression = expression.replace('/', " OR ");
    // `(A OR B) AND C`: the only form with brackets.
    let (either, all) = match expression.strip_prefix('(').and_then(|rest| rest.split_once(") AND ")) {
        Some((either, all)) => (either.to_owned(), Some(all.to_owned())),
        None => (expression, None),
    };
    let required = |choice: &str| {
        let names = choice.split(" AND ").chain(all.as_deref());
        names.map(|name| name.trim().to_owned()).collect()
    };
    either.split(" OR ").map(required).collect()
}

#[test]
fn every_dependency_has_a_licence_of_the_list() {
    let config = read("deny.toml");
    let allowed = config.split_once("allow = [").and_then(|(_, rest)| rest.split_once(']'));
    let allowed: BTreeSet<&str> = allowed.expect("a list").0.split('"').skip(1).step_by(2).collect();
    let mut used = BTreeSet::new();
    let mut refused = Vec::new();
    let metadata = metadata(&[]);
    for package in list(&metadata, "packages").filter(|package| package["source"].is_string()) {
        let choices = choices(text(package, "license"));
        let is_allowed = |names: &&Vec<String>| names.iter().all(|name| allowed.contains(&**name));
        match choices.iter().find(is_allowed) {
            Some(names) => used.extend(choices.iter().flatten().chain(names).cloned()),
            None => refused.push(format!("{}: {}", text(package, "name"), text(package, "license"))),
        }
    }
    assert!(refused.is_empty(), "{refused:#?}");
    let unused: Vec<_> = allowed.iter().filter(|name| !used.contains(**name)).collect();
    assert!(unused.is_empty(), "{unused:?}");
}
