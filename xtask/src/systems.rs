//! `cargo xtask test --systems NAME`: tests with programs and servers that other people wrote, on request only.

use std::path::Path;

use crate::needs::{self, Install, Work};
use crate::step::Step;
use crate::{Failure, kernels, target};

/// A test program for one kind of system. Its target has `test = false`, so the ordinary run leaves it out.
struct System {
    name: &'static str,
    package: &'static str,
    test: &'static str,
    work: Work,
    /// The suite that runs the same on the newest kernel, in an emulated machine.
    in_machine: Option<&'static str>,
    /// A server in Go that some of its tests start.
    server: Option<GoServer>,
}

/// A server that Debian has no package of.
struct GoServer {
    package: &'static str,
    version: &'static str,
    /// The variable by which the tests find the program.
    variable: &'static str,
    /// The part of their names that the tests have which need it.
    tests: &'static str,
}

const S3: GoServer = GoServer {
    package: "github.com/versity/versitygw/cmd/versitygw",
    version: "v1.8.0",
    variable: "SYSTEMS_S3_SERVER",
    tests: "s3fs::",
};

const SYSTEMS: &[System] = &[
    System {
        name: "fuse",
        package: "csi-core",
        test: "systems_fuse",
        work: Work::FusePrograms,
        in_machine: None,
        server: Some(S3),
    },
    System {
        name: "ceph",
        package: "ceph",
        test: "by_ceph_fuse",
        work: Work::Ceph,
        in_machine: Some("ceph/by_kernel,remote_rbd"),
        server: None,
    },
];

/// Installs what is missing if it can, and runs the tests of one kind of system.
///
/// # Errors
/// When a test failed, when nothing ran because something is missing, or when the name is unknown.
pub(crate) fn run(root: &Path, name: Option<&str>, install: Install) -> Result<(), Failure> {
    let system = named(name)?;
    needs::provide(&[system.work], install)?;
    let missing = needs::missing_with_fuse(system.work)?;
    if !missing.is_empty() {
        let package = system.package;
        let test = system.test;
        return Err(Failure::usage(format!(
            "NOT RUN: {package}/{test}. It needs:\n  {}",
            missing.join("\n  ")
        )));
    }
    let args = ["test", "--package", system.package, "--all-features", "--test", system.test];
    // Each test prints what it found: rows for the documents.
    let args = args.into_iter().chain(["--", "--nocapture"]);
    match &system.server {
        None => Step::cargo(system.test, args).run(root)?,
        Some(server) if needs::find("go").is_some() => {
            let program = target::installed_by_go(server.package, server.version)?;
            Step::cargo(system.test, args).env(server.variable, program.display().to_string()).run(root)?;
        }
        Some(server) => {
            Step::cargo(system.test, args.chain(["--skip", server.tests])).run(root)?;
            // The line of the test program counts them: "filtered out".
            println!("NOT RUN: the tests {}, for which there is no Go toolchain (`go`)", server.tests);
        }
    }
    match system.in_machine {
        Some(suite) => kernels::run(root, &kernels::Choice::Named(kernels::NEWEST), suite, install).map(drop),
        None => Ok(()),
    }
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
