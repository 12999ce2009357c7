//! What a run of cargo built: programs, by its messages.

use std::borrow::Cow;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use serde::Deserialize;

use crate::{Failure, step};

/// A program that cargo built, or found up to date.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Artifact {
    /// The folder of its package.
    pub(crate) folder: PathBuf,
    /// `bin`, `lib`, `test`, and so on: what the program was made from.
    pub(crate) kind: String,
    pub(crate) name: String,
    /// Whether it was built with a test harness.
    pub(crate) is_test: bool,
    pub(crate) executable: PathBuf,
}

impl Artifact {
    /// The name of its package, which is that of the folder.
    pub(crate) fn package(&self) -> Cow<'_, str> {
        self.folder.file_name().unwrap_or_default().to_string_lossy()
    }
}

#[derive(Deserialize)]
struct Message {
    manifest_path: PathBuf,
    target: Target,
    profile: Profile,
    executable: Option<PathBuf>,
}

#[derive(Deserialize)]
struct Target {
    kind: Vec<String>,
    name: String,
}

#[derive(Deserialize)]
struct Profile {
    test: bool,
}

/// Runs `cargo ARGS`, which builds, with its progress on our output. Returns the programs.
pub(crate) fn build(
    root: &Path,
    args: &[impl AsRef<str>],
    env: &[(&str, &str)],
) -> Result<Vec<Artifact>, Failure> {
    let args: Vec<&str> = args.iter().map(AsRef::as_ref).collect();
    let output = step::cargo()
        .args(&args)
        .arg("--message-format=json-render-diagnostics")
        .envs(env.iter().copied())
        .current_dir(root)
        .stderr(Stdio::inherit())
        .output()?;
    if !output.status.success() {
        return Err(Failure::new(format!("{}; repeat it with:\n  cargo {}", output.status, args.join(" "))));
    }
    Ok(String::from_utf8_lossy(&output.stdout).lines().filter_map(artifact).collect())
}

fn artifact(line: &str) -> Option<Artifact> {
    let Message { manifest_path, target, profile, executable } = serde_json::from_str(line).ok()?;
    Some(Artifact {
        folder: manifest_path.parent()?.to_owned(),
        kind: target.kind.into_iter().next()?,
        name: target.name,
        is_test: profile.test,
        executable: executable?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_of_cargo() {
        let line = |executable: &str| {
            format!(
                r#"{{"reason":"compiler-artifact","manifest_path":"/w/p/Cargo.toml","target":{{"kind":["test"],
                "name":"grow"}},"profile":{{"test":true}},"executable":{executable}}}"#
            )
        };
        let found = artifact(&line("\"/t/grow-1\"")).expect("a program");
        let wanted = Artifact {
            folder: "/w/p".into(),
            kind: "test".into(),
            name: "grow".into(),
            is_test: true,
            executable: "/t/grow-1".into(),
        };
        assert_eq!(found, wanted);
        assert_eq!(artifact(&line("null")), None);
        assert_eq!(artifact(r#"{"reason":"build-finished","success":true}"#), None);
    }
}
