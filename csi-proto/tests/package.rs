//! A crate that depends on this one builds it without protoc and without a build script.

use std::path::Path;

#[test]
fn there_is_no_build_script() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    assert!(!root.join("build.rs").exists());
    let manifest = std::fs::read_to_string(root.join("Cargo.toml")).expect("the manifest");
    // The manifest of an archive says it with `build = false`.
    for line in manifest.lines().filter(|line| *line != "build = false") {
        assert!(!line.starts_with("build") && !line.starts_with("[build-dependencies"), "{line}");
    }
}
