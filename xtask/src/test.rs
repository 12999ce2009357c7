//! `cargo xtask test`: runs every test that this user can run, and says which are left out.

use std::collections::BTreeMap;
use std::path::Path;

use crate::members::{Member, members};
use crate::needs::{self, Install, Privilege, Work};
use crate::step::timed;
use crate::{Failure, test_programs};

/// Packages in which all integration tests mount or attach devices.
const MOUNTING: &[&str] = &["csi-mount"];

/// The integration tests of these packages that mount nothing.
const SIMULATED: &[&str] = &["machine_simulated"];

/// The prefix of integration tests elsewhere that need root.
const ROOT_PREFIX: &str = "root_";

/// The module name of unit tests that need root.
const ROOT_MODULE: &str = "needs_root";

/// The counts of what was not run, and why; `None` if everything ran.
pub(crate) type LeftOut = Option<String>;

/// Installs what is missing if it can, runs all tests that this user and machine can run, and says what it
/// left out.
///
/// # Errors
/// When a test failed, or when root, who should run all tests, could not run all of them.
pub(crate) fn run(root: &Path, install: Install) -> Result<(), Failure> {
    needs::provide(&[Work::Tests], install)?;
    let is_ordinary = Privilege::of_this_process()? == Privilege::Ordinary;
    match run_all(root)? {
        None => Ok(()),
        Some(left_out) if is_ordinary => {
            println!("{left_out}");
            Ok(())
        }
        Some(left_out) => Err(Failure::usage(left_out)),
    }
}

/// Runs the tests, and returns what was left out.
pub(crate) fn run_all(root: &Path) -> Result<LeftOut, Failure> {
    let missing = needs::missing()?;
    if missing.is_empty() {
        let all = ["test", "--workspace", "--all-features"];
        timed("tests and doctests", || test_programs::run(root, &all, &[]))?;
        return Ok(None);
    }
    let selection = Selection::of(&members(root)?)?;
    selection.run(root)?;
    Ok(Some(selection.left_out_because(&missing)))
}

/// The integration tests of an ordinary user.
#[derive(Debug, Default, PartialEq, Eq)]
struct Selection {
    run: Vec<String>,
    /// As `package/test`.
    left_out: Vec<String>,
}

impl Selection {
    fn run(&self, root: &Path) -> Result<(), Failure> {
        let mut selection = vec!["test", "--workspace", "--all-features", "--lib", "--bins"];
        selection.extend(self.run.iter().flat_map(|name| ["--test", name]));
        let skip = ["--skip".to_owned(), format!("{ROOT_MODULE}::")];
        timed("tests that need no root, and doctests", || test_programs::run(root, &selection, &skip))
    }

    /// The number of test programs that were left out, by package, and what they need.
    fn left_out_because(&self, missing: &[String]) -> String {
        let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
        for test in &self.left_out {
            *counts.entry(test.split('/').next().unwrap_or(test)).or_default() += 1;
        }
        let counts: Vec<String> =
            counts.iter().map(|(package, count)| format!("{package} {count}")).collect();
        format!(
            "NOT RUN: {} test programs ({}), and the unit tests in modules named {ROOT_MODULE}.\nThey need:\n  {}",
            self.left_out.len(),
            counts.join(", "),
            missing.join("\n  ")
        )
    }

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
        let needs_root = |package: &str, test: &str| {
            MOUNTING.contains(&package) && !SIMULATED.contains(&test) || test.starts_with(ROOT_PREFIX)
        };
        // cargo selects tests by name in all packages at once, so a name that needs root in one package is
        // left out in all.
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
            ("csi-mount", "machine_simulated"),
            ("csi-proto", "parse"),
            ("dirs", "bind"),
        ];
        let selection = Selection::among(&tests.map(|(p, t)| (p.to_owned(), t.to_owned())));
        assert_eq!(selection.run, ["parse", "machine_simulated"]);
        assert_eq!(selection.left_out, ["csi-core/root_flow", "csi-mount/bind", "dirs/bind"]);
        let said = selection.left_out_because(&["root: run it with sudo".to_owned()]);
        assert!(said.starts_with("NOT RUN: 3 test programs (csi-core 1, csi-mount 1, dirs 1)"), "{said}");
        assert!(said.ends_with("They need:\n  root: run it with sudo"), "{said}");
    }
}
