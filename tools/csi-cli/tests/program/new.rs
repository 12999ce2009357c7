//! `csi new`: the project of a driver.

use std::fs;
use std::path::Path;
use std::process::Output;

use crate::support::*;

fn new(folder: &Path, words: &[&str]) -> Output {
    csi("/none".as_ref()).current_dir(folder).arg("new").args(words).output().unwrap()
}

fn files_below(folder: &Path) -> Vec<String> {
    let mut files = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(next) = folders.pop() {
        for entry in fs::read_dir(next).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else {
                files.push(path.strip_prefix(folder).unwrap().display().to_string());
            }
        }
    }
    files.sort();
    files
}

#[test]
fn a_project_has_its_names_and_its_next_commands() {
    let folder = tempfile::tempdir().unwrap();
    let output = ok(&new(folder.path(), &["files-csi", "--template", "directory"]));
    let next: Vec<&str> = output.lines().collect();
    let [made, commands @ ..] = next.as_slice() else { panic!("{output}") };
    assert_eq!(*made, "files-csi has the driver files-csi.csi.example.org. In this directory:");
    assert_eq!(
        commands,
        [
            "  cargo test",
            "  podman build --tag registry.example.org/files-csi:0.1.0 .",
            "  cargo run --features manifests -- manifests --image registry.example.org/files-csi:0.1.0 --to deploy",
        ]
    );
    let project = folder.path().join("files-csi");
    let files = files_below(&project);
    let due = [
        ".containerignore",
        ".github/workflows/ci.yml",
        ".gitignore",
        "Cargo.toml",
        "Containerfile",
        "README.md",
        "rustfmt.toml",
        "src/lib.rs",
        "src/main.rs",
        "tests/kit.rs",
        "tests/life.rs",
    ];
    assert_eq!(files, due);
    let text = |file: &str| fs::read_to_string(project.join(file)).unwrap();
    let manifest = text("Cargo.toml");
    let version = env!("CARGO_PKG_VERSION");
    assert!(manifest.contains("name = \"files-csi\""), "{manifest}");
    assert!(manifest.contains(&format!("csi-core = {{ version = \"{version}\", ")), "{manifest}");
    assert!(text("src/main.rs").contains("files_csi::plugin(&args)"));
    assert!(text("src/lib.rs").contains("const NAME: &str = \"files-csi.csi.example.org\";"));
}

#[test]
fn a_project_depends_on_the_given_toolkit_and_is_where_it_is_wanted() {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir_all(folder.path().join("toolkit/csi-core")).unwrap();
    fs::write(folder.path().join("toolkit/csi-core/Cargo.toml"), "").unwrap();
    fs::create_dir(folder.path().join("empty")).unwrap();
    let words = ["disks", "--template=attached", "--organisation=storage.example.com", "--path=empty"];
    ok(&new(folder.path(), &[&words[..], &["--toolkit", "toolkit"]].concat()));
    let manifest = fs::read_to_string(folder.path().join("empty/Cargo.toml")).unwrap();
    let toolkit = fs::canonicalize(folder.path().join("toolkit")).unwrap();
    for due in [
        format!("csi-core = {{ path = '{}/csi-core', ", toolkit.display()),
        format!("csi-conformance = {{ path = '{}/tools/csi-conformance', ", toolkit.display()),
        "description = \"The CSI driver disks.csi.storage.example.com\"".to_owned(),
    ] {
        assert!(manifest.contains(&due), "{due}: {manifest}");
    }
}

#[test]
fn what_can_not_become_a_project_is_refused_and_writes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join("mine")).unwrap();
    fs::write(folder.path().join("mine/file"), "data").unwrap();
    let long = "f".repeat(50);
    for (words, says) in [
        (
            &["mine", "--template=directory"][..],
            "mine is not empty, and was not changed: give another --path",
        ),
        (&["files"], "--template <TEMPLATE>"),
        (
            &["files", "--template=disk"],
            "[possible values: directory, block, attached, shared, fuse, ephemeral]",
        ),
        (&["Files", "--template=block"], "write lower-case letters"),
        (&["csi-core", "--template=block"], "a package that the driver depends on has this name"),
        (&["files", "--template=block", "--organisation=nobody"], "such as storage.example.org"),
        (&[&long, "--template=block"], "has 66 characters, and the spec allows 63"),
        (
            &["files", "--template=block", "--no-local"],
            "--no-local is for --template directory; block has --no-multi-writer and --no-expand",
        ),
        (
            &["files", "--template=block", "--toolkit=."],
            "/csi-core/Cargo.toml: give the directory of the toolkit",
        ),
    ] {
        let output = new(folder.path(), words);
        let errors = stderr(&output);
        assert_eq!(output.status.code(), Some(2), "{words:?}: {errors}");
        assert!(errors.contains(says) && output.stdout.is_empty(), "{words:?}: {errors}");
        assert_eq!(files_below(folder.path()), ["mine/file"], "{words:?}");
    }
    let shown = errors(&new(folder.path(), &["files", "--template=block", "--path=missing/files"]), 1);
    assert!(shown.contains("missing/files: No such file or directory"), "{shown}");
}
