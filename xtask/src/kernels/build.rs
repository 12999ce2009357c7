//! The programs for the machine, linked statically.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

use super::suites::Suite;
use crate::{Failure, target};

/// The package of the machine's init process.
const INIT: &str = "guest";

/// The built programs.
pub(crate) struct Programs {
    pub(crate) init: PathBuf,
    tests: BTreeMap<(String, String), PathBuf>,
    /// Programs that tests run from the path at which cargo put them.
    pub(crate) called: Vec<PathBuf>,
}

impl Programs {
    pub(crate) fn of(&self, suite: &Suite) -> Result<&Path, Failure> {
        let program = self.tests.get(&(suite.package.to_owned(), suite.test.to_owned()));
        program
            .map(PathBuf::as_path)
            .ok_or_else(|| Failure::new(format!("{} has no test program {}", suite.package, suite.test)))
    }
}

pub(crate) fn build(root: &Path, suites: &[Suite]) -> Result<Programs, Failure> {
    let mut programs = Programs { init: PathBuf::new(), tests: BTreeMap::new(), called: Vec::new() };
    for artifact in cargo(root, &["build", "--package", INIT])? {
        programs.init = artifact.executable;
    }
    let mut packages: Vec<&str> = suites.iter().map(|suite| suite.package).collect();
    packages.dedup();
    for package in packages {
        let mut args = vec!["test", "--no-run", "--package", package, "--all-features"];
        for suite in suites.iter().filter(|suite| suite.package == package) {
            match suite.test {
                "lib" if !args.contains(&"--lib") => args.push("--lib"),
                "lib" => {}
                test => args.extend(["--test", test]),
            }
        }
        for Artifact { kind, name, executable } in cargo(root, &args)? {
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

struct Artifact {
    kind: String,
    name: String,
    executable: PathBuf,
}

/// Runs cargo, with its progress on our output, and returns the programs that it built.
fn cargo(root: &Path, args: &[&str]) -> Result<Vec<Artifact>, Failure> {
    let output = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
        .args(args)
        .args([
            "--message-format=json-render-diagnostics",
            "--target",
            &target::host_triple()?,
            "--target-dir",
        ])
        .arg(target::static_dir()?)
        .envs(target::STATIC_TESTS)
        .current_dir(root)
        .stderr(Stdio::inherit())
        .output()?;
    if !output.status.success() {
        return Err(Failure::new(format!("cargo {}: {}", args.join(" "), output.status)));
    }
    Ok(String::from_utf8_lossy(&output.stdout).lines().filter_map(artifact).collect())
}

fn artifact(line: &str) -> Option<Artifact> {
    let message: Value = serde_json::from_str(line).ok()?;
    let executable = message.get("executable")?.as_str()?.into();
    let target = message.get("target")?;
    let text = |value: &Value| value.as_str().map(str::to_owned);
    Some(Artifact { kind: text(target.get("kind")?.get(0)?)?, name: text(target.get("name")?)?, executable })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_of_cargo() {
        let line = r#"{"reason":"compiler-artifact","target":{"kind":["test"],"name":"grow"},"executable":"/t/grow-1"}"#;
        let Artifact { kind, name, executable } = artifact(line).expect("an artifact");
        assert_eq!((kind.as_str(), name.as_str(), executable), ("test", "grow", "/t/grow-1".into()));
        assert!(artifact(r#"{"target":{"kind":["lib"],"name":"x"},"executable":null}"#).is_none());
    }
}
