//! The workspace's packages, as cargo lists them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::Failure;

/// A package of the workspace.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Member {
    pub(crate) name: String,
    dir: PathBuf,
    /// Its features, without `default`.
    pub(crate) features: Vec<String>,
}

/// All packages of the workspace.
pub(crate) fn members(root: &Path) -> Result<Vec<Member>, Failure> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let args = ["tree", "--workspace", "--depth=0", "--prefix=none", "--all-features", "--format={p}|{f}"];
    let output = Command::new(cargo).args(args).current_dir(root).output()?;
    if !output.status.success() {
        return Err(Failure::new(String::from_utf8_lossy(&output.stderr)));
    }
    let text = String::from_utf8_lossy(&output.stdout);
    let members: Vec<Member> = text.lines().filter_map(parse).collect();
    if members.is_empty() {
        return Err(Failure::new(format!("cargo tree lists no package:\n{text}")));
    }
    Ok(members)
}

/// Parses a line such as `csi-core v0.1.0 (/path/csi-core)|default,mount`.
fn parse(line: &str) -> Option<Member> {
    let (package, features) = line.split_once('|')?;
    let (name, _) = package.split_once(' ')?;
    let (_, dir) = package.strip_suffix(')')?.rsplit_once('(')?;
    let features = features.split(',').filter(|f| !f.is_empty() && *f != "default").map(Into::into).collect();
    Some(Member { name: name.to_owned(), dir: dir.into(), features })
}

impl Member {
    /// The names of its integration tests: `tests/NAME.rs` and `tests/NAME/main.rs`.
    pub(crate) fn integration_tests(&self) -> Result<Vec<String>, Failure> {
        let tests = self.dir.join("tests");
        if !tests.is_dir() {
            return Ok(Vec::new());
        }
        let mut names = Vec::new();
        for entry in fs::read_dir(tests)? {
            let path = entry?.path();
            let is_test = path.extension().is_some_and(|e| e == "rs") || path.join("main.rs").is_file();
            if let (true, Some(name)) = (is_test, path.file_stem()) {
                names.push(name.to_string_lossy().into_owned());
            }
        }
        names.sort();
        Ok(names)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_cargo_tree() {
        let member = |name: &str, features: &[&str]| {
            let features = features.iter().copied().map(String::from).collect();
            Some(Member { name: name.to_owned(), dir: "/w/x y".into(), features })
        };
        assert_eq!(parse("a v0.1.0 (/w/x y)|client,default,server"), member("a", &["client", "server"]));
        assert_eq!(parse("b v0.1.0 (proc-macro) (/w/x y)|"), member("b", &[]));
        assert_eq!(parse(""), None);
    }
}
