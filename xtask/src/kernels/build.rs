//! The programs for the machine, linked statically.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use super::suite::Suite;
use crate::artifacts::{self, Artifact};
use crate::{Failure, target};

/// The package of the machine's init process.
const INIT: &str = "guest";

/// The package and the name of the program with a Ceph cluster.
const CEPH: [&str; 2] = ["test-support", "ceph-outside"];

/// The built programs.
pub(crate) struct Programs {
    pub(crate) init: PathBuf,
    tests: BTreeMap<(String, String), PathBuf>,
    /// Programs that tests run from the path at which cargo put them.
    pub(crate) called: Vec<PathBuf>,
    /// The program with a Ceph cluster next to the machine, if a suite needs it. It is Ceph's programs in the guest.
    pub(crate) ceph: Option<PathBuf>,
}

impl Programs {
    pub(crate) fn of(&self, suite: &Suite) -> Result<&Path, Failure> {
        let program = self.tests.get(&(suite.package.to_owned(), suite.program().to_owned()));
        program
            .map(PathBuf::as_path)
            .ok_or_else(|| Failure::new(format!("{} has no test program {}", suite.package, suite.program())))
    }
}

pub(crate) fn build(root: &Path, suites: &[Suite]) -> Result<Programs, Failure> {
    let mut programs =
        Programs { init: PathBuf::new(), tests: BTreeMap::new(), called: Vec::new(), ceph: None };
    for artifact in cargo(root, &["build", "--package", INIT])? {
        programs.init = artifact.executable;
    }
    if suites.iter().any(|suite| suite.has_ceph) {
        let [package, name] = CEPH;
        let built = programs_of(root, &["build", "--package", package, "--bin", name])?;
        programs.ceph = built.into_iter().next();
    }
    let mut packages: Vec<&str> = suites.iter().map(|suite| suite.package).collect();
    packages.dedup();
    for package in packages {
        let mut args = vec!["test", "--no-run", "--package", package, "--all-features"];
        let of_package = suites.iter().filter(|suite| suite.package == package);
        for program in of_package.map(Suite::program).collect::<BTreeSet<_>>() {
            match program {
                "lib" => args.push("--lib"),
                test => args.extend(["--test", test]),
            }
        }
        for Artifact { kind, name, executable, .. } in cargo(root, &args)? {
            match kind.as_str() {
                "bin" => programs.called.push(executable),
                "test" => _ = programs.tests.insert((package.to_owned(), name), executable),
                _ => _ = programs.tests.insert((package.to_owned(), "lib".to_owned()), executable),
            }
        }
    }
    Ok(programs)
}

/// The programs that this `cargo build` makes, linked statically.
pub(crate) fn programs_of(root: &Path, args: &[&str]) -> Result<Vec<PathBuf>, Failure> {
    Ok(cargo(root, args)?.into_iter().map(|artifact| artifact.executable).collect())
}

/// Runs cargo with the settings of static programs, and returns the programs that it built.
fn cargo(root: &Path, args: &[&str]) -> Result<Vec<Artifact>, Failure> {
    let triple = target::host_triple()?;
    let folder = target::static_dir()?;
    let folder = folder.display().to_string();
    let args = [args, &["--target", &triple, "--target-dir", &folder]].concat();
    artifacts::build(root, &args, &target::STATIC_TESTS)
}
