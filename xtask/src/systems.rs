//! `cargo xtask test --systems NAME`: tests with programs and servers that other people wrote, on request only.

use std::path::Path;

use crate::Failure;
use crate::needs::{self, Install, Work};
use crate::step::Step;

/// A test program for one kind of system. Its target has `test = false`, so the ordinary run leaves it out.
struct System {
    name: &'static str,
    package: &'static str,
    test: &'static str,
    work: Work,
    /// What this machine lacks for it, one line each.
    missing: fn() -> Result<Vec<String>, Failure>,
}

const SYSTEMS: &[System] = &[
    System {
        name: "fuse",
        package: "csi-core",
        test: "systems_fuse",
        work: Work::FusePrograms,
        missing: needs::missing_for_fuse,
    },
    System {
        name: "ceph",
        package: "ceph",
        test: "by_ceph_fuse",
        work: Work::Ceph,
        missing: needs::missing_for_ceph,
    },
];

/// Installs what is missing if it can, and runs the tests of one kind of system.
///
/// # Errors
/// When a test failed, when nothing ran because something is missing, or when the name is unknown.
pub(crate) fn run(root: &Path, name: Option<&str>, install: Install) -> Result<(), Failure> {
    let system = named(name)?;
    needs::provide(&[system.work], install)?;
    let missing = (system.missing)()?;
    if !missing.is_empty() {
        let (package, test) = (system.package, system.test);
        return Err(Failure::usage(format!(
            "NOT RUN: {package}/{test}. It needs:\n  {}",
            missing.join("\n  ")
        )));
    }
    let args = ["test", "--package", system.package, "--all-features", "--test", system.test];
    // Each test prints what it found: rows for the documents.
    Step::cargo(system.test, args.into_iter().chain(["--", "--nocapture"])).run(root)
}

fn named(name: Option<&str>) -> Result<&'static System, Failure> {
    SYSTEMS.iter().find(|system| Some(system.name) == name).ok_or_else(|| {
        let names: Vec<&str> = SYSTEMS.iter().map(|system| system.name).collect();
        Failure::usage(format!("test --systems NAME: the names are: {}", names.join(", ")))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_name_lists_the_names() {
        assert_eq!(named(Some("fuse")).map(|system| system.test).ok(), Some("systems_fuse"));
        assert_eq!(named(Some("ceph")).map(|system| system.test).ok(), Some("by_ceph_fuse"));
        for name in [None, Some("fus"), Some("")] {
            let failure = named(name).err().expect("no such system").to_string();
            assert!(failure.ends_with("the names are: fuse, ceph"), "{failure}");
        }
    }
}
