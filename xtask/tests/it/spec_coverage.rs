//! Every requirement of the spec is cited by the code that fulfils it and by a test that shows it.

use std::fs;
use std::path::Path;

use crate::coverage::Coverage;

#[test]
fn every_requirement_is_kept_and_shown() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask is in the workspace");
    let coverage = Coverage::read(root).expect("a readable tree");
    let problems = coverage.problems();
    assert!(problems.is_empty(), "{}", problems.join("\n"));
    assert!(coverage.table().lines().count() > 200, "{}", coverage.table());
}

/// The problems of a small correct workspace after one text in it is replaced.
fn problems_with(file: &str, from: &str, to: &str) -> Vec<String> {
    let root = tempfile::tempdir().expect("a directory");
    let good = [
        (
            "docs/spec-coverage/node.md",
            "| id | requirement | kept by |\n|---|---|---|\n| a-b.one | It is. | both |\n| a-b.two | It is. | vendor |\n| a-b.kit | It is. | both |\n",
        ),
        ("docs/spec-coverage/README.md", "| id | kind | reason |\n|---|---|---|\n| a-b.two | open | So. |\n"),
        (
            "csi-core/src/lib.rs",
            "// spec: a-b.one\nfn one() {}\n// spec: a-b.kit\n/// - spec: `a-b.two`\nfn two() {}\n",
        ),
        ("csi-core/tests/shown.rs", "// spec: a-b.one\n#[test]\nfn shown() {}\n"),
        (
            "tools/csi-conformance/src/lib.rs",
            "const NAME: &str = \"Cargo.toml\";\ntests! { \"a\", \"S\";\n    Must \"It is\", is_so = so(A, B), [\"a-b.kit\"], [];\n}\n",
        ),
    ];
    for (name, text) in good {
        let path = root.path().join(name);
        fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
        let text = if name == file { text.replace(from, to) } else { text.to_owned() };
        fs::write(path, text).expect("a file");
    }
    Coverage::read(root.path()).expect("a readable tree").problems()
}

#[test]
fn each_way_to_be_wrong_is_told() {
    assert_eq!(problems_with("", "", ""), [""; 0]);
    let page = "docs/spec-coverage/node.md";
    let readme = "docs/spec-coverage/README.md";
    let code = "csi-core/src/lib.rs";
    let test = "csi-core/tests/shown.rs";
    for (file, from, to, due) in [
        (code, "// spec: a-b.one\n", "", "a-b.one is cited by no code"),
        (code, "/// - spec: `a-b.two`\n", "", "a-b.two is cited by no code"),
        (test, "// spec: a-b.one\n", "", "a-b.one is cited by no test"),
        (readme, "| a-b.two | open | So. |\n", "", "a-b.two is cited by no test"),
        (code, "a-b.one", "a-b.one, a-b.three", "csi-core/src/lib.rs:1: a-b.three is not a requirement"),
        (test, "a-b.one", "a-b.one, a-b.three", "csi-core/tests/shown.rs:1: a-b.three is not a requirement"),
        ("tools/csi-conformance/src/lib.rs", "Cargo.toml", "a-b.three", "a-b.three is not a requirement"),
        (page, "| a-b.kit | It is.", "| a-b.kit | Should: it is.", "a.is-so is a MUST, and none"),
        (page, "a-b.two", "a-b.one", "a-b.one occurs twice"),
        (page, "| both |", "| nobody |", "is kept by `nobody`"),
        (readme, "a-b.two", "a-b.three", "an exception for a-b.three"),
        (readme, "| open |", "| later |", "is `later`"),
    ] {
        let problems = problems_with(file, from, to);
        assert!(problems.iter().any(|problem| problem.contains(due)), "{due}: {problems:?}");
    }
}
