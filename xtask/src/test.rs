//! `cargo xtask test`: every test that this user can run, and a word about those left out.

use std::path::Path;

use crate::Failure;
use crate::members::{Member, members};
use crate::needs::{self, Privilege};
use crate::step::Step;

/// Packages whose integration tests all mount or attach devices.
const MOUNTING: &[&str] = &["csi-mount"];

/// Integration tests elsewhere that need root have names that start with this.
const ROOT_PREFIX: &str = "root_";

/// Unit tests that need root are in modules of this name.
const ROOT_MODULE: &str = "needs_root";

/// What was not run, in one line; `None` where everything was.
pub(crate) type LeftOut = Option<String>;

pub(crate) fn run(root: &Path) -> Result<(), Failure> {
    if let Some(left_out) = run_all(root)? {
        println!("{left_out}");
    }
    Ok(())
}

/// Runs the tests and says what was left out.
pub(crate) fn run_all(root: &Path) -> Result<LeftOut, Failure> {
    if Privilege::of_this_process()? == Privilege::Ordinary { ordinary(root) } else { privileged(root) }
}

fn privileged(root: &Path) -> Result<LeftOut, Failure> {
    let missing = needs::missing()?;
    if !missing.is_empty() {
        return Err(Failure::usage(format!(
            "the tests need what this machine lacks:\n  {}\nnothing was run",
            missing.join("\n  ")
        )));
    }
    Step::cargo("tests and doctests", ["test", "--workspace", "--all-features", "--no-fail-fast"])
        .run(root)?;
    Ok(None)
}

fn ordinary(root: &Path) -> Result<LeftOut, Failure> {
    let selection = Selection::of(&members(root)?)?;
    let mut args: Vec<String> =
        ["test", "--workspace", "--all-features", "--no-fail-fast", "--lib", "--bins"].map(Into::into).into();
    for name in &selection.run {
        args.extend(["--test".into(), name.clone()]);
    }
    args.extend(["--".into(), "--skip".into(), format!("{ROOT_MODULE}::")]);
    Step::cargo("tests that need no root", args).run(root)?;
    Step::cargo("doctests", ["test", "--workspace", "--all-features", "--doc"]).run(root)?;
    Ok(Some(format!(
        "NOT RUN, since they need root: unit tests in modules named {ROOT_MODULE}, and {}\nrun `cargo xtask test` as root for these",
        selection.left_out.join(" ")
    )))
}

/// Which integration tests an ordinary user runs.
#[derive(Debug, Default, PartialEq, Eq)]
struct Selection {
    run: Vec<String>,
    /// As `package/test`.
    left_out: Vec<String>,
}

impl Selection {
    fn of(members: &[Member]) -> Result<Self, Failure> {
        let mut tests = Vec::new();
        for member in members {
            for test in member.integration_tests()? {
                tests.push((member.name.clone(), test));
            }
        }
        Ok(Self::among(&tests))
    }

    fn among(tests: &[(String, String)]) -> Self {
        let needs_root =
            |package: &str, test: &str| MOUNTING.contains(&package) || test.starts_with(ROOT_PREFIX);
        // cargo selects by the test's name in all packages at once, so a name that needs root in one package
        // is left out in all.
        let root_names: Vec<&String> =
            tests.iter().filter(|(p, t)| needs_root(p, t)).map(|(_, t)| t).collect();
        let mut selection = Self::default();
        for (package, test) in tests {
            if root_names.contains(&test) {
                selection.left_out.push(format!("{package}/{test}"));
            } else if !selection.run.contains(test) {
                selection.run.push(test.clone());
            }
        }
        selection
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_needs_root_is_left_out_by_name() {
        let tests = [
            ("csi-core", "parse"),
            ("csi-core", "root_flow"),
            ("csi-mount", "bind"),
            ("csi-proto", "parse"),
            ("dirs", "bind"),
        ];
        let selection = Selection::among(&tests.map(|(p, t)| (p.to_owned(), t.to_owned())));
        assert_eq!(selection.run, ["parse"]);
        assert_eq!(selection.left_out, ["csi-core/root_flow", "csi-mount/bind", "dirs/bind"]);
    }
}
